"""Scenes with images, grids and goals as player processes: what a trainer sees of them, and a short run of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from jaxrl.envs.unity.simulator import make_unity
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.interface import start_areas
from jaxrl.jax_envs.served.launcher import make_player
from jaxrl.types import Action
from tests import trainer

pytestmark = trainer.MARKS


@pytest.mark.parametrize(
    "name", ["grid_world", *(pytest.param(name, marks=pytest.mark.slow) for name in ("food_collector", "match3"))]
)
def test_a_trainer_sees_what_the_scene_shows(name: str, tmp_path: Path) -> None:
    """Specs with dtype, axes and goal; the first observations bit for bit; random play until an episode is cut off."""
    env, areas, seed = ENVIRONMENTS[name](), 2, 7
    arguments = {"file_name": str(make_player(name, tmp_path)), "base_port": trainer.free_ports(1), "num_areas": areas}
    factory = partial(make_unity, arguments | {"log_folder": str(tmp_path)}, seed, True, False)
    action, random = env.spec.action, np.random.default_rng(0)
    behavior = f"{env.name}?team=0"
    with EnvPool(factory, 1, inline=True) as pool:
        pool.reset({})
        (result,) = pool.recv()
        assert result.new_specs == {behavior: env.spec}
        shown, asked = result.steps[behavior].deciding.obs, 0
        assert [x.dtype for x in shown] == [sensor.dtype for sensor in env.spec.observations]
        _, view = start_areas(env, jax.random.fold_in(jax.random.key(seed), 0), areas, usual(env.parameters, areas))
        for seen, made in zip(shown, view.obs, strict=True):
            np.testing.assert_array_equal(seen, np.asarray(made).reshape(seen.shape))
        for _ in range(5):
            deciding = result.steps[behavior].deciding
            n, asked = len(deciding.agent_id), asked + len(deciding.agent_id)
            assert all(
                {*np.unique(x)} <= {0, 255} for x in deciding.obs if x.dtype == np.uint8 and name != "grid_world"
            )
            discrete = [random.choice(np.flatnonzero(mask)) for mask in deciding.action_mask]
            continuous = random.normal(size=(n, action.continuous_size)).astype(np.float32)
            pool.send(0, {behavior: Action(continuous, np.array(discrete, np.int32).reshape(n, 1))})
            (result,) = pool.recv()
        assert asked == 5 * areas * env.members


def usual(parameters, areas: int) -> dict[str, np.ndarray]:
    return {name: np.full(areas, value, np.float32) for name, value in parameters.items()}


@pytest.mark.parametrize(
    ("name", "behavior", "kind", "encoder"),
    [
        pytest.param("grid_world", "GridWorld", "ppo", "simple", marks=pytest.mark.slow),
        pytest.param("food_collector", "FoodCollector", "poca", "simple", marks=pytest.mark.slow),
        pytest.param("match3", "Match3VisualObs", "ppo", "match3", marks=pytest.mark.slow),
        pytest.param("match3_vector", "Match3VectorObs", "ppo", "simple", marks=pytest.mark.slow),
    ],
)
def test_a_short_run_with_a_player(tmp_path: Path, name: str, behavior: str, kind: str, encoder: str) -> None:
    settings = {
        "behaviors": {
            behavior: {
                "trainer_type": kind,
                "hyperparameters": {"batch_size": 32, "buffer_size": 128, "num_epoch": 1},
                "network_settings": {"hidden_units": 8, "num_layers": 1, "vis_encode_type": encoder},
                "max_steps": 300,
            }
        },
        "env_settings": {"env_path": f"player:{name}", "num_areas": 4, "seed": 1},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    assert trainer.train(path, tmp_path) == 0
    assert (tmp_path / "run" / f"{behavior}.onnx").is_file()

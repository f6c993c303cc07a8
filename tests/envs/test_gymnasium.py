"""`gymnasium:ID`: real environments of Gymnasium, inline and in worker processes."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.envs.foreign.environment import area_seeds
from jaxrl.envs.foreign.simulator import make_environment
from jaxrl.envs.gymnasium import simulator
from jaxrl.envs.gymnasium.simulator import check, open_area
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import EnvironmentSettings, RunSettings, SettingsError
from jaxrl.training.checks import check_environment_settings
from jaxrl.types import Action

ROOT = Path(__file__).parents[2]


def factory(name: str, **settings: Any):
    arguments = settings.pop("arguments", {})
    usual = {"seed": 3, "timeout": 10.0}
    return partial(make_environment, partial(open_area, name, arguments), f"gymnasium:{name}", **usual | settings)


def test_pendulum_goes_as_gymnasium_steps_it_itself():
    """-1 to 1 becomes -2 to 2, the 200th step cuts, and the last observation is the true one."""
    env = factory("Pendulum-v1")(0)
    message = env.reset()
    twin = gymnasium.make("Pendulum-v1")
    obs, _ = twin.reset(seed=area_seeds(3, 1)[0])
    np.testing.assert_array_equal(message.steps["Pendulum-v1"].deciding.obs[0][0], obs)
    for step in range(200):
        sent = np.float32(np.sin(step))
        message = env.step({"Pendulum-v1": Action(np.full((1, 1), sent), np.zeros((1, 0), np.int32))})
        obs, reward, _, cut, _ = twin.step(np.array([2.0 * sent], np.float32))
        steps = message.steps["Pendulum-v1"]
        mine = steps.ended if cut else steps.deciding
        np.testing.assert_array_equal(mine.obs[0][0], obs)
        np.testing.assert_allclose(mine.reward, [reward], rtol=1e-6)
    assert steps.ended.truncated.tolist() == [True] and len(steps.deciding.agent_id) == 1
    env.close()


def test_same_seed_same_numbers_in_workers_of_their_own():
    """Two pools of two workers with two copies each agree in every number, and no two copies are alike."""
    seen = []
    for _ in range(2):
        with EnvPool(factory("CartPole-v1", areas=2), 2) as pool:
            pool.reset()
            rows = []
            for _ in range(30):
                results = pool.recv(2)
                for result in results:
                    deciding = result.steps["CartPole-v1"].deciding
                    rows.append(deciding.obs[0].copy())
                    n = len(deciding.agent_id)
                    action = Action(np.zeros((n, 0), np.float32), np.ones((n, 1), np.int32))
                    pool.send(result.worker, {"CartPole-v1": action})
            pool.recv(2)
            seen.append(np.stack(rows))
    np.testing.assert_array_equal(*seen)
    first = seen[0][:2].reshape(4, 4)
    assert len({tuple(row) for row in first.tolist()}) == 4


def test_an_environment_of_a_module_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(gymnasium.registry, "own/Game-v0", raising=False)  # another test's
    (tmp_path / "own_game.py").write_text(
        "import gymnasium\n"
        "class Game(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(3)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def __init__(self, start=0): self.start = start\n"
        "    def reset(self, seed=None, options=None): return self.start, {}\n"
        "    def step(self, action): return 1, 0.0, False, False, {}\n"
        "gymnasium.register('own/Game-v0', entry_point=Game)\n"
    )
    check("own_game:own/Game-v0")
    message = factory("own_game:own/Game-v0", arguments={"start": 2})(0).reset()
    assert message.steps["Game-v0"].deciding.obs[0].tolist() == [[0, 0, 1]]
    with pytest.raises(EnvironmentFailure, match=r"making it raised TypeError: .*'sart'"):
        factory("own_game:own/Game-v0", arguments={"sart": 2})(0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CartPole-v7", r"gymnasium:CartPole-v7: no such environment, did you mean gymnasium:CartPole-v"),
        ("no_module_of_this_name:Game-v0", "module no_module_of_this_name cannot be imported: ModuleNotFoundError"),
        ("", "no such environment"),
    ],
)
def test_unknown_environments_are_refused_before_anything_starts(name, words):
    with pytest.raises(UnknownEnvironmentError, match=words):
        check(name)
    with pytest.raises(SettingsError, match=f"env_settings.env_path: .*{words}"):
        check_environment_settings(EnvironmentSettings(env_path=f"gymnasium:{name}"))


def test_arguments_are_refused_before_anything_starts():
    settings = RunSettings(env_settings=EnvironmentSettings(env_path="gymnasium:CartPole-v1", env_args=("fast",)))
    with pytest.raises(ArgumentsError, match="got 'fast', expected key=value"):
        simulator.make_factory("CartPole-v1", settings, "")


@pytest.mark.parametrize(("key", "value"), [("render", True), ("video_every", 1)])
def test_drawing_is_refused_where_jaxrl_does_not_draw(key, value):
    settings = EnvironmentSettings.model_validate({"env_path": "player:basic", key: value})
    with pytest.raises(SettingsError, match=f"env_settings.{key}: got .* with env_path player:basic: only gymnasium"):
        check_environment_settings(settings)
    check_environment_settings(settings.model_copy(update={"env_path": "gymnasium:CartPole-v1"}))


def test_a_worker_imports_no_jax():
    code = (
        "import sys; from jaxrl.envs.gymnasium.simulator import make_factory; from jaxrl.settings import RunSettings\n"
        "make_factory('CartPole-v1', RunSettings(env_settings={'seed': 0}), '')(0).reset()\n"
        "import jaxrl.envs.pettingzoo.area\n"
        "print([name for name in ('jax', 'flax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Exception, match=r"gymnasium:CartPole-v1 needs .* pip install 'jaxrl\[gymnasium\]'"):
        check("CartPole-v1")

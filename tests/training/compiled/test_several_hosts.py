"""`jaxrl train --hosts`: several processes learn what one learns, seeds bit for bit, areas up to the order of sums."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import yaml

from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import require_latest
from jaxrl.settings import SettingsError
from jaxrl.training.compiled import placing
from jaxrl.training.spread import over_all, told
from tests.trainer import free_ports

ROOT = Path(__file__).parents[3]
NAME = "SimpleSpread"
SETTINGS = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 256, "learning_rate": 0.001, "num_epoch": 1},
            "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
            "max_steps": 2000, "checkpoint_interval": 1000, "summary_freq": 1000, "keep_best": "Policy/Entropy",
        }
    },
    "env_settings": {"num_areas": 4, "seed": 7, "env_path": "jax:simple_spread"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "each", "seeds", "areas", "shape"),
    [
        (1, 4, 8, 3, (4, 1)),  # one host: seeds over devices, as many as divide them
        (1, 4, 6, 4, (3, 1)),
        (1, 4, 1, 6, (1, 3)),
        (2, 2, 2, 4, (2, 2)),  # more devices than seeds: they share areas
        (2, 2, 1, 8, (1, 4)),
        (2, 2, 2, 5, (2, 1)),  # not with these areas: one device of each host
        (4, 1, 2, 4, (2, 2)),
    ],
)
def test_devices_are_shared_by_seeds_and_areas(
    hosts: int, each: int, seeds: int, areas: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "Mesh", lambda devices, axes: devices)
    devices = [SimpleNamespace(process_index=host, id=i) for host in range(hosts) for i in range(each)]
    mesh = placing.mesh_of(devices, seeds, areas)
    assert mesh.shape == shape
    used = [device.process_index for device in mesh.flat]
    assert [used.count(host) for host in range(hosts)] == [mesh.size // hosts] * hosts


@pytest.mark.parametrize(("hosts", "leagues", "shape"), [(1, 1, (1, 1)), (1, 2, (2, 1)), (2, 1, (1, 4))])
def test_a_league_lies_on_one_device_of_a_host(
    hosts: int, leagues: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "Mesh", lambda devices, axes: devices)
    devices = [SimpleNamespace(process_index=host, id=i) for host in range(hosts) for i in range(2)]
    assert placing.mesh_of(devices, 3 * leagues, 8, together=3).shape == shape


TWO_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
from jaxrl.algorithms import ALGORITHMS
from tests.tools.tournament.bids import make_bids
from jaxrl.training.compiled.trainer import make_jitted_trainer
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation
play = {"save_steps": 8, "team_change": 40, "swap_steps": 8, "window": 2}
small = {"hyperparameters__buffer_size": 16, "hyperparameters__batch_size": 8, "hyperparameters__num_epoch": 1}
settings = settings_of("ppo", {**small, "network_settings__hidden_units": 4, "network_settings__num_layers": 1,
                               "self_play": play})
env = make_bids()
with quick_compilation():
    trainer = make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings, areas=2, seeds=1)
    state = trainer.init([3])
    for _ in range(3):
        state, _ = trainer.run(state, 1)
print(trainer.devices, int(state.iteration[0]))
"""


def test_self_play_goes_on_where_the_areas_of_a_seed_lie_on_two_devices() -> None:
    """What comes out of a program lies where the next call takes it."""
    place = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES], env=place, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.stdout.split() == ["2", "3"], ended.stderr


def test_a_host_with_nothing_to_do_is_refused() -> None:
    devices = [SimpleNamespace(process_index=host, id=host) for host in range(2)]
    with pytest.raises(SettingsError, match=r"3 seed\(s\) of 5 areas \(num_areas\) cannot be spread over 2 hosts"):
        placing.mesh_of(devices, 3, 5)


def test_arrays_and_keys_arrive_whole() -> None:
    mesh = placing.mesh_of(jax.devices()[:1], 2, 4)
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(placing.SEEDS))
    state = {"x": np.arange(6.0, dtype=np.float32).reshape(2, 3), "key": jax.random.split(jax.random.key(3))}
    found = over_all(state, {"x": place, "key": place})
    np.testing.assert_array_equal(found["x"], state["x"])
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(state["key"]))
    assert found["x"].sharding == place and told(lambda: {"a": [1]}) == {"a": [1]}


Train = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """(run id, hosts, flags) → the arrays of the last checkpoint, once all have ended."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    place = {"PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}

    def run(run_id: str, hosts: int, *flags: str, like: str | None = None) -> dict[str, np.ndarray]:
        if like is not None:
            shutil.copytree(folder / "results" / like, folder / "results" / run_id)
        address, processes = f"127.0.0.1:{free_ports()}", []
        for index in range(hosts):
            where = ["--hosts", address, "--host-id", str(index), "--host-count", str(hosts)] if hosts > 1 else []
            where += ["--results-dir", "nowhere"] if index else []
            words = [sys.executable, "-m", "jaxrl.cli", "train", "config.yaml", "--run-id", run_id, *where, *flags]
            output = (folder / f"{run_id}.{index}").open("w")
            processes.append(
                subprocess.Popen(words, cwd=folder, env=os.environ | place, stdout=output, stderr=subprocess.STDOUT)
            )
            output.close()
        codes = [process.wait(600) for process in processes]
        assert codes == [0] * hosts, [(folder / f"{run_id}.{index}").read_text() for index in range(hosts)]
        if hosts > 1:
            assert "Step" not in (folder / f"{run_id}.1").read_text(), "one process talks"
            assert not (folder / "nowhere").exists(), "and writes"
        return checkpoint.read_arrays(require_latest(folder / "results" / run_id / NAME))

    return run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_learn_what_one_does_with_its_seeds_and_go_on_as_one(train: Train) -> None:
    one, two = train("one", 1, "--seeds", "2"), train("two", 2, "--seeds", "2")
    assert {name for name in one if one[name].tobytes() != two[name].tobytes()} == set()
    more = "--seeds", "2", "--resume", "--set", "max_steps=3000"
    first, second = train("one-on", 1, *more, like="two"), train("two-on", 2, *more, like="one")
    assert {name for name in first if first[name].tobytes() != second[name].tobytes()} == set()
    assert any(one[name].tobytes() != first[name].tobytes() for name in one)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("hosts", "seeds"), [(2, 1), (4, 2)])
def test_areas_over_hosts_differ_by_the_order_of_sums(train: Train, hosts: int, seeds: int) -> None:
    """Relative to 1 + |x|, after 2,000 steps."""
    one = train(f"whole{hosts}", 1, "--seeds", str(seeds))
    several = train(f"spread{hosts}", hosts, "--seeds", str(seeds))
    assert one.keys() == several.keys()
    for name, x in one.items():
        np.testing.assert_allclose(several[name], x, rtol=1e-6, atol=1e-6, err_msg=name)

"""Several hosts of the host loop learn as one: what one learner learns from the rows of all, and end together."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import make_algorithm
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import require_latest
from jaxrl.cli import main
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import SettingsError
from jaxrl.training.checks import check_hosts
from jaxrl.training.host.learner import learn_from
from jaxrl.training.host.run import host_loop
from jaxrl.training.host.together import JoinedLearner, Together
from tests.toy_runs import configured, environment
from tests.trainer import free_ports

ROOT = Path(__file__).parents[3]
CROWD = {"max_steps": 400, "network_settings": {"hidden_units": 4, "num_layers": 1, "normalize": True}}
SEES = """
import pickle, sys
import jax, numpy as np
from jaxrl.cli import main
from jaxrl.training.host import behavior, team, together

class Noting:
    def learn(self, actor):
        before, began = self.updates, self.state
        metrics = super().learn(actor)
        if before == 0 and self.updates:
            note(("began", self.spec, numbers(began)))
        if self.updates > before:
            note(("state", self.counted, numbers(self._known[0])))
        return metrics

class Seen(Noting, together.JoinedLearner):
    pass

class SeenKind(Noting, together.JoinedKindLearner):
    pass

class Noted(together.Together):
    def side_by_side(self, rollout, shape):
        note(("rollout", shape, numbers(rollout)))
        return super().side_by_side(rollout, shape)

def numbers(tree):
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)

def note(what):
    with open(sys.argv[1], "ab") as file:
        pickle.dump(what, file)

behavior.JoinedLearner, team.JoinedKindLearner, together.Together = Seen, SeenKind, Noted
sys.exit(main(sys.argv[2:]))
"""
"""Notes rollouts, and the learner before the first update and after each."""


SAC = {
    "trainer_type": "sac",
    "hyperparameters": {"batch_size": 8, "buffer_size": 256, "buffer_init_steps": 100, "steps_per_update": 10},
    "network_settings": {"hidden_units": 4, "num_layers": 1, "normalize": True},
    "max_steps": 400,
}


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["Crowd"], CROWD),
        pytest.param(["Crowd", "Few"], CROWD | {"team": "all"}, marks=pytest.mark.slow),
        (["Crowd"], SAC),
    ],
    ids=["alone", "team", "sac"],
)
def test_one_host_learns_what_a_learner_without_hosts_learns(
    tmp_path: Path, names: list[str], wanted: dict[str, Any]
) -> None:
    """Bit for bit, of a replay to rounding, with its step, one behavior or a team; one host's share is everything."""
    states = []
    for name, hosts in ("alone", False), ("joined", True):
        settings = configured(tmp_path, name, **dict.fromkeys(names, wanted))
        with environment(*names) as started:
            together = Together(settings) if hosts else None
            with host_loop(settings, started=started, together=together) as loop:
                loop.run()
            behavior = loop.behaviors["Crowd"]
            assert isinstance(behavior.learner, JoinedLearner) is hosts and behavior.updates > 3
            states.append((behavior.step, behavior.updates, jax.tree.leaves(behavior.state)))
    (step, updates, alone), (joined_step, joined_updates, joined) = states
    assert (step, updates) == (joined_step, joined_updates)
    for x, y in zip(alone, joined, strict=True):
        if wanted is SAC and x.dtype == jnp.float32:  # the same operations in another program
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        else:
            assert (x == y).all()
    assert together is not None
    together.count = 3
    assert together.share_of(behavior.algorithm).collect_size == 22, "of 64"


@pytest.mark.parametrize(
    ("behavior", "run", "text"),
    [
        ({"threaded": True}, {}, r"behaviors\.Crowd\.threaded: got true, expected false beside --hosts"),
        (
            {"trainer_type": "sac", "hyperparameters": {"save_replay_buffer": True}},
            {},
            r"behaviors\.Crowd\.hyperparameters\.save_replay_buffer: got true, expected false",
        ),
        ({"self_play": {}}, {}, r"behaviors\.Crowd\.self_play: got a section"),
        ({}, {"checkpoint_settings": {"exact": True, "run_id": "x"}}, r"checkpoint_settings\.exact: got true"),
        ({}, {"callbacks": ["my:Class"]}, r"callbacks: got my:Class, expected none"),
        ({}, {"env_settings": {"env_path": None}}, r"env_path: got the Unity Editor, which is one environment"),
    ],
)
def test_what_hosts_do_not_do_together_is_refused(
    tmp_path: Path, behavior: dict[str, Any], run: dict[str, Any], text: str
) -> None:
    changes = {"env_settings": {"env_path": "gymnasium:CartPole-v1"}} | run
    settings = configured(tmp_path, changes=changes, Crowd={"trainer_type": "ppo", "hyperparameters": {}} | behavior)
    with pytest.raises(SettingsError, match=text):
        check_hosts(settings)


CARTPOLE = {
    "behaviors": {
        "CartPole-v1": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 32, "buffer_size": 128, "learning_rate": 0.003, "num_epoch": 2},
            "network_settings": {"hidden_units": 8, "num_layers": 1, "normalize": True},
            "reward_signals": {"extrinsic": {"gamma": 0.99}, "rnd": {"strength": 0.1}},
            "max_steps": 600, "summary_freq": 200, "checkpoint_interval": 100000,
        }
    },
    "env_settings": {"env_path": "gymnasium:CartPole-v1", "num_envs": 2, "seed": 5, "inline": True},
}  # fmt: skip

SMALL = {
    "trainer_type": "poca",
    "hyperparameters": {"batch_size": 64, "buffer_size": 256, "num_epoch": 2},
    "network_settings": {"hidden_units": 8, "num_layers": 1, "normalize": True},
    "max_steps": 1000, "summary_freq": 500, "checkpoint_interval": 100000,
}  # fmt: skip
LOCK = {
    "behaviors": {"Seer": SMALL | {"team": "lock"}, "Runner": SMALL | {"team": "lock"}},
    "env_settings": {"env_path": "player:lock", "num_areas": 4, "seed": 5},
}
STRIKERS = {
    "behaviors": {
        "Striker": SMALL | {"max_steps": 2000, "evaluation": {"interval": 500, "episodes": 2}},
        "Goalie": SMALL | {"trainer_type": "ppo"},
    },
    "env_settings": {"env_path": "player:strikers_vs_goalie", "num_areas": 4, "seed": 5},
}


class Hosts:
    """Processes of `jaxrl train` that learn together; each notes what it learned from, and what."""

    def __init__(
        self, folder: Path, name: str, count: int, *flags: str, settings: Mapping[str, Any] = CARTPOLE
    ) -> None:
        (folder / "c.yaml").write_text(yaml.safe_dump(settings))
        address, self.notes, self.said = f"127.0.0.1:{free_ports()}", [], []
        place = {"PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        self.processes = []
        for index in range(count):
            self.notes.append(folder / f"{name}.{index}.notes")
            self.notes[-1].unlink(missing_ok=True)
            self.said.append(folder / f"{name}.{index}.out")
            where = ["--hosts", address, "--host-id", str(index), "--host-count", str(count)]
            where += ["--results-dir", "nowhere" if index else "results"]
            words = [
                sys.executable,
                "-c",
                SEES,
                str(self.notes[-1]),
                "train",
                "c.yaml",
                "--run-id",
                name,
                *where,
                *flags,
            ]
            with self.said[-1].open("w") as out:
                self.processes.append(
                    subprocess.Popen(words, cwd=folder, env=os.environ | place, stdout=out, stderr=subprocess.STDOUT)
                )

    def end(self) -> list[list[Any]]:
        """What each has noted, once all have ended well."""
        codes = [process.wait(300) for process in self.processes]
        assert codes == [0] * len(codes), [said.read_text() for said in self.said]
        return [noted(path) for path in self.notes]


def noted(path: Path) -> list[Any]:
    """What stands in the file so far; its end may still be written."""
    found = []
    with path.open("rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
        while file.peek(1):
            found.append(pickle.load(file))
    return found


def bits(tree: Any) -> list[bytes]:
    return [x.tobytes() for x in jax.tree.leaves(tree)]


def side_by_side(shape: tuple[int, int, int], *rollouts: Rollout) -> Rollout:
    """Each with empty states, rows and members up to [T, B, A], then all rows beside each other."""

    def joined(*arrays: np.ndarray) -> np.ndarray:
        whole = [np.zeros((*shape, *x.shape[3:]), x.dtype) for x in arrays]
        for into, x in zip(whole, arrays, strict=True):
            into[tuple(slice(0, size) for size in x.shape[:3])] = x
        return np.concatenate(whole, axis=1)

    return jax.tree.map(joined, *rollouts)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_learn_what_one_learns_from_the_rows_of_all(tmp_path: Path) -> None:
    """All hold the same bits, twice; and to 1e-4 what `learn_from` gives for their rollouts side by side."""
    hosts = Hosts(tmp_path, "first", 2)
    first, second = hosts.end()
    for step in (200, 400, 600):  # also where an update brings the decisions of all
        assert f"Step: {step}. " in hosts.said[0].read_text()
    again, _ = Hosts(tmp_path, "again", 2).end()
    assert len(first) == len(second) > 6 and not (tmp_path / "nowhere").exists()
    for one, two, repeated in zip(first, second, again, strict=True):
        assert bits(one[2:]) == bits(repeated[2:])
        assert one[:2] == two[:2] == repeated[:2]
        assert (bits(one[2]) == bits(two[2])) == (one[0] != "rollout"), "one learner; other environments and noise"

    _, spec, start = next(x for x in first if x[0] == "began")
    algorithm = make_algorithm(spec, configured(tmp_path, "c", CARTPOLE).behaviors["CartPole-v1"])
    learn = jax.jit(partial(learn_from, algorithm))
    fresh = algorithm.init(jax.random.key(0))
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(fresh)]
    leaves = [
        jax.random.wrap_key_data(jnp.asarray(x)) if key else x
        for x, key in zip(jax.tree.leaves(start), keys, strict=True)
    ]
    state, decisions = jax.tree.unflatten(jax.tree.structure(fresh), leaves), 0
    of = {kind: [x for x in first if x[0] == kind] for kind in ("rollout", "state")}
    others = [x for x in second if x[0] == "rollout"]
    for (_, shape, one), (_, _, two), (_, step, expected) in zip(of["rollout"], others, of["state"], strict=True):
        rollout = side_by_side(shape, one, two)
        state, _, _ = learn(state, algorithm.storage.init(), rollout)
        decisions += int(rollout.acted.sum())
        assert decisions == int(state.step) <= step
        for x, y, key in zip(jax.tree.leaves(state), jax.tree.leaves(expected), keys, strict=True):
            np.testing.assert_allclose(jax.random.key_data(x) if key else x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("settings", [LOCK, STRIKERS], ids=["team", "apart"])
def test_several_behaviors_over_hosts(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A team with one critic, and two behaviors of their own: the same bits on both hosts, after each update, twice."""
    runs = [Hosts(tmp_path, name, 2, settings=settings).end() for name in ("first", "again")]
    (first, second), (again, _) = runs
    states = [[(step, bits(state)) for kind, step, state in of if kind == "state"] for of in (first, second, again)]
    assert states[0] == states[1] == states[2] and len(states[0]) > 3
    rollouts = [[bits(rollout) for kind, _, rollout in of if kind == "rollout"] for of in (first, second)]
    assert all(one != two for one, two in zip(*rollouts, strict=True)), "other environments and noise"
    for name in settings["behaviors"]:
        assert (tmp_path / "results" / "first" / f"{name}.onnx").stat().st_size > 0
    asked = settings["behaviors"].get("Striker", {})
    if "evaluation" in asked:  # of host 0, in a worker behind those of all
        rows = (tmp_path / "results" / "first" / "Striker" / "metrics.csv").read_text().splitlines()
        steps = [int(row.split(",")[0]) for row in rows if "Evaluation/Episode Length" in row]
        assert len(steps) >= 3 and [step // 500 for step in steps] == sorted({step // 500 for step in steps})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_on_one_ends_all_and_the_run_goes_on_with_another_number_of_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(tmp_path, "run", 2, "--set", "max_steps=1000000")
    while not (hosts.notes[1].exists() and len(noted(hosts.notes[1])) > 8):
        assert all(process.poll() is None for process in hosts.processes), [x.read_text() for x in hosts.said]
    hosts.processes[1].send_signal(signal.SIGINT)
    hosts.end()
    path = require_latest(tmp_path / "results" / "run" / "CartPole-v1")
    saved = checkpoint.read_arrays(path)
    monkeypatch.chdir(tmp_path)
    step = int(path.name.split("-")[-1])
    assert main(["train", "c.yaml", "--run-id", "run", "--resume", "--set", f"max_steps={step + 300}"]) == 0
    three = Hosts(tmp_path, "run", 3, "--resume", "--set", f"max_steps={step + 900}").end()
    assert [len(x) for x in three] == [len(three[0])] * 3
    later = checkpoint.read_arrays(require_latest(tmp_path / "results" / "run" / "CartPole-v1"))
    assert any(saved[name].tobytes() != later[name].tobytes() for name in saved)


ACTED = {
    "behaviors": {
        "CartPole-v1": SAC
        | {
            "hyperparameters": {
                "batch_size": 8, "buffer_size": 256, "buffer_init_steps": 100, "steps_per_update": 5,
                "reward_signal_steps_per_update": 5,
            },
            "reward_signals": {"extrinsic": {"gamma": 0.99}, "rnd": {"strength": 0.1}},
            "summary_freq": 200, "checkpoint_interval": 100000,
        }
    },
    "env_settings": {"env_path": "gymnasium:CartPole-v1", "num_envs": 2, "seed": 5, "inline": True},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_share_a_replay(tmp_path: Path) -> None:
    """All hold the same bits, twice; as many updates as the decisions of all have paid for."""
    runs = [Hosts(tmp_path, name, 2, settings=ACTED).end() for name in ("first", "again")]
    (first, second), (again, _) = runs
    states = [[(step, bits(state)) for kind, step, state in of if kind == "state"] for of in (first, second, again)]
    assert states[0] == states[1] == states[2] and len(states[0]) > 3
    given = [[rollout for kind, _, rollout in of if kind == "rollout"] for of in (first, second)]
    assert all(bits(one) != bits(two) for one, two in zip(*given, strict=True)), "other environments and noise"
    state = next(x for kind, _, x in reversed(first) if kind == "state")
    acted = sum(int(rollout.acted.sum()) for of in given for rollout in of)
    assert acted == int(state.step) > 300
    updates = {name: int(moments.count) for name, moments in state.optimizer.items()}
    assert updates == dict.fromkeys(updates, (acted - 100) // 5)

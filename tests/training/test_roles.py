"""Members who see the same and must do different things learn it with a policy each, in both loops."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import jax
import numpy as np
import onnxruntime
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from probe_loops import settings_for, share_in_host_loop

import jaxrl
from jaxrl.algorithms import ALGORITHMS
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError, checkpoints
from jaxrl.artifacts.onnx.behaviors import behavior_of_run
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import CHECKPOINTS, TrainingStatus
from jaxrl.jax_envs.probes import make_probe_roles
from jaxrl.settings import SettingsError
from jaxrl.settings.teams import TeamCapacityError
from jaxrl.training import saver
from jaxrl.training.compiled.iteration import iterate_several
from jaxrl.training.compiled.planning import plan_of
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.host.run import train
from jaxrl.types import PolicyError
from tests.jax_envs.toy_jax_env import quick_compilation, quick_jit
from tests.toy_runs import SMALL, configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]
APART = {"hyperparameters__share_policy": False, "hyperparameters__team_capacity": 2}
ENV = make_probe_roles()


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["poca", "mappo", "coma"])
def test_three_seeds_find_their_roles_in_the_compiled_loop(trainer: str) -> None:
    """One policy for both: 1/2 at most, and 0 where it leaves nothing to chance."""
    settings = settings_for(trainer, APART)
    with quick_compilation():
        made = make_jitted_trainer(ENV, ALGORITHMS[trainer](ENV.spec, settings), settings, areas=16, seeds=3)
        state, _ = made.run(made.init(range(3)), 60)
    _, log = made.run(state, 10)
    assert (log.group_reward >= 0.95).all(), log.group_reward


def test_an_iteration_gives_back_what_it_was_given() -> None:
    """Traced, not compiled."""
    settings = settings_for("poca", APART)
    algorithms = {ENV.name: ALGORITHMS["poca"](ENV.spec, settings)}
    plan = plan_of(ENV, algorithms, {ENV.name: settings}, areas=4, seeds=2)
    before = jax.eval_shape(partial(start, plan), jax.ShapeDtypeStruct((2,), np.uint32))
    after, _ = jax.eval_shape(partial(iterate_several, plan), before, jax.ShapeDtypeStruct((), np.int32))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
    params = jax.tree.leaves(before.parts[ENV.name].train.policy.params)
    assert all(x.shape[:2] == (2, 2) for x in params), "of 2 seeds with 2 places"


@pytest.mark.slow
def test_a_shared_policy_does_not() -> None:
    settings = settings_for("poca", {})
    with quick_compilation():
        made = make_jitted_trainer(ENV, ALGORITHMS["poca"](ENV.spec, settings), settings, areas=16, seeds=3)
        _, log = made.run(made.init(range(3)), 60)
    assert (log.group_reward <= 0.55).all(), log.group_reward


@pytest.mark.slow
def test_members_of_a_message_find_their_roles_in_the_host_loop() -> None:
    assert share_in_host_loop("poca", ENV, 60, **APART) >= 0.95


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_compiled_run_has_a_policy_for_each_member(capacity: int) -> None:
    """With more, files of policies that never acted would be left; with less, two would share one."""
    settings = settings_for("poca", APART | {"hyperparameters__team_capacity": capacity})
    algorithms = {ENV.name: ALGORITHMS["poca"](ENV.spec, settings)}
    text = rf"behaviors.ProbeRoles.hyperparameters.team_capacity: got {capacity}, expected 2, the members of a team"
    with pytest.raises(SettingsError, match=text):
        plan_of(ENV, algorithms, {ENV.name: settings}, areas=1, seeds=1)


def test_each_member_has_a_file_and_old_ones_go_with_their_checkpoint(tmp_path: Path) -> None:
    """What a member does follows from the file of its place."""
    settings = settings_for("poca", APART | {"keep_checkpoints": 1})
    algorithm, folder = ALGORITHMS["poca"](ENV.spec, settings), RunFolder(tmp_path, "run")
    state, status = quick_jit(algorithm.init)(jax.random.key(0)), TrainingStatus(tmp_path / "status.json")
    heads = {"kernel": np.zeros((2, 32, 2), np.float32), "bias": np.array([[5.0, 0.0], [0.0, 5.0]], np.float32)}
    params = flatten_dict(state.policy.params, sep="/")
    (logits,) = {path.rpartition("/")[0] for path, x in params.items() if x.shape[-1] == 2}
    params |= {f"{logits}/{name}": x for name, x in heads.items()}
    policy = state.policy.replace(params=unflatten_dict(params, sep="/"))
    samples = (np.ones((4, 1), np.float32),), np.ones((4, 2), bool)
    for step in (1, 2):
        kept = {"train": state.replace(policy=policy)}
        described = saver.settings_of(settings)
        snapshot = saver.Snapshot(ENV.name, step, kept, policy, (), ENV.spec, settings, described, samples)
        saver.save_checkpoint(snapshot, folder, status, None)
    saver.publish(ENV.name, 2, folder, status, None)
    run = tmp_path / "run"
    names = [f"ProbeRoles-2-member{i}.onnx" for i in range(2)]
    assert sorted(path.name for path in (run / "ProbeRoles").glob("*.onnx")) == names
    assert sorted(path.name for path in run.glob("*.onnx")) == [f"ProbeRoles-member{i}.onnx" for i in range(2)]
    assert behavior_of_run(run / "ProbeRoles" / names[1]) == behavior_of_run(run / "ProbeRoles-member1.onnx")
    entry = status.get(ENV.name, CHECKPOINTS, [])[-1]
    assert [Path(path).name for path in (entry["file_path"], *entry["auxillary_file_paths"])] == [
        *names,
        "ProbeRoles-2",
    ]

    loaded = jaxrl.load(run, ENV, deterministic=True)
    action = loaded.act(np.ones((5, 2, 1), np.float32))
    assert action.discrete.tolist() == [[[0], [1]]] * 5
    for member in range(2):
        session = onnxruntime.InferenceSession(run / f"ProbeRoles-member{member}.onnx")
        given = {"obs_0": np.ones((3, 1), np.float32), "action_masks": np.ones((3, 2), np.float32)}
        assert session.run(["deterministic_discrete_actions"], given)[0].tolist() == [[member]] * 3
    with pytest.raises(PolicyError, match=r"obs: got agents \[3\], expected \[..., 2\]: each of 2 members"):
        loaded.act(np.ones((3, 1), np.float32))
    with pytest.raises(SettingsError, match="team_capacity: got 2, expected 3, the members of a team here"):
        loaded.rollout(make_probe_roles(3))
    shared = settings_for("poca", {})
    fresh = jax.eval_shape(ALGORITHMS["poca"](ENV.spec, shared).init, jax.random.key(0))
    with pytest.raises(CheckpointError, match=r"hyperparameters.share_policy: False in the checkpoint"):
        checkpoint.restore(
            checkpoints(run / "ProbeRoles")[0].path,
            {"train": jax.tree.map(lambda x: np.zeros(x.shape, np.float32), fresh.policy.params)},
            spec=ENV.spec,
            settings=saver.settings_of(shared),
        )


def test_a_team_with_more_members_than_policies_ends_the_run(tmp_path: Path) -> None:
    own = {**SMALL["hyperparameters"], "share_policy": False, "team_capacity": 1}
    text = "hyperparameters.team_capacity: 1, but this behavior has teams of 2 members: write at least 2"
    with environment("Toy?team=0") as started, pytest.raises(TeamCapacityError, match=text):
        train(configured(tmp_path, Toy={"hyperparameters": own}), started=started)


@pytest.mark.slow
def test_roles_over_grpc(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A player in a process of its own."""
    quick = {"batch_size": 64, "buffer_size": 256, "learning_rate": 0.003, "learning_rate_schedule": "constant"}
    learn = {"hyperparameters": quick | {"share_policy": False, "team_capacity": 2}, "max_steps": 8000}
    learn["network_settings"] = {"hidden_units": 16, "num_layers": 1}
    more = {"env_settings": {"env_path": "player:probe_roles", "num_areas": 16}}
    with caplog.at_level(logging.INFO, "jaxrl"):
        train(configured(tmp_path, changes=more, ProbeRoles=learn | {"summary_freq": 8000, "time_horizon": 8}))
    (told,) = [text for text in caplog.messages if "over the last 100 team episodes" in text]
    assert float(told.split()[4]) >= 0.95

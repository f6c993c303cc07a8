"""Teams of two behaviors over gRPC, from a player process whose every number is known (`tests/envs/team_player.py`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES, preparing, team
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint import tree as trees
from jaxrl.artifacts.checkpoint.folder import require_latest
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rollout.buffer import kinds
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import RunSettings, SettingsError, load_run_settings
from jaxrl.training.checks import check_run
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.run import host_loop, train
from jaxrl.training.host.team_learner import KindLearner
from tests import trainer
from tests.envs.team_player import ROUND
from tests.event_files import read_events
from tests.helpers import poca_settings

pytestmark = trainer.MARKS
TINY = {
    "trainer_type": "poca",
    "hyperparameters": {"batch_size": 8, "buffer_size": 24, "num_epoch": 1, "learning_rate": 0.01},
    "network_settings": {"hidden_units": 4, "num_layers": 1, "memory": {"memory_size": 4, "sequence_length": 4}},
    "summary_freq": 16,
    "team": "lock",
}
NAMES = ("Seer", "Runner")
NORMALIZED = {"connectors": [{"type": "normalize"}]}
GROUP, LOSS = "Environment/Group Cumulative Reward", "Losses/Policy Loss"


def settings_of(folder: Path, play: str, changes: Any = None, *, seed: int = 1, **options: Any) -> RunSettings:
    """Of a run of the player; `changes` by behavior, `options` of `checkpoint_settings`."""
    player = trainer.player(folder, "team_player.py", f"--play {play}")
    written: dict[str, Any] = {
        "behaviors": {name: TINY | (changes or {}).get(name, {}) for name in NAMES},
        "env_settings": {"env_path": str(player), "seed": seed, "base_port": trainer.free_ports(2)},
        "checkpoint_settings": {"run_id": "run", "results_dir": str(folder / "results"), **options},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def after(loop: HostLoop, messages: int) -> None:
    """The loop when so many messages have been answered."""
    for number, _ in enumerate(loop.iterate(), 1):
        if number == messages:
            return


def booked(loop: HostLoop) -> dict[str, Rollout]:
    """What stands in the buffers of the team, by behavior, one row [T, A, ...]."""
    buffer = loop.behaviors["Seer"].collector.buffer
    rollouts = dict(zip(("Runner", "Seer"), jax.jit(kinds.rollouts_of)(buffer), strict=True))  # the order of the file
    return {name: jax.tree.map(np.asarray, rollouts[name]) for name in NAMES}


def remembered(loop: HostLoop, rollouts: dict[str, Rollout]) -> dict[str, Any]:
    """What members remember after each state of `rollouts`, by behavior, as the policies are now."""
    kinds = {name: loop.behaviors[name] for name in ("Runner", "Seer")}  # the order of the team
    learner = kinds["Seer"].learner
    assert isinstance(learner, KindLearner) and learner.together.critic_step is not None
    decided = []
    for name, kind in kinds.items():
        of = rollouts[name]
        made = jax.jit(kind.algorithm.act)(kind.actor.policy, of.obs, of.action_mask, of.carry, jax.random.key(0))
        decided.append(made._replace(action=of.action))
    seen, policies = [rollouts[name] for name in kinds], [kind.actor.policy for kind in kinds.values()]
    given = policies, [of.obs for of in seen], [of.present for of in seen], decided
    return jax.tree.map(np.asarray, dict(zip(kinds, jax.jit(learner.together.critic_step)(*given), strict=True)))


class Played(NamedTuple):
    """One whole run."""

    run: Path
    booked: dict[str, Rollout]  # after one round and the first message of the next
    remembered: dict[str, Any]  # after each state of it, by behavior
    steps: list[tuple[int, int]]  # of each then, and how many decisions its actor held
    collected: int  # at the end
    again: dict[str, Rollout]  # when the process was lost and another message has come
    lost: list[str]  # what was said of that
    said: list[str]  # in the run before


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A run that the seers end, long after the runners have passed their max_steps; then its process is lost."""
    folder, text, said = tmp_path_factory.mktemp("played"), Lines(), Lines()
    logging.getLogger("jaxrl").addHandler(said)
    logging.getLogger("jaxrl").setLevel(logging.INFO)
    seers = {"max_steps": 15, "summary_freq": 14, "evaluation": {"interval": 14, "episodes": 3}} | NORMALIZED
    early, changes = {}, {"Seer": seers, "Runner": {"max_steps": 20}}
    with host_loop(settings_of(folder, "script", changes)) as loop:
        for number, _ in enumerate(loop.iterate(), 1):
            if number == ROUND + 1:
                early = {name: (loop.behaviors[name].step, loop.behaviors[name].collector.held) for name in NAMES}
                first = booked(loop)
                after_each = remembered(loop, first)
        loop.recorder.finish(list(loop.behaviors.values()), None)
        logging.getLogger("jaxrl").removeHandler(said)
        logging.getLogger("jaxrl").addHandler(text)
        loop.episodes.lose(Loss(0, 0, "is gone"))
        logging.getLogger("jaxrl").removeHandler(text)
        collected = loop.behaviors["Seer"].collector.fresh
        loop.advance(loop.receive(1))
        run = folder / "results" / "run"
        return Played(run, first, after_each, list(early.values()), collected, booked(loop), text.lines, said.lines)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_what_is_booked_of_both_kinds_follows_from_the_script(played: Played) -> None:
    """A state for each message in which anybody of the team asks, and one in which it was cut off (8)."""
    seer, runner = (played.booked[name] for name in NAMES)
    assert [x.shape[2:] for x in seer.obs] == [(1, 3)] and [x.shape[2:] for x in runner.obs] == [(2, 2)]
    states = slice(0, ROUND + 1)
    seen = [[int(x[0]) for x in runner.obs[0][t, 0]] for t in range(ROUND)]
    assert seen == [[11, 12]] * 4 + [[21, 22]] * 5 + [[31, 0]] * 3
    assert seer.present[states, 0, 0].nonzero()[0].tolist() == [0, 1, 6, 7, 8, 9, 10, 11, 12]
    assert seer.acted[states, 0, 0].nonzero()[0].tolist() == [0, 1, 6, 7, 9, 10, 11]
    assert [seer.acted[8].any(), runner.acted[8].any(), runner.present[8].all()] == [False, False, True]
    assert runner.waiting[states, 0].nonzero()[0].tolist() == [1, 3, 10], "12, 12 and 31 wait while others decide"
    ends = {name: getattr(seer, name)[states, 0, 0].nonzero()[0].tolist() for name in ("left", "truncated")}
    assert ends == {"left": [1], "truncated": [7]} and seer.terminated[11, 0, 0]
    assert runner.terminated[states, 0].nonzero()[0].tolist() == [2, 3, 11], "decided with 2 and 3"
    assert seer.mates_reward[states, 0, 0].tolist() == [2, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert runner.mates_reward[states, 0, 0].tolist() == [1, 4.5, 0, 0, 0, 2, 16, 0, 0, 2, 0, 2, 0]
    assert runner.mates_reward[states, 0, 1].tolist() == [3.5, 0, 0.25, 0, 1, 0, 16, 1, 0, 0, 0, 0, 0]
    assert runner.group_reward[states, 0].sum(-1).tolist() == [0, 0, 8, 8, 0, 0, 0, 8, 0, 0, 0, 1, 0]


def test_returns_of_both_kinds_are_those_of_one_team(played: Played) -> None:
    """With λ = 0, γ = 1 and V = 100 (t + 1): own + mates' + group reward, and V of the state that follows."""
    settings = poca_settings(hyperparameters__lambd=0.0, reward_signals__extrinsic__gamma=1.0)
    whole = team.whole({name: jax.tree.map(jnp.asarray, of) for name, of in played.booked.items()})
    time = jnp.arange(len(whole.acted)) + 1.0
    value = jnp.broadcast_to(100.0 * time[:, None, None, None], (*whole.acted.shape, 1))
    paid = {"extrinsic": EXTRINSIC.reward((), whole, cooperative=True)}
    found = np.asarray(preparing.stream_returns(whole, value, settings, paid))[..., 0]
    returns = [dict(zip(*(x.tolist() for x in _told(found, whole, at)), strict=True)) for at in range(3)]
    assert returns[0] == {  # seers
        0: 1 + 2 + 200, 1: 0.5 + 4 + 300,  # gone before the group is paid: what its team has there is its own
        6: 16 + 800, 7: 1 + 4 + 900,  # ended with its team, of which others were paid 4 together
        9: 1 + 1100, 10: 1 + 1200, 11: 2 + 1,
    }  # fmt: skip
    assert returns[1] == {  # 11, 21, 31
        0: 2 + 1 + 200, 1: 4.5 + 300, 2: 0.25 + 400, 3: 8, 4: 1 + 600, 5: 2 + 700, 6: 16 + 800, 7: 1 + 4 + 900,
        9: 2 + 1200, 11: 2 + 1,
    }  # fmt: skip
    assert returns[2] == {  # 12, 22
        0: 4 + 3.5 + 300, 2: 0.25 + 8, 4: 1 + 600, 5: 2 + 700, 6: 16 + 800, 7: 1 + 4 + 900
    }  # fmt: skip


def test_a_seer_that_left_is_credited_with_what_the_runners_go_on_to_earn(played: Played) -> None:
    """λ = 1/2, γ = 1, V = 100 (t + 1). Both runners decide in state 2: the one ends there, the other in state 3."""
    settings = poca_settings(hyperparameters__lambd=0.5, reward_signals__extrinsic__gamma=1.0)
    whole = team.whole({name: jax.tree.map(jnp.asarray, of) for name, of in played.booked.items()})
    value = jnp.broadcast_to(100.0 * (jnp.arange(len(whole.acted)) + 1.0)[:, None, None, None], (*whole.acted.shape, 1))
    paid = {"extrinsic": EXTRINSIC.reward((), whole, cooperative=True)}
    returns = np.asarray(preparing.stream_returns(whole, value, settings, paid, posthumous=True))[..., 0]
    runners = [0.25 + 0.5 * 400 + 0.5 * 8, 0.25 + 8]
    assert returns[2, 0, 1:].tolist() == runners
    assert returns[1, 0, 0] == 0.5 + 4 + 0.5 * 300 + 0.5 * np.mean(runners)


def _told(returns: np.ndarray, whole: Rollout, member: int) -> tuple[np.ndarray, np.ndarray]:
    states = np.flatnonzero(np.asarray(whole.acted)[:, 0, member])
    return states, returns[states, 0, member]


def test_steps_of_each_and_a_process_that_is_lost(played: Played) -> None:
    """In a round the seers finish 2, 2 and 3 decisions, the runners 4, 2, 4, 4 and 2.

    At the end, with message 2 of a round, two runners have decided; with message 3 one of them would have its reward.
    """
    assert played.steps == [(7, 23), (16, 23)], "buffer_size counts decisions of all kinds"
    said = "{}: {} faulty episodes of worker 0 end here and their {} open decisions"
    wanted = [said.format("Seer", 0, 0), said.format("Runner", 2, 2)]
    assert [text.partition(" are ")[0] for text in sorted(played.lost, reverse=True)] == wanted
    assert sum(rollout.acted.sum() for rollout in played.again.values()) == played.collected


def test_actors_and_the_critic_of_both_kinds_remember_from_one_decision_to_the_next(played: Played) -> None:
    """What a member remembers before a state: nothing where an episode begins, else what follows from its last one.

    The critic saw then who was there and what everybody was doing, those who waited too.
    """
    states = slice(0, ROUND)
    for name in NAMES:
        of = played.booked[name]
        moves, ended = of.present & ~of.waiting, of.terminated | of.truncated | of.left
        goes_on = (of.present[1:] & of.present[:-1] & ~of.begin[1:] & ~ended[:-1])[states]
        assert (goes_on & moves[states]).any() and (name == "Seer" or (goes_on & ~moves[states]).any())
        for network, before in of.carry.items():
            moved = moves.reshape(moves.shape + (1,) * (before.ndim - 3))
            after = np.where(moved, played.remembered[name][network], before)
            np.testing.assert_allclose(before[1:][states][goes_on], after[states][goes_on], atol=1e-6)
            assert np.abs(before[1:][states][goes_on]).max() > 0 and not before[of.begin].any()


def values(run: Path, name: str, tag: str) -> dict[int, float]:
    (path,) = (run / name).glob("events*")
    return {e.step: v.simple_value for e in read_events(path) for v in e.summary.value if v.tag == tag}


def kept(run: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of a behavior's last checkpoint."""
    return checkpoint.read_arrays(require_latest(run / name))


def test_each_has_files_steps_and_statistics_and_the_team_ends_with_its_last(played: Played) -> None:
    """Rounds of 7 and 16 decisions; after 2 of them the seers' 16th comes with message 2, when runners have 3 more.

    In a round their teams got 8, which the seer did not live to see, 4, which it was not paid, and 1. Runners have one
    more summary with their last step, 20.
    """
    ends = {name: int(require_latest(played.run / name).name.rpartition("-")[2]) for name in NAMES}
    assert ends == {"Seer": 16, "Runner": 2 * 16 + 3}
    assert all((played.run / f"{name}.onnx").is_file() for name in NAMES)
    assert values(played.run, "Seer", GROUP) == {14: pytest.approx((8 + 4 + 1) / 3)}
    assert values(played.run, "Runner", GROUP) == {step: pytest.approx((8 + 4 + 1) / 3) for step in (16, 32)}
    (past,) = [line for line in played.said if line.startswith("Runner. Step: 32.")]
    assert "Not Training" not in past, "beyond its max_steps it learns on, with the seers"
    assert list(values(played.run, "Seer", LOSS)) == [14] and list(values(played.run, "Runner", LOSS)) == [20]
    learned = [array for path, array in kept(played.run, "Seer").items() if "connectors" in path]
    assert learned and all(np.any(array) for array in learned), "what its connectors see is theirs alone"


def test_an_evaluation_tells_a_seer_who_left_what_its_team_got(played: Played) -> None:
    """8, 4 and 1 in the first round, one after the other under one group id."""
    assert values(played.run, "Seer", "Evaluation/Group Cumulative Reward") == {14: pytest.approx((8 + 4 + 1) / 3)}


def test_the_team_goes_on_where_it_was(played: Played) -> None:
    folder, changes = played.run.parents[1], {"Seer": NORMALIZED}
    with host_loop(settings_of(folder, "script", changes, resume=True)) as loop:
        after(loop, 1)
        for name, step in zip(NAMES, (16, 35), strict=True):
            behavior, saved = loop.behaviors[name], kept(played.run, name)
            assert (behavior.step, behavior.decisions) == (step, 2 * ROUND + 3 + 1)
            now = trees.to_arrays({"train": behavior.learner.state})
            assert now.keys() == {path for path in saved if path.startswith("train/")}
            for path in now.keys() - {"train/step"}:  # which is that of the update in a checkpoint
                np.testing.assert_array_equal(now[path], saved[path], err_msg=path)


def test_with_inference_each_acts_for_itself_with_what_was_learned(played: Played) -> None:
    folder, changes = played.run.parents[1], {"Seer": NORMALIZED}
    with host_loop(settings_of(folder, "late", changes, resume=True, inference=True)) as loop:
        after(loop, 2)
        assert list(loop.behaviors) == ["Seer"], "nobody waits for the other"
        after(loop, ROUND + 2)
        for behavior in loop.behaviors.values():
            assert isinstance(behavior.actor, ActingPolicy) and not behavior.training
            saved = kept(played.run, behavior.name)
            for path, array in jax.tree_util.tree_flatten_with_path(behavior.actor.policy.params)[0]:
                name = "/".join(str(key.key) for key in path)
                np.testing.assert_array_equal(array, saved[f"train/policy/params/{name}"])


def test_nothing_counts_before_all_behaviors_of_a_team_are_known(tmp_path: Path, caplog: Any) -> None:
    """The runner is first heard of with message 13, t = 1 of the second round; what both finish from then to 24:

    The seers 1, 2 and 3 decisions; of the first runners one has three, and one that first asks with 14 has one, of the
    others they have 4, 4 and 2. Without a runner nobody is heard of in messages 3, 4 and 5: message 12 is the tenth.
    """
    with caplog.at_level(logging.INFO, "jaxrl"), host_loop(settings_of(tmp_path, "late")) as loop:
        for number, _ in enumerate(loop.iterate(), 4):
            if number == ROUND + 1:
                assert not loop.behaviors and "Seer: waits for Runner of team lock." in caplog.messages
                assert not list((tmp_path / "results").glob("*/Seer")), "and nothing is written"
            if number == 2 * ROUND + 1:
                break
        assert {name: behavior.step for name, behavior in loop.behaviors.items()} == {"Seer": 6, "Runner": 14}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"Seer": {"threaded": True}}, r"behaviors\.Seer\.threaded: got True, expected False as behaviors\.Runner has"),
        ({"Seer": {"team": None}}, r"behaviors\.Runner\.team: got lock, which no other behavior has: remove it"),
        (
            {"Seer": {"time_horizon": 8}},
            r"behaviors\.Seer\.time_horizon: got 8, expected 64 as behaviors\.Runner has it",
        ),
        ({"Seer": {"self_play": {}}}, r"behaviors\.Seer\.self_play: not together with team \(lock\)"),
    ],
)
def test_what_a_team_cannot_do_is_refused_before_anything_starts(changes: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=words):
        check_run(settings_of(tmp_path, "script", changes))


@pytest.mark.slow
def test_a_team_learns_in_a_thread_what_it_learns_between_two_messages(tmp_path: Path) -> None:
    """Waited for at once: states and updates of both behaviors, each of which tells how old its decisions were."""
    found, told = [], {}
    for threaded in (False, True):
        folder = tmp_path / str(threaded)
        folder.mkdir()
        with host_loop(settings_of(folder, "script", {name: {"threaded": threaded} for name in NAMES})) as loop:
            for number, _ in enumerate(loop.iterate(), 1):
                told |= loop.turn.learned
                loop.updates.await_all()
                if number == 3 * ROUND:
                    break
            learners = {name: loop.behaviors[name].learner for name in NAMES}
            found.append(trees.to_arrays({name: learner.state for name, learner in learners.items()}))
            assert [learner.updates for learner in learners.values()] == [2, 2]
            assert all(loop.behaviors[name].actor.policy.params is learners[name].state.policy.params for name in NAMES)
    for path, array in found[0].items():
        np.testing.assert_allclose(found[1][path], array, rtol=1e-5, atol=1e-6, err_msg=path)
    assert all({"staleness", "time_waited", "policy_loss"} <= told[name].metrics.keys() for name in NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("play", ["lock", "gone"])
def test_both_locks_are_opened(play: str, seed: int, tmp_path: Path) -> None:
    """A quarter if the seer learned nothing, which in the second is gone before the group is paid."""
    quick = {"batch_size": 128, "buffer_size": 1024, "num_epoch": 3, "learning_rate": 0.003, "beta": 0.01}
    learn = {"hyperparameters": quick, "max_steps": 12_000, "summary_freq": 2_000}
    learn["network_settings"] = {"hidden_units": 32, "num_layers": 1}
    train(settings_of(tmp_path, play, dict.fromkeys(NAMES, learn), seed=seed))
    assert values(tmp_path / "results" / "run", "Runner", GROUP)[12_000] > 0.95

"""Teams of two behaviors over gRPC, from a player process whose every number is known (`tests/envs/team_player.py`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES, policy_gradient, team
from jaxrl.artifacts.checkpoint import store as checkpoint
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
from tests import trainer
from tests.envs.team_player import ROUND
from tests.event_files import read_events
from tests.helpers import poca_settings

pytestmark = trainer.MARKS
TINY = {
    "trainer_type": "poca",
    "hyperparameters": {"batch_size": 32, "buffer_size": 64, "num_epoch": 1, "learning_rate": 0.01},
    "network_settings": {"hidden_units": 4, "num_layers": 1},
    "summary_freq": 56,
    "team": "lock",
}
NAMES = ("Seer", "Runner")
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
    buffer = loop.behaviors["Seer"].actor.buffer
    rollouts = dict(zip(NAMES, kinds.rollouts_of(buffer), strict=True))
    return {name: jax.tree.map(np.asarray, rollout) for name, rollout in rollouts.items()}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HostLoop, dict[str, Rollout]]]:
    """The loop after one round and the first message of the next, and what it had booked then."""
    folder = tmp_path_factory.mktemp("played")
    with host_loop(settings_of(folder, "script")) as loop:
        after(loop, ROUND + 1)
        yield loop, booked(loop)


def test_what_is_booked_of_both_kinds_follows_from_the_script(played: tuple[HostLoop, dict[str, Rollout]]) -> None:
    """A state for each message in which anybody of the team asks, and one in which it was cut off (8)."""
    _, rollouts = played
    seer, runner = (rollouts[name] for name in NAMES)
    assert [x.shape[2:] for x in seer.obs] == [(1, 3)] and [x.shape[2:] for x in runner.obs] == [(2, 2)]
    states = slice(0, ROUND + 1)
    seen = [[int(x[0]) for x in runner.obs[0][t, 0]] for t in range(ROUND)]
    assert seen == [[11, 12]] * 4 + [[21, 22]] * 5 + [[31, 0]] * 3
    assert seer.obs[0][states, 0, 0, 0].tolist() == [1, 1, 0, 0, 0, 0, 3, 3, 3, 4, 4, 4, 101]
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


def test_returns_of_both_kinds_are_those_of_one_team(played: tuple[HostLoop, dict[str, Rollout]]) -> None:
    """With λ = 0, γ = 1 and V = 100 (t + 1): own + mates' + group reward, and V of the state that follows."""
    _, rollouts = played
    settings = poca_settings(hyperparameters__lambd=0.0, reward_signals__extrinsic__gamma=1.0)
    whole = team.whole(jax.tree.map(jnp.asarray, rollouts))
    time = jnp.arange(len(whole.acted)) + 1.0
    value = jnp.broadcast_to(100.0 * time[:, None, None, None], (*whole.acted.shape, 1))
    paid = {"extrinsic": EXTRINSIC.reward((), whole, cooperative=True)}
    found = np.asarray(policy_gradient.stream_returns(whole, value, settings, paid))[..., 0]
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


def _told(returns: np.ndarray, whole: Rollout, member: int) -> tuple[np.ndarray, np.ndarray]:
    states = np.flatnonzero(np.asarray(whole.acted)[:, 0, member])
    return states, returns[states, 0, member]


def test_steps_of_each_and_a_process_that_is_lost(
    played: tuple[HostLoop, dict[str, Rollout]], caplog: pytest.LogCaptureFixture
) -> None:
    """In a round the seers finish 2, 2 and 3 decisions, the runners 4, 2, 4, 4 and 2; three are open then."""
    loop, before = played
    assert {name: behavior.step for name, behavior in loop.behaviors.items()} == {"Seer": 7, "Runner": 16}
    assert [loop.behaviors[name].actor.held for name in NAMES] == [23, 23], "buffer_size counts those of all kinds"
    with caplog.at_level(logging.WARNING, "jaxrl"):
        loop.episodes.lose(Loss(0, 0, "is gone"))
    lost = [f"{name}: {count} faulty episodes of worker 0 end here and" for name, count in zip(NAMES, (1, 2), strict=True)]
    assert [text for text in caplog.messages if text.startswith(tuple(lost))].__len__() == 2
    loop.advance(loop.receive(1))
    again = booked(loop)
    for name in NAMES:
        assert not again[name].acted[ROUND].any(), "whose outcome nobody knows"
        np.testing.assert_array_equal(again[name].acted[:ROUND], before[name].acted[:ROUND])
    assert {name: behavior.step for name, behavior in loop.behaviors.items()} == {"Seer": 7, "Runner": 16}


def run_of(folder: Path, changes: Any = None, **options: Any) -> Path:
    train(settings_of(folder, "script", changes, **options))
    return folder / "results" / "run"


def values(run: Path, name: str, tag: str) -> dict[int, float]:
    (path,) = (run / name).glob("events*")
    return {e.step: v.simple_value for e in read_events(path) for v in e.summary.value if v.tag == tag}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run in which the seers pass their max_steps last; its folder, and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    normal = [{"type": "normalize_observations"}] if False else []
    with _said() as text:
        run = run_of(folder, {"Seer": {"max_steps": 60}, "Runner": {"max_steps": 100, "connectors": normal}})
    return run, "\n".join(text)

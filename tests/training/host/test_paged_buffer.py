"""`buffer_size` is what was asked for, whoever decides how often, and memory follows what is stored (D3 and D4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache, partial

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer import trajectory
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.training.host import learner
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, learn
from jaxrl.training.host.paged_buffer import MOST, capacity
from tests.algorithms.team_rollouts import quick_jit
from tests.helpers import decision_steps, make_spec, message, settings_of

SPEC = make_spec((2,), branches=(2,))
SOURCE = Source(0, "Crowd?team=0")
ASKED = 512
SMALL = {
    "hyperparameters__buffer_size": ASKED,
    "hyperparameters__batch_size": 64,
    "hyperparameters__num_epoch": 1,
    "network_settings__hidden_units": 4,
    "network_settings__num_layers": 1,
}


@cache
def programs(trainer: str):
    settings = settings_of(trainer, SMALL | ({"hyperparameters__team_capacity": 32} if trainer == "mappo" else {}))
    algorithm = ALGORITHMS[trainer](SPEC, settings)
    return settings, algorithm, Programs(
        ActorPrograms(
            decide=quick_jit(partial(decide, algorithm, settings.time_horizon), donate_argnums=1),
            allocate=quick_jit(
                trajectory.init, static_argnames=("spec", "extras", "capacity", "rows", "members")
            ),
            turn=quick_jit(trajectory.turn),
            discard=quick_jit(lambda buffer: trajectory.take(buffer)[1]),
        ),
        LearnerPrograms(learn=quick_jit(partial(learn, algorithm))),
    )  # fmt: skip


def behavior(trainer: str = "ppo") -> Behavior:
    settings, algorithm, made = programs(trainer)
    return make_behavior("Crowd", SPEC, settings, algorithm, made, jax.random.key(0), training=True)


def say(crowd: Behavior, agents: Iterable[int], groups: dict[int, int] | None = None) -> None:
    """These agents ask, with reward 1 for what they did before."""
    ids = list(agents)
    teams = None if groups is None else [groups[agent] for agent in ids]
    deciding = decision_steps(SPEC, ids, groups=teams, reward=[1.0] * len(ids))
    crowd.act({SOURCE: message(SPEC, None, deciding)})


_acted = quick_jit(lambda buffer: rollout_of(buffer).acted.sum())


def stored(crowd: Behavior) -> int:
    """Decisions that an update would be trained on now."""
    return int(_acted(crowd.actor.buffer))


def cells(crowd: Behavior) -> int:
    return int(np.prod(crowd.actor.buffer.shape))


def until_due(crowd: Behavior, *waves: Iterable[int], groups: dict[int, int] | None = None) -> None:
    """Message after message until an update is due."""
    waves = tuple(map(list, waves))
    for i in range(5000):
        if crowd.due():
            return
        say(crowd, waves[i % len(waves)], groups)
    raise AssertionError("no update is ever due")


def test_many_agents_once_and_then_a_few() -> None:
    """64 agents ask once, then 2 of them go on: 256 messages, not the 12 that a page of 64 rows has room for."""
    crowd = behavior()
    say(crowd, range(64))
    until_due(crowd, range(2))
    assert stored(crowd) == crowd.actor.fresh == ASKED + 2
    crowd.learn()
    assert int(crowd.state.step) == ASKED + 2 and crowd.actor.fresh == 0
    until_due(crowd, range(2))
    assert stored(crowd) == ASKED + 2, "and so with the next one"


def test_one_agent_ten_times_as_fast() -> None:
    crowd = behavior()
    fast = [[0]] * 9 + [range(16)]
    say(crowd, range(16))
    until_due(crowd, *fast)
    assert ASKED < stored(crowd) == crowd.actor.fresh <= ASKED + 16


@pytest.mark.parametrize(("last", "comes"), [(ASKED, False), (ASKED + 1, True)])
def test_an_update_is_compiled_ahead_where_it_can_come(monkeypatch, caplog, last: int, comes: bool) -> None:
    """A buffer of 512 is due with the 513th decision, which a run of 512 steps does not learn from any more."""
    crowd, ahead = behavior(), []
    monkeypatch.setattr(learner, "compile_ahead", lambda *arguments: ahead.append(arguments[0]))
    crowd.learner.settings = crowd.settings.model_copy(update={"max_steps": last})
    with caplog.at_level(logging.INFO, "jaxrl"):
        until_due(crowd, range(1))
    assert (crowd.step, crowd.unfinished()) == (ASKED + 1, comes)
    assert ahead == ["Crowd"] * comes
    told = [text for text in caplog.messages if "decisions are compiled, which took" in text]
    assert len(told) == 1 and told[0].startswith("Crowd: ")


@pytest.mark.slow
def test_teams_of_which_most_are_dead() -> None:
    """Two teams of 16; two members of each live on: 32 cells of a state hold 4 decisions."""
    crowd, groups = behavior("poca"), {agent: 1 + agent // 16 for agent in range(32)}
    say(crowd, range(32), groups)
    until_due(crowd, [0, 1, 16, 17], groups=groups)
    assert ASKED < stored(crowd) == crowd.actor.fresh <= ASKED + 4


def test_one_agent_and_then_many(caplog: pytest.LogCaptureFixture) -> None:
    """One agent has a page of 643 states; 256 rows of such pages would hold 160,000 cells, 1,500 are enough."""
    crowd = behavior()
    for _ in range(60):
        say(crowd, [0])
    assert crowd.actor.buffer.shape == (capacity(ASKED, 1, 1), 1, 1)
    with caplog.at_level(logging.INFO, logger="jaxrl"):
        say(crowd, range(256))
    assert [record.message for record in caplog.records if "compiled once more" in record.message]
    assert stored(crowd) == 60, "nothing is lost when pages are cut"
    assert cells(crowd) < 4 * 256 * capacity(ASKED, 256, 1)
    until_due(crowd, range(256))
    assert ASKED < stored(crowd) == crowd.actor.fresh <= ASKED + 256
    assert np.isfinite(list(crowd.learn().values())).all()


def test_an_update_of_few_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    """A team of 32 of which one member decides would need 32 times the room: the update starts at a bound."""
    crowd, groups = behavior("mappo"), dict.fromkeys(range(32), 1)
    with caplog.at_level(logging.WARNING, logger="jaxrl"):
        for _ in range(2):
            say(crowd, range(32), groups)
            until_due(crowd, [0], groups=groups)
            assert crowd.actor.full and stored(crowd) < ASKED / 2
            assert cells(crowd) <= MOST * capacity(ASKED, 1, 1)
            crowd.learn()
    assert [
        r.message for r in caplog.records if "of the 512 decisions that hyperparameters.buffer_size asks" in r.message
    ]
    assert len([r for r in caplog.records if "buffer_size asks" in r.message]) == 1


def test_who_only_acts_keeps_a_bounded_buffer() -> None:
    """Inference: what was collected is forgotten again, so that statistics are those of now."""
    settings, algorithm, made = programs("ppo")
    crowd = make_behavior("Crowd", SPEC, settings, algorithm, made, jax.random.key(0), training=False)
    size = None
    for _ in range(3):
        until_due(crowd, range(4))
        crowd.actor.discard()
        assert crowd.actor.fresh == 0 and stored(crowd) == 0
        size = size or cells(crowd)
        assert cells(crowd) == size
    assert {"entropy", "value_estimate/extrinsic"} == set(crowd.estimates())


def test_rows_that_take_pages_which_are_there_already() -> None:
    """An uneven crowd has made room for pages; when more agents come, rows grow and the buffer does not."""
    crowd = behavior()
    say(crowd, range(2))
    until_due(crowd, *[[0]] * 9, range(2))
    crowd.learn()
    pages = crowd.actor.buffer.shape[1]
    assert pages >= 4
    for _ in range(3):
        say(crowd, range(4))
    assert crowd.actor.buffer.shape[1] == pages and crowd.actor.buffer.clock.shape[1] == 4
    until_due(crowd, range(4))
    assert np.isfinite(list(crowd.learn().values())).all() and crowd.actor.fresh == 0

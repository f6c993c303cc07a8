"""Hosts that learn as one conclude the same at their meetings, whatever each of them sees.

Loops in threads, real but for the network and for what an update computes. Real processes: test_together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl.algorithms.interface import Counts
from jaxrl.envs.interface import EnvironmentClosed
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import RunSettings
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.run import host_loop
from jaxrl.training.host.together import JoinedLearner, Together
from jaxrl.types import Action, EnvMessage
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.toy_runs import configured, environment

LONGEST = 40.0
"""Seconds after which hosts that wait for each other for ever are a failed test."""


class Part(NamedTuple):
    """What a host sees of a behavior."""

    areas: int = 1
    since: int = 0  # messages before its first agent
    episode_length: int = 5


class Parts:
    """Toy environments of several behaviors side by side; `lasts`: messages after which all is closed."""

    def __init__(self, parts: dict[str, Part], seed: int, lasts: int) -> None:
        self.parts, self.clock, self.lasts = parts, 0, lasts
        self.told: list[Any] = []  # values of the parameter `level`
        self.envs = {
            name: ToyEnv(0, ToySettings(of.areas, behaviors=(name,), episode_length=of.episode_length, seed=seed))
            for name, of in parts.items()
        }
        self.about = ""

    def reset(self, parameters: Any = None, *_: Any) -> EnvMessage:
        self.set_parameters(parameters or {})
        self.clock = 0
        return self._joined({name: env.reset() for name, env in self.envs.items() if self.parts[name].since == 0})

    def step(self, actions: dict[str, Action]) -> EnvMessage:
        self.clock += 1
        if self.clock > self.lasts:
            raise EnvironmentClosed("the game was closed")
        told = {name: self.envs[name].step({name: of}) for name, of in actions.items()}
        new = {name: self.envs[name].reset() for name, of in self.parts.items() if of.since == self.clock}
        return self._joined(told | new)

    def set_parameters(self, parameters: Any) -> None:
        self.told += [value for name, value in parameters.items() if name == "level"]

    def close(self) -> None:
        pass

    def _joined(self, told: dict[str, EnvMessage]) -> EnvMessage:
        steps = {name: of.steps[name] for name, of in told.items()}
        specs = {name: spec for of in told.values() for name, spec in of.new_specs.items()}
        return next(iter(told.values()))._replace(steps=steps, new_specs=specs)


class Network:
    """What all say goes to all."""

    def __init__(self, count: int) -> None:
        self.said: list[Any] = [None] * count
        self.all_there = threading.Barrier(count, timeout=LONGEST)

    def every(self, index: int, mine: Any) -> list[Any]:
        self.said[index] = mine
        self.all_there.wait()
        said = list(self.said)
        self.all_there.wait()
        return said


class InThread(Together):
    """A host of a `Network`, whose arrays are those of this host alone."""

    def __init__(self, settings: RunSettings, network: Network, index: int) -> None:
        super().__init__(settings)
        self.network, self.index, self.count = network, index, len(network.said)
        self.rooms: list[tuple[int, ...]] = []

    def every(self, mine: Any) -> list[Any]:
        return self.network.every(self.index, mine)

    def side_by_side(self, rollout: Rollout, shape: tuple[int, ...]) -> Rollout:
        assert all(room >= size for room, size in zip(shape, rollout.acted.shape, strict=True))
        self.rooms.append(shape)
        return rollout

    def alike(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: x, tree)


class Update(NamedTuple):
    """One that a host has done, of a behavior."""

    name: str
    step: int  # of all hosts
    rooms: tuple[tuple[int, ...], ...]


class Seen(NamedTuple):
    """What a host has done."""

    updates: list[Update]
    steps: dict[str, int]  # at its end
    collected: list[int]  # of its updates, decisions of this host
    told: list[Any]  # to its environment


@pytest.fixture(autouse=True)
def _nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(*_: Any) -> Any:
        return lambda state, store, rollouts: (state, store, {})

    monkeypatch.setattr(JoinedLearner, "_program", program)


@contextmanager
def _hosts(
    folder: Path, sees: list[dict[str, Part]], lasts: list[int], changes: Any = None, **behaviors: Any
) -> Iterator[list[Seen]]:
    """Run hosts that see these parts to their end; `changes` are further sections of the file."""
    network, found, failed = Network(len(sees)), dict[int, Seen](), list[BaseException]()

    def run(index: int, *of: Any) -> None:
        try:
            sections = {"env_settings": {"editor_wait": 0.0}} | (changes or {})
            settings, env = configured(folder, f"host{index}", sections, **behaviors), Parts(*of)
            together = InThread(settings, network, index)
            with (
                environment(make=lambda _: env) as started,
                host_loop(settings, started=started, together=together) as loop,
            ):
                found[index] = _seen(loop, together, env)
        except BaseException as error:
            failed.append(error)
            network.all_there.abort()

    of = zip(sees, range(len(sees)), lasts, strict=True)
    threads = [threading.Thread(target=run, args=(index, *each)) for index, each in enumerate(of)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads)
    yield [found[index] for index in range(len(sees))]


def _seen(loop: HostLoop, together: InThread, env: Parts) -> Seen:
    updates, collected, learn = [], [], loop.updates.learn

    def noting(behavior: Any) -> None:
        assert isinstance(behavior.learner, JoinedLearner)
        together.rooms.clear()
        collected.append(behavior.collector.fresh)
        learn(behavior)
        updates.append(Update(behavior.name, behavior.learner.counted, tuple(together.rooms)))

    loop.updates.learn = noting  # type: ignore[method-assign]
    loop.run()
    return Seen(updates, {name: of.step for name, of in loop.behaviors.items()}, collected, env.told)


LONG = [10**6, 10**6]
SMALL = {"trainer_type": "ppo"}
FAST, SLOW = SMALL | {"max_steps": 900}, SMALL | {"max_steps": 300}


def test_behaviors_of_unlike_numbers_lengths_and_beginnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Crowd stands on one host mainly, Few on the other, and comes late there: the same updates in the same order."""
    sees = [{"Crowd": Part(4), "Few": Part(1, episode_length=3)}, {"Crowd": Part(1), "Few": Part(10, since=7)}]
    with _hosts(tmp_path, sees, LONG, Crowd=FAST, Few=SLOW) as (first, second):
        pass
    assert first.updates == second.updates and first.steps == second.steps
    names = [update.name for update in first.updates]
    assert names.count("Crowd") > 8 and names.count("Few") > 2
    assert all(step > limit for step, limit in zip(first.steps.values(), (900, 300), strict=True))
    for update, one, two in zip(first.updates, first.collected, second.collected, strict=True):
        assert one + two > 64, (update, "less than buffer_size")
    few = [both for name, *both in zip(names, first.collected, second.collected, strict=True) if name == "Few"]
    assert any(one < 16 for one, _ in few), "a share of its own that is not there does not hold the others up"
    assert "an update starts with" not in caplog.text


def test_what_one_host_alone_sees_is_acted_for_and_not_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both go on with the rest and end with it; it is said once why."""
    sees = [{"Crowd": Part(2), "Own": Part(2)}, {"Crowd": Part(2)}]
    with caplog.at_level(logging.WARNING), _hosts(tmp_path, sees, LONG, Crowd=FAST, Own=SLOW) as seen:
        first, second = seen
    assert first.updates == second.updates and {update.name for update in first.updates} == {"Crowd"}
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Own: ")]
    assert len(said) == 1 and "another one has not seen an agent of it so far" in said[0]


def test_hosts_whose_behaviors_differ_altogether_do_not_wait_for_ever(tmp_path: Path) -> None:
    """Nobody learns; the host whose game ends ends both."""
    sees = [{"Crowd": Part(2)}, {"Own": Part(2)}]
    with _hosts(tmp_path, sees, [60, 10**6], Crowd=FAST, Own=SLOW) as (first, second):
        assert first.updates == second.updates == []


@pytest.mark.parametrize("lasts", [[50, 10**6], [10**6, 50]])
def test_a_host_that_ends_ends_the_others(tmp_path: Path, lasts: list[int]) -> None:
    """At the same meeting, with the decisions of both."""
    sees = [{"Crowd": Part(2)}, {"Crowd": Part(1)}]
    with _hosts(tmp_path, sees, lasts, Crowd=SMALL | {"max_steps": 10**5}) as (first, second):
        pass
    assert first.updates == second.updates and len(first.updates) > 1
    assert first.steps == second.steps and first.steps["Crowd"] < 1000


def test_a_stop_rule_of_one_host_ends_a_behavior_on_all(tmp_path: Path) -> None:
    """Crowd is stopped by its reward on the first host that knows it; Few goes on to its last step."""
    sees = [{"Crowd": Part(2), "Few": Part(1)}, {"Crowd": Part(2), "Few": Part(1)}]
    stopped = FAST | {"stop": {"Environment/Cumulative Reward": -100.0}, "max_steps": 10**5, "summary_freq": 200}
    with _hosts(tmp_path, sees, LONG, Crowd=stopped, Few=SLOW) as (first, second):
        pass
    assert first.updates == second.updates
    names = [update.name for update in first.updates]
    assert 1 < names.count("Crowd") < 6 and names[-1] == "Few"
    assert np.isclose(first.steps["Few"], 300, atol=60)


def test_lessons_are_those_of_the_first_host(tmp_path: Path) -> None:
    """Episodes of 5 steps end on it alone, so that only it could judge; the other one is told at the next meeting."""
    lesson = {"measure": "reward", "behavior": "Crowd", "threshold": -100.0, "min_lesson_length": 3}
    stages = [
        {"name": f"L{level}", "value": float(level), **({"completion_criteria": lesson} if level < 2 else {})}
        for level in range(3)
    ]
    sees = [{"Crowd": Part(2)}, {"Crowd": Part(2, episode_length=10**6)}]
    changes = {"environment_parameters": {"level": {"curriculum": stages}}}
    with _hosts(tmp_path, sees, LONG, changes, Crowd=FAST) as (first, second):
        pass
    assert first.told == [0.0, 1.0, 2.0] and second.told in ([0.0, 1.0, 2.0], [0.0, 2.0])
    assert first.updates == second.updates


def test_a_run_ends_where_its_last_step_is_reached_and_tells_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """8 decisions of each host come with a message: all end within two of step 100, long before an update (640)."""
    sees = [{"Crowd": Part(4)}, {"Crowd": Part(4)}]
    settings = SMALL | {"max_steps": 100, "summary_freq": 100, "hyperparameters": {"buffer_size": 640}}
    with caplog.at_level(logging.INFO), _hosts(tmp_path, sees, LONG, Crowd=settings) as (first, second):
        pass
    assert first.updates == second.updates == [] and first.steps == second.steps
    assert 100 < first.steps["Crowd"] <= 132
    assert caplog.text.count("Crowd. Step: 100.") == 2, "on both"


def test_a_buffer_without_room_is_emptied_where_nobody_learns_from_what_it_holds(tmp_path: Path) -> None:
    """As without hosts; while something in it can be learned from it waits for the others."""
    settings = configured(tmp_path, Crowd=FAST)
    with environment("Crowd") as started, host_loop(settings, started=started, together=Together(settings)) as loop:
        for _, _ in zip(range(5), loop.iterate(), strict=False):
            pass
        assert loop.meetings is not None
        collector = loop.behaviors["Crowd"].collector
        assert collector.paged is not None and collector.held > 0
        collector.paged.full = True
        loop.meetings.discard()
        assert collector.full and loop.meetings.due
        collector.held = 0
        loop.meetings.discard()
        assert not collector.full and not loop.meetings.due


def test_a_replay_counts_what_all_hosts_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update is due by the decisions of all: 101 in the whole run, and as many as a minibatch has since the last."""
    noted, counts = list[tuple[int, Counts]](), JoinedLearner._counts

    def noting(self: JoinedLearner, actor: Any) -> Counts:
        noted.append((self._hosts.index, counts(self, actor)))
        return noted[-1][1]

    monkeypatch.setattr(JoinedLearner, "_counts", noting)
    sizes = {"batch_size": 64, "buffer_size": 256, "buffer_init_steps": 100}
    sac = {"trainer_type": "sac", "hyperparameters": sizes, "max_steps": 400}
    with _hosts(tmp_path, [{"Crowd": Part(4)}, {"Crowd": Part(1)}], LONG, Crowd=sac) as (first, second):
        pass
    mine, theirs = ([found for host, found in noted if host == index] for index in range(2))
    assert mine == theirs and [found.total for found in mine] == [update.step for update in first.updates]
    fresh = 0
    for found, one, two in zip(mine, first.collected, second.collected, strict=True):
        fresh += one + two
        assert found.fresh == fresh
        fresh = 0 if found.total >= 101 and fresh >= 64 else fresh

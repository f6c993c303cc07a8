"""What acts and learns for a team of two behaviors, piece by piece: whose numbers go to whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.rollout import noise
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.training.host.collector import Collector
from jaxrl.training.host.team import Gathering, Team
from jaxrl.training.host.team_learner import KindLearner
from jaxrl.training.host.team_policy import TeamPolicy
from jaxrl.training.signal_rewards import PAID
from jaxrl.types import Action

NAMES = ("Seer", "Runner")


def stub(**attributes: Any) -> Any:
    return SimpleNamespace(**attributes)


def test_a_team_is_whole_with_its_last_behavior_in_the_order_of_the_file() -> None:
    settings = load_run_settings(
        None, {"behaviors": {name: {"trainer_type": "poca", "team": "lock"} for name in NAMES}}, HYPERPARAMETER_TYPES
    )
    gathering = Gathering(settings)
    runner, seer = stub(spec="runner's"), stub(spec="seer's")
    assert gathering.add("lock", "Runner", runner) is None
    assert gathering.spec_of("Runner") == "runner's" and gathering.waits("Seer") is None
    whole = gathering.add("lock", "Seer", seer)
    assert whole is not None and list(whole.items()) == [("Seer", seer), ("Runner", runner)]
    assert gathering.waits("Runner") is None
    with pytest.raises(SettingsError, match=r"behaviors\.Other: default_settings\.team is lock"):
        gathering.add("lock", "Other", seer)


def learners(steps: dict[str, int]) -> dict[str, Any]:
    """The parts of both behaviors, at these steps of 100."""
    team: dict[str, Any] = {}
    for name, step in steps.items():
        one = team[name] = object.__new__(KindLearner)
        one.name, one.team, one.step, one.updates, one._told = name, team, step, 0, {}
        one.training, one.stopped, one.earned = True, False, Earned()
        one.settings = stub(last_step=100, hyperparameters=stub(learning_rate=1e-3))
    return team


class Earned:
    """Notes what was paid."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add(self, metrics: Any, rows: Any) -> None:
        self.added.append((metrics[PAID], rows.tolist()))


def test_an_update_of_a_team_gives_each_its_state_and_its_metrics_once() -> None:
    team = learners(dict.fromkeys(NAMES, 0))
    states = {name: stub(policy=stub(normalizer=()), of=name) for name in NAMES}
    metrics = {name: {"loss": np.float32(i), PAID: f"{name} is paid"} for i, name in enumerate(NAMES, 1)}
    assert team["Seer"]._learned(states, (), metrics, np.arange(2)) == {"loss": 1.0}
    for name in NAMES:
        assert (team[name].state.of, team[name].updates) == (name, 1)
        assert team[name].earned.added == [(f"{name} is paid", [0, 1])]
    assert [team["Runner"].take_told() for _ in range(2)] == [{"loss": 2.0}, {}]
    assert team["Seer"].take_told() == {}


def test_a_team_goes_on_until_its_last_behavior_is_done() -> None:
    for seer, runner, expected in ((50, 50, True), (101, 50, True), (50, 101, True), (101, 101, False)):
        team = learners({"Seer": seer, "Runner": runner})
        assert [team[name].unfinished() for name in NAMES] == [expected] * 2


class Acting(TeamPolicy):
    """What it books is given."""

    def book(self, messages: Any, untrained: Any) -> Any:
        return messages

    def _amend(self, paged: Any, ingested: Any) -> None:
        assert ingested.moved is None


def acting(**attributes: Any) -> Any:
    """A team's actor of one seer and two runners."""
    policy = object.__new__(Acting)
    kinds = [
        stub(name=name, policy=f"policy of {name}", run_key=(7, 10 + i), connected=f"before of {name}", watched=[])
        for i, name in enumerate(NAMES)
    ]
    for kind in kinds:
        kind.watch, kind.forgets, kind.forgotten = kind.watched.append, 0, []
        kind.forget = lambda kind=kind: kind.forgotten.append(kind.name)
    policy.kinds = {kind.name: kind for kind in kinds}
    policy._place = {name: i for i, name in enumerate(NAMES)}
    for name, value in attributes.items():
        setattr(policy, name, value)
    return policy


def test_each_behavior_acts_with_its_own_policy_noise_and_connectors() -> None:
    told: list[Any] = []

    def decide(*given: Any) -> Any:
        told.extend(given)
        return "actions", "buffer after", ("after of Seer", "after of Runner")

    policy = acting(decisions=5, programs=stub(decide=decide))
    paged = stub(buffer="buffer", slots=None)
    assert policy._decide(paged, stub(steps="seer's", beside=("runner's",), moved=None)) == "actions"
    policies, buffer, steps, keys, connected, moved = told
    assert policies == ("policy of Seer", "policy of Runner") and steps == ("seer's", "runner's")
    assert (buffer, paged.buffer, moved) == ("buffer", "buffer after", (None, None))
    assert [key.tolist() for key in keys] == [noise.noise_key((7, 10 + i), 5).tolist() for i in range(2)]
    assert connected == ("before of Seer", "before of Runner")
    assert [kind.connected for kind in policy.kinds.values()] == ["after of Seer", "after of Runner"]


def test_each_source_has_the_actions_of_its_agents_and_each_behavior_its_rows() -> None:
    """Rows of one seer and two runners: places 3 b + m of all members; of the runners 2 b + m - 1."""

    def own(kind: int, places: np.ndarray) -> np.ndarray:
        rows, members = np.divmod(places, 3)
        return rows * (1, 2)[kind] + members - kind

    policy = acting(paged=stub(slots=stub(own=own)))
    seen, went = Source(0, "Seer?team=0"), Source(0, "Runner?team=0")
    actions = tuple(
        Action(np.full((2, n, 1), 100.0 * n) + np.arange(2 * n).reshape(2, n, 1), np.zeros((2, n, 0))) for n in (1, 2)
    )
    brought = [stub(finished=i, episodes=[f"of {name}"]) for i, name in enumerate(NAMES, 1)]
    decisions = {went: np.array([5, 1]), seen: np.array([3])}
    ingested = stub(decisions=decisions, kinds=brought, steps="seer's", beside=("runner's",))
    found, episodes, finished = policy.act((ingested, actions))
    assert found[went].continuous[:, 0].tolist() == [203.0, 200.0] and found[seen].continuous[:, 0].tolist() == [101.0]
    assert episodes == {"Seer": ["of Seer"], "Runner": ["of Runner"]} and finished == {"Seer": 1, "Runner": 2}
    assert [kind.watched for kind in policy.kinds.values()] == [["seer's"], ["runner's"]]
    counted: list[Any] = []
    behaviors = [stub(name=name, count=counted.append, may_learn=lambda: False) for name in NAMES]
    Team(tuple(behaviors), policy).act((ingested, actions))  # pyright: ignore[reportArgumentType]
    assert counted == [1, 2]


def test_where_a_team_begins_anew_each_of_its_behaviors_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collector, "begin_anew", lambda _: None)
    policy = acting()
    policy.begin_anew()
    assert [kind.forgotten for kind in policy.kinds.values()] == [["Seer"], ["Runner"]]

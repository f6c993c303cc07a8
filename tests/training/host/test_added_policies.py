"""Policies added while a run goes on are copies: of learners that learn in threads, of checkpoints, of connectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import AgentRecord, Callbacks, Episode
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.training.host.learner import Learner
from jaxrl.training.host.run import train
from jaxrl.training.host.threaded import ThreadedLearner
from tests.toy_runs import configured, environment
from tests.training.host.test_mapped_policies import same, weights

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]
TOY = {"trainer_type": "ppo", "max_steps": 600, "time_horizon": 8, "connectors": [{"type": "normalize"}]}
OTHERS = ("Frozen", "Twin", "Loaded")


class Adding(Callbacks):
    """Adds one policy of each kind after update 1, and where updates have threads while another is under way."""

    def __init__(self, checkpoint: Path, threaded: bool) -> None:
        self.checkpoint, self.threaded = checkpoint, threaded
        self.run: Any = None
        self.asked = 0
        self.updates: dict[str, int] = {}
        self.at_first: dict[str, list[np.ndarray]] = {}
        self.at_last: dict[str, list[np.ndarray]] = {}

    def on_run_start(self, run: Any) -> None:
        self.run = run

    def on_episode_step(self, episode: Episode) -> None:
        learner = self.run._named()["Toy"].learner
        if self.at_first or not self.updates or (self.threaded and not learner.under_way):
            return
        assert isinstance(learner, ThreadedLearner) == self.threaded and isinstance(learner, Learner)
        self.run.add_policy("Frozen", like="Toy")
        self.run.add_policy("Twin", like="Toy", weights="Toy", trains=True)
        self.run.add_policy("Loaded", like="Toy", weights=self.checkpoint, trains=True)
        self.at_first = {name: weights(self.run, name) for name in ("Toy", *OTHERS)}
        newest = self.run._named()["Toy"].state.policy.connectors[0]["0"]
        assert float(newest.count) > 1.0
        for name in ("Frozen", "Twin"):
            copied = self.run._named()[name].actor.policy.connectors[0]["0"]
            np.testing.assert_array_equal(copied.mean, newest.mean)
            assert copied.count == newest.count

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str:
        self.asked += 1
        return ("Toy", *OTHERS)[self.asked % 4] if self.at_first else "Toy"

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        self.updates[policy] = self.updates.get(policy, 0) + 1
        if self.at_first:
            self.at_last = {name: weights(self.run, name) for name in ("Toy", *OTHERS)}
            statistics = self.run._named()["Frozen"].actor.statistics[0]["0"]
            frozen = self.run._named()["Frozen"].actor.policy.connectors[0]["0"]
            np.testing.assert_array_equal(statistics.mean, frozen.mean, "it does not learn")


@pytest.mark.parametrize(
    "threaded",
    [
        pytest.param(False, id="between messages", marks=pytest.mark.slow),
        pytest.param(True, id="threaded", marks=pytest.mark.slow),
    ],
)
def test_added_policies_are_whole_whatever_learns_beside_them(tmp_path: Path, threaded: bool) -> None:
    """Nothing of a copy is overwritten by later updates and decisions, and what trains learns from its own start."""
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, "before", Toy=TOY | {"max_steps": 150}), started=started)
    checkpoint = checkpoints(tmp_path / "results" / "before" / "Toy")[-1].path
    adding = Adding(checkpoint, threaded)
    with environment("Toy?team=0", workers=2) as started:
        train(configured(tmp_path, "after", Toy=TOY | {"threaded": threaded}), started=started, callbacks=[adding])
    first, last = adding.at_first, adding.at_last
    assert all(adding.updates[name] >= 2 for name in ("Toy", "Twin", "Loaded")) and "Frozen" not in adding.updates
    assert same(first["Frozen"], last["Frozen"])
    assert not any(same(first[name], last[name]) for name in ("Toy", "Twin", "Loaded"))
    assert not same(last["Twin"], last["Toy"]) and not same(first["Loaded"], first["Toy"])
    for name in ("Twin", "Loaded"):
        assert checkpoints(tmp_path / "results" / "after" / name)

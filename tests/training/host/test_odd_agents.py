"""Through the whole host loop: agents that vanish without an ending, and agents that act on their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Callbacks, Episode
from jaxrl.rollout.booking.untrained import ExternalActionError
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.training.host.learner import Learner
from jaxrl.training.host.run import train
from jaxrl.types import Action, EnvMessage, Taken
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.event_files import read_events
from tests.toy_runs import configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]
SETTINGS = ToySettings(behaviors=("Toy?team=0",), areas=1, teams=False)


class Vanishing(ToyEnv):
    """Nobody's ending is told: after each episode others ask. Every third message is empty."""

    def __init__(self, worker: int, settings: ToySettings) -> None:
        super().__init__(worker, settings)
        self.held: EnvMessage | None = None
        self.count = 0

    def _advance(self, areas: list[Any]) -> list[tuple]:
        super()._advance(areas)
        return []

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        self.count += 1
        if self.held is not None:
            assert actions == {}, "actions for those that asked, and for nobody else"
            held, self.held = self.held, None
            return held
        answer = super().step(actions)
        if self.count % 3:
            return answer
        self.held = answer
        return answer._replace(steps={}, new_specs={})


class Driven(ToyEnv):
    """Whoever has an even id does branch 2 and 0.25 whatever it was told, from its second message on."""

    def __init__(self, worker: int, settings: ToySettings) -> None:
        super().__init__(worker, settings)
        self.before: set[int] = set()

    def _result(self, ended: Mapping[str, list[tuple]]) -> EnvMessage:
        message = super()._result(ended)
        steps = message.steps["Toy?team=0"]
        there = {*steps.ended.agent_id.tolist(), *steps.deciding.agent_id.tolist()}
        ids = sorted(agent for agent in self.before & there if agent % 2 == 0)
        count = len(ids)
        action = Action(np.full((count, 1), 0.25, np.float32), np.full((count, 1), 2, np.int32))
        self.before = set(steps.deciding.agent_id.tolist())
        taken = Taken(np.array(ids, np.int64), action)
        return message._replace(steps={"Toy?team=0": steps._replace(taken=taken)})


class Watching(Callbacks):
    """Keeps what the run is made of, trainer steps, and finished episodes."""

    run: Any = None

    def __init__(self) -> None:
        self.ended: list[Episode] = []
        self.step = 0

    def on_run_start(self, run: Any) -> None:
        self.run = run

    def on_episode_end(self, episode: Episode) -> None:
        self.ended.append(episode)

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        self.step = step


def made(kind: type[ToyEnv], worker: int) -> ToyEnv:
    return kind(worker, SETTINGS)


def watched(
    folder: Path, kind: type[ToyEnv], max_steps: int, connectors: Sequence[dict[str, Any]] = (), **options: Any
) -> Watching:
    """A run with this environment."""
    watching = Watching()
    toy = {"max_steps": max_steps, "time_horizon": 8, "connectors": list(connectors)}
    settings = configured(folder, changes={"env_settings": options}, Toy=toy)
    with environment(make=partial(made, kind)) as started:
        train(settings, started=started, callbacks=[watching])
    return watching


def test_m5_vanished_agents_are_interrupted_and_their_rows_taken_by_others(tmp_path: Path) -> None:
    """Two agents at a time. Of 7 messages 5 are of an episode; after 4 more without them they are over."""
    watching = watched(tmp_path, Vanishing, 100, missing="truncate", missing_after=4)
    assert len(watching.ended) > 15 and all(episode.truncated for episode in watching.ended)
    assert {agent.decisions for episode in watching.ended for agent in episode.agents} == {5}
    assert watching.run._named()["Toy"].actor.paged.slots.rows <= 8


@pytest.mark.parametrize(("how", "share"), [("train", 1.0), ("leave_out", 0.5)])
def test_r44_m21_decisions_of_others_are_learned_from_or_left_out(tmp_path: Path, how: str, share: float) -> None:
    watching = watched(tmp_path, Driven, 100, outside_actions=how)
    decisions = sum(agent.decisions for episode in watching.ended for agent in episode.agents)
    assert watching.step == pytest.approx(share * decisions, abs=10)


CLIP = {"type": "clip", "of": "actions", "low": -1, "high": 1}


def test_m21_actions_of_others_come_back_through_the_connectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """unsquash makes 0.5 of 1, so the 0.25 that agents with even ids do were sent as 0.5, which is 1.5 raw.

    That is learned from, with branch 2, and is what they are shown as their previous action: [1.5, 0, 0, 1].
    """
    learn, learned = Learner.learn, []

    def learns(learner: Learner, actor: Any) -> dict[str, float]:
        learned.append(jax.tree.map(np.array, rollout_of(actor.buffer)))
        return learn(learner, actor)

    monkeypatch.setattr(Learner, "learn", learns)
    chain = [{"type": "unsquash", "low": -0.5, "high": 0.5}, {"type": "previous_action"}]
    watched(tmp_path, Driven, 150, chain)
    assert len(learned) == 2
    for rollout in learned:
        clock, _, agent, _ = np.moveaxis(rollout.obs[0][rollout.acted], -1, 0)
        continuous, discrete = (x[rollout.acted][:, 0] for x in rollout.action)
        even = agent % 2 == 0
        assert 20 < even.sum() < len(even) - 20
        np.testing.assert_allclose(continuous[even], 1.5, rtol=1e-6)
        assert (discrete[even] == 2).all() and not np.isclose(continuous[~even], 1.5).any()
        assert len(set(discrete[~even].tolist())) > 1
        before = rollout.obs[1][rollout.acted]
        np.testing.assert_allclose(before[even & (clock > 0)], [[1.5, 0, 0, 1]] * (even & (clock > 0)).sum(), rtol=1e-6)
        np.testing.assert_array_equal(before[clock == 0], 0.0)


def test_m21_actions_that_no_connector_can_bring_back_are_refused_before_anything_is_learned(tmp_path: Path) -> None:
    words = r"^Toy: .* what its connectors do to actions cannot be undone \(clip\); write .*outside_actions: leave_out$"
    with pytest.raises(ExternalActionError, match=words):
        watched(tmp_path, Driven, 100, [CLIP])
    (event_file,) = (tmp_path / "results" / "two" / "Toy").glob("events*")
    assert not any("Loss" in value.tag for event in read_events(event_file) for value in event.summary.value)


@pytest.mark.slow
def test_r44_actions_that_no_connector_can_bring_back_can_be_left_out(tmp_path: Path) -> None:
    watching = watched(tmp_path, Driven, 100, [CLIP], outside_actions="leave_out")
    decisions = sum(agent.decisions for episode in watching.ended for agent in episode.agents)
    assert watching.step == pytest.approx(0.5 * decisions, abs=10)

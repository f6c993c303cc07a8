"""Through the whole host loop: agents that vanish without an ending, and agents that act on their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Callbacks, Episode
from jaxrl.training.host.loop import train
from jaxrl.types import Action, EnvMessage, Taken
from tests.envs.toy_env import ToyEnv, ToySettings
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


def watched(folder: Path, kind: type[ToyEnv], max_steps: int, **options: Any) -> Watching:
    """A run with this environment."""
    watching = Watching()
    settings = configured(folder, changes={"env_settings": options}, Toy={"max_steps": max_steps, "time_horizon": 8})
    with environment(make=partial(made, kind)) as started:
        train(settings, started=started, callbacks=[watching])
    return watching


def test_m5_vanished_agents_are_interrupted_and_their_rows_taken_by_others(tmp_path: Path) -> None:
    """Two agents at a time. Of 7 messages 5 are of an episode; after 4 more without them they are over."""
    watching = watched(tmp_path, Vanishing, 100, missing="truncate", missing_after=4)
    assert len(watching.ended) > 15 and all(episode.truncated for episode in watching.ended)
    assert {agent.decisions for episode in watching.ended for agent in episode.agents} == {5}
    assert watching.run._named()["Toy"].actor._slots.rows <= 8


@pytest.mark.parametrize(("how", "share"), [("train", 1.0), ("leave_out", 0.5)])
def test_r44_m21_decisions_of_others_are_learned_from_or_left_out(tmp_path: Path, how: str, share: float) -> None:
    watching = watched(tmp_path, Driven, 100, outside_actions=how)
    decisions = sum(agent.decisions for episode in watching.ended for agent in episode.agents)
    assert watching.step == pytest.approx(share * decisions, abs=10)

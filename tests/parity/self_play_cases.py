"""Family k: the rating's formula, and self-play under scripted events, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxrl.artifacts.names import behavior_name, team_of
from jaxrl.rollout.booking.episodes import GameEnd
from jaxrl.settings import SelfPlaySettings
from jaxrl.training.self_play import rating
from jaxrl.training.self_play.game import Game, Played
from tests.parity.cases import Case
from tests.parity.compare import Comparison

RATINGS = ("/current_elo", "/policy_elos")


def run_formula(case: Case) -> Comparison:
    """The bare formula."""
    comparison, x = Comparison(), case.arrays
    rows = zip(x["rating"].tolist(), x["opponent"].tolist(), x["result"].tolist(), strict=True)
    comparison.add_exact("change", [rating.change(*row) for row in rows], x["change"])
    return comparison


def run_self_play(case: Case) -> Comparison:
    """The state of everything after each event; in the place of weights stands their version."""
    behaviors, trainers = case.meta["behaviors"], case.meta["trainers"]
    script, settings = Script(), SelfPlaySettings(**case.meta["self_play"])
    game = Game(script)
    for behavior in behaviors:
        game.join(behavior_name(behavior), team_of(behavior), settings, 0, elo=case.meta["initial_elo"])
    steps, versions = dict.fromkeys(trainers, 0), dict.fromkeys(trainers, 0)
    policies, pushed = dict.fromkeys(behaviors, 0), dict.fromkeys(behaviors, 0)
    rows = [_state(game, steps, policies, pushed, reset=False)]
    for event in case.meta["events"]:
        script.give(event)
        pushed, reset = dict.fromkeys(behaviors, 0), False
        for name in trainers:
            played = {(name, team): _played(event, f"{name}?team={team}") for team in game.sides[name].teams}
            steps[name] += sum(part.steps for (_, team), part in played.items() if game.learns(name, team))
            versions[name] += name in event["trained"]
            turn = game.turn(name, played, steps[name], versions[name] if name in event["trained"] else None)
            reset |= turn.changed
            for to in turn.sent:
                policies[f"{name}?team={to.team}"] = to.weights
                pushed[f"{name}?team={to.team}"] += 1
        assert script.used_up
        rows.append(_state(game, steps, policies, pushed, reset=reset))
    comparison = Comparison()
    for name in rows[0]:
        # Of more than two teams the original's ratings run backwards; here each pair is rated. Both begin alike.
        by_pair = len(behaviors) > 2 and name.endswith(RATINGS)
        last = 1 if by_pair else len(rows)
        comparison.add_exact(name, [row[name] for row in rows[:last]], case.arrays[name][:last])
    return comparison


class Script:
    """Random numbers of an event, in the order of use."""

    def give(self, event: dict[str, Any]) -> None:
        self._uniform: Iterator[float] = iter(event["uniform"])
        self._integers: Iterator[list[int]] = iter(event["randint"])

    def random(self) -> float:
        return next(self._uniform)

    def integers(self, high: int) -> int:
        wanted, drawn = next(self._integers)
        assert wanted == high
        return drawn

    @property
    def used_up(self) -> bool:
        return next(self._uniform, None) is None and next(self._integers, None) is None


def _played(event: dict[str, Any], behavior: str) -> Played:
    mine = [one for one in event["trajectories"] if one["behavior"] == behavior]
    ends = [GameEnd(0, one["last_reward"] + one["last_group_reward"], 0.0) for one in mine if _rated(one)]
    return Played(steps=sum(one["length"] for one in mine), games=ends)


def _rated(trajectory: dict[str, Any]) -> bool:
    return trajectory["done"] and not trajectory["interrupted"] and trajectory["all_groupmates_done"]


def _state(game: Game, steps, policies, pushed, *, reset: bool) -> dict[str, Any]:
    state: dict[str, Any] = {
        "state/controller_learning_team": game.rotation.learning,
        "state/reset": reset,
        "state/policies_pushed": list(pushed.values()),
        "state/policy_version": list(policies.values()),
    }
    for name, side in game.sides.items():
        pool, clock = side.pool, side.schedule
        drawn = [team for team in side.teams if team != side.learning] or side.teams
        versions = [snapshot.weights for snapshot in pool.snapshots]
        state |= {
            f"state/{name}/trainer_step": steps[name],
            f"state/{name}/ghost_step": side.ghost_step,
            f"state/{name}/last_save": clock.last_save,
            f"state/{name}/last_swap": clock.last_swap,
            f"state/{name}/last_team_change": clock.last_change,
            f"state/{name}/snapshot_counter": pool.saved % pool.window,
            f"state/{name}/current_opponent": pool.slot(pool.opponents[drawn[-1]]),
            f"state/{name}/current_elo": pool.elo,
            f"state/{name}/policy_elos": np.array(pool.ratings),
            f"state/{name}/snapshots": versions + [-1] * (pool.window - len(versions)),
            f"state/{name}/learning_team": side.learning,
        }
    return state

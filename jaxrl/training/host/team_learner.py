"""Learners of a team of several behaviors: one update for all, from their common buffer.

Each behavior has its own state, step, settings and statistics; `TeamAlgorithm.learn` learns from the rollouts of all
and returns each behavior's state and metrics.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.interface import Metrics, PolicyState, TrainState, acting, store_rollout
from jaxrl.algorithms.team import TeamAlgorithm
from jaxrl.rollout.buffer import kinds
from jaxrl.rollout.buffer.kinds import KindTrajectories
from jaxrl.rollout.rollout import Rollout
from jaxrl.training.host.collector import Collector
from jaxrl.training.host.learner import Held, Learner, signals_paid
from jaxrl.training.signal_rewards import PAID


def learn(
    team: TeamAlgorithm, states: dict[str, TrainState], store: Any, buffer: KindTrajectories, *begin: Any
) -> tuple[dict[str, TrainState], Any, KindTrajectories, dict[str, Metrics]]:
    """Take all rows and learn from them, in the one call per update. States and metrics are by behavior."""
    rollouts, buffer = kinds.take(buffer, *begin)
    states, store, metrics = learn_from(team, states, store, rollouts)
    return states, store, buffer, metrics


def learn_from(
    team: TeamAlgorithm, states: dict[str, TrainState], store: Any, rollouts: tuple[Rollout, ...]
) -> tuple[dict[str, TrainState], Any, dict[str, Metrics]]:
    """Learn from rollouts that were taken before, in the order of the team, while collection goes on."""
    paid, stores, counted = {}, {}, {}
    for (name, algorithm), rollout in zip(team.kinds.items(), rollouts, strict=True):
        paid[name] = signals_paid(algorithm, states[name], rollout)
        counted[name], stores[name] = store_rollout(algorithm, states[name], store, rollout)
    states, metrics = team.learn(counted, stores)
    return states, store, {name: metrics[name] | paid[name] for name in team.kinds}


def estimate(team: TeamAlgorithm, states: dict[str, TrainState], buffer: KindTrajectories) -> dict[str, Metrics]:
    """Compute the value and entropy metrics of the data in the buffer, by behavior."""
    return team.estimate(states, dict(zip(team.kinds, kinds.rollouts_of(buffer), strict=True)))


class KindLearner(Learner):
    """Learner of one behavior of a team, which goes on until all its behaviors are done. Arguments as `Learner`.

    together: the team's algorithm.
    team: learners by name that were made before, in the order of `together`; this one is added.
    """

    def __init__(
        self, name: str, *arguments: Any, together: TeamAlgorithm, team: dict[str, KindLearner], **keywords: Any
    ) -> None:
        super().__init__(name, *arguments, **keywords)
        self.together = together
        team[name] = self
        self.team = team
        self._told: dict[str, float] = {}  # metrics of the newest update, until `take_told`

    @property
    def policy(self) -> PolicyState:
        """Policy for the actor, as of `Learner`; the critic is the team's."""
        return acting(self.together, self.state)

    def unfinished(self) -> bool:
        """Return whether any behavior of the team has steps left."""
        return any(kind.goes_on() for kind in self.team.values())

    def _due(self, actor: Collector) -> bool:
        """Return True, and note the amount of data: a team learns from all data at once."""
        self._warn_of_few(actor.fresh)
        for kind in self.team.values():
            kind.held = Held(actor.env_steps, actor.fresh)
        return True

    def _learned(self, state: Any, store: Any, metrics: Any, rows: np.ndarray) -> dict[str, float]:
        """Book an update of the whole team; return this behavior's metrics (for the others see `take_told`)."""
        for name, kind in self.team.items():
            kind.state, kind.updates = state[name], kind.updates + 1
            kind.earned.add(metrics[name], rows)
            kind._told = {tag: float(value) for tag, value in metrics[name].items() if tag != PAID}
        return self.take_told()

    def take_told(self) -> dict[str, float]:
        """Return its metrics of the team's newest update, once. Raises DivergedError if one is not finite."""
        found, self._told = self._told, {}
        return self.checked(found)

    def estimates(self, actor: Collector) -> dict[str, float]:
        """Compute value and entropy metrics between two updates; empty before the first message."""
        if actor.buffer is None:
            return {}
        metrics = self._programs.estimate({name: kind.state for name, kind in self.team.items()}, actor.buffer)
        return {tag: float(value) for tag, value in jax.device_get(metrics[self.name]).items()}

    @property
    def _known(self) -> tuple[Any, Any]:
        return {name: kind.state for name, kind in self.team.items()}, self.store

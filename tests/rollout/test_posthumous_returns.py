"""The λ-return of a member that left goes on along its team: equal to a plain recursion over single decisions.

The recursion is over the records of `AgentByAgent`, which knows agents, teams and messages, but no rows and no scan.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest
from agent_by_agent import Agent, AgentByAgent, State
from random_streams import SOURCES, RandomStream
from row_collector import RowCollector

from jaxrl.algorithms import preparing
from jaxrl.rollout.rollout import Rollout
from tests.helpers import poca_settings

GAMMA, LAMBDA, HORIZON, MESSAGES = 0.9, 0.8, 5, 150
SETTINGS = poca_settings(hyperparameters__lambd=LAMBDA, reward_signals__extrinsic__gamma=GAMMA)
Key = tuple[int, int]  # uid and serial of a decision


class Finished(NamedTuple):
    """One decision whose outcome is known."""

    reward: float
    ending: str
    state: State  # in which it was made
    following: State  # what follows it


class DecisionReturns(AgentByAgent):
    """The returns of all decisions, from their own records."""

    def __init__(self) -> None:
        super().__init__(team_rows=True, horizon=HORIZON)
        self.finished: dict[Key, Finished] = {}

    def _finish(self, agent: Agent, rewards: tuple[float, float] | None, ending: str, after: State) -> None:
        super()._finish(agent, rewards, ending, after)
        assert agent.decided is not None and rewards is not None
        self.finished[agent.uid, agent.decided[1]] = Finished(rewards[0], ending, agent.state, after)

    def take_returns(self) -> dict[Key, float]:
        """Return the λ-return of every decision that an update takes now, and begin anew."""
        self.take()
        finished, self.finished = self.finished, {}
        made_in: dict[int, list[Key]] = {}
        for key, decision in finished.items():
            made_in.setdefault(id(decision.state), []).append(key)
        known: dict[Key, float] = {}

        def return_of(key: Key) -> float:
            if key not in known:
                known[key] = compute(key[0], finished[key])
            return known[key]

        def compute(uid: int, decision: Finished) -> float:
            if decision.ending == "terminated":
                return decision.reward
            value = float(sum(weight for _, _, weight in decision.following.values()))
            acting = made_in.get(id(decision.following), [])
            if decision.ending == "continues":
                acting = [key for key in acting if key[0] == uid]
            elif decision.ending != "left":
                acting = []  # cut or truncated: the return restarts from the value
            later = np.mean([return_of(key) for key in acting]) if acting else value
            return decision.reward + GAMMA * ((1 - LAMBDA) * value + LAMBDA * float(later))

        return {key: return_of(key) for key in finished}


@partial(jax.jit, static_argnames="posthumous")
def scanned(rollout: Rollout, value: jax.Array, *, posthumous: bool = True) -> jax.Array:
    """Returns [T, B, A] of the own rewards of a rollout."""
    paid = {"extrinsic": rollout.reward}
    return preparing.stream_returns(rollout, value, SETTINGS, paid, posthumous=posthumous)[..., 0]


def returns_by_decision(rollout: Rollout, **how: bool) -> dict[Key, float]:
    """The returns of a rollout whose V is the sum of the weights in sight, by decision."""
    present, acted, obs = (np.asarray(x) for x in (rollout.present, rollout.acted, rollout.obs[0]))
    value = np.where(present, obs[..., 2], 0.0).sum(-1, keepdims=True)
    returns = np.asarray(scanned(rollout, np.broadcast_to(value, present.shape)[..., None], **how))
    shots = zip(obs[acted], returns[acted], strict=True)
    return {(int(uid), int(serial)): float(value) for (uid, serial, _), value in shots}


@pytest.mark.parametrize("seed", range(4))
def test_random_streams_have_the_returns_of_the_recursion(seed: int) -> None:
    """Deaths, births, late members, rebirths in a row, moves, silence, cuts, endings of all kinds, updates between."""
    stream = RandomStream(seed)
    collector = RowCollector(rows=32, members=4, capacity=160, horizon=HORIZON, poison=False)
    agents = DecisionReturns()
    rng = np.random.default_rng(seed)
    left = differing = 0
    for number in range(MESSAGES):
        arrived = stream.message()
        collector.feed(arrived)
        agents.feed(arrived)
        if number == MESSAGES - 1 or rng.random() < 0.03:
            endings = {key: decision.ending for key, decision in agents.finished.items()}
            expected = agents.take_returns()
            collector.take(check=False)
            assert collector.rollout is not None
            computed = returns_by_decision(collector.rollout)
            assert computed == pytest.approx(expected, rel=2e-6, abs=1e-4)
            plain = returns_by_decision(collector.rollout, posthumous=False)
            left += sum(ending == "left" for ending in endings.values())
            differing += sum(plain[key] != pytest.approx(computed[key], rel=1e-4) for key in expected)
    assert left > 40 and differing > 40
    assert collector.slots.members == 4 and len(SOURCES) == 3

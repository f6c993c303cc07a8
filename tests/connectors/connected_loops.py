"""The same raw steps through the connectors of both loops: a policy that draws and looks at nothing plays twice."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.interface import Decision as Decided
from jaxrl.connectors import make_chain
from jaxrl.connectors.chain import Chain
from jaxrl.jax_envs.interface import JaxEnv, TeamView
from jaxrl.rollout.booking.row_arrays import by_place
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled import connectors as compiled
from jaxrl.training.compiled.play import Transitions, begins
from jaxrl.training.compiled.stacking import stack
from jaxrl.training.host import connectors
from jaxrl.types import Action, BehaviorMessage
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_jit
from tests.training.compiled.alone import collect, start_play
from tests.training.compiled.both_loops import (
    HORIZON,
    SOURCE,
    E,
    Host,
    Part,
    T,
    algorithm,
    first_message,
    messages,
    view_at,
)
from tests.training.compiled.both_loops import Decision as Chosen


class Both(NamedTuple):
    """What the two loops make of the same 2 T decisions: a rollout for each T."""

    compiled: list[Rollout]
    host: list[Rollout]
    raw: Transitions  # [2 T, E, A, ...], without connectors
    statistics: tuple[Any, Any]  # of the connectors at the end, compiled and host


def settings_with(*connectors: dict[str, Any]) -> BehaviorSettings:
    """PPO with connectors."""
    return settings_of("ppo", {"connectors": list(connectors)})


def drawing(env: JaxEnv, chain: Chain | None) -> Algorithm:
    """Actions from the key alone, so that connectors change nothing that happens."""

    def act(policy: Any, obs: Any, mask: jax.Array, carry: Any, key: jax.Array) -> Decided:
        lead, action = mask.shape[:-1], env.spec.action
        draws = jax.random.uniform(key, (*lead, action.columns))
        branches = jnp.array(action.discrete_branches, jnp.int32).reshape(*[1] * len(lead), -1)
        discrete = (draws[..., action.continuous_size :] * branches).astype(jnp.int32)
        raw = Action(6.0 * draws[..., : action.continuous_size] - 3.0, discrete)
        sent = raw._replace(continuous=raw.continuous / 3.0)
        return Decided(raw, sent, {"log_prob": jnp.zeros((*lead, action.columns))}, carry)

    return algorithm("ppo", env.spec)._replace(act=act, noise=None, connectors=chain)


def through_both(env: JaxEnv, *connectors: dict[str, Any], team_rows: bool) -> Both:
    """2 T decisions of one seed in E areas."""
    chain = make_chain(env.spec, settings_with(*connectors).connectors)
    assert chain is not None
    raw, raw_view, _, _ = _collected(env, None)
    steps, last, middle, statistics = _collected(env, chain)
    for name in ("alive", "terminated", "truncated", "over"):
        np.testing.assert_array_equal(getattr(raw, name), getattr(steps, name))
    lasts = (middle, last)
    halves = [_at(numbered(steps), slice(i * T, i * T + T)) for i in range(2)]

    @quick_jit
    def form(part: Transitions, view: TeamView) -> Rollout:
        return stack(env, part, view, (), team_rows=team_rows, time_horizon=HORIZON)

    found = [jax.tree.map(np.asarray, form(half, view)) for half, view in zip(halves, lasts, strict=True)]
    host = ConnectedHost(env, team_rows, chain)
    told = _told(host, numbered(raw), raw_view)
    return Both(found, told, raw, (statistics, host.connected.state.shared))


def numbered(steps: Transitions) -> Transitions:
    """`extras` number the decisions of all members."""
    number = np.arange(steps.alive.size, dtype=np.float32).reshape(*steps.alive.shape, 1)
    return steps._replace(extras={"log_prob": jnp.broadcast_to(number, steps.extras["log_prob"].shape)})


def _collected(env: JaxEnv, chain: Chain | None) -> tuple[Transitions, TeamView, TeamView, Any]:
    """2 T steps as T and T; the views after both and after the first half; statistics of the connectors."""
    actor = drawing(env, chain)
    policy = actor.init(jax.random.key(0)).policy.replace(connectors=() if chain is None else chain.shared)
    policies = jax.tree.map(lambda x: jnp.asarray(x)[None], policy)

    @quick_jit
    def run() -> Any:
        keys = jax.random.split(jax.random.key(1), (1 + 2 * T, 1))
        parameters = {name: jnp.full(1, value, jnp.float32) for name, value in env.parameters.items()}
        play = start_play(env, actor, keys[0], E, parameters)
        parts, views, statistics = [], [], policies.connectors
        for i in range(2):
            after, steps = collect(
                env, actor, policies.replace(connectors=statistics), play, keys[1 + i * T :][:T], parameters
            )
            _, view = compiled.observed(chain, after.connectors, after.view, begins(after))
            parts.append(steps)
            views.append(view)
            statistics = () if chain is None else after.connectors.shared
            play = after if chain is None else after._replace(connectors=after.connectors.slots)
        return jax.tree.map(lambda *x: jnp.concatenate(x), *parts), views, statistics

    steps, (middle, last), statistics = jax.tree.map(np.asarray, run())
    one = partial(jax.tree.map, lambda x: x[0])
    return jax.tree.map(lambda x: x[:, 0], steps), one(last), one(middle), one(statistics)


class ConnectedHost(Host):
    """The host loop's slots, connectors and buffer."""

    def __init__(self, env: JaxEnv, team_rows: bool, chain: Chain) -> None:
        super().__init__(env._replace(spec=chain.spec), team_rows)
        raw = Host(env, team_rows)
        self.teams, self.slots, self.chain = raw.teams, raw.slots, chain
        self.connected = connectors.start(chain, chain.shared, (self.slots.rows, self.slots.members))
        self._received = quick_jit(partial(connectors.received, chain))
        self._sent = quick_jit(partial(connectors.sent, chain))

    def tell(self, played: Any, decision: Chosen) -> None:
        (ended,) = self.teams.absorb(played)
        (deciding,) = self.teams.ask(played, True)
        ingested = self.slots.ingest({SOURCE: BehaviorMessage(ended=ended, deciding=deciding)})
        places = ingested.decisions[SOURCE]

        def dense(x: Any) -> np.ndarray:
            table = np.zeros((self.slots.rows, self.slots.members, *x.shape[2:]), x.dtype)
            by_place(table)[places] = x[played.alive]
            return table

        chosen = Action(*map(dense, decision.action))
        self.connected, steps = self._received(self.connected, ingested.steps)
        self.buffer = self.add(self.buffer, steps, chosen, {"log_prob": dense(decision.log_prob)})
        self.connected, _ = self._sent(self.connected, chosen, chosen, steps.deciding)
        jax.block_until_ready((self.buffer, self.connected))


def _told(host: ConnectedHost, raw: Transitions, last: TeamView) -> list[Rollout]:
    """The raw steps as messages; a rollout taken after each T."""
    chosen = [Chosen(Action(*(x[t] for x in raw.action)), np.asarray(raw.extras["log_prob"][t])) for t in range(2 * T)]
    host.tell(first_message(view_at(raw, 0)), chosen[0])
    found = []
    for i in range(2):
        half = _at(raw, slice(i * T, i * T + T))
        after = view_at(raw, T) if i == 0 else last
        for t, outcome in enumerate(messages(Part(half, after, {}, None)), start=1):  # pyright: ignore
            host.tell(outcome, chosen[min(i * T + t, 2 * T - 1)])
        found.append(jax.tree.map(np.asarray, host.taken().rollout))
    return found


def _at(steps: Transitions, at: slice) -> Transitions:
    return jax.tree.map(lambda x: x[at], steps)

"""Checks the cost of a learner: memory of replays, before anything is allocated, and the first decisions.

Real policies, untrained, play the environment for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import jax

from jaxrl.algorithms import make_algorithm
from jaxrl.algorithms.connected import without_learning
from jaxrl.artifacts.names import behavior_name
from jaxrl.connectors import make_chain
from jaxrl.envs.spec_limits import check_spec
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.scene import scene_of
from jaxrl.networks.observations import check_observations
from jaxrl.rollout.booking.occupants import Source
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for
from jaxrl.tools.doctor.findings import Finding, fail, ok
from jaxrl.training.host.behavior import Behavior, make_behavior
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.memory import check_store, stored_bytes
from jaxrl.types import BehaviorSpec, EnvMessage, JaxrlError

TURNS = 10
"""Number of environment steps after the first."""


def of_compiled(settings: RunSettings) -> Iterator[Finding]:
    """Check replays, as `replays`, of the JAX environment that the settings name; for all seeds."""
    options = settings.env_settings
    try:
        parts = scene_of(environment_in(options)).parts
        yield from replays(settings, {part.name: part.spec for part in parts}, options.seeds)
    except JaxrlError as error:
        yield fail("settings", str(error))


def replays(settings: RunSettings, specs: Mapping[str, BehaviorSpec], seeds: int = 1) -> Iterator[Finding]:
    """Yield for each behavior that stores more than its newest rollout the bytes of all seeds, or that they do not fit.

    Raises JaxrlError if no algorithm can be made from the settings.
    """
    for name, spec in specs.items():
        behavior = behavior_settings_for(settings, name)
        algorithm = make_algorithm(spec, behavior)
        try:
            check_store(name.partition("?")[0], algorithm, behavior, seeds)
        except SettingsError as error:
            yield fail("replay", str(error))
            continue
        needed = stored_bytes(algorithm, seeds)
        if needed:
            size = f"{needed / 2**30:.2f} GiB" if needed >= 2**30 else f"{needed / 2**20:.2f} MiB"
            reason = f"buffer_size {behavior.hyperparameters.buffer_size}, {seeds} seed(s)"
            yield ok("replay", f"{name}: {size} ({needed} bytes; {reason})")


def decisions(settings: RunSettings, pool: EnvPool, first: EnvMessage) -> Iterator[Finding]:
    """Make a decision for each behavior of the first message, then some more.

    `pool` has one worker, which waits for actions. Raises JaxrlError if the settings do not fit a behavior, or the
    environment fails.
    """
    policies: dict[str, Behavior] = {}
    begun = time.monotonic()
    message, deciding, stepping = first, 0.0, 0.0
    for turn in range(TURNS + 1):
        actions, now = {}, time.monotonic()
        for behavior_id, arrived in message.steps.items():
            if behavior_id not in policies:
                policies[behavior_id] = _behavior(settings, behavior_id, message.new_specs[behavior_id])
            behavior, source = policies[behavior_id], Source(0, behavior_id, message.incarnation)
            actions[behavior_id] = behavior.act({source: arrived})[0][source]
            if behavior.due():
                behavior.learn()
        if turn == 0:
            cost = time.monotonic() - begun
            yield ok(
                "decision", f"the first one for {', '.join(policies)} after {cost:.1f} s, mostly for compiling, once"
            )
        decided = time.monotonic()
        pool.send(0, actions)
        (message,) = pool.recv()
        if turn:
            deciding, stepping = deciding + decided - now, stepping + time.monotonic() - decided
    ours, theirs = 1e3 * deciding / TURNS, 1e3 * stepping / TURNS
    yield ok(
        "speed", f"then {ours:.1f} ms for all decisions of a step, and {theirs:.1f} ms until the environment answers"
    )


def _behavior(settings: RunSettings, behavior_id: str, spec: BehaviorSpec) -> Behavior:
    """Make a fresh policy, as training does."""
    name = behavior_name(behavior_id)
    behavior = behavior_settings_for(settings, name)
    check_spec(behavior_id, spec)
    chain = make_chain(spec, behavior.connectors, behavior_id)
    check_observations(spec if chain is None else chain.spec, behavior.network_settings, behavior_id)
    algorithm = without_learning(make_algorithm(spec, behavior))
    programs = compile_programs(algorithm, behavior.segment_limit)
    return make_behavior(name, spec, behavior, algorithm, programs, jax.random.key(0), training=False)

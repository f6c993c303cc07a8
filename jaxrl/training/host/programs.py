"""Compiled programs of the host loop: per behavior one that acts and appends, one for the update, and rare ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from weakref import WeakValueDictionary

import jax
import numpy as np

from jaxrl.algorithms.connected import without_learning
from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.team import TeamAlgorithm
from jaxrl.compilation import quick_options
from jaxrl.rollout.buffer import external_actions, kinds, trajectory, whole_episodes
from jaxrl.training.host import team_learner
from jaxrl.training.host.behavior import Programs
from jaxrl.training.host.connectors import scoring_action
from jaxrl.training.host.decide import Acting, ActorPrograms, decide, decide_together
from jaxrl.training.host.learner import LearnerPrograms, estimate, keep, learn, learn_from, start, take


def compile_programs(algorithm: Algorithm, time_horizon: int) -> Programs:
    """Compile the programs of a behavior. Buffer, store and learner are donated: they are updated in place."""
    quick, score_action = quick_options(), scoring_action(algorithm)
    actor = ActorPrograms(
        decide=jax.jit(partial(decide, algorithm, time_horizon), donate_argnums=(1, 4)),
        decide_frozen=None
        if algorithm.connectors is None
        else jax.jit(partial(decide, without_learning(algorithm), time_horizon), donate_argnums=(1, 4)),
        allocate=jax.jit(
            trajectory.init, static_argnames=("spec", "extras", "capacity", "rows", "members"), compiler_options=quick
        ),
        turn=jax.jit(trajectory.turn, donate_argnums=0, compiler_options=quick),
        turn_whole=jax.jit(whole_episodes.turn, donate_argnums=0, compiler_options=quick),
        discard=jax.jit(lambda buffer: trajectory.take(buffer)[1], donate_argnums=0, compiler_options=quick),
        leave_out=jax.jit(external_actions.leave_out, donate_argnums=0, compiler_options=quick),
        replace_actions=None
        if score_action is None
        else jax.jit(partial(external_actions.replace_actions, score_action), donate_argnums=1, compiler_options=quick),
    )
    learner = LearnerPrograms(
        learn=jax.jit(partial(learn, algorithm), donate_argnums=(0, 1, 2)),
        start=jax.jit(start, static_argnums=0, compiler_options=quick),
        keep=jax.jit(keep, static_argnums=0, donate_argnums=(2, 3), compiler_options=quick),
        estimate=jax.jit(estimate, static_argnums=0, compiler_options=quick),
        take=jax.jit(take, donate_argnums=0, compiler_options=quick),
        learn_from=jax.jit(partial(learn_from, algorithm), donate_argnums=1),  # actors decide with the old state
        ahead=WeakValueDictionary(),
    )
    return Programs(actor, learner)


def compile_team(
    team: TeamAlgorithm, time_horizons: Sequence[int], like: Sequence[Programs]
) -> tuple[ActorPrograms, LearnerPrograms]:
    """Compile the programs of a team of several behaviors; `like`: each behavior's own, in the team's order."""
    quick = quick_options()
    acting = [Acting(algorithm, limit) for algorithm, limit in zip(team.kinds.values(), time_horizons, strict=True)]
    actor = ActorPrograms(
        decide=jax.jit(partial(decide_together, acting, team.critic_step), donate_argnums=(1, 4)),
        allocate=like[0].actor.allocate,
        turn=jax.jit(kinds.turn, donate_argnums=0, compiler_options=quick),
        turn_whole=jax.jit(kinds.turn_whole, donate_argnums=0, compiler_options=quick),
        discard=jax.jit(lambda buffer: kinds.take(buffer)[1], donate_argnums=0, compiler_options=quick),
        leave_out=jax.jit(kinds.leave_out, donate_argnums=0, compiler_options=quick),
        resize=kinds.resize,
        repage=kinds.repage,
    )
    learner = LearnerPrograms(
        learn=jax.jit(partial(team_learner.learn, team), donate_argnums=(0, 1, 2)),
        start=like[0].learner.start,
        estimate=jax.jit(partial(team_learner.estimate, team), compiler_options=quick),
        take=jax.jit(kinds.take, donate_argnums=0, compiler_options=quick),
        learn_from=jax.jit(partial(team_learner.learn_from, team), donate_argnums=1),  # actors decide with the old ones
        ahead=WeakValueDictionary(),
    )
    return actor, learner


def key_of(seed: int, name: str) -> jax.Array:
    """Return the key of a behavior or frozen policy in a run with this seed: fold_in(key(seed), CRC-32 of its name)."""
    return _folded()(np.int32(seed), np.uint32(zlib.crc32(name.encode())))


@cache
def _folded() -> Callable[[np.int32, np.uint32], jax.Array]:
    """Return one compiled program in place of JAX's three functions."""
    return jax.jit(
        lambda seed, number: jax.random.fold_in(jax.random.key(seed), number), compiler_options=quick_options()
    )

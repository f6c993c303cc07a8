"""What the host loop compiles: per behavior one program that acts and appends, one for the update, and seldom ones."""

from __future__ import annotations

from functools import partial
from weakref import WeakValueDictionary

import jax

from jaxrl.algorithms.connected import without_learning
from jaxrl.algorithms.interface import Algorithm
from jaxrl.compilation import quick_options
from jaxrl.rollout.buffer import external_actions, trajectory, whole_episodes
from jaxrl.training.host.behavior import Programs
from jaxrl.training.host.connectors import scoring_action
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, estimate, keep, learn, learn_from, start, take


def compile_programs(algorithm: Algorithm, time_horizon: int) -> Programs:
    """The programs of a behavior. Buffer, store and learner are donated: they are updated in place."""
    quick, score_action = quick_options(), scoring_action(algorithm)
    actor = ActorPrograms(
        decide=jax.jit(partial(decide, algorithm, time_horizon), donate_argnums=(1, 4)),
        decide_frozen=None
        if algorithm.connectors is None
        else jax.jit(partial(decide, without_learning(algorithm), time_horizon), donate_argnums=(1, 4)),
        allocate=jax.jit(
            trajectory.init,
            static_argnames=("spec", "extras", "capacity", "rows", "members"),
            compiler_options=quick,
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

"""Make the initial state of every seed. The letters are those of `iteration.py`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.sampling import Distribution, Value
from jaxrl.training.compiled import opponents
from jaxrl.training.compiled.collect import none_made
from jaxrl.training.compiled.contest import TURN, rivals_of
from jaxrl.training.compiled.iteration import played
from jaxrl.training.compiled.plan import Learner, Plan
from jaxrl.training.compiled.play import Play, start_play
from jaxrl.training.compiled.recent_returns import none_yet, nothing
from jaxrl.training.compiled.state import JittedState, Pending, SceneState

_RIVALS = 2**31 - 2
"""Number that is folded into the keys of rivals; iterations never reach it."""


def start(plan: Plan, numbers: Array, parameters: Mapping[str, Any] | None = None) -> SceneState:
    """Make the initial state of each seed in `numbers`, uint32 [S]; a seed's training depends only on its number.

    `parameters`: environment parameters that replace those of the plan.
    """
    keys = jax.vmap(lambda number: jax.random.split(jax.random.key(number), 3))(numbers)  # [S, 3]
    parameters = of_each_seed(plan.parameters if parameters is None else parameters, numbers)
    first = {TURN: jnp.zeros(numbers.shape, jnp.float32)} if plan.rivals else {}
    areas, plays = start_play(plan.scene, plan.algorithms, keys[:, 1], plan.areas, {**parameters, **first})
    parts = {}
    for index, (name, learner) in enumerate(plan.learners.items()):
        subkeys = keys if index == 0 else jax.vmap(jax.vmap(lambda key, i=index: jax.random.fold_in(key, i)))(keys)
        part = parts[name] = _start_learners(learner, subkeys[:, 0], subkeys[:, 2], plays[name])
        if name in plan.rivals:
            draws = jax.vmap(lambda key: jax.random.fold_in(key, _RIVALS))(subkeys[:, 2])
            of_rivals = opponents.begin(plan.rivals[name], part.train.policy, plays[rivals_of(name)], draws)
            parts[name] = part.replace(rivals=of_rivals)
    state = SceneState(areas, parts, parameters)
    return state.replace(parts={name: _with_room(plan, name, state) for name in parts})


def _start_learners(learner: Learner, init_keys: Array, keys: Array, play: Play) -> JittedState:
    """Make a fresh learner for each seed, with its initial play. Both keys [S] are consumed."""
    algorithm = learner.algorithm
    store, train = algorithm.storage.init(), jax.vmap(algorithm.init)(init_keys)
    no_decisions = none_made(algorithm, train.policy, play, keys)
    return JittedState(
        train=train,
        store=jax.tree.map(lambda x: jnp.broadcast_to(x, (*keys.shape, *x.shape)), store),
        fresh=jnp.zeros(keys.shape, jnp.int32),
        play=play._replace(made=no_decisions),
        parameters={},
        values={key: for_each(value, keys) for key, value in learner.values.items()},
        key=keys,
        iteration=jnp.zeros(keys.shape, jnp.uint32),
        frozen=jnp.zeros(keys.shape, bool),
        recent=none_yet(len(keys)),
        newest=nothing(learner.newest, len(keys)) if learner.newest else (),
        last_step=() if learner.alone else for_each(learner.max_steps, keys, jnp.int32),
        paid=_nothing_paid(learner, play.view.alive),
    )


def _with_room(plan: Plan, name: str, state: SceneState) -> JittedState:
    """Return the state of a behavior, with room for the decisions of a rollout of several iterations."""
    part, every = state.parts[name], plan.learners[name].every
    if every == 1:
        return part
    _, steps = jax.eval_shape(partial(played, plan), state)
    room = jax.tree.map(lambda x: jnp.zeros((x.shape[1], every * x.shape[0], *x.shape[2:]), x.dtype), steps[name])
    return part.replace(store=Pending(own=part.store, steps=room))


def of_each_seed(parameters: Mapping[str, Any], numbers: Array) -> dict[str, Value]:
    """Broadcast environment parameters to one value per seed [S]; distributions already have the seed axis."""
    return {
        name: jax.tree.map(jnp.asarray, value) if isinstance(value, Distribution) else for_each(value, numbers)
        for name, value in parameters.items()
    }


def for_each(value: Any, numbers: Array, dtype: Any = jnp.float32) -> Array:
    """Broadcast a number, or one for each seed, to [S]."""
    return jnp.broadcast_to(jnp.asarray(value, dtype), numbers.shape)


def _nothing_paid(learner: Learner, alive: Array) -> Any:
    """Return the initial zeros of `JittedState.paid` for the members `alive` [S, E, A]; () without signal rewards."""
    algorithm, (seeds, areas, agents) = learner.algorithm, alive.shape
    if algorithm.signal_rewards is None:
        return ()
    members = learner.env.members if algorithm.team_rows else 1
    nothing = jnp.zeros((seeds, areas * agents // members, members), jnp.float32)
    return dict.fromkeys(algorithm.signal_rewards.names, nothing)

"""A game of several behaviors, as a pure program: each acts for itself, in one area that all share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import Array

from jaxrl.jax_envs.interface import State, TeamView
from jaxrl.jax_envs.sampling import of_episode
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.training.acting import Act, Moment, first_moment, next_moment


def play_scene(
    scene: JaxScene,
    acts: Mapping[str, Act],
    steps: int,
    policies: dict[str, Any],
    memories: dict[str, Any],
    key: Array,
    parameters: dict[str, Any],
) -> tuple[Any, ...]:
    """`steps` decisions, one episode after the other: the fields of a `film.Game`, rewards by behavior.

    `key` is consumed. `acts`, `policies` and `memories` stand by behavior.
    """
    reset_key, play_key = jax.random.split(key)
    names = [part.name for part in scene.parts]

    def step(carry: tuple[State, dict[str, Moment], dict[str, Any]], key: Array) -> tuple[Any, tuple[Any, ...]]:
        step_key, reset_key, *act_keys = jax.random.split(key, 2 + len(names))
        state, moments, memories = carry
        actions, after_memories = {}, {}
        for name, act_key in zip(names, act_keys, strict=True):
            sent = acts[name](policies[name], memories[name], moments[name], act_key)
            actions[name], after_memories[name] = sent
        after, result = scene.step(step_key, state, actions)
        views = result.view

        def begin() -> tuple[State, dict[str, TeamView]]:
            return scene.reset(reset_key, of_episode(parameters, reset_key))

        going, views = jax.lax.cond(result.over, begin, lambda: (after, views))
        following = {}
        for name, done in result.behaviors.items():
            ended = done.terminated | done.truncated | result.over
            following[name] = next_moment(moments[name], views[name], ended, done.reward, done.group_reward)
        own = {name: done.reward for name, done in result.behaviors.items()}
        group = {name: done.group_reward for name, done in result.behaviors.items()}
        return (going, following, after_memories), (state, after, own, group, result.over)

    state, views = scene.reset(reset_key, of_episode(parameters, reset_key))
    first = {name: first_moment(views[name]) for name in names}
    return jax.lax.scan(step, (state, first, memories), jax.random.split(play_key, steps))[1]

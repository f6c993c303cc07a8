"""Interface of a JAX-native environment of several behaviors: one area in which their agents live together.

As `JaxEnv`, which stays the form for one behavior, but views, actions and results of a step are by behavior name:

    reset(key, parameters) -> (state, {"Striker": TeamView, "Goalie": TeamView})
    step(key, state, {"Striker": TeamActions, "Goalie": TeamActions}) -> (state, SceneStep)

Each behavior has its own sensors, actions and number of members, and is learned by a trainer of its own. A behavior
whose agents are absent from an episode has rows that are not alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jax import Array

from jaxrl.envs.player.teams import BehaviorPart as BehaviorPart
from jaxrl.jax_envs.drawing import Scene
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, State, TeamActions, TeamStep, TeamView


class BehaviorStep(NamedTuple):
    """Results of a step for one behavior; the fields are those of `TeamStep`."""

    view: TeamView
    reward: Array  # float32 [A]
    group_reward: Array  # float32 [A]
    terminated: Array  # bool [A]
    truncated: Array  # bool [A]


class SceneStep(NamedTuple):
    """Results of one step of the area."""

    behaviors: dict[str, BehaviorStep]
    over: Array  # bool [], the whole episode is over: every agent of every behavior has ended, reset comes next
    stats: Mapping[str, Array]  # float32 [], by tag; the episode's figures, to be read where `over`

    @property
    def view(self) -> dict[str, TeamView]:
        """Views by behavior."""
        return {name: step.view for name, step in self.behaviors.items()}


class JaxScene(NamedTuple):
    """A simulator of several behaviors, bound to its sizes.

    `reset(key, parameters) -> (state, views)` and `step(key, state, actions) -> (state, scene_step)` are pure and may
    be vmapped; views and actions are dictionaries with the name of every behavior. Each consumes its typed key.
    """

    name: str  # of the scene
    parts: tuple[BehaviorPart, ...]
    parameters: Mapping[str, float]  # all environment parameters with their usual values
    reset: Callable[[Array, EnvParams], tuple[State, dict[str, TeamView]]]
    step: Callable[[Array, State, dict[str, TeamActions]], tuple[State, SceneStep]]
    draw: Callable[[State], Scene] | None = None  # a picture of one area; the state as numpy arrays
    tell: Callable[[State, bool], str] | None = None  # the picture in a few words; True: the episode is over

    def part(self, name: str) -> BehaviorPart:
        """Return the behavior of that name. Raises KeyError."""
        return {part.name: part for part in self.parts}[name]


Sizes = JaxEnv | BehaviorPart
"""Types that have the number of teams and members of one behavior, and whether its steps truncate."""


def scene_of(env: JaxEnv | JaxScene) -> JaxScene:
    """Return the scene whose only behavior is that of `env`; a scene is returned as it is."""
    if isinstance(env, JaxScene):
        return env
    name, reset, step = env.name, env.reset, env.step
    part = BehaviorPart(name, env.spec, env.members, env.teams, env.truncates)

    def reset_scene(key: Array, parameters: EnvParams) -> tuple[State, dict[str, TeamView]]:
        state, view = reset(key, parameters)
        return state, {name: view}

    def step_scene(key: Array, state: State, actions: dict[str, TeamActions]) -> tuple[State, SceneStep]:
        state, done = step(key, state, actions[name])
        came = BehaviorStep(done.view, done.reward, done.group_reward, done.terminated, done.truncated)
        return state, SceneStep({name: came}, done.over, done.stats)

    return JaxScene(name, (part,), env.parameters, reset_scene, step_scene, env.draw, env.tell)


def step_of_behavior(step: SceneStep, name: str) -> TeamStep:
    """Return the step of the behavior of that name, as an environment of one behavior would return it."""
    return TeamStep(*step.behaviors[name], over=step.over, stats=step.stats)


def parts_of(env: JaxEnv | JaxScene) -> tuple[Sizes, ...]:
    """Return the behaviors of an environment."""
    return (env,) if isinstance(env, JaxEnv) else env.parts


def by_behavior(env: JaxEnv | JaxScene, make: Callable[[Any], Any]) -> Any:
    """Call `make` with each behavior. Return its result for a `JaxEnv`, results by name for a scene."""
    return make(env) if isinstance(env, JaxEnv) else {part.name: make(part) for part in env.parts}

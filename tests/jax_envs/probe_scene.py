"""Two tiny behaviors that know nothing of each other, in one scene or each alone. Their best returns are 1.

Lamp: two members; a lamp shows ±1, and the member that names its sign earns 1 / length.
Dial: one member; a continuous action near the number that it sees earns 1 / length, less the squared distance.
Whatever a half draws comes from keys of its own, so that it plays alike alone and in the scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

LENGTH = 4
LAMP = BehaviorPart("Lamp", BehaviorSpec((ObservationSpec("lamp", (2,)),), ActionSpec(0, (2,))), members=2)
DIAL = BehaviorPart("Dial", BehaviorSpec((ObservationSpec("dial", (3,)),), ActionSpec(1, ())), members=1)
PARAMETERS = {"luck": 0.5, "hope": 0.25}
"""They change nothing; a scene tells the luck of an episode."""
PARTS = {part.name: part for part in (LAMP, DIAL)}


def make_probe_scene(names: Sequence[str] = ("Lamp", "Dial"), rare: str = "", faulty: str = "") -> JaxScene:
    """`rare`: a behavior that is absent from half of the episodes; `faulty`: one whose rewards are NaN."""
    parts = tuple(PARTS[name] for name in names)

    def reset(key: Array, parameters: EnvParams) -> tuple[Any, dict[str, TeamView]]:
        absent = jax.random.bernoulli(jax.random.fold_in(key, 99))
        values = {name: jnp.asarray(parameters.get(name, usual), jnp.float32) for name, usual in PARAMETERS.items()}
        state, views = {"parameters": values}, {}
        for part in parts:
            state[part.name], view = _reset(part, key)
            there = view.alive & ~(absent & (part.name == rare))
            state[part.name]["alive"] = there
            views[part.name] = view._replace(alive=there)
        return state, views

    def step(key: Array, state: Any, actions: dict[str, TeamActions]) -> tuple[Any, SceneStep]:
        after, steps, over = {"parameters": state["parameters"]}, {}, jnp.bool_(False)
        for part in parts:
            after[part.name], done = _step(part, key, state[part.name], actions[part.name])
            reward = done.reward * jnp.nan if part.name == faulty else done.reward
            steps[part.name] = BehaviorStep(*done._replace(reward=reward)[:5])
            over = done.over
        return after, SceneStep(steps, over, {"Environment/Luck": state["parameters"]["luck"]})

    return JaxScene("Probe", parts, PARAMETERS, reset, step)


def make_half(name: str) -> JaxEnv:
    """One of the behaviors in an environment of its own."""
    part = PARTS[name]

    def step(key: Array, state: Any, actions: TeamActions) -> tuple[Any, TeamStep]:
        after, done = _step(part, key, state, actions)
        return after, done._replace(stats={"Environment/Luck": jnp.float32(0.5)})

    def reset(key: Array, parameters: EnvParams) -> tuple[Any, TeamView]:
        return _reset(part, key)

    return JaxEnv(name, part.spec, part.members, {"luck": 0.5}, reset, step)


make_rare_dial = partial(make_probe_scene, rare="Dial")


def make_faulty_dial() -> JaxScene:
    """A scene whose second behavior breaks."""
    return make_probe_scene(faulty="Dial")


def _reset(part: BehaviorPart, key: Array) -> tuple[Any, TeamView]:
    state = {"clock": jnp.int32(0), "seen": _seen(part, key), "alive": jnp.ones(part.members, bool)}
    return state, _view(part, state, state["alive"])


def _step(part: BehaviorPart, key: Array, state: Any, actions: TeamActions) -> tuple[Any, TeamStep]:
    if part is LAMP:
        right = (actions.discrete[:, 0] == 1) == (state["seen"] > 0)
        reward = right / LENGTH
    else:
        reward = 1.0 / LENGTH - jnp.square(actions.continuous[:, 0] - state["seen"])
    alive, clock = state["alive"], state["clock"] + 1
    over = clock >= LENGTH
    after = {"clock": clock, "seen": _seen(part, key), "alive": alive & ~over}
    return after, TeamStep(
        view=_view(part, after, after["alive"]),
        reward=jnp.where(alive, reward, 0.0).astype(jnp.float32),
        group_reward=jnp.zeros(part.members, jnp.float32),
        terminated=alive & over,
        truncated=jnp.zeros(part.members, bool),
        over=over,
        stats={},
    )


def _seen(part: BehaviorPart, key: Array) -> Array:
    own = jax.random.fold_in(key, len(part.name) + part.spec.observations[0].shape[0])
    drawn = jax.random.uniform(own, (part.members,), minval=-0.5, maxval=0.5)
    return jnp.where(drawn > 0, 1.0, -1.0) if part is LAMP else drawn


def _view(part: BehaviorPart, state: Any, alive: Array) -> TeamView:
    size = part.spec.observations[0].shape[0]
    obs = jnp.zeros((part.members, size), jnp.float32).at[:, 0].set(state["seen"])
    return TeamView((obs,), jnp.ones((part.members, part.spec.action.mask_size), bool), alive)

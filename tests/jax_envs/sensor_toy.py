"""The toy with every kind of sensor, in an order of no reason, all made of what its vector shows."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.types import BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.jax_envs.toy_jax_env import ToySettings, make_toy

EVEN = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
SENSORS = (
    ObservationSpec("tiles", (5, 2), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)),
    ObservationSpec("camera", (3, 20, 24), (DimensionProperty.NONE, EVEN, EVEN), dtype="uint8"),
    ObservationSpec("wish", (2,), (DimensionProperty.NONE,), ObservationType.GOAL_SIGNAL),
    ObservationSpec("lamp", (4,), (DimensionProperty.NONE,)),
    ObservationSpec("grid", (7, 6, 5), (DimensionProperty.NONE, EVEN, EVEN)),
)


def make_sensor_toy(settings: ToySettings | None = None) -> JaxEnv:
    """Entities, a colour image as uint8, a goal, a vector and a grid with seven channels."""
    toy = make_toy(settings)

    def reset(key, parameters: EnvParams):
        state, view = toy.reset(key, parameters)
        return state, _shown(view)

    def step(key, state, actions: TeamActions) -> tuple:
        state, step = toy.step(key, state, actions)
        return state, TeamStep(*step)._replace(view=_shown(step.view))

    return toy._replace(name="SensorToy", spec=BehaviorSpec(SENSORS, toy.spec.action), reset=reset, step=step)


def _shown(view: TeamView) -> TeamView:
    """As many entities as decisions were made, the colour's sign as goal, the clock as brightness."""
    lamp = view.obs[0]  # [A, 4]: colour, clock / length, index, luck
    pixels = jnp.clip(255.0 * lamp[:, 1], 0.0, 255.0).astype(jnp.uint8)
    there = jnp.arange(5) / 5 < lamp[:, 1:2]  # [A, 5]
    rows = jnp.arange(20, dtype=jnp.uint8)[:, None]
    obs = (
        jnp.where(there[..., None], lamp[:, None, :2], 0.0),
        jnp.broadcast_to(pixels[:, None, None, None], (len(lamp), 3, 20, 24)) ^ rows,
        jnp.stack([lamp[:, 0] > 0, lamp[:, 0] < 0], axis=1).astype(jnp.float32),
        lamp,
        jnp.broadcast_to(lamp[:, 3, None, None, None], (len(lamp), 7, 6, 5)),
    )
    return view._replace(obs=obs)

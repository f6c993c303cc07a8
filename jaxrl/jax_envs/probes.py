"""Probes: tiny environments with a known best return, each of which can be solved in one way only.

They tell whether a policy makes use of a sensor, a goal or its memory, in seconds: whoever is blind to one of them
cannot do better than guess.

Rules. With its first observation each agent is shown a digit by every sensor; afterwards all
sensors read zeros. An episode lasts `delay` + 1 decisions, and only the last one counts (`delay` is an environment
parameter). The action has one branch for each sensor that is no goal, with one choice for each digit. The answer of
branch i is right if it is (digit of its sensor + digits of all goals) modulo the number of its digits. An agent all of
whose branches are right earns 1, else 0. In teams each member sees digits of its own, and every member is given the
share of its team that was right as group reward, so that the most is 1 as well.

Best return 1, and V = γ^k with k decisions still to come. Who cannot read a sensor with D digits, or forgets it, earns
1 / D of that; with two such sensors 1 / (D1 D2). A goal that cannot be read makes one of two answers right: 1 / 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, given, team_step
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType


class ProbeState(NamedTuple):
    """State of one area."""

    answer: Array  # int32 [A, D], right choice in each branch
    delay: Array  # int32 [], decisions before the one that counts
    clock: Array  # int32 [], decisions made


def make_probe(name: str, sensors: tuple[Sensor, ...], *, members: int = 1, delay: int = 0) -> JaxEnv:
    """Make a probe with these sensors, in this order.

    Args:
      name: behavior name.
      sensors: at least one that is no goal.
      members: A of a team; 1 is a lone agent, which has its reward as its own.
      delay: usual value of the parameter `delay`, rounded, at least 0.

    Raises:
      ValueError: all sensors are goals.
    """
    asked = [i for i, sensor in enumerate(sensors) if not sensor.is_goal]
    if not asked:
        raise ValueError(f"{name}: all {len(sensors)} sensors are goals; one that is none must ask for an answer")
    branches = tuple(sensors[i].values for i in asked)

    def view(obs: tuple[Array, ...], alive: bool | Array) -> TeamView:
        everything = jnp.ones((members, sum(branches)), bool)
        return TeamView(obs=obs, action_mask=everything, alive=jnp.broadcast_to(alive, members))

    def reset(key: Array, parameters: EnvParams) -> tuple[ProbeState, TeamView]:
        digit_key, show_key = jax.random.split(key)
        bounds = jnp.array([sensor.values for sensor in sensors])
        digit = jax.random.randint(digit_key, (members, len(sensors)), 0, bounds, jnp.int32)
        shift = sum(digit[:, i] for i, sensor in enumerate(sensors) if sensor.is_goal)
        state = ProbeState(
            answer=jnp.stack([(digit[:, i] + shift) % sensors[i].values for i in asked], axis=1),
            delay=jnp.maximum(jnp.round(given(parameters, {"delay": delay})["delay"]), 0).astype(jnp.int32),
            clock=jnp.int32(0),
        )
        keys = jax.random.split(show_key, (len(sensors), members))
        obs = tuple(jax.vmap(sensor.show)(keys[i], digit[:, i]) for i, sensor in enumerate(sensors))
        return state, view(obs, True)

    def step(key: Array, state: ProbeState, actions: TeamActions) -> tuple[ProbeState, TeamStep]:
        over = state.clock >= state.delay
        right = over & (actions.discrete == state.answer).all(axis=1)
        share = jnp.mean(right, dtype=jnp.float32)
        blank = tuple(jnp.zeros((members, *sensor.spec.shape), sensor.spec.dtype) for sensor in sensors)
        paid = {"reward": right} if members == 1 else {"group_reward": share}
        outcome = team_step(view(blank, ~over), **paid, terminated=over, figures={"Right": share})
        return state._replace(clock=state.clock + 1), outcome

    return JaxEnv(
        name=name,
        spec=BehaviorSpec(tuple(sensor.spec for sensor in sensors), ActionSpec(0, branches)),
        members=members,
        parameters={"delay": float(delay)},
        reset=reset,
        step=step,
    )


def make_probe_image() -> JaxEnv:
    """Make a probe of an image, 20 x 20 pixels as `vis_encode_type: simple` needs: which quarter is lit?"""
    return make_probe("ProbeImage", (image("camera", (3, 20, 20)),))


def make_probe_entities() -> JaxEnv:
    """Make a probe with at most three entities, of which one is not grey: which colour has it?"""
    return make_probe("ProbeEntities", (entities("buffer"),))


def make_probe_goal() -> JaxEnv:
    """Make a probe with a vector whose two answers are exchanged by a goal."""
    return make_probe("ProbeGoal", (vector("sight"), vector("wish", goal=True)))


def make_probe_memory() -> JaxEnv:
    """Make a probe with a vector to be remembered over `delay` decisions, usually 4."""
    return make_probe("ProbeMemory", (vector("sight"),), delay=4)


def make_probe_team_memory() -> JaxEnv:
    """Make a probe with a team of two, each of whom has something to remember over `delay` decisions, usually 4."""
    return make_probe("ProbeTeamMemory", (vector("sight"),), members=2, delay=4)


def make_probe_mixed() -> JaxEnv:
    """Make a probe with entities, a goal, an image and a vector; three branches, all to be shifted by the goal."""
    sensors = (entities("buffer"), vector("wish", goal=True), image("camera", (3, 20, 20)), vector("sight"))
    return make_probe("ProbeMixed", sensors)


def make_probe_roles(members: int = 2) -> JaxEnv:
    """Make a probe whose members see the same and choose among as many numbers as they are: 1 if all differ.

    One policy for all earns at most A! / A^A, with two members 1 / 2, and nothing where it leaves nothing to chance; a
    policy for each earns 1.
    """

    def view(alive: bool) -> TeamView:
        everything = jnp.ones((members, members), bool)
        return TeamView((jnp.full((members, 1), alive, jnp.float32),), everything, jnp.full(members, alive))

    def reset(key: Array, parameters: EnvParams) -> tuple[Array, TeamView]:
        return jnp.int32(0), view(True)

    def step(key: Array, state: Array, actions: TeamActions) -> tuple[Array, TeamStep]:
        chosen = jnp.zeros(members, bool).at[actions.discrete[:, 0]].set(True)
        different = chosen.all()
        return state, team_step(view(False), group_reward=different, terminated=True, figures={"Different": different})

    spec = BehaviorSpec((vector("nothing", 1).spec,), ActionSpec(0, (members,)))
    return JaxEnv(name="ProbeRoles", spec=spec, members=members, parameters={}, reset=reset, step=step)


class Sensor(NamedTuple):
    """A sensor and how it shows a digit."""

    spec: ObservationSpec
    values: int  # digits that it can show
    show: Callable[[Array, Array], Array]  # (key, digit int32 []) → one observation [*shape]; the key is consumed

    @property
    def is_goal(self) -> bool:
        """True if it is a goal signal."""
        return self.spec.observation_type == ObservationType.GOAL_SIGNAL


def vector(name: str, values: int = 2, *, goal: bool = False) -> Sensor:
    """Make a sensor that shows the digit as a one-hot vector."""
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    spec = ObservationSpec(name, (values,), (DimensionProperty.NONE,), kind)
    return Sensor(spec, values, lambda key, digit: jax.nn.one_hot(digit, values, dtype=jnp.float32))


def image(
    name: str,
    shape: tuple[int, int, int],
    *,
    by: Literal["place", "channel"] = "place",
    dtype: Literal["uint8", "float32"] = "uint8",
) -> Sensor:
    """Make a sensor with an image or grid [C, H, W], of bytes or of numbers 0 to 1.

    by "place": one of its four quarters is bright in all channels, the rest dim and uneven; 4 values.
    by "channel": one cell anywhere is lit, in one channel; C values.
    """
    spec = ObservationSpec(name, shape, IMAGE_PROPERTIES, dtype=dtype)

    def show(key: Array, digit: Array) -> Array:
        bright = _quarter(key, digit, shape) if by == "place" else _cell(key, digit, shape)
        return jnp.round(255.0 * bright).astype(jnp.uint8) if dtype == "uint8" else bright.astype(jnp.float32)

    return Sensor(spec, 4 if by == "place" else shape[0], show)


def _quarter(key: Array, digit: Array, shape: tuple[int, int, int]) -> Array:
    _, height, width = shape
    lower = (np.arange(height) >= height / 2)[:, None]
    right = (np.arange(width) >= width / 2)[None]
    lit = (2 * lower + right) == digit
    noise = jax.random.uniform(key, shape)
    return jnp.where(lit, 0.6 + 0.4 * noise, 0.3 * noise)


def _cell(key: Array, digit: Array, shape: tuple[int, int, int]) -> Array:
    channels, height, width = shape
    at = jax.random.randint(key, (), 0, height * width)
    place = (jnp.arange(height * width) == at).reshape(height, width)
    return ((jnp.arange(channels) == digit)[:, None, None] & place).astype(jnp.float32)


def entities(name: str, capacity: int = 3, colours: int = 2) -> Sensor:
    """Make a sensor of a variable number of entities, [capacity, colours + 1]: one-hot colours, the last is grey.

    Digit 0: there is none at all. Digit d: 1 to `capacity`, one of colour d - 1, all others grey. They begin at any row
    and go round; rows without entity are zeros. Values: 1 + colours.
    """
    properties = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)

    def show(key: Array, digit: Array) -> Array:
        count_key, turn_key = jax.random.split(key)
        index = jnp.arange(capacity)
        count = jnp.where(digit == 0, 0, jax.random.randint(count_key, (), 1, capacity + 1))
        rows = jax.nn.one_hot(jnp.where(index == 0, digit - 1, colours), colours + 1)
        turn = jax.random.randint(turn_key, (), 0, capacity)
        return jnp.where((index < count)[:, None], rows, 0.0)[(index + turn) % capacity]

    return Sensor(ObservationSpec(name, (capacity, colours + 1), properties), 1 + colours, show)

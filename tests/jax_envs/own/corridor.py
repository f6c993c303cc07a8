"""Walk to the end of a corridor that is to the left or to the right."""

import jax
import jax.numpy as jnp

from jaxrl import ActionSpec, BehaviorSpec, JaxEnv, ObservationSpec, TeamStep, TeamView


def view(state, alive):
    place, goal, _ = state
    seen = jnp.stack([place, goal]).astype(jnp.float32)[None]  # one member, two numbers
    return TeamView(obs=(seen,), action_mask=jnp.ones((1, 2), bool), alive=jnp.asarray(alive)[None])


def reset(key, parameters):
    goal = jnp.where(jax.random.bernoulli(key), 3, -3)
    state = (jnp.int32(0), goal, jnp.int32(0))
    return state, view(state, True)


def step(key, state, actions):
    place, goal, clock = state
    place, clock = place + 2 * actions.discrete[0, 0] - 1, clock + 1
    arrived, late = jnp.abs(place) == 3, clock == 20
    state = (place, goal, clock)
    return state, TeamStep(
        view=view(state, ~(arrived | late)),
        reward=jnp.where(arrived, jnp.where(place == goal, 1.0, -1.0), 0.0)[None],
        group_reward=jnp.zeros(1),
        terminated=arrived[None],
        truncated=(late & ~arrived)[None],
        over=arrived | late,
        stats={},
    )


def make_corridor():
    spec = BehaviorSpec((ObservationSpec("place and goal", (2,)),), ActionSpec(0, (2,)))
    return JaxEnv("Corridor", spec, 1, {}, reset, step, truncates=True)

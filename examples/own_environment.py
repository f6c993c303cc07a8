"""Two friends and a gate: the way out is open while somebody stands on the plate, and stays open once one is out.

plate . . . . . exit      One must wait on the plate so that the other can leave; then it can leave as well.
  0   1 2 3 4 5  6        The team earns 1 when both are out, and loses 0.01 with every decision until then.

jaxrl check-env examples/own_environment.py:make_env
jaxrl train examples/own_environment.yaml --env examples/own_environment.py:make_env --seeds 4 --run-id=gate
"""

import jax
import jax.numpy as jnp

from jaxrl import ActionSpec, BehaviorSpec, JaxEnv, ObservationSpec, TeamStep, TeamView

PLATE, EXIT, LIMIT = 0, 6, 40  # two cells, and the decisions after which an episode is cut off
SPEC = BehaviorSpec(
    observations=(ObservationSpec("own place, mate's place, mate is out, gate is open", (4,)),),
    action=ActionSpec(continuous_size=0, discrete_branches=(3,)),  # left, stay, right
)


def is_open(place, out):
    return jnp.any(out | (place == PLATE))


def view(place, out, alive):
    columns = (place / EXIT, place[::-1] / EXIT, out[::-1], jnp.full(2, is_open(place, out)))
    seen = jnp.stack([column.astype(jnp.float32) for column in columns], axis=-1)  # [A, 4], one row per member
    return TeamView(obs=(seen,), action_mask=jnp.ones((2, 3), bool), alive=alive)


def reset(key, parameters):
    place = jax.random.randint(key, (2,), PLATE + 1, EXIT)
    out = jnp.zeros(2, bool)
    return (place, out, jnp.int32(0)), view(place, out, alive=jnp.ones(2, bool))


def step(key, state, actions):
    place, out, clock = state
    alive, clock = ~out, clock + 1  # who decided now
    wanted = jnp.clip(place + actions.discrete[:, 0] - 1, PLATE, EXIT)
    shut = (wanted == EXIT) & ~is_open(place, out)
    place = jnp.where(alive & ~shut, wanted, place)
    leaves = alive & (place == EXIT)
    out = out | leaves
    late = (clock == LIMIT) & ~out.all()
    reward = out.all().astype(jnp.float32) - 0.01
    return (place, out, clock), TeamStep(
        view=view(place, out, alive=~out & ~late),
        reward=jnp.zeros(2),
        group_reward=jnp.where(alive, reward, 0.0),
        terminated=leaves,  # nothing follows for who is out; its team goes on, and pays it for what comes
        truncated=alive & ~leaves & late,  # who is cut off would have gone on
        over=out.all() | late,
        stats={},
    )


def make_env():
    return JaxEnv("Gate", SPEC, members=2, parameters={}, reset=reset, step=step, truncates=True)

"""The noise of a rollout: drawn for all decisions at once it is what each decision would draw."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import make_environment, make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import nothing_remembered
from jaxrl.training.compiled.collect import collect, start_play


def test_noise_drawn_at_once_is_that_of_the_single_decisions() -> None:
    env = make_environment("jax:simple_spread")
    settings = make_settings("ppo", network_settings={"hidden_units": 4, "num_layers": 1, "normalize": False})
    algorithm = ALGORITHMS["ppo"](env.spec, settings)
    assert algorithm.noise is not None
    keys = jax.random.split(jax.random.key(1), 2)
    policy = jax.vmap(algorithm.init)(keys).policy
    parameters = {name: jnp.full(2, value) for name, value in env.parameters.items()}
    play = start_play(env, nothing_remembered(algorithm), keys, 3, parameters)
    of_steps = jax.random.split(jax.random.key(2), (5, 2))
    both = [
        jax.jit(partial(collect, env, given))(policy, play, of_steps, parameters)[1].action.discrete
        for given in (algorithm, algorithm._replace(noise=None))
    ]
    assert len(np.unique(both[0])) > 1
    np.testing.assert_array_equal(*both)

"""What `make_jitted_trainer` and its `init` are given: what would be ignored, or end in other words, is refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.settings.traced import with_values
from jaxrl.training.compiled.arguments import check_acting, check_values, iterations, seed_numbers
from tests.helpers import ppo_settings
from tests.jax_envs.toy_jax_env import make_toy

ENV = make_toy()
SETTINGS = ppo_settings()
PPO = jaxrl.make_ppo(ENV.spec, SETTINGS)
EVALUATED = {"evaluation": {"interval": 1000}}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"areas": 0}, "areas: got 0, expected a whole number, at least 1"),
    ({"areas": 1.5}, r"areas: got 1\.5, expected a whole number"),
    ({"seeds": 0}, "seeds: got 0, expected a whole number, at least 1"),
    ({"newest": -1}, "newest: got -1, expected a whole number, at least 0"),
    ({"parameters": {"rod": 1.0}}, r"parameters\['rod'\]: Toy has no such parameter, did you mean red"),
    ({"parameters": {"red": [1.0, 2.0]}, "seeds": 3}, r"parameters\['red'\]: got .* finite number, or 3, one for each"),
    ({"parameters": {"red": float("nan")}}, r"parameters\['red'\]: got nan, expected a finite number"),
    ({"values": {"hyperparameters.lambd": [0.5, 1.5]}, "seeds": 2}, r"lambd'\]\[1\]: got 1\.5, expected a value less"),
    (
        {"values": {"hyperparameters.learning_rate": [-1.0]}},
        r"\[0\]: got -1\.0, expected a value greater",
    ),
    ({"values": {"reward_signals.extrinsic.gamma": [2.0]}}, r"gamma'\]\[0\]: got 2\.0, expected a value less than"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_arguments_are_refused_before_anything_is_compiled(given: dict[str, Any], words: str) -> None:
    with pytest.raises(jaxrl.JaxrlError, match=words):
        jaxrl.make_jitted_trainer(ENV, PPO, SETTINGS, **given)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (EVALUATED, "evaluation: only `jaxrl train` follows it"),
        ({"keep_best": "Losses/Value Loss"}, "keep_best: only `jaxrl train` follows it"),
        ({"stop": {"Losses/Value Loss": 1.0}}, "stop: only `jaxrl train` follows it"),
        ({"connectors": [{"type": "flatten"}]}, "connectors: the algorithm was made without them"),
    ],
)
def test_settings_that_it_would_ignore_are_refused(written: dict[str, Any], words: str) -> None:
    with pytest.raises(jaxrl.JaxrlError, match=words):
        jaxrl.make_jitted_trainer(ENV, PPO, jaxrl.make_settings("ppo", **written))


def test_an_algorithm_for_other_agents_is_named() -> None:
    other = jaxrl.make_environment("jax:ball3d")
    with pytest.raises(jaxrl.JaxrlError, match="algorithm: cannot act in 3DBall, it was made for other observations"):
        jaxrl.make_jitted_trainer(other, PPO, SETTINGS)


def test_seeds_cannot_differ_in_what_the_algorithm_acts_by() -> None:
    """As one of one's own that explores by epsilon: all would act by the number of the first."""

    def made(settings: jaxrl.BehaviorSettings) -> jaxrl.Algorithm:
        algorithm, rate = jaxrl.make_ppo(ENV.spec, settings), settings.hyperparameters.epsilon

        def act(*seen: Any) -> Any:
            decision = algorithm.act(*seen)
            return decision._replace(extras={name: x * rate for name, x in decision.extras.items()})

        return algorithm._replace(act=act, with_traced_settings=lambda values: made(with_values(settings, values)))

    values = {"hyperparameters.beta": [0.1, 0.2], "hyperparameters.epsilon": [0.1, 0.2]}
    with pytest.raises(jaxrl.JaxrlError, match=r"values\['hyperparameters\.epsilon'\]: the algorithm acts by it"):
        jaxrl.make_jitted_trainer(ENV, made(SETTINGS), SETTINGS, seeds=2, values=values)
    check_acting(ENV, PPO, values)


def test_a_learn_that_was_replaced_is_not_made_again_as_it_was() -> None:
    mine = PPO._replace(learn=lambda *seen: PPO.learn(*seen))
    values = {"hyperparameters.beta": [0.1, 0.2]}
    with pytest.raises(jaxrl.JaxrlError, match="values: `learn` of this algorithm was replaced after it was made"):
        jaxrl.make_jitted_trainer(ENV, mine, SETTINGS, seeds=2, values=values)
    check_values(mine._replace(with_traced_settings=lambda values: mine), SETTINGS, 2, values)
    check_values(PPO._replace(act=lambda *seen: PPO.act(*seen)), SETTINGS, 2, values)


def test_what_is_no_environment_of_one_behavior_is_named() -> None:
    scene = jaxrl.make_scene("jax:wall_jump")
    with pytest.raises(jaxrl.JaxrlError, match=r"has several behaviors \(SmallWallJump, BigWallJump\)"):
        jaxrl.make_jitted_trainer(scene, PPO, SETTINGS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxrl.JaxrlError, match="env: got 'jax:basic', expected a JaxEnv"):
        jaxrl.make_jitted_trainer("jax:basic", PPO, SETTINGS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxrl.JaxrlError, match=r"gymnasium:CartPole-v1: is stepped by the host loop"):
        jaxrl.make_environment("gymnasium:CartPole-v1")


def test_right_numbers_pass() -> None:
    values = {"hyperparameters.lambd": [0.0, 1.0], "reward_signals.extrinsic.strength": (-1.0, 3)}
    check_values(PPO, SETTINGS, 2, values)
    np.testing.assert_array_equal(seed_numbers(range(3), 3), np.array([0, 1, 2], np.uint32))
    assert seed_numbers(np.array([2**32 - 1]), 1).tolist() == [2**32 - 1]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (range(3), r"got 3 number\(s\) of seeds, expected 2, such as range\(2\)"),
        ([1, -1], "got the seed -1, expected a whole number from 0"),
        ([1, 0.5], r"got the seed 0\.5"),
        ([1, 2**32], "got the seed 4294967296"),
    ],
)
def test_wrong_seeds_are_named(numbers: Any, words: str) -> None:
    with pytest.raises(jaxrl.JaxrlError, match=words):
        seed_numbers(numbers, 2)


@pytest.mark.parametrize("count", [-1, 1.5, "2", True, 2**31])
def test_a_wrong_number_of_iterations_is_refused(count: Any) -> None:
    """-1 and "2" ran none and two, 1.5 one."""
    assert iterations({"x": jnp.zeros(2)}, np.int64(3)) == 3
    with pytest.raises(jaxrl.JaxrlError, match=r"run: got .* iterations, expected a whole number from 0 to 2147483647"):
        iterations({}, count)


def test_a_state_that_is_used_up_is_named() -> None:
    """XLA spoke of buffers."""
    used = jnp.zeros(2)
    used.delete()
    with pytest.raises(jaxrl.JaxrlError, match="used up: go on with the one that it returned"):
        iterations({"x": used}, 1)

"""R57: a function of the user's own on what was collected, in both loops, before returns are computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import SignalRewards, store_rollout
from jaxrl.algorithms.postprocessing import postprocessed, resolve
from jaxrl.rollout.buffer import trajectory
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import SettingsError
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.types import JaxrlError
from tests.algorithms import hooks
from tests.helpers import make_spec, ppo_settings, settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation

SPEC = make_spec((2,), branches=(2,))
SMALL = {
    "hyperparameters__buffer_size": 16,
    "hyperparameters__batch_size": 8,
    "network_settings__hidden_units": 4,
    "network_settings__num_layers": 1,
}


def rollout() -> Rollout:
    """2 states of 1 row of 2 members, who earn 1 and 3, and 2 and 5; the second member's last decision is open."""
    empty = trajectory.init(SPEC, (("log_prob", (1,)),), capacity=2, rows=1, members=2)
    own = jnp.array([[[1.0, 3.0]], [[2.0, 5.0]]])
    acted = jnp.array([[[True, True]], [[True, False]]])
    return rollout_of(empty)._replace(reward=own, mates_reward=own[..., ::-1], acted=acted)


def test_r57_rewards_are_shaped_by_what_the_mates_did() -> None:
    algorithm = ALGORITHMS["poca"](SPEC, settings_of("poca", {**SMALL, "postprocess": "tests.algorithms.hooks:shared"}))
    state = algorithm.init(jax.random.key(0))
    counted, experience = store_rollout(algorithm, state, algorithm.storage.init(), rollout())
    np.testing.assert_allclose(experience.reward, [[[1.0 + 1.5, 3.0 + 0.5]], [[2.0 + 2.5, 5.0 + 1.0]]])
    assert int(counted.step) == 3
    plain = ALGORITHMS["poca"](SPEC, settings_of("poca", SMALL))
    _, untouched = store_rollout(plain, state, plain.storage.init(), rollout())
    np.testing.assert_array_equal(untouched.reward, rollout().reward)


def test_signals_are_told_of_by_what_is_stored() -> None:
    """A signal that pays what a decision has earned pays what the function made of it."""
    paid = SignalRewards(("own",), lambda state, rollout: {"own": rollout.reward})
    plain = ALGORITHMS["ppo"](SPEC, ppo_settings(**SMALL))._replace(signal_rewards=paid)
    shaped = postprocessed(plain, hooks.shared).signal_rewards
    assert shaped is not None and shaped.names == ("own",)
    told = shaped.of(jax.eval_shape(plain.init, jax.random.key(0)), rollout())["own"]
    np.testing.assert_allclose(told, [[[1.0 + 1.5, 3.0 + 0.5]], [[2.0 + 2.5, 5.0 + 1.0]]])


def test_the_compiled_loop_calls_it_with_rows_of_its_own() -> None:
    env = make_toy(ToySettings(length=4))
    settings = ppo_settings(**SMALL, postprocess="tests.algorithms.hooks:shared")
    hooks.calls.clear()
    with quick_compilation():
        trainer = make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings, areas=2, seeds=1)
        _, log = trainer.run(trainer.init([1]), 1)
    assert hooks.calls and all(len(shape) == 3 for shape in hooks.calls)
    assert np.isfinite(np.asarray(log.metrics["policy_loss"])).all()


def test_r3_r52_the_compiled_loop_counts_environment_steps() -> None:
    """16 of 4 areas are 4 decisions in each, whatever the number of agents; by agents it would be fewer."""
    env = make_toy(ToySettings(length=4))
    steps = {}
    for count_by in ("env_steps", "agent_steps"):
        settings = ppo_settings(**SMALL, count_by=count_by)
        with quick_compilation():
            trainer = make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings, areas=4, seeds=1)
        steps[count_by] = trainer.steps
    assert steps["env_steps"] == 4 > steps["agent_steps"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shorter", r"hooks:shorter: rollout\.reward is float32\[1, 1, 2\], expected float32\[2, 1, 2\]"),
        ("nothing", "hooks:nothing: gives NoneType, expected a Rollout"),
    ],
)
def test_another_form_is_refused_by_name(name: str, text: str) -> None:
    plain = ALGORITHMS["ppo"](SPEC, ppo_settings(**SMALL))
    algorithm = postprocessed(plain, getattr(hooks, name), f"hooks:{name}")
    with pytest.raises(JaxrlError, match=text):
        jax.eval_shape(algorithm.storage.add, (), rollout())


def test_an_address_without_a_function_is_refused() -> None:
    assert resolve("tests.algorithms.hooks:shared") is hooks.shared
    with pytest.raises(JaxrlError, match="postprocess: no_such_module:f: there is no module no_such_module"):
        resolve("no_such_module:f")
    with pytest.raises(JaxrlError, match=r"tests\.algorithms\.hooks has no function NOTHING_OF_THAT_NAME"):
        resolve("tests.algorithms.hooks:NOTHING_OF_THAT_NAME")
    with pytest.raises(JaxrlError, match="hooks:NOT_A_FUNCTION: got a value of type int, expected"):
        resolve("tests.algorithms.hooks:NOT_A_FUNCTION")
    assert resolve(f"{hooks.__file__}:shared").__name__ == "shared"


def test_the_setting_wants_a_module_and_a_function() -> None:
    from jaxrl.algorithms import make_settings

    with pytest.raises(SettingsError, match=r"got 'shaped', expected FILE\.py:function or module:function"):
        make_settings("ppo", postprocess="shaped")

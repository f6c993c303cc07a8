"""Seeds of one program that differ in settings: each is what a run of its own would be, and knows nothing of others."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Counts
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.traced import with_values
from jaxrl.training.compiled.plan import JittedTrainer, Learner
from jaxrl.training.compiled.state import IterationLog
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.compiled.updates import of_values
from tests.algorithms.team_rollouts import SPEC, random_rollout
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation, quick_jit

ENV = make_toy(ToySettings(length=4, die=True))
KEYS = (
    "hyperparameters.learning_rate",
    "hyperparameters.beta",
    "hyperparameters.epsilon",
    "hyperparameters.lambd",
    "reward_signals.extrinsic.gamma",
    "reward_signals.extrinsic.strength",
)
FIRST, SECOND = (0.01, 0.003, 0.1, 0.8, 0.5, 1.0), (0.002, 0.02, 0.3, 1.0, 0.9, 2.0)
SMALL = {
    "max_steps": 6000,
    "network_settings": {"hidden_units": 8, "num_layers": 1},
    "hyperparameters": {"buffer_size": 64, "batch_size": 32},
}
Ran = tuple[dict[str, np.ndarray], IterationLog]


def settings(trainer_type: str) -> BehaviorSettings:
    return settings_of(trainer_type, SMALL)


def ran(trainer: JittedTrainer, seeds: list[int]) -> Ran:
    with quick_compilation():
        state, log = trainer.run(trainer.init(seeds), 3)
    return to_arrays((state.train.policy, state.train.critic)), jax.device_get(log)


@cache
def several(trainer_type: str, *points: tuple[float, ...]) -> tuple[Ran, int]:
    """Seed 5 of every point in one program, and how often it was traced."""
    traces, made = [], ALGORITHMS[trainer_type](ENV.spec, settings(trainer_type))

    def again(values: dict[str, jax.Array]) -> Any:
        assert made.with_traced_settings is not None
        traces.append(sorted(values))
        return made.with_traced_settings(values)

    values = {key: [point[i] for point in points] for i, key in enumerate(KEYS)}
    with quick_compilation():
        counted = made._replace(with_traced_settings=again)
        trainer = make_jitted_trainer(ENV, counted, settings(trainer_type), areas=4, seeds=len(points), values=values)
    first = len(traces)
    assert traces[0] == sorted(KEYS)
    result = ran(trainer, [5] * len(points))
    assert len(traces) == first  # all of it is in the program
    return result, first


@cache
def alone(trainer_type: str, point: tuple[float, ...]) -> Ran:
    own = with_values(settings(trainer_type), dict(zip(KEYS, point, strict=True)))
    with quick_compilation():
        trainer = make_jitted_trainer(ENV, ALGORITHMS[trainer_type](ENV.spec, own), own, areas=4, seeds=1)
    return ran(trainer, [5])


@pytest.mark.parametrize("trainer_type", ["ppo", pytest.param("poca", marks=pytest.mark.slow)])
def test_a_point_is_what_a_run_of_its_own_would_be(trainer_type):
    (arrays, log), traces = several(trainer_type, FIRST, SECOND)
    for i, point in enumerate((FIRST, SECOND)):
        own, own_log = alone(trainer_type, point)
        for name, array in own.items():
            # the gradient of an attention's key bias is rounding alone, which Adam makes as large as any
            atol = 1e-2 if name.endswith("qkv/bias") else 1e-5
            np.testing.assert_allclose(arrays[name][i], array[0], rtol=1e-3, atol=atol, err_msg=name)
        for name in ("learning_rate", "beta", "epsilon", "value_loss"):
            np.testing.assert_allclose(log.metric(name)[i], own_log.metric(name)[0], rtol=1e-4, err_msg=name)
    kernels = [x for name, x in arrays.items() if name.endswith("kernel")]
    assert kernels and not any(np.allclose(x[0], x[1]) for x in kernels)
    assert several(trainer_type, FIRST, SECOND, FIRST, SECOND)[1] <= traces  # as often, however many points


def test_a_point_begins_to_learn_and_watches_by_its_own_numbers():
    """SAC asks whether an update is paid for, and counts what curiosity pays, which is 1 / strength at most."""
    curious = {"strength": 50.0, "normalize_rewards": True, "network_settings": SMALL["network_settings"]}
    signals: dict[str, Any] = {"extrinsic": {}, "curiosity": curious}
    sizes = {"hyperparameters": {"batch_size": 8, "steps_per_update": 1.0}}
    rollout = random_rollout(3, t=6, b=2, a=1)._replace(extras={})
    made = ALGORITHMS["sac"](SPEC, settings_of("sac", {**SMALL, **sizes, "reward_signals": signals}))
    shapes = jax.eval_shape(made.init, jax.random.key(0))
    state = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes.replace(key=()))  # it has learned something
    values = {"hyperparameters.steps_per_update": 200.0, "reward_signals.curiosity.strength": 25.0}
    own = of_values(Learner(ENV, made, 64, 1000), {key: jnp.float32(value) for key, value in values.items()})
    for algorithm, due in ((made, True), (own, False)):
        assert bool(algorithm.storage.can_sample(made.storage.init(), Counts(fresh=64, total=64))) is due
    assert own.watch is not None
    paid = quick_jit(own.watch)(state, rollout).signals["curiosity"]["paid"]
    assert float(paid.mean) == pytest.approx((1 + 4 / 25) / 8), "1 was paid before; 4 of 7 decisions see what follows"


def test_a_point_does_not_know_the_others():
    (two, _), _ = several("ppo", FIRST, SECOND)
    (four, _), _ = several("ppo", FIRST, SECOND, FIRST, SECOND)
    for name, array in four.items():
        np.testing.assert_array_equal(array[0], array[2], err_msg=name)
        np.testing.assert_allclose(array[:2], two[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_some_seeds_can_be_taken_and_put():
    values = {KEYS[0]: [0.1, 0.2, 0.3]}
    with quick_compilation():
        made = ALGORITHMS["ppo"](ENV.spec, settings("ppo"))
        trainer = make_jitted_trainer(ENV, made, settings("ppo"), areas=2, seeds=3, values=values)
        state = trainer.init([1, 2, 3])
        taken = trainer.take(state, 1, 1)
        np.testing.assert_array_equal(taken.values[KEYS[0]], np.float32([0.2]))
        swapped = to_arrays(trainer.put(state, taken, 2))
    before = to_arrays(state)
    assert before.keys() == swapped.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(swapped[name], array[[0, 1, 1]], err_msg=name)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hyperparameters.batch_size": [32, 64]}, "values.'hyperparameters.batch_size'.: seeds of one program cannot"),
        ({"hyperparameters.beta": [0.1]}, r"got \[0.1\], expected 2 finite number"),
        ({"hyperparameters.beta": [0.1, float("nan")]}, "expected 2 finite number"),
    ],
)
def test_what_cannot_differ_is_refused(values, words):
    made = ALGORITHMS["ppo"](ENV.spec, settings("ppo"))
    with pytest.raises(SettingsError, match=words):
        make_jitted_trainer(ENV, made, settings("ppo"), areas=2, seeds=2, values=values)
    with pytest.raises(SettingsError, match=r"give it Algorithm\.with_traced_settings"):
        own = made._replace(with_traced_settings=None)
        make_jitted_trainer(ENV, own, settings("ppo"), areas=2, seeds=2, values={"hyperparameters.beta": [0.1, 0.2]})

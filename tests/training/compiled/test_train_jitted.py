"""The loop inside one compiled program: repeatable, blind to chunks, neighbours and devices, and it learns."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.networks.models import ValueNetwork
from jaxrl.training.compiled.plan import JittedTrainer
from jaxrl.training.compiled.stacking import together
from jaxrl.training.compiled.state import IterationLog, JittedState
from jaxrl.training.compiled.trainer import make_jitted_trainer
from tests.helpers import ppo_settings, settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation

ROOT = Path(__file__).parents[3]
HERE = "tests.training.compiled.test_train_jitted"  # for processes of their own
ENV = make_toy(ToySettings(length=4, die=True))
AREAS, SEEDS, ONE = 8, 8, 3
GAMMA = 0.5
MAX_STEPS = 6000
SETTINGS = ppo_settings(
    max_steps=MAX_STEPS,
    network_settings__hidden_units=16,
    network_settings__num_layers=1,
    reward_signals__extrinsic__gamma=GAMMA,
    hyperparameters__buffer_size=128,
    hyperparameters__batch_size=32,
    hyperparameters__num_epoch=3,
    hyperparameters__learning_rate=0.01,
    hyperparameters__learning_rate_schedule="constant",
)
PLACE = {**os.environ, "PYTHONPATH": str(ROOT)}
TWO_CORES = {**PLACE, "PJRT_NPROC": "2"}  # as many threads as XLA has on two cores
Ran = tuple[dict[str, np.ndarray], IterationLog]


class Counted(NamedTuple):
    """A trainer, and how often its algorithm was traced."""

    trainer: JittedTrainer
    traces: list[str]

    def run(self, state: JittedState, *chunks: int) -> Ran:
        """The state after some chunks as arrays, and the log of them all."""
        logs = []
        for count in chunks:
            state, log = self.trainer.run(state, count)
            logs.append(jax.device_get(log))
        return to_arrays(state), reduce(together, logs)


@cache
def make(seeds: int, devices: int = 1) -> Counted:
    """A trainer of PPO in the toy."""
    traces, made = [], ALGORITHMS["ppo"](ENV.spec, SETTINGS)

    def learn(*arguments: Any) -> Any:
        traces.append("learn")
        return made.learn(*arguments)

    algorithm: Algorithm = made._replace(learn=learn)
    with quick_compilation():
        trainer = make_jitted_trainer(
            ENV, algorithm, SETTINGS, areas=AREAS, seeds=seeds, devices=jax.devices()[:devices]
        )
    assert trainer.devices == devices
    return Counted(trainer, traces)


def fresh() -> JittedState:
    """All seeds as they begin."""
    with quick_compilation():
        return make(SEEDS).trainer.init(range(SEEDS))


def alone(seed: int, state: JittedState) -> JittedState:
    """One of the seeds."""
    return jax.tree.map(lambda x: x[seed : seed + 1], state)


@pytest.fixture(scope="module")
def three() -> Ran:
    """Three iterations of eight seeds."""
    return make(SEEDS).run(fresh(), 3)


def assert_equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert first.keys() == second.keys()
    assert [name for name in first if first[name].tobytes() != second[name].tobytes()] == []


def assert_close(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    """Within rounding; what is no floating-point number must be equal."""
    assert first.keys() == second.keys()
    for name, x in first.items():
        np.testing.assert_allclose(x, second[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_sizes() -> None:
    trainer = make(SEEDS).trainer
    # two agents begin in each of 8 areas, so 128 agent steps are 8 decisions in each
    assert (trainer.seeds, trainer.areas, trainer.steps, trainer.agents) == (SEEDS, AREAS, 8, 2)


def test_repeats_bit_for_bit(three: Ran) -> None:
    assert_equal(three[0], make(SEEDS).run(fresh(), 3)[0])
    kernels = [x for name, x in three[0].items() if name.startswith("train/policy") and name.endswith("kernel")]
    assert kernels and not any(np.array_equal(x[0], x[1]) for x in kernels)  # seeds differ


def test_chunks_of_one_and_two_are_a_chunk_of_three(three: Ran) -> None:
    arrays, log = make(SEEDS).run(fresh(), 1, 2)
    assert_equal(three[0], arrays)
    np.testing.assert_array_equal(log.updates, three[1].updates)
    np.testing.assert_allclose(log.episodes.reward.total, three[1].episodes.reward.total, rtol=1e-5)


def test_one_program_for_chunks_of_every_length() -> None:
    counted = make(SEEDS)
    before = len(counted.traces)
    counted.run(fresh(), 1, 2, 3)
    assert len(counted.traces) == before


def test_a_seed_does_not_know_its_neighbours(three: Ran) -> None:
    apart, _ = make(1).run(make(1).trainer.place(alone(ONE, fresh())), 3)
    assert_close({name: x[ONE : ONE + 1] for name, x in three[0].items()}, apart)


def test_what_a_seed_begins_with_depends_on_its_number_alone() -> None:
    others = make(SEEDS).trainer.init([ONE, 7, 6, 5, 4, 13, 2**31, ONE])
    assert_equal(to_arrays(alone(ONE, fresh())), to_arrays(alone(0, others)))
    assert_equal(to_arrays(alone(ONE, fresh())), to_arrays(alone(SEEDS - 1, others)))


def test_what_the_dead_see_and_earn_does_not_matter() -> None:
    """NaN, while the member that died in the first episode is absent."""
    counted = make(SEEDS)
    plain, log = counted.run(fresh(), 1)
    state = fresh()
    poison = np.ones((SEEDS, AREAS), bool)
    areas = state.play.areas._replace(state=state.play.areas.state._replace(poison=poison))
    poisoned, poisoned_log = counted.run(state.replace(play=state.play._replace(areas=areas)), 1)
    learner = [name for name in plain if name.startswith("train/")]
    assert_equal({name: plain[name] for name in learner}, {name: poisoned[name] for name in learner})
    assert (poisoned_log.fault == -1).all() and np.isfinite(poisoned_log.reward).all()
    np.testing.assert_array_equal(log.reward, poisoned_log.reward)


def test_learns_and_stops_after_max_steps() -> None:
    """Naming the colour shown is worth 1 / n in each of n decisions, and 1 for the team: V is known."""
    counted = make(SEEDS)
    state, first = counted.trainer.run(fresh(), 1)
    state, _ = counted.trainer.run(state, 40)
    state, late = counted.trainer.run(state, 5)
    assert (share_earned(first) < 0.9).all()
    assert (share_earned(late) > 0.99).all() and (late.updates == 5).all()
    state, _ = counted.trainer.run(state, 20)
    steps = np.asarray(state.train.step)
    largest = counted.trainer.steps * AREAS * ENV.members
    assert ((steps > MAX_STEPS) & (steps <= MAX_STEPS + largest)).all()
    assert len(set(steps.tolist())) > 1  # areas live by their luck: seeds are done in different iterations
    before = to_arrays(state.train)
    state, idle = counted.trainer.run(state, 2)
    assert_equal(before, to_arrays(state.train))
    assert (
        (idle.updates == 0).all() and np.isnan(idle.metric("policy_loss")).all() and (share_earned(idle) > 0.99).all()
    )
    for seed in range(SEEDS):
        assert_values(jax.tree.map(lambda x, seed=seed: np.asarray(x)[seed], state.train.critic))


def assert_values(critic: Any) -> None:
    """In an episode of 4 each decision is worth 1 / 4 and 1; V(clock) is the discounted sum of those to come."""
    network = ValueNetwork(ENV.spec, SETTINGS.network_settings, ("extrinsic",))
    clocks = np.arange(4)
    obs = np.stack([np.ones(4), clocks / 4, np.zeros(4), np.full(4, 0.75)], axis=-1).astype(np.float32)
    found = np.asarray(network.apply(critic, (obs[:, None],)))[:, 0, 0]
    expected = 1.25 * np.array([sum(GAMMA**i for i in range(4 - clock)) for clock in clocks])
    np.testing.assert_allclose(found, expected, atol=0.25)


def share_earned(log: IterationLog) -> np.ndarray:
    """Of the most that the team can earn, 1 with each decision; float64 [S]."""
    return log.episodes.group_reward.total / np.asarray(log.episodes.stats["Environment/Clock"].total, np.float64)


def on_many_devices(path: str, layouts: str) -> None:
    """In a process of its own: three iterations in layouts "seeds x devices", pickled."""
    jax.config.update("jax_num_cpu_devices", 8)
    results = {}
    for layout in layouts.split():
        seeds, devices = map(int, layout.split("x"))
        trainer = make(seeds, devices)
        with quick_compilation():
            state = trainer.trainer.init(range(seeds))
        results[layout], _ = trainer.run(state, 3)
    Path(path).write_bytes(pickle.dumps(results))


@pytest.mark.slow
@pytest.mark.parametrize("layouts", [f"{SEEDS}x2 1x8", f"{SEEDS}x8 1x2"], ids=["some", "others"])
def test_devices_do_not_matter(three: Ran, tmp_path: Path, layouts: str) -> None:
    """Seeds, or the areas of one seed, spread over 2 and 8 devices."""
    program = (
        "import sys; from tests.training.compiled.test_train_jitted import on_many_devices as run; run(*sys.argv[1:])"
    )
    path = tmp_path / "arrays"
    subprocess.run([sys.executable, "-c", program, str(path), layouts], env=PLACE, check=True, timeout=110)
    apart, _ = make(1).run(make(1).trainer.place(alone(0, fresh())), 3)
    for layout, arrays in pickle.loads(path.read_bytes()).items():
        assert_close(arrays, apart if layout.startswith("1x") else three[0])


def init_of_every_algorithm() -> None:
    """In a process of its own: QR decompositions under vmap and jit would wait for each other for ever."""
    small = {"network_settings": {"hidden_units": 8, "num_layers": 1}}
    with quick_compilation():
        for trainer, make_algorithm in ALGORITHMS.items():
            capacity = {"hyperparameters": {"team_capacity": 2}} if trainer in ("coma", "mappo") else {}
            init = jax.jit(jax.vmap(make_algorithm(ENV.spec, settings_of(trainer, small | capacity)).init))
            jax.block_until_ready(init(jax.random.split(jax.random.key(0), 16)))


def test_sixteen_seeds_begin_on_two_cores() -> None:
    program = f"from {HERE} import init_of_every_algorithm as run; run()"
    subprocess.run([sys.executable, "-c", program], env=TWO_CORES, check=True, timeout=100)

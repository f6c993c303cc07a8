"""The loop inside one compiled program: rollout, returns, losses and updates of many seeds, environment included.

Uses the same `Algorithm` as the host loop (`train.py`). `make_jitted_trainer` gives two compiled functions, which is
all that a notebook needs; `train` puts the files of a run around them.

Seeds never mix: they are a leading axis S of every array of the state. With several devices each takes some of the
seeds; a single seed spreads its areas, and the rows of its minibatches, instead.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts import timers as nodes
from jaxrl.artifacts.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.step_clock import crossed_multiple
from jaxrl.interrupt import Interrupt
from jaxrl.jax_envs import make_environment
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jitted_books import JittedBooks
from jaxrl.jitted_checks import check_environment, check_log, parameters_of
from jaxrl.jitted_iteration import IterationLog, JittedState, Plan, iterate_several, start
from jaxrl.jitted_saver import Subject, restored
from jaxrl.settings import BehaviorSettings, RunSettings, behavior_settings_for, with_drawn_seed

log = logging.getLogger(__name__)

SEEDS, AREAS = "seeds", "areas"
CHUNK_SECONDS = 1.0
"""Time between two looks at progress and Ctrl-C: long against what they cost, short for who waits."""


class JittedTrainer(NamedTuple):
    """Two compiled functions and the sizes that they are compiled for.

    init: (seeds, S whole numbers) → JittedState, a fresh start of every seed.
    run:  (JittedState, count) → (JittedState, IterationLog), `count` iterations; the state given is used up.
    place: (JittedState) → JittedState, a state from elsewhere (a checkpoint) put where `run` expects it.
    """

    init: Callable[[Sequence[int]], JittedState]
    run: Callable[[JittedState, int], tuple[JittedState, IterationLog]]
    place: Callable[[JittedState], JittedState]
    seeds: int  # S
    areas: int  # E
    steps: int  # T, decisions in each area per iteration
    agents: int  # of one area, at most
    devices: int


def make_jitted_trainer(
    env: JaxEnv,
    algorithm: Algorithm,
    settings: BehaviorSettings,
    *,
    areas: int = 16,
    seeds: int = 1,
    parameters: Mapping[str, float] | None = None,
    devices: Sequence[Any] | None = None,
) -> JittedTrainer:
    """Environment and learner as one program.

    An iteration is T decisions in each of the E areas and one update; T is buffer_size over the agents that begin an
    episode in all areas, so that an iteration holds about buffer_size agent steps.

    Args:
      env, algorithm: made for the same spec.
      settings: of the behavior; buffer_size, time_horizon and max_steps are used here, the rest by the algorithm.
      areas: E, environments of each seed.
      seeds: S, independent runs side by side.
      parameters: of the environment, where they differ from the usual ones.
      devices: where to run, by default all that JAX shows. As many are used as divide the seeds (or, with one seed,
        its areas).
    """
    values = {**env.parameters, **(parameters or {})}
    steps = math.ceil(settings.hyperparameters.buffer_size / (areas * agents_at_start(env, values)))
    plan = Plan(env, algorithm, values, areas, steps, settings.time_horizon, settings.max_steps)
    mesh = _mesh(list(devices or jax.devices()), seeds, areas)
    place = partial(_place, mesh)
    begin = jax.jit(partial(start, plan))
    several = partial(iterate_several, plan)
    if mesh.axis_names == (SEEDS,):
        spec = PartitionSpec(SEEDS)
        several = jax.shard_map(several, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False)
    run = jax.jit(several, donate_argnums=0)

    def run_on_mesh(state: JittedState, count: int) -> tuple[JittedState, IterationLog]:
        with jax.set_mesh(mesh):
            return run(state, np.int32(count))

    return JittedTrainer(
        init=lambda numbers: place(begin(np.asarray(numbers, np.uint32))),
        run=run_on_mesh,
        place=place,
        seeds=seeds,
        areas=areas,
        steps=steps,
        agents=env.teams * env.members,
        devices=mesh.size,
    )


def agents_at_start(env: JaxEnv, parameters: Mapping[str, float]) -> int:
    """How many agents an episode begins with, at least 1; of an episode drawn from key 0."""
    _, view = jax.jit(env.reset)(jax.random.key(0), dict(parameters))
    return max(int(view.alive.sum()), 1)


def _mesh(devices: list[Any], seeds: int, areas: int) -> Mesh:
    """The devices that share the work: as many as divide the seeds, or one seed's areas."""
    whole, axis = (seeds, SEEDS) if seeds > 1 else (areas, AREAS)
    count = max(n for n in range(1, len(devices) + 1) if whole % n == 0)
    return Mesh(np.array(devices[:count]), (axis,))


def _place(mesh: Mesh, state: JittedState) -> JittedState:
    """The state where the program expects it: seeds over devices, or the areas of the one seed."""
    if mesh.axis_names == (SEEDS,):
        return jax.device_put(state, NamedSharding(mesh, PartitionSpec(SEEDS)))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(None, AREAS))
    return jax.device_put(state, everywhere).replace(play=jax.device_put(state.play, split))


def train(settings: RunSettings, console: Console | None = None) -> None:
    """One whole run of the environment `env_settings.env_path`, from checked settings to a results folder.

    Ends when every seed has passed max_steps, at Ctrl-C (saves and returns normally), or with an error.

    Raises:
      JaxrlError: whatever the user can mend, before anything is written if it can be known before.
    """
    settings = with_drawn_seed(settings)
    options, environment = settings.checkpoint_settings, settings.env_settings
    env = make_environment(environment.env_path or "")
    behavior = behavior_settings_for(settings, env.name)
    folder = RunFolder(options.results_dir, options.run_id)
    folder.check(options.resume, options.force, options.initialize_from, [env.name])
    check_environment(env)
    seeds = tuple(environment.seed + i for i in range(environment.seeds))
    subject = Subject(env.name, env.spec, behavior, seeds, environment.num_areas)
    trainer = make_jitted_trainer(
        env,
        ALGORITHMS[behavior.trainer_type](env.spec, behavior),
        behavior,
        areas=environment.num_areas,
        seeds=len(seeds),
        parameters=parameters_of(settings, env),
    )
    with (
        Interrupt() as interrupt,
        ProgressBar(console or Console()) as progress,
        JittedBooks(settings, folder, subject) as books,
    ):
        with books.timers(nodes.SETUP):
            state = trainer.place(restored(settings, folder, subject, trainer.init(seeds)))
        books.begin(int(state.train.step.min()))
        JittedLoop(trainer, books, interrupt, progress).run(state)


class JittedLoop:
    """Chunks of iterations, and what is written between them."""

    def __init__(self, trainer: JittedTrainer, books: JittedBooks, interrupt: Interrupt, progress: ProgressBar) -> None:
        self.trainer = trainer
        self.books = books
        self.interrupt = interrupt
        self.progress = progress
        self.settings = books.subject.settings
        self.largest = trainer.steps * trainer.areas * trainer.agents  # agent steps of an iteration, at most

    def run(self, state: JittedState) -> None:
        """Until every seed is done; saves at the end, and at Ctrl-C."""
        step, count = int(state.train.step.min()), 1
        log.info(
            "%s: %d seeds of %d areas, %d decisions an iteration, on %d device(s). Compiling.",
            self.books.subject.name, self.trainer.seeds, self.trainer.areas, self.trainer.steps, self.trainer.devices,
        )  # fmt: skip
        with self.books.timers(nodes.LEARNING):
            while step <= self.settings.max_steps and not self.interrupt.requested:
                begun, now = time.perf_counter(), min(count, self.room(step))
                state, before, step = self.chunk(state, step, now)
                count = max(next_count(now, time.perf_counter() - begun), count if now < count else 1)
                self.book(state, before, step)
        if self.interrupt.requested:
            log.info("Learning was interrupted. Please wait while the policies are saved and exported.")
        self.books.finish(state, step)

    def chunk(self, state: JittedState, step: int, count: int) -> tuple[JittedState, int, int]:
        """Run `count` iterations and look at what came out: the new state, the step before and the step after."""
        with self.books.timers(nodes.ITERATIONS):
            state, chunk = self.trainer.run(state, count)
            chunk = jax.device_get(chunk)
        check_log(self.books.subject, chunk)
        self.books.add(chunk)
        return state, step, int(np.min(state.train.step))

    def book(self, state: JittedState, before: int, step: int) -> None:
        """Summary and checkpoint if their step is reached, then the progress bar."""
        label = crossed_multiple(before, step - before, self.settings.summary_freq)
        if label is not None:
            self.books.summary(label)
        if crossed_multiple(before, step - before, self.settings.checkpoint_interval):
            with self.books.timers(nodes.CHECKPOINT):
                self.books.save(state, step)
        if self.progress.due():
            self.books.show_progress(self.progress, step)

    def room(self, step: int) -> int:
        """Iterations that cannot pass a summary, a checkpoint or the end except with their last one.

        So what a run writes does not depend on how fast it was.
        """
        intervals = (self.settings.summary_freq, self.settings.checkpoint_interval)
        ends = [step + interval - step % interval for interval in intervals]
        return max((min(*ends, self.settings.max_steps + 1) - step) // self.largest, 1)


def next_count(count: int, seconds: float) -> int:
    """Length of the next chunk when `count` iterations took `seconds`: about CHUNK_SECONDS, growing at most twofold."""
    wanted = CHUNK_SECONDS * count / max(seconds, 1e-6)
    return int(min(max(wanted, 1.0), 2.0 * count))

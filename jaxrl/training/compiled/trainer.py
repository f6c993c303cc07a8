"""The loop inside one compiled program: rollout, returns, losses and updates of many seeds, environment included.

Uses the same `Algorithm` as the host loop (`host/loop.py`). `make_jitted_trainer` gives two compiled functions, all
that a notebook needs; `train` puts the files of a run around them.

Seeds never mix: they are a leading axis S of every array of the state. With several devices each takes some of the
seeds; a single seed spreads its areas, and the rows of its minibatches, instead.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.checkpoint.loop import first_seed_of_run
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.compilation import quick_options
from jaxrl.jax_envs import make_environment
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.settings import BehaviorSettings, RunSettings, behavior_settings_for, with_drawn_seed, with_seed
from jaxrl.training.compiled.checks import check_jax_env, check_memory, check_sampling, parameters_of
from jaxrl.training.compiled.iteration import (
    IterationLog,
    JittedState,
    JittedTrainer,
    Plan,
    iterate_several,
    start,
    step_of,
)
from jaxrl.training.compiled.loop import JittedLoop
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.saver import Subject, restored
from jaxrl.training.interrupt import Interrupt, in_thread, leave_if_busy
from jaxrl.training.saver import tell_unexportable

SEEDS, AREAS = "seeds", "areas"
log = logging.getLogger(__name__)


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
      env, algorithm: made for the same spec, or the algorithm for what its connectors make of the environment's.
      settings: of the behavior; buffer_size, time_horizon and max_steps are used here, the rest by the algorithm.
      areas: E, environments of each seed.
      seeds: S, independent runs side by side.
      parameters: of the environment, where they differ from the usual ones.
      devices: where to run, by default all that JAX shows. As many are used as divide the seeds (or, with one seed,
        its areas).

    Memory. What the compiler has planned stands in `bytes`. To plan ahead: on a CPU, where one seed learns after the
    other, a run of S seeds takes about
        S state + max(1.8 S Q, (P + 2.9) Q, (P + 1.4) Q + 4 k h n) + 10^6 bytes, P = S, or 0 if S = 1:
    all seeds' decisions beside what is made of them, one seed's returns beside all decisions, or one seed's minibatch.
    Q = T E A (4 (observation numbers + 2 (C + D) + 6) + M) bytes are a seed's decisions (observations twice where the
    environment truncates), h the hidden units, n the rows of a minibatch (PPO: batch_size; MA-POCA: batch_size (1 + A))
    and k what is kept of a row (12; 9). Within 6 % of the plan for PPO and MA-POCA on Dungeon Escape with 1 to 8
    seeds, 16 to 256 areas, 64 and 256 units. On accelerators all seeds learn at once: the last two terms count S times.
    """
    values = {**env.parameters, **(parameters or {})}
    each = 1 if settings.count_by == "env_steps" else agents_at_start(env, values)
    steps = math.ceil(algorithm.period / (areas * each))
    mesh = _mesh(list(devices or jax.devices()), seeds, areas)
    accelerated = mesh.devices.flat[0].platform != "cpu"
    plan = Plan(env, algorithm, values, areas, steps, settings.time_horizon, settings.last_step, accelerated)
    begin = jax.jit(partial(start, plan), compiler_options=quick_options(mesh.devices.flat[0].platform))
    numbers = jax.ShapeDtypeStruct((seeds,), np.uint32)
    program = _compile(plan, mesh, jax.eval_shape(begin, numbers))
    memory = program.memory_analysis()

    def init(numbers: Sequence[int]) -> JittedState:
        return _place(mesh, begin(np.asarray(numbers, np.uint32)))

    def run(state: JittedState, count: int) -> tuple[JittedState, IterationLog]:
        return program(state, np.int32(count))

    return JittedTrainer(
        init=init,
        run=run,
        place=partial(_place, mesh),
        seeds=seeds,
        areas=areas,
        steps=steps,
        agents=env.teams * env.members,
        devices=mesh.size,
        bytes=memory.argument_size_in_bytes + memory.temp_size_in_bytes,
    )


def _compile(plan: Plan, mesh: Mesh, shapes: JittedState) -> Any:
    """The program of some iterations; nothing is allocated yet, so that its memory can be judged first."""
    several = partial(iterate_several, plan)
    if mesh.axis_names == (SEEDS,):
        spec = PartitionSpec(SEEDS)
        several = jax.shard_map(several, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False)
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(
        lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, _shardings(mesh, shapes)
    )
    count = jax.ShapeDtypeStruct((), np.int32, sharding=everywhere)
    with jax.set_mesh(mesh):
        return jax.jit(several, donate_argnums=0).lower(state, count).compile()


def agents_at_start(env: JaxEnv, parameters: Mapping[str, float]) -> int:
    """How many agents an episode begins with, at least 1; of an episode drawn from key 0."""
    _, view = jax.jit(env.reset)(jax.random.key(0), dict(parameters))
    return max(int(view.alive.sum()), 1)


def _mesh(devices: list[Any], seeds: int, areas: int) -> Mesh:
    """The devices that share the work: as many as divide the seeds, or one seed's areas."""
    whole, axis = (seeds, SEEDS) if seeds > 1 else (areas, AREAS)
    count = max(n for n in range(1, len(devices) + 1) if whole % n == 0)
    return Mesh(np.array(devices[:count]), (axis,))


def _shardings(mesh: Mesh, state: JittedState) -> JittedState:
    """Where each array lies: seeds over devices, or the areas of the one seed."""
    if mesh.axis_names == (SEEDS,):
        return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(SEEDS)), state)
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(None, AREAS))
    return jax.tree.map(lambda _: everywhere, state).replace(play=jax.tree.map(lambda _: split, state.play))


def _place(mesh: Mesh, state: JittedState) -> JittedState:
    return jax.device_put(state, _shardings(mesh, state))


def _with_seed_of_run(settings: RunSettings) -> RunSettings:
    """A resumed run goes on with its own seeds, whose numbers name its folders of events."""
    options, given = settings.checkpoint_settings, settings.env_settings.seed
    seed = first_seed_of_run(Path(options.results_dir, options.run_id)) if options.resume else None
    if seed is None or seed == given:
        return settings
    if given >= 0:
        log.warning("env_settings.seed: %d has no effect, the resumed run goes on with its own, %d", given, seed)
    return with_seed(settings, seed)


def train(settings: RunSettings, console: Console | None = None, interrupt: Interrupt | None = None) -> None:
    """One whole run of the environment `env_settings.env_path`, from checked settings to a results folder.

    Ends when every seed has passed max_steps, at Ctrl-C (saves and returns normally), or with an error. `interrupt`: of
    a process that does nothing else; after a signal it then ends there if XLA still compiles.

    Raises:
      JaxrlError: whatever the user can mend, before anything is written if it can be known before.
    """
    settings = with_drawn_seed(_with_seed_of_run(settings))
    options, environment = settings.checkpoint_settings, settings.env_settings
    env = make_environment(environment.env_path or "")
    behavior = behavior_settings_for(settings, env.name)
    folder = RunFolder(options.results_dir, options.run_id)
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        stack.enter_context(folder.claimed(options, [env.name]))
        check_sampling(env.name, behavior)
        check_jax_env(env)
        seeds = tuple(environment.seed + i for i in range(environment.seeds))
        subject = Subject(env.name, env.spec, behavior, seeds, environment.num_areas)
        try:
            trainer = in_thread(signals, partial(_trainer_for, settings, env, subject))
        except KeyboardInterrupt:
            log.info("Interrupted before the program was compiled; nothing to save.")
        else:
            check_memory(subject, trainer)
            progress = stack.enter_context(ProgressBar(console or Console()))
            recorder = stack.enter_context(CompiledRecorder(settings, folder, subject, progress))
            with recorder.timers(nodes.SETUP):
                state = trainer.place(restored(settings, folder, subject, trainer.init(seeds)))
            recorder.begin(step_of(state), np.asarray(state.frozen).tolist())
            JittedLoop(trainer, recorder, signals).run(state)
    if interrupt is not None and interrupt.requested:
        leave_if_busy(interrupt.exit_code)


def _trainer_for(settings: RunSettings, env: JaxEnv, subject: Subject) -> JittedTrainer:
    algorithm = ALGORITHMS[subject.settings.trainer_type](env.spec, subject.settings)
    tell_unexportable(env.name, algorithm.connectors)
    return make_jitted_trainer(
        env,
        algorithm,
        subject.settings,
        areas=subject.areas,
        seeds=len(subject.seeds),
        parameters=parameters_of(settings, env),
    )

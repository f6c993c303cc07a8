"""The loop inside one compiled program: rollout, returns, losses and updates of many seeds, environment included.

Uses the same `Algorithm` as the host loop (`host/loop.py`). `make_jitted_trainer` gives two compiled functions, all
that a notebook needs; `train` puts the files of a run around them.

Seeds never mix: they are a leading axis S of every array of the state. With several devices each takes some of the
seeds; a single seed spreads its areas, and the rows of its minibatches, instead.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.checkpoint.loop import first_seed_of_run
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.writers import check_writers
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.compilation import cache_by_default, quick_options
from jaxrl.jax_envs import environment_of
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution, of_episode, of_first_seed
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.networks.observations import check_observations
from jaxrl.settings import BehaviorSettings, RunSettings, behavior_settings_for, with_drawn_seed, with_seed
from jaxrl.settings.varied import by_seed, variable
from jaxrl.training.checks import check_run
from jaxrl.training.compiled import kept
from jaxrl.training.compiled.arguments import (
    UNFITTING,
    check_acting,
    check_arguments,
    check_fit,
    check_values,
    seed_numbers,
)
from jaxrl.training.compiled.checks import check_memory, check_parameters
from jaxrl.training.compiled.evaluation import Evaluate, evaluate
from jaxrl.training.compiled.iteration import (
    IterationLog,
    JittedState,
    JittedTrainer,
    Plan,
    begin_anew,
    iterate_several,
    start,
)
from jaxrl.training.compiled.lessons import SeedLessons, parameters_at_start, resumed
from jaxrl.training.compiled.loop import JittedLoop, Part
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.saver import Subject, restored
from jaxrl.training.deterministic import deterministic
from jaxrl.training.interrupt import Interrupt, in_thread, leave_if_busy
from jaxrl.training.saver import tell_unexportable
from jaxrl.training.teams import SharedLearners

SEEDS, AREAS = "seeds", "areas"
_FOLLOWED_HERE: dict[str, Any] = {"init_path": None, "evaluation": None, "keep_best": None, "stop": {}}
"""Settings without those that a run with files follows itself."""
log = logging.getLogger(__name__)


def make_jitted_trainer(
    env: JaxEnv,
    algorithm: Algorithm,
    settings: BehaviorSettings,
    *,
    areas: int = 16,
    seeds: int = 1,
    parameters: Mapping[str, float | Sequence[float] | Distribution] | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    newest: int = 0,
    devices: Sequence[Any] | None = None,
) -> JittedTrainer:
    """Environment and learner as one program.

    An iteration is T decisions in each of the E areas and one update; T is buffer_size over the agents that begin an
    episode in all areas, so that an iteration holds about buffer_size agent steps.

    Args:
      env: what is played.
      algorithm: made for the spec of `env`, or for what its connectors make of it.
      settings: of the behavior; buffer_size, time_horizon and max_steps are used here, the rest by the algorithm.
      areas: E, environments of each seed.
      seeds: S, independent runs side by side.
      parameters: of the environment, where they differ from the usual ones: a number, or one for each seed, or what
        each episode draws it from (`jax_envs.sampling.of_seeds`).
      values: settings in which the seeds differ, by dotted key a number for each seed, such as
        {"hyperparameters.learning_rate": (1e-3, 3e-4)} for two. They are traced: other numbers are the same program.
        Those of `settings` do not count then.
      newest: how many of the last episodes of an iteration `JittedState.newest` tells one by one, at most.
      devices: where to run, by default all that JAX shows. As many are used as divide the seeds (or, with one seed,
        its areas).

    Memory. What the compiler has planned stands in `bytes`. To plan ahead: on a CPU, where one seed learns after the
    other, a run of S seeds takes about
        S state + max(1.8 S Q, (P + 2.9) Q, (P + 1.4) Q + 4 k h n) + 10^6 bytes, P = S, or 0 if S = 1:
    all seeds' decisions beside what is made of them, one seed's returns beside all decisions, or one seed's minibatch.
    Q = T E A (4 (observation numbers + 2 (C + D) + 6) + M) bytes are a seed's decisions (observations twice where the
    environment truncates; a quarter of that for images of dtype uint8), h the hidden units, n the rows of a minibatch
    (PPO: batch_size; MA-POCA: batch_size (1 + A)) and k what is kept of a row (12; 9). Within 6 % of the plan for PPO
    and MA-POCA on Dungeon Escape with 1 to 8 seeds, 16 to 256 areas, 64 and 256 units. On accelerators all seeds learn
    at once: the last two terms count S times. `init` refuses what does not fit into the memory that is free.

    Programs are kept on disk (`jaxrl.compilation`), unless JAX has a cache folder already or JAXRL_COMPILATION_CACHE=0.

    Raises SettingsError for settings that are not trained yet, or that only a run with files or the host loop could
    follow; JaxEnvError if the environment breaks its contract.
    """
    check_arguments(env, algorithm, settings, {"areas": areas, "seeds": seeds, "newest": newest}, parameters or {})
    check_jax_env(env)
    check_values(algorithm, settings, seeds, values or {})
    check_acting(env, algorithm, values or {})
    cache_by_default()
    usual = {**env.parameters, **(parameters or {})}
    each = 1 if settings.count_by == "env_steps" else agents_at_start(env, usual)
    steps = math.ceil(algorithm.period / (areas * each))
    mesh = mesh_of(list(devices or jax.devices()), seeds, areas)
    accelerated = mesh.devices.flat[0].platform != "cpu"
    sizes = (areas, steps, settings.time_horizon, settings.last_step)
    told = min(newest, steps * areas * env.teams * env.members)
    plan = Plan(env, algorithm, usual, *sizes, accelerated, values or {}, told)
    begin = jax.jit(partial(start, plan), compiler_options=quick_options(mesh.devices.flat[0].platform))
    numbers = jax.ShapeDtypeStruct((seeds,), np.uint32)
    shapes = jax.eval_shape(begin, numbers)
    try:
        program = compile_program(partial(iterate_several, plan), mesh, shapes, shardings(mesh, shapes))
    except UNFITTING:
        check_fit(env, algorithm)
        raise
    memory, replaced, begun_anew = program.memory_analysis(), jax.jit(_replaced), jax.jit(partial(begin_anew, plan))
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    subject, place = Subject(env.name, env.spec, settings, tuple(range(seeds)), areas), partial(_place, mesh)

    def init(numbers: Sequence[int]) -> JittedState:
        check_memory(seeds, areas, needed, mesh.size)
        return _place(mesh, begin(seed_numbers(numbers, seeds)))

    def run(state: JittedState, count: int) -> tuple[JittedState, IterationLog]:
        return program(state, np.int32(count))

    return JittedTrainer(
        init=init,
        run=run,
        place=place,
        save=partial(kept.save, subject),
        restore=partial(kept.restore, subject, shapes, init, place),
        take=jax.jit(_taken, static_argnums=2),
        put=lambda state, some, first: place(replaced(state, some, first)),
        begin_anew=lambda state, which: place(begun_anew(state, which)),
        seeds=seeds,
        areas=areas,
        steps=steps,
        agents=env.teams * env.members,
        devices=mesh.size,
        bytes=needed,
    )


def compile_program(several: Callable[..., Any], mesh: Mesh, shapes: Any, places: Any) -> Any:
    """The program of some iterations; nothing is allocated yet, so that its memory can be judged first."""
    if mesh.axis_names == (SEEDS,):
        spec = PartitionSpec(SEEDS)
        several = jax.shard_map(several, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False)
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, places)
    count = jax.ShapeDtypeStruct((), np.int32, sharding=everywhere)
    with jax.set_mesh(mesh):
        return jax.jit(several, donate_argnums=0).lower(state, count).compile()


def agents_at_start(env: JaxEnv, parameters: Mapping[str, float | Sequence[float] | Distribution]) -> int:
    """How many agents an episode begins with, at least 1; of an episode drawn from key 0, for the first seed."""
    _, view = jax.jit(env.reset)(jax.random.key(0), of_episode(of_first_seed(parameters), jax.random.key(0)))
    return max(int(view.alive.sum()), 1)


def mesh_of(devices: list[Any], seeds: int, areas: int) -> Mesh:
    """The devices that share the work: as many as divide the seeds, or one seed's areas."""
    whole, axis = (seeds, SEEDS) if seeds > 1 else (areas, AREAS)
    count = max(n for n in range(1, len(devices) + 1) if whole % n == 0)
    return Mesh(np.array(devices[:count]), (axis,))


def shardings(mesh: Mesh, state: JittedState) -> JittedState:
    """Where each array lies: seeds over devices, or the areas of the one seed."""
    if mesh.axis_names == (SEEDS,):
        return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(SEEDS)), state)
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(None, AREAS))
    return jax.tree.map(lambda _: everywhere, state).replace(play=jax.tree.map(lambda _: split, state.play))


def _taken(state: JittedState, first: Array, count: int) -> JittedState:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, count), state)


def _replaced(state: JittedState, some: JittedState, first: Array) -> JittedState:
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, 0), state, some)


def _place(mesh: Mesh, state: JittedState) -> JittedState:
    return jax.device_put(state, shardings(mesh, state))


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
    train_together([settings], console, interrupt)


def train_together(
    runs: Sequence[RunSettings],
    console: Console | None = None,
    interrupt: Interrupt | None = None,
    *,
    values: Mapping[str, Sequence[float]] | None = None,
    loop: Callable[[JittedTrainer, Sequence[Part], Interrupt, Evaluate | None], JittedLoop] = JittedLoop,
) -> None:
    """Runs as one program, each with the same seeds and a results folder of its own.

    They may differ in the settings that `settings.varied.variable` names and in parameters of the environment, see
    `points.programs`. Each leaves the files of a run of its own, from which it can go on alone. `values` as in
    `make_jitted_trainer`, for all seeds of all runs: a `loop` that changes them finds them in the checkpoint again.
    Ends and raises as `train`.
    """
    for run in runs:
        check_run(run)
        check_writers(run.record_settings)
    first = with_drawn_seed(_with_seed_of_run(runs[0]))
    runs, environment = [first, *(with_seed(run, first.env_settings.seed) for run in runs[1:])], first.env_settings
    env = environment_of(environment.env_path or "")
    if isinstance(env, JaxScene):
        from jaxrl.training.compiled.scene.run import train_scene  # which is made of what stands here

        train_scene(first, env, console, interrupt)
        return
    seeds = tuple(environment.seed + i for i in range(environment.seeds))
    behaviors = [behavior_settings_for(run, env.name) for run in runs]
    changing = values is not None
    subjects = [Subject(env.name, env.spec, behavior, seeds, environment.num_areas, changing) for behavior in behaviors]
    folders = [RunFolder(run.checkpoint_settings.results_dir, run.checkpoint_settings.run_id) for run in runs]
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        for run, folder in zip(runs, folders, strict=True):
            stack.enter_context(folder.claimed(run.checkpoint_settings, [env.name]))
        try:
            trainer = in_thread(signals, partial(trainer_for, runs, env, subjects, values))
        except KeyboardInterrupt:
            log.info("Interrupted before the program was compiled; nothing to save.")
        else:
            check_memory(len(seeds) * len(runs), environment.num_areas, trainer.bytes, trainer.devices)
            progress = stack.enter_context(ProgressBar(console or Console()))
            parts = [
                Part(stack.enter_context(CompiledRecorder(*of_run, progress, alone=len(runs) == 1)), i * len(seeds))
                for i, of_run in enumerate(zip(runs, folders, subjects, strict=True))
            ]
            made = loop(trainer, parts, signals, evaluator(env, behaviors[0]))
            made.run(_begun(made))
    if interrupt is not None and interrupt.requested:
        leave_if_busy(interrupt.exit_code)


def evaluator(env: JaxEnv, settings: BehaviorSettings) -> Evaluate | None:
    """The program of evaluations, if there are any, compiled with the first one."""
    if settings.evaluation is None:
        return None
    program = jax.jit(partial(evaluate, env, deterministic(env.spec, settings), settings.evaluation))
    return lambda state: program(state.train.policy, state.parameters)


def _begun(loop: JittedLoop) -> JittedState:
    """The state from which all parts of a loop start, once their files are open."""
    seeds = [seed for part in loop.parts for seed in part.recorder.subject.seeds]
    with ExitStack() as stack:
        for part in loop.parts:
            stack.enter_context(part.recorder.timers(nodes.SETUP))
        state = loop.trainer.place(loop.trainer.init(seeds))
        for part in loop.parts:
            recorder, fresh = part.recorder, loop.state_of(state, part)
            mine = restored(recorder.settings, recorder.folder, recorder.subject, fresh)
            if mine is not fresh:
                state = loop.with_state_of(state, part, mine)
            state = resumed(loop.trainer, state, recorder.lessons, part.first, recorder.settings, recorder.folder)
    for part in loop.parts:
        mine = slice(part.first, part.first + part.count)
        part.recorder.begin(part.step_of(state), np.asarray(state.frozen)[mine].tolist())
        part.begin(state)
    return state


def trainer_for(
    runs: Sequence[RunSettings],
    env: JaxEnv,
    subjects: Sequence[Subject],
    values: Mapping[str, Sequence[float]] | None = None,
) -> JittedTrainer:
    """One program for all runs. `values`, for all seeds of all runs, instead of those in which the runs differ."""
    subject, behaviors = subjects[0], [subject.settings for subject in subjects]
    algorithm = ALGORITHMS[subject.settings.trainer_type](env.spec, subject.settings)
    spec = env.spec if algorithm.connectors is None else algorithm.connectors.spec
    check_observations(spec, subject.settings.network_settings, env.name)
    tell_unexportable(env.name, env.spec, subject.settings, algorithm)
    SharedLearners().meet(env.name, [f"{env.name}?team={team}" for team in range(env.teams)])
    for run in runs:
        check_parameters(run, env)
    lessons = [SeedLessons(run.environment_parameters, of) for run, of in zip(runs, subjects, strict=True)]
    count = len(subject.seeds)
    of_runs = by_seed([variable(behavior) for behavior in behaviors], count)
    return make_jitted_trainer(
        env,
        algorithm,
        subject.settings.model_copy(update=_FOLLOWED_HERE),
        areas=subject.areas,
        seeds=len(runs) * count,
        parameters=parameters_at_start(env, lessons),
        values=of_runs if values is None else values,
        newest=max(of.newest for of in lessons),
    )

"""Run the compiled loop, for one run or several as one program, from checked settings to results folders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import jax
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.checkpoint.loop import first_seed_of_run
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.writers import check_writers
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs.address import unknown
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.networks.observations import check_observations
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for, with_drawn_seed, with_seed
from jaxrl.settings.traced import by_seed, variable
from jaxrl.training.checks import check_run, warn_of_cloning
from jaxrl.training.compiled.checks import check_memory, check_parameters
from jaxrl.training.compiled.evaluation import Evaluate
from jaxrl.training.compiled.lessons import SeedLessons, parameters_at_start, with_parameters
from jaxrl.training.compiled.loop import JittedLoop, Run
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.recorder import JittedRecorder
from jaxrl.training.compiled.saver import Subject, restored
from jaxrl.training.compiled.state import SceneState
from jaxrl.training.compiled.trainer import evaluators, make_scene_trainer
from jaxrl.training.interrupt import Interrupt, in_thread, leave_if_busy
from jaxrl.training.saver import tell_unexportable
from jaxrl.training.spread import of_first, told, writes
from jaxrl.training.teams import SharedLearners

MakeLoop = Callable[[SceneTrainer, str, Sequence[Run], Interrupt, Mapping[str, Evaluate]], JittedLoop]
Values = Mapping[str, Mapping[str, Sequence[float]]]
"""Numbers of a setting, one for each seed, by behavior and dotted key."""
log = logging.getLogger(__name__)


def train(settings: RunSettings, console: Console | None = None, interrupt: Interrupt | None = None) -> None:
    """Run a whole training in the environment `env_settings.env_path`, from checked settings to a results folder.

    Ends when every behavior has passed its max_steps with all seeds or reached its stop rule, at Ctrl-C (saves and
    returns normally), or with an error. `interrupt`: the one of a process that only runs this; after a signal the
    process exits even if XLA still compiles.

    Raises:
      JaxrlError: a fault that the user can mend; before anything is written if it can be known by then.
    """
    train_together([settings], console, interrupt)


def train_together(
    runs: Sequence[RunSettings],
    console: Console | None = None,
    interrupt: Interrupt | None = None,
    *,
    values: Values | None = None,
    loop: MakeLoop = JittedLoop,
) -> None:
    """Train several runs as one program, each with the same seeds and its own results folder.

    They may differ in the settings that `settings.traced.variable` names and in parameters of the environment, see
    `sweep_points.programs`. Each writes the files of a separate run, from which it can be resumed alone. `values` as
    in `make_scene_trainer`, for all seeds of all runs; checkpoints hold them, for a `loop` that changes them.
    Ends and raises as `train`.
    """
    for run in runs:
        check_run(run)
        warn_of_cloning(run)
        check_writers(run.record_settings)
    drawn = with_drawn_seed(_with_seed_of_run(runs[0]) if writes() else runs[0])
    first = with_seed(drawn, told(lambda: drawn.env_settings.seed))
    runs, environment = [first, *(with_seed(run, first.env_settings.seed) for run in runs[1:])], first.env_settings
    env = environment_in(environment)
    subjects = [subjects_of(run, env, changing=values is not None) for run in runs]
    folders = [RunFolder(run.checkpoint_settings.results_dir, run.checkpoint_settings.run_id) for run in runs]
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        for run, folder, of_run in zip(runs, folders, subjects, strict=True):
            stack.enter_context(
                nullcontext()
                if not writes()
                else folder.claimed(run.checkpoint_settings, {item.name: item.settings.init_path for item in of_run})
            )
        try:
            trainer = in_thread(signals, partial(trainer_for, runs, env, subjects, values))
        except KeyboardInterrupt:
            log.info("Interrupted before the program was compiled; nothing to save.")
        else:
            algos = trainer.algorithms
            subjects = [[item._replace(algorithm=algos[item.name]) for item in of_run] for of_run in subjects]
            check_memory(
                trainer.seeds, environment.num_areas, trainer.bytes, min(trainer.devices, jax.local_device_count())
            )
            progress = stack.enter_context(ProgressBar(console or Console()))
            opened = []
            for run, folder, of_run in zip(runs, folders, subjects, strict=True):
                alone = len(runs) == 1
                recorder = JittedRecorder(
                    run, folder, of_run[0], progress, alone=alone, behaviors=of_run, writes=writes()
                )
                opened.append(Run(stack.enter_context(recorder), of_run, len(opened) * environment.seeds))
            settings = {item.name: item.settings for item in subjects[0]}
            jitted_loop = loop(trainer, env.name, opened, signals, evaluators(env, settings))
            jitted_loop.run(_begun(jitted_loop))
    if interrupt is not None and interrupt.requested:
        leave_if_busy(interrupt.exit_code)


def subjects_of(run: RunSettings, env: JaxEnv | JaxScene, *, changing: bool = False) -> list[Subject]:
    """Return the behaviors that a run trains, in the order of the scene.

    Raises SettingsError for a behavior that is not configured, or that is configured but not in the scene.
    """
    scene, options = scene_of(env), run.env_settings
    names = [part.name for part in scene.parts]
    for name in run.behaviors if len(names) > 1 else ():
        if name not in names:
            what = f"{scene.name} has no such behavior"
            raise SettingsError(unknown(f"behaviors.{name}", name, names, what=what))
    seeds = tuple(options.seed + i for i in range(options.seeds))
    return [
        Subject(part.name, part.spec, behavior_settings_for(run, part.name), seeds, options.num_areas, changing)
        for part in scene.parts
    ]


def trainer_for(
    runs: Sequence[RunSettings],
    env: JaxEnv | JaxScene,
    subjects: Sequence[Sequence[Subject]],
    values: Values | None = None,
) -> SceneTrainer:
    """Make one program for all runs, whose behaviors are `subjects`.

    `values`: for all seeds of all runs; None: the values in which the runs differ.
    """
    algorithms: dict[str, Algorithm] = {}
    for subject, part in zip(subjects[0], scene_of(env).parts, strict=True):
        algorithm = ALGORITHMS[subject.settings.trainer_type](subject.spec, subject.settings)
        spec = subject.spec if algorithm.connectors is None else algorithm.connectors.spec
        check_observations(spec, subject.settings.network_settings, subject.name)
        tell_unexportable(subject.name, subject.spec, subject.settings, algorithm)
        if subject.settings.self_play is None:
            SharedLearners().meet(part.name, [f"{part.name}?team={team}" for team in range(part.teams)])
        algorithms[subject.name] = algorithm
    for run in runs:
        check_parameters(run, env)
    lessons = [SeedLessons(run.environment_parameters, items) for run, items in zip(runs, subjects, strict=True)]
    count, by_behavior = len(subjects[0][0].seeds), zip(*subjects, strict=True)
    of_runs = {items[0].name: by_seed([variable(item.settings) for item in items], count) for items in by_behavior}
    # `restored` reads init_path
    settings = {item.name: item.settings.model_copy(update={"init_path": None}) for item in subjects[0]}
    return make_scene_trainer(
        env,
        algorithms,
        settings,
        areas=subjects[0][0].areas,
        seeds=len(runs) * count,
        parameters=parameters_at_start(env, lessons),
        values=of_runs if values is None else values,
        newest={name: max(run_lessons.newest[name] for run_lessons in lessons) for name in algorithms},
    )


def _begun(loop: JittedLoop) -> SceneState:
    """Make the state from which all runs of a loop start, and open the runs' files."""
    trainer = loop.trainer
    with ExitStack() as stack:
        for run in loop.runs:
            stack.enter_context(run.recorder.timers(nodes.SETUP))
        state = trainer.init([seed for run in loop.runs for seed in run.subjects[0].seeds])
        for run in loop.runs:
            recorder, fresh = run.recorder, loop.state_of(state, run)
            mine = _restored(trainer, run, fresh)
            if mine is not fresh:
                state = loop.with_state_of(state, run, mine)
            if recorder.settings.checkpoint_settings.resume and recorder.lessons.several:
                shown = run.of(trainer.report(state))
                recorder.lessons.resume(told(partial(recorder.lessons.noted, recorder.folder, shown)), shown)
                state = trainer.place(with_parameters(state, recorder.lessons, run.first))
    reports = trainer.report(state)
    for run in loop.runs:
        run.begin(trainer, reports)
    return state


def _restored(trainer: SceneTrainer, run: Run, fresh: SceneState) -> SceneState:
    """Return a run's state as `restored`; of several hosts only the first one reads files."""
    recorder = run.recorder
    read = partial(restored, recorder.settings, recorder.folder, run.subjects)
    if jax.process_count() == 1:
        return read(fresh)
    options = recorder.settings.checkpoint_settings
    starts = any(subject.settings.init_path for subject in run.subjects) or options.initialize_from is not None
    if not options.resume and not starts:
        return fresh
    mine = trainer.here(fresh)
    return of_first(read(mine) if writes() else mine)


def _with_seed_of_run(settings: RunSettings) -> RunSettings:
    """Return the settings with a resumed run's own first seed, as seeds' numbers name its event folders."""
    options, written = settings.checkpoint_settings, settings.env_settings.seed
    seed = first_seed_of_run(Path(options.results_dir, options.run_id)) if options.resume else None
    if seed is None or seed == written:
        return settings
    if written >= 0:
        log.warning("env_settings.seed: %d has no effect, the resumed run goes on with its own, %d", written, seed)
    return with_seed(settings, seed)

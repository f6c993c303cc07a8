"""One whole run of the compiled loop, or some as one program: from checked settings to results folders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.artifacts.checkpoint.loop import first_seed_of_run
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.writers import check_writers
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.jax_envs import environment_of
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.networks.observations import check_observations
from jaxrl.settings import RunSettings, behavior_settings_for, with_drawn_seed, with_seed
from jaxrl.settings.varied import by_seed, variable
from jaxrl.training.checks import check_run
from jaxrl.training.compiled.checks import check_memory, check_parameters
from jaxrl.training.compiled.evaluation import Evaluate
from jaxrl.training.compiled.iteration import JittedState, JittedTrainer
from jaxrl.training.compiled.lessons import SeedLessons, parameters_at_start, resumed
from jaxrl.training.compiled.loop import JittedLoop, Part
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.saver import Subject, restored
from jaxrl.training.compiled.scene.run import train_scene
from jaxrl.training.compiled.trainer import evaluator, make_jitted_trainer
from jaxrl.training.interrupt import Interrupt, in_thread, leave_if_busy
from jaxrl.training.saver import tell_unexportable
from jaxrl.training.teams import SharedLearners

_FOLLOWED_HERE: dict[str, Any] = {"init_path": None, "evaluation": None, "keep_best": None, "stop": {}}
"""Settings without those that a run with files follows itself."""
log = logging.getLogger(__name__)


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
    env = environment_of(environment.env_path or "", **keyword_arguments(environment.env_args))
    if isinstance(env, JaxScene):
        train_scene(first, env, console, interrupt)
        return
    seeds = tuple(environment.seed + i for i in range(environment.seeds))
    behaviors = [behavior_settings_for(run, env.name) for run in runs]
    changing = values is not None
    subjects = [Subject(env.name, env.spec, behavior, seeds, environment.num_areas, changing) for behavior in behaviors]
    folders = [RunFolder(run.checkpoint_settings.results_dir, run.checkpoint_settings.run_id) for run in runs]
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        for run, folder, behavior in zip(runs, folders, behaviors, strict=True):
            stack.enter_context(folder.claimed(run.checkpoint_settings, {env.name: behavior.init_path}))
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


def _with_seed_of_run(settings: RunSettings) -> RunSettings:
    """A resumed run goes on with its own seeds, whose numbers name its folders of events."""
    options, given = settings.checkpoint_settings, settings.env_settings.seed
    seed = first_seed_of_run(Path(options.results_dir, options.run_id)) if options.resume else None
    if seed is None or seed == given:
        return settings
    if given >= 0:
        log.warning("env_settings.seed: %d has no effect, the resumed run goes on with its own, %d", given, seed)
    return with_seed(settings, seed)

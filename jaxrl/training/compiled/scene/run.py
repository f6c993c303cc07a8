"""One whole run of an environment of several behaviors: from checked settings to a results folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs.address import unknown
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.networks.observations import check_observations
from jaxrl.settings import BehaviorSettings, RunSettings, SettingsError, behavior_settings_for
from jaxrl.training.compiled.checks import check_memory, check_parameters
from jaxrl.training.compiled.lessons import parameters_at_start
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.scene.iteration import SceneState
from jaxrl.training.compiled.scene.lessons import SceneLessons, resumed
from jaxrl.training.compiled.scene.loop import SceneLoop, ScenePart
from jaxrl.training.compiled.scene.saver import restored_scene
from jaxrl.training.compiled.scene.trainer import SceneTrainer, evaluators, make_scene_trainer
from jaxrl.training.interrupt import Interrupt, in_thread, leave_if_busy
from jaxrl.training.saver import tell_unexportable
from jaxrl.training.teams import SharedLearners

log = logging.getLogger(__name__)


def train_scene(
    settings: RunSettings, scene: JaxScene, console: Console | None = None, interrupt: Interrupt | None = None
) -> None:
    """Ends when every behavior has passed its max_steps or met its stop rule, at Ctrl-C, or with an error.

    `settings` have a definite seed. Raises JaxrlError for whatever the user can mend, before anything is written if it
    can be known before.
    """
    environment, options = settings.env_settings, settings.checkpoint_settings
    behaviors = settings_of_behaviors(settings, scene)
    check_parameters(settings, scene)
    seeds = tuple(environment.seed + i for i in range(environment.seeds))
    subjects = [
        Subject(part.name, part.spec, behaviors[part.name], seeds, environment.num_areas) for part in scene.parts
    ]
    folder = RunFolder(options.results_dir, options.run_id)
    with ExitStack() as stack:
        signals = interrupt or stack.enter_context(Interrupt())
        stack.enter_context(folder.claimed(options, {name: behavior.init_path for name, behavior in behaviors.items()}))
        try:
            lessons = SceneLessons(settings.environment_parameters, subjects)
            trainer = in_thread(signals, partial(trainer_for, lessons, scene, subjects))
        except KeyboardInterrupt:
            log.info("Interrupted before the program was compiled; nothing to save.")
        else:
            check_memory(len(seeds), environment.num_areas, trainer.bytes, trainer.devices)
            progress = stack.enter_context(ProgressBar(console or Console()))
            recorder = stack.enter_context(CompiledRecorder(settings, folder, subjects[0], progress, lessons=lessons))
            parts, state = _begun(trainer, recorder, subjects, lessons)
            SceneLoop(trainer, scene.name, parts, signals, evaluators(scene, behaviors), lessons).run(state)
    if interrupt is not None and interrupt.requested:
        leave_if_busy(interrupt.exit_code)


def settings_of_behaviors(settings: RunSettings, scene: JaxScene) -> dict[str, BehaviorSettings]:
    """By behavior of the scene. Raises SettingsError for one that is not configured, or configured and not there."""
    names = [part.name for part in scene.parts]
    for name in settings.behaviors:
        if name not in names:
            what = f"{scene.name} has no such behavior"
            raise SettingsError(unknown(f"behaviors.{name}", name, names, what=what))
    return {name: behavior_settings_for(settings, name) for name in names}


def trainer_for(lessons: SceneLessons, scene: JaxScene, subjects: Sequence[Subject]) -> SceneTrainer:
    """The program of a run."""
    algorithms: dict[str, Algorithm] = {}
    for subject, part in zip(subjects, scene.parts, strict=True):
        algorithm = ALGORITHMS[subject.settings.trainer_type](subject.spec, subject.settings)
        spec = subject.spec if algorithm.connectors is None else algorithm.connectors.spec
        check_observations(spec, subject.settings.network_settings, subject.name)
        tell_unexportable(subject.name, subject.spec, subject.settings, algorithm)
        SharedLearners().meet(part.name, [f"{part.name}?team={team}" for team in range(part.teams)])
        algorithms[subject.name] = algorithm
    # `restored` reads init_path
    without = {of.name: of.settings.model_copy(update={"init_path": None}) for of in subjects}
    return make_scene_trainer(
        scene,
        algorithms,
        without,
        areas=subjects[0].areas,
        seeds=len(subjects[0].seeds),
        parameters=parameters_at_start(scene, [lessons]),
        newest=lessons.newest_of,
    )


def _begun(
    trainer: SceneTrainer, recorder: CompiledRecorder, subjects: Sequence[Subject], lessons: SceneLessons
) -> tuple[list[ScenePart], SceneState]:
    """The behaviors with their files open, and the state that they start from."""
    with recorder.timers(nodes.SETUP):
        fresh = trainer.init(subjects[0].seeds)
        state = restored_scene(recorder.settings, recorder.folder, subjects, fresh)
        if recorder.settings.checkpoint_settings.resume:
            state = resumed(state, lessons, recorder.folder)
        state = trainer.place(state)
    parts = []
    for subject in subjects:
        of_behavior = recorder if not parts else recorder.beside(subject)
        part = ScenePart(of_behavior, trainer)
        of_behavior.begin(part.step_of(state), np.asarray(state.parts[part.name].frozen).tolist())
        part.begin(state)
        parts.append(part)
    return parts, state

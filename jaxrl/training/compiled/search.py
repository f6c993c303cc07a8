"""A search in the compiled loop: several trials side by side as one program; the next trials replace those that end.

A trial that is done or given up leaves its seeds' part of the state to the next one: fresh learners and environments
with other numbers, in the same program.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.step_clock import crossed_multiple
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for
from jaxrl.settings.traced import variable
from jaxrl.training.compiled.checks import check_memory, check_sampling, refuse_curricula
from jaxrl.training.compiled.evaluation import Evaluate
from jaxrl.training.compiled.lessons import with_parameters
from jaxrl.training.compiled.loop import JittedLoop, Run
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.recorder import JittedRecorder
from jaxrl.training.compiled.run import subjects_of, trainer_for
from jaxrl.training.compiled.saver import restored
from jaxrl.training.compiled.state import Report, SceneState
from jaxrl.training.compiled.trainer import evaluators
from jaxrl.training.interrupt import Interrupt, in_thread
from jaxrl.training.study import Study, Trial

log = logging.getLogger(__name__)

PARALLEL = 4
"""Default number of trials side by side."""

_FOLLOWED_BY = {"hyperparameters.steps_per_update": ("hyperparameters.reward_signal_steps_per_update",)}
"""Settings whose default is the value of another setting, by that one; a trial's own settings resolve them."""


def search(
    base: RunSettings, keys: Sequence[str], study: Study, console: Console, interrupt: Interrupt, parallel: int | None
) -> None:
    """Make all trials of a study, `parallel` at a time. Ends after the last, or at Ctrl-C (saves and returns normally).

    `base` are the settings without those of a trial, and `keys` are the searched ones, as `check_keys` wants them.
    """
    env = environment_in(base.env_settings)
    subjects = subjects_of(base, env)
    for subject in subjects:
        check_sampling(subject.name, subject.settings)
    places, seeds = min(parallel or PARALLEL, max(study.left, 1)), subjects[0].seeds
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for targets in traced(keys, base, env).values():
        for name, key in targets:
            number = variable(behavior_settings_for(base, name))[key]
            values.setdefault(name, {})[key] = (number,) * places * len(seeds)
    try:
        trainer = in_thread(interrupt, partial(trainer_for, [base] * places, env, [subjects] * places, values))
    except KeyboardInterrupt:
        log.info("Interrupted before the program was compiled; no trial was begun.")
        return
    check_memory(trainer.seeds, trainer.areas, trainer.bytes, trainer.devices)
    with ProgressBar(console) as progress:
        evaluations = evaluators(env, {subject.name: subject.settings for subject in subjects})
        loop = SearchLoop(trainer, env, study, seeds, progress, interrupt, evaluations)
        loop.run(loop.filled(trainer.init(seeds * places)))


class SearchLoop(JittedLoop):
    """Loop over trials: each run is one trial."""

    def __init__(
        self,
        trainer: SceneTrainer,
        env: JaxEnv | JaxScene,
        study: Study,
        seeds: tuple[int, ...],
        progress: ProgressBar,
        interrupt: Interrupt,
        evaluate: Mapping[str, Evaluate],
    ) -> None:
        super().__init__(trainer, env.name, [], interrupt, evaluate)
        self.env, self.study, self.seeds, self.progress = env, study, seeds, progress
        places = trainer.seeds // len(seeds)
        self.fresh = trainer.take(trainer.init(seeds * places), 0, len(seeds))
        self.trials: dict[Run, Trial] = {}

    def filled(self, state: SceneState) -> SceneState:
        """Begin a trial in every place, if there are enough; return the state."""
        for first in range(0, self.trainer.seeds, len(self.seeds)):
            state = self.taken(state, first)
        return state

    def taken(self, state: SceneState, first: int) -> SceneState:
        """Begin the next trial on the seeds from number `first` on; return the state with their fresh part."""
        trial = self.study.ask()
        if trial is None:
            return state
        run = self._opened(trial.runs[0], first)
        mine = restored(run.recorder.settings, run.recorder.folder, run.subjects, self.begun(run))
        parts = {}
        for subject in run.subjects:
            part, numbers = mine.parts[subject.name], variable(subject.settings)
            values = {key: jnp.full(len(self.seeds), numbers[key], jnp.float32) for key in part.values}
            parts[subject.name] = part.replace(values=values)
        state = self.with_state_of(state, run, mine.replace(parts=parts))
        run.begin(self.trainer, self.trainer.report(state))
        self.runs.append(run)
        self.trials[run] = trial
        log.info("%s begins: %s.", trial.name, ", ".join(f"{key} {value:.4g}" for key, value in trial.values.items()))
        return state

    def begun(self, run: Run) -> SceneState:
        """Make the fresh state of a trial; its first episodes already have the trial's environment parameters."""
        mine, count = with_parameters(self.fresh, run.recorder.lessons, 0), self.trainer.seeds
        same = jax.tree.map(lambda new, old: bool((new == old).all()), mine.parameters, self.fresh.parameters)
        if all(jax.tree.leaves(same)):
            return mine
        every = jax.tree.map(lambda x: np.concatenate([x] * (count // run.count)), mine.parameters)
        return self.trainer.take(self.trainer.init(self.seeds * (count // run.count), every), 0, run.count)

    def _opened(self, settings: RunSettings, first: int) -> Run:
        options, subjects = settings.checkpoint_settings, subjects_of(settings, self.env)
        algorithms = self.trainer.algorithms
        subjects = [subject._replace(seeds=self.seeds, algorithm=algorithms[subject.name]) for subject in subjects]
        folder = RunFolder(options.results_dir, options.run_id)
        with ExitStack() as stack:
            starts = {subject.name: subject.settings.init_path for subject in subjects}
            stack.enter_context(folder.claimed(options, starts))
            recorder = JittedRecorder(settings, folder, subjects[0], self.progress, alone=False, behaviors=subjects)
            run = Run(stack.enter_context(recorder), subjects, first)
            run.files = stack.pop_all()
        return run

    def look(self, state: SceneState, reports: Mapping[str, Report]) -> SceneState:
        """Book the progress as `JittedLoop`, then replace trials that are done by the next ones."""
        state = super().look(state, reports)
        for run in [run for run in self.runs if run.over]:
            self.runs.remove(run)
            self.end(run, state)
            state = self.taken(state, run.first)
        return state

    def booked(self, run: Run, state: SceneState, reports: Mapping[str, Report]) -> SceneState:
        """Book a trial's progress, and give it up at a summary of its first behavior if it has fallen behind."""
        first, trial = run.parts[0], self.trials[run]
        before, every = first.step, first.settings.summary_freq
        state, score = super().booked(run, state, reports), run.score()
        if crossed_multiple(before, first.step - before, every) is not None and score is not None:
            run.given_up = self.study.hopeless(trial, first.step // every, score)
        return state

    def end(self, run: Run, state: SceneState) -> None:
        """Write the last files of a trial and record its score; an interrupted trial has none."""
        trial, score = self.trials.pop(run), run.score()
        with run.files:
            super().end(run, state)
        done = run.over
        self.study.tell(trial, score if done else None, pruned=run.given_up or (done and score is None))
        how = "given up" if run.given_up else "done" if done else "interrupted"
        log.info("%s %s at step %d, score %s.", trial.name, how, run.step, "–" if score is None else f"{score:.4g}")


def check_keys(keys: Sequence[str], base: RunSettings) -> None:
    """Raise SettingsError for a searched key that would need another program, such as a size, and for curricula."""
    refuse_curricula(base, "trials of --search")
    traced(keys, base, environment_in(base.env_settings))


def traced(keys: Sequence[str], base: RunSettings, env: JaxEnv | JaxScene) -> dict[str, list[tuple[str, str]]]:
    """Return the settings (behavior, key) of each searched key; environment parameters are left out.

    Raises SettingsError for a key that cannot be traced.
    """
    known: dict[str, list[tuple[str, str]]] = {}
    names = [part.name for part in scene_of(env).parts]
    for name in names:
        for key in variable(behavior_settings_for(base, name)):
            settings = [(name, setting) for setting in (key, *_FOLLOWED_BY.get(key, ()))]
            known.setdefault(key, []).extend(settings)
            if len(names) > 1:
                known[f"behaviors.{name}.{key}"] = settings
    allowed = [*known, *(f"environment_parameters.{name}" for name in env.parameters)]
    for key in keys:
        if key not in allowed:
            raise SettingsError(
                f"--search {key}: is no number that trials of one program can differ in, those are "
                f"{', '.join(allowed)}; vary it with --set, or search with the environment served: --env player:NAME"
            )
    return {key: known[key] for key in keys if key in known}

"""A search in the compiled loop: some trials side by side as one program, whose places are taken by the next ones.

A trial that is done or given up leaves its place, that is its seeds' part of the state, to the next: fresh learners and
environments with other numbers, in the same program.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import jax.numpy as jnp
from rich.console import Console

from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for
from jaxrl.settings.varied import variable
from jaxrl.training.compiled.checks import check_memory, check_sampling, refuse_curricula
from jaxrl.training.compiled.evaluation import Evaluate
from jaxrl.training.compiled.iteration import JittedState, JittedTrainer
from jaxrl.training.compiled.lessons import with_parameters
from jaxrl.training.compiled.loop import JittedLoop, Part
from jaxrl.training.compiled.recorder import CompiledRecorder
from jaxrl.training.compiled.run import trainer_for
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.trainer import evaluator
from jaxrl.training.interrupt import Interrupt, in_thread
from jaxrl.training.study import Study, Trial

log = logging.getLogger(__name__)

PARALLEL = 4
"""Trials side by side, unless told otherwise."""


def search(
    base: RunSettings, keys: Sequence[str], study: Study, console: Console, interrupt: Interrupt, parallel: int | None
) -> None:
    """Make all trials of a study, `parallel` at a time. Ends after the last, or at Ctrl-C (saves and returns normally).

    `base` are the settings without those of a trial, and `keys` are the searched ones, as `check_keys` wants them.
    """
    env = environment_in(base.env_settings)
    behavior = behavior_settings_for(base, env.name)
    check_sampling(env.name, behavior)
    numbers = variable(behavior)
    searched = traced(keys, base, env)
    places = min(parallel or PARALLEL, max(study.left, 1))
    seeds = tuple(base.env_settings.seed + i for i in range(base.env_settings.seeds))
    subject = Subject(env.name, env.spec, behavior, seeds, base.env_settings.num_areas)
    try:
        values = {key: (numbers[key],) * places * len(seeds) for key in searched}
        trainer = in_thread(interrupt, partial(trainer_for, [base] * places, env, [subject] * places, values))
    except KeyboardInterrupt:
        log.info("Interrupted before the program was compiled; no trial was begun.")
        return
    check_memory(trainer.seeds, subject.areas, trainer.bytes, trainer.devices)
    with ProgressBar(console) as progress:
        loop = SearchLoop(trainer, env, study, seeds, progress, interrupt, evaluator(env, behavior))
        loop.run(loop.filled(trainer.init(seeds * places)))


class SearchLoop(JittedLoop):
    """The loop over trials: a part is one trial."""

    def __init__(
        self,
        trainer: JittedTrainer,
        env: JaxEnv,
        study: Study,
        seeds: tuple[int, ...],
        progress: ProgressBar,
        interrupt: Interrupt,
        evaluate: Evaluate | None,
    ) -> None:
        super().__init__(trainer, [], interrupt, evaluate)
        self.env, self.study, self.seeds, self.progress = env, study, seeds, progress
        places = trainer.seeds // len(seeds)
        self.fresh = trainer.take(trainer.init(seeds * places), 0, len(seeds))
        self.trials: dict[Part, Trial] = {}

    def filled(self, state: JittedState) -> JittedState:
        """Every place is taken by a trial, if there are as many."""
        for first in range(0, self.trainer.seeds, len(self.seeds)):
            state = self.taken(state, first)
        return state

    def taken(self, state: JittedState, first: int) -> JittedState:
        """The next trial begins on the seeds from number `first` on; the state with its own fresh one."""
        trial = self.study.ask()
        if trial is None:
            return state
        run = trial.runs[0]
        part = self._opened(run, first)
        numbers = variable(part.settings)
        values = {name: jnp.full(len(self.seeds), numbers[name], jnp.float32) for name in self.fresh.values}
        mine = with_parameters(self.fresh, part.recorder.lessons, 0)
        state = self.with_state_of(state, part, mine.replace(values=values))
        part.recorder.begin(0)
        part.begin(state)
        self.parts.append(part)
        self.trials[part] = trial
        log.info("%s begins: %s.", trial.name, ", ".join(f"{key} {value:.4g}" for key, value in trial.values.items()))
        return state

    def _opened(self, run: RunSettings, first: int) -> Part:
        options = run.checkpoint_settings
        folder = RunFolder(options.results_dir, options.run_id)
        subject = Subject(
            self.env.name,
            self.env.spec,
            behavior_settings_for(run, self.env.name),
            self.seeds,
            run.env_settings.num_areas,
        )
        with ExitStack() as stack:
            stack.enter_context(folder.claimed(options, {self.env.name: subject.settings.init_path}))
            recorder = stack.enter_context(CompiledRecorder(run, folder, subject, self.progress, alone=False))
            part = Part(recorder, first)
            part.files = stack.pop_all()
        return part

    def look(self, state: JittedState) -> JittedState:
        """As in any loop; then trials that are done make room for the next."""
        state = super().look(state)
        for part in [part for part in self.parts if part.over]:
            self.parts.remove(part)
            self.end(part, state)
            state = self.taken(state, part.first)
        return state

    def book(self, part: Part, state: JittedState, before: int) -> bool:
        """At a summary a trial that has fallen behind is given up."""
        told, score, trial = super().book(part, state, before), part.recorder.score(), self.trials[part]
        if told and score is not None:
            part.pruned = self.study.hopeless(trial, part.step // part.settings.summary_freq, score)
            part.over |= part.pruned
        return told

    def end(self, part: Part, state: JittedState) -> None:
        """The last files of a trial; an interrupted one is not judged."""
        trial, score = self.trials.pop(part), part.recorder.score()
        with part.files:
            super().end(part, state)
        done = part.over or part.pruned
        self.study.tell(trial, score if done else None, pruned=part.pruned or (done and score is None))
        how = "given up" if part.pruned else "done" if done else "interrupted"
        log.info("%s %s at step %d, score %s.", trial.name, how, part.step, "–" if score is None else f"{score:.4g}")


def check_keys(keys: Sequence[str], base: RunSettings) -> None:
    """Raise SettingsError for a searched key that is a size or a kind, which would be another program; for lessons."""
    refuse_curricula(base, "trials of --search")
    traced(keys, base, environment_in(base.env_settings))


def traced(keys: Sequence[str], base: RunSettings, env: JaxEnv) -> list[str]:
    """The searched settings of the behavior. Raises SettingsError for one that cannot be traced."""
    known = [*variable(behavior_settings_for(base, env.name)), *(f"environment_parameters.{p}" for p in env.parameters)]
    for key in keys:
        if key not in known:
            raise SettingsError(
                f"--search {key}: is no number that trials of one program can differ in, those are "
                f"{', '.join(known)}; vary it with --set, or search with the environment served: --env player:NAME"
            )
    return [key for key in keys if not key.startswith("environment_parameters.")]

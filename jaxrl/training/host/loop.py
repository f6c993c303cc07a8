"""The host loop: environments → slots → act (and append) → environments, an update when enough is stored.

Read this first. What is compiled stands in `programs`: per behavior one program that acts and appends, and one for the
update. The loop itself knows no algorithm, no file and no Unity.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from rich.console import Console

from jaxrl.algorithms.postprocessing import resolve
from jaxrl.algorithms.supported import refuse_unsupported
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.callbacks import Callbacks, PolicyMapping, load_callbacks
from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.absence import Absences
from jaxrl.rollout.slots import Source
from jaxrl.rollout.tracker import EpisodeTracker
from jaxrl.settings import RunSettings, with_drawn_seed
from jaxrl.training.checks import check_run
from jaxrl.training.host.curricula import Curricula
from jaxrl.training.host.endings import closed, interrupted, paused
from jaxrl.training.host.evaluation import Evaluation
from jaxrl.training.host.exact import environment_seeds, steps_of_run
from jaxrl.training.host.following import Following
from jaxrl.training.host.hooks import Hooks, MappedBy
from jaxrl.training.host.launch import launched
from jaxrl.training.host.notices import Notices
from jaxrl.training.host.policies import Acted
from jaxrl.training.host.population import Population
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.updates import Learned, Updates
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.lessons import LessonChange
from jaxrl.types import Action, BehaviorMessage, EnvMessage

log = logging.getLogger(__name__)


class Turn(NamedTuple):
    """One turn of the loop: what ended before what was learned (M18)."""

    results: Sequence[EnvMessage]
    acted: Sequence[Acted]  # with the episodes that ended
    learned: Mapping[str, Learned]  # by behavior, updates whose policy decides from now on


def train(
    settings: RunSettings,
    console: Console | None = None,
    started: tuple[Interrupt, EnvPool] | None = None,
    *,
    callbacks: Sequence[Callbacks] | None = None,
    policy_mapping: PolicyMapping | None = None,
) -> None:
    """One whole run, from checked settings to a results folder.

    Ends when every behavior has passed its max_steps, at Ctrl-C or when an environment is closed (saves, returns),
    or with an error (saves and raises it).

    Args:
      started: from `launched(settings)`, done before JAX was imported.
      callbacks: called in this order, instead of those that the settings name (`callbacks: [module:Class]`).
      policy_mapping: (agent, episode, worker) → the policy that the agent follows, as `Callbacks.policy_mapping`; asked
        before those of the callbacks.

    Raises:
      JaxrlError: whatever the user can mend, before anything is written if it can be known before.
    """
    if started is None:
        check_run(settings)
    else:  # environments that are there already need not be those that the settings name
        refuse_unsupported(settings)
    settings = with_drawn_seed(settings)
    for _, behavior in settings.every_behavior():
        if behavior.postprocess is not None:
            resolve(behavior.postprocess)
    mapped = [] if policy_mapping is None else [MappedBy(policy_mapping)]
    hooks = Hooks([*mapped, *(load_callbacks(settings.callbacks or ()) if callbacks is None else callbacks)])
    options = settings.checkpoint_settings
    with ExitStack() as stack:
        interrupt, pool = started or stack.enter_context(launched(settings))
        progress = stack.enter_context(ProgressBar(console or Console()))
        folder = RunFolder(options.results_dir, options.run_id)
        recorder = stack.enter_context(HostRecorder(settings, folder, progress))
        try:
            with recorder.timers(nodes.SETUP), interrupt.waiting():
                pool.ready()
        except (KeyboardInterrupt, EnvironmentFailure) as error:
            if isinstance(error, EnvironmentFailure) and not failed_by_signal(error, interrupt):
                raise
            log.info("Interrupted before the environments had started; nothing to save.")
            return
        HostLoop(settings, recorder, interrupt, pool, hooks).run()


def failed_by_signal(error: Exception, interrupt: Interrupt) -> bool:
    """Whether an environment failed because the signal that ends the run has reached it too."""
    return isinstance(error, EnvironmentFailure) and interrupt.requested


class HostLoop:
    """Behaviors and what goes back and forth between them and the environments.

    `route` says which actor decides for a behavior id of the wire, `behaviors` who learns from it: one each, unless its
    agents are mapped to other `policies`.
    """

    def __init__(
        self,
        settings: RunSettings,
        recorder: HostRecorder,
        interrupt: Interrupt,
        pool: EnvPool,
        hooks: Hooks | None = None,
    ) -> None:
        self.settings = settings
        self.recorder = recorder
        self.interrupt = interrupt
        self.pool = pool
        self.paused = False  # play mode was stopped in the Editor, and nothing has come since
        self.updates = Updates(recorder, interrupt)
        self.notices = Notices()
        self.env_steps = 0  # messages of environments that answered actions, those of all workers (M27)
        self.turn = Turn((), (), {})  # the last one
        self._incarnations: dict[int, int] = {}  # by worker, of its last message
        self.population = Population(settings, recorder, self.updates, pool.num_envs)
        self.behaviors, self.policies = self.population.behaviors, self.population.policies
        self.curricula = Curricula(settings, recorder)
        self.hooks = hooks or Hooks(())
        self.following: Following | None = None  # from the first behaviors on, where somebody follows episodes
        options = settings.env_settings
        evaluated = any(behavior.evaluation for _, behavior in settings.every_behavior())
        self.evaluation = Evaluation(settings, interrupt) if evaluated else None
        self.absences = Absences(options.missing_after) if options.missing == "truncate" else None

    def run(self) -> None:
        """Until every behavior is done; saves on every way out (not with inference)."""
        cause = None
        try:
            with self.recorder.timers(nodes.LEARNING):
                for _ in self.iterate():
                    pass
                self.updates.await_all()
        except KeyboardInterrupt:
            log.info("%s", interrupted(self.settings.checkpoint_settings))
        except EnvironmentClosed as end:
            if not self.behaviors:  # an environment in which nothing ever happened is a fault
                raise
            log.warning("%s", closed(end, self.settings.checkpoint_settings))
        except Exception as error:
            if not failed_by_signal(error, self.interrupt):
                cause = error
                raise
            log.info("%s", interrupted(self.settings.checkpoint_settings))
        finally:
            self.pool.hang_up()  # they close while we save
            if self.evaluation is not None:
                self.evaluation.close()
            failed = self.updates.join()
            kept = self.recorder.exact and (self.interrupt.requested or cause is not None)  # the last exact checkpoint
            self.recorder.finish([] if kept else list(self.behaviors.values()), cause or failed)
            if failed is not None and cause is None:
                raise failed

    def iterate(self) -> Iterator[Turn]:
        """Begin all episodes anew, then one turn after the other until every behavior is done.

        For who wants to see what is collected while a loop goes on; nothing is saved but what `advance` saves.
        """
        everybody = self.pool.num_envs
        at_least = everybody if self.settings.env_settings.mode == "lockstep" else 1
        with self.recorder.timers(nodes.RESET):
            self.reset(steps_of_run(self.recorder.folder) if self.settings.checkpoint_settings.resume else {})
        answers, unfinished = everybody, True
        while unfinished:
            with self.recorder.timers(nodes.ADVANCE):
                unfinished = self.advance(self.receive(answers))
            yield self.turn
            answers = at_least

    def receive(self, at_least: int) -> list[EnvMessage]:
        """Wait for environments. Ctrl-C strikes only here and while the update is compiled.

        Processes that were lost meanwhile are told to everybody before anything of the next ones is seen.
        """
        timers = self.recorder.timers
        try:
            with timers(nodes.ENV_STEP), self.interrupt.waiting():
                results = self.pool.recv(at_least)
                for result in results:
                    self.recorder.times.worker(result)
        except EnvironmentClosed as end:
            if not self.may_open_again():
                raise
            self.pause(end)
            return self.receive(at_least)
        self.paused = False
        for loss in self.pool.losses():
            self.lose(loss)
        return results

    def lose(self, loss: Loss) -> None:
        """A worker's process is no more: its agents' episodes end as truncated, without their open decisions (R10)."""
        for behavior in self.behaviors.values():
            self.recorder.lost(behavior.name, loss, behavior.actor.lose(loss.worker, loss.incarnation))
        self.policies.lose(loss)
        if self.absences is not None:
            self.absences.forget(loss.worker, loss.incarnation)
        if self.following is not None:
            error = None if loss.in_order else EnvironmentFailure(loss.why)
            self.following.lost(loss.worker, loss.incarnation, error)  # no statistics: their returns are only a part

    def may_open_again(self) -> bool:
        """Whether play mode was stopped in the Editor, and there is something that could go on."""
        options = self.settings.env_settings
        waits = options.env_path is None and options.editor_wait > 0.0
        return waits and not self.paused and bool(self.behaviors)

    def pause(self, end: EnvironmentClosed) -> None:
        """Save everything, and wait for Play from now on."""
        self.paused = True
        self.recorder.pause(list(self.behaviors.values()))
        log.warning("%s", paused(end, self.settings))
        self.pool.reopen(worker=0)

    def advance(self, results: Sequence[EnvMessage]) -> bool:
        """Act on what arrived, send the actions, then learn while the environments step. False: all are done.

        The state that waits for its reward during an update acted with the policy before it and carries that policy's
        log-probability, like ML-Agents' trajectories in flight, only shorter: one state per row.
        """
        self.updates.publish_done()
        self.meet(results)
        asked = results
        if self.absences is not None:
            results = [self.absences.complete(result) for result in results]
        over = [] if self.following is None else self.following.observe(results)
        actions, acted = self.act(results)
        if self.following is not None:
            self.following.decided(results, actions)
        with self.recorder.timers(nodes.TAKE_STEP):
            anew = self.change(self.curricula.look(results, acted, over, self.policies.take_reported(), self.behaviors))
            for result in () if anew else asked:
                self.pool.send(result.worker, {name: actions[result.worker][name] for name in result.steps})
        self.book(results, acted)
        if over:  # before their samples are learned from (M18)
            self.recorder.followed(over)
        stepped = self.count(results)
        for behavior in list(self.behaviors.values()):
            behavior.actor.env_steps += stepped
            self.notices.collected(behavior)
            if behavior.due():
                self.updates.use_up(behavior)
        if self.evaluation is not None:
            self.evaluate(self.evaluation, acted)
        if anew:
            self._incarnations.clear()  # what they answer next is no environment step
        self.turn = Turn(results, acted, self.updates.told())
        for name, learned in self.turn.learned.items():
            self.hooks.call("on_policy_updated", name, learned.metrics)
        self.recorder.times.tick(len(results))
        if self.recorder.due and self.turn.learned:
            self.begin_anew()
        self.recorder.show_progress(list(self.behaviors.values()))
        return self.unfinished()

    def reset(self, steps: Mapping[str, int]) -> None:
        """New episodes everywhere; `steps` are those of the checkpoints that the run goes on from."""
        exact, seed = self.recorder.exact, self.settings.env_settings.seed
        seeds = environment_seeds(seed, steps, self.pool.num_envs) if exact else None
        self.pool.reset(self.curricula.lessons.values(), seeds)

    def change(self, changes: Sequence[LessonChange]) -> bool:
        """Tell the environments of new lessons. True: all begin anew, and open episodes end as a lost worker's do."""
        values = {change.parameter: change.value for change in changes}
        if not any(change.require_reset for change in changes):
            if changes:
                self.pool.set_parameters(values)
            return False
        for worker, incarnation in sorted(self._incarnations.items()):
            for behavior in self.behaviors.values():
                behavior.actor.lose(worker, incarnation)
            self.policies.lose(Loss(worker, incarnation, "was reset", in_order=True))
            if self.absences is not None:
                self.absences.forget(worker, incarnation)
        if self.following is not None:
            self.following.begin_anew(self._incarnations, self.decided())
        self.pool.reset(values)
        return True

    def begin_anew(self) -> None:
        """A checkpoint of everybody, and from there on as in a run that is resumed from it (see exact.py)."""
        self.meet(self.receive(self.pool.num_envs))  # what is dropped may show a behavior for the first time
        self.recorder.save_all(list(self.behaviors.values()))
        for behavior in self.behaviors.values():
            behavior.begin_anew()
        self.policies.begin_anew()
        if self.absences is not None:
            self.absences = Absences(self.settings.env_settings.missing_after)
        if self.following is not None:
            self.following.begin_anew(self._incarnations, self.decided())
        self._incarnations.clear()
        with self.recorder.timers(nodes.RESET):
            self.reset({behavior.name: behavior.step for behavior in self.behaviors.values()})

    def unfinished(self) -> bool:
        """Whether a behavior has something left to do. One that no agent was ever mapped to is not waited for."""
        mapped = self.following is not None and self.following.router is not None
        counted = [behavior for behavior in self.behaviors.values() if behavior.decisions or not mapped]
        return not counted or any(behavior.unfinished() for behavior in counted)

    def count(self, results: Sequence[EnvMessage]) -> int:
        """How many of the messages are environment steps: all but the first one of each environment."""
        self.notices.messages(results)
        stepped = 0
        for result in results:
            stepped += self._incarnations.get(result.worker) == result.incarnation
            self._incarnations[result.worker] = result.incarnation
        self.env_steps += stepped
        return stepped

    def route(self, behavior_id: str) -> str:
        """The name of the actor that decides for a behavior id: its teams share one."""
        return behavior_name(behavior_id)

    def act(self, results: Sequence[EnvMessage]) -> tuple[dict[int, dict[str, Action]], list[Acted]]:
        """One policy call per behavior for everything that arrived: worker → behavior id → actions, and what ended."""
        if self.following is not None and self.following.router is not None:
            with self.recorder.timers(nodes.EVALUATE):
                return self.policies.act(self.following.router.split(results, self.route), results)
        messages: dict[str, dict[Source, BehaviorMessage]] = {}
        for result in results:
            for behavior_id, steps in result.steps.items():
                source = Source(result.worker, behavior_id, result.incarnation)
                messages.setdefault(self.route(behavior_id), {})[source] = steps
        chosen: dict[int, dict[str, Action]] = {result.worker: {} for result in results}
        acted = []
        for name, arrived in messages.items():
            behavior = self.behaviors[name]
            before = behavior.step
            with self.recorder.timers(nodes.EVALUATE):
                actions, episodes = behavior.act(arrived)
            for source, action in actions.items():
                chosen[source.worker][source.behavior_id] = action
            acted.append((behavior, before, episodes))
        return chosen, acted

    def book(self, results: Sequence[EnvMessage], acted: Sequence[Acted]) -> None:
        """Statistics, summaries and checkpoints of what has just been answered, while the environments step."""
        with self.recorder.timers(nodes.TRAINER_ADVANCE):
            for result in results:
                self.recorder.environment(result)
            for behavior, before, episodes in acted:
                self.recorder.acted(behavior, before, episodes)

    def evaluate(self, evaluation: Evaluation, acted: Sequence[Acted]) -> None:
        """Episodes of the deterministic policies, where their step is reached, with the policies as they are now."""
        for behavior, before, _ in acted:
            due = evaluation.due(behavior, before)
            if due is not None:
                with self.recorder.timers(nodes.EVALUATION):
                    found = evaluation.play(behavior.name, self.behaviors, self.curricula.lessons.values())
                self.recorder.evaluated(behavior, due, found)

    def meet(self, results: Sequence[EnvMessage]) -> None:
        """Behaviors that are seen for the first time, see `Population.meet`."""
        if self.population.meet(results) and self.following is None and self.wants_episodes():
            self.following = self.follow()

    def wants_episodes(self) -> bool:
        """Whether anybody asks for single episodes: callbacks, a mapping or an episode window."""
        windows = any(behavior.episode_window for _, behavior in self.settings.every_behavior())
        return windows or bool(self.hooks.callbacks)

    def decided(self) -> int:
        """Decisions of all behaviors in the whole run."""
        return sum(behavior.step for behavior in self.behaviors.values())

    def follow(self) -> Following:
        """Follow episodes from here on."""
        tracker = EpisodeTracker(self.settings.env_settings.seed, self.decided())
        following = self.policies.following = Following(self.hooks, tracker, self.policies)
        self.recorder.on_saved = partial(self.hooks.call, "on_checkpoint_saved")
        self.hooks.call("on_run_start", self.policies)
        return following

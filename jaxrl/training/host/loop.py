"""The host loop: environments → slots → act (and append) → environments, an update when enough is stored.

Read this first. `programs` makes the compiled programs: per behavior one that acts and appends, and one for the
update. The loop itself knows no algorithm, no file and no Unity.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import CheckpointSettings, RunSettings
from jaxrl.training.host.behaviors import Behaviors
from jaxrl.training.host.curricula import Curricula
from jaxrl.training.host.evaluation import Evaluation
from jaxrl.training.host.exact import environment_seeds
from jaxrl.training.host.hooks import Hooks
from jaxrl.training.host.open_episodes import OpenEpisodes
from jaxrl.training.host.opponents import Opponents
from jaxrl.training.host.policies import Acted
from jaxrl.training.host.recorder import HostRecorder, Notices
from jaxrl.training.host.updates import Learned, Updates
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.lessons import LessonChange
from jaxrl.types import EnvMessage, ParameterValue

log = logging.getLogger(__name__)


class Turn(NamedTuple):
    """Result of one loop step; its episodes ended before its updates."""

    results: Sequence[EnvMessage]
    acted: Sequence[Acted]  # with the episodes that ended
    learned: Mapping[str, Learned]  # by behavior: updates whose policy acts from now on


class HostLoop:
    """Passes messages and actions between environments and behaviors, and lets the behaviors learn.

    `behaviors` learn, `policies` decide, and `episodes` tracks the open episodes.
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
        self.env_steps = 0  # of all areas: `num_areas` for each message, of any worker, that answers actions
        self.turn = Turn((), (), {})  # the newest one
        self.behaviors = Behaviors(settings, recorder, self.updates, pool.num_envs, interrupt)
        self.policies = self.behaviors.policies
        self.curricula = Curricula(settings, recorder)
        self.opponents = Opponents(settings, recorder, self.behaviors)
        recorder.share_names(pool.names)
        self.hooks = hooks or Hooks(())
        self.episodes = OpenEpisodes(settings, recorder, self.behaviors, self.hooks)
        evaluated = any(behavior.evaluation for _, behavior in settings.every_behavior())
        self.evaluation = Evaluation(settings, interrupt, pool.names) if evaluated else None

    def run(self) -> None:
        """Run until every behavior is done; save on every way out (not with inference)."""
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
            self.pool.hang_up()  # environments close while we save
            if self.evaluation is not None:
                self.evaluation.close()
            failed = self.updates.join()
            kept = self.recorder.exact and (self.interrupt.requested or cause is not None)  # the last exact checkpoint
            self.recorder.finish([] if kept else self.behaviors.saved, cause or failed)
            if failed is not None and cause is None:
                raise failed

    def iterate(self) -> Iterator[Turn]:
        """Reset all environments, then yield one `Turn` per loop step until every behavior is done.

        Summaries and checkpoints are written as in any run, except the last checkpoint and the ONNX file in the run's
        folder: `run` adds those. Raises KeyboardInterrupt, EnvironmentClosed and JaxrlError, which `run` handles.
        """
        everybody = self.pool.num_envs
        at_least = everybody if self.settings.env_settings.mode == "lockstep" else 1
        with self.recorder.timers(nodes.RESET):
            self.reset({} if self.recorder.moment is None else self.recorder.moment.steps)
        answers, unfinished = everybody, True
        while unfinished:
            with self.recorder.timers(nodes.ADVANCE):
                unfinished = self.advance(self.receive(answers))
            yield self.turn
            answers = at_least

    def receive(self, at_least: int) -> list[EnvMessage]:
        """Receive messages of at least so many environments. Ctrl-C strikes only here and while updates are compiled.

        Lost workers are booked before any message of the workers that replace them.
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
            self.episodes.lose(loss)
        return [self.recorder.with_scene_tags(result) for result in results]

    def may_open_again(self) -> bool:
        """Return whether the run can wait for Play, after play mode was stopped in the Editor."""
        options = self.settings.env_settings
        waits = options.env_path is None and options.editor_wait > 0.0
        return waits and not self.paused and bool(self.behaviors)

    def pause(self, end: EnvironmentClosed) -> None:
        """Save everything, and begin to wait for Play."""
        self.paused = True
        self.recorder.pause(self.behaviors.saved)
        log.warning("%s", paused(end, self.settings))
        self.pool.reopen(worker=0)

    def advance(self, results: Sequence[EnvMessage]) -> bool:
        """Answer the messages with actions, then learn while the environments step. Returns whether to go on.

        A decision that is pending during an update was made by the policy before it and carries that policy's
        log-probability, like ML-Agents' trajectories in flight, but only one state per row.
        """
        self.updates.publish_done()
        self.meet(results)
        asked = results
        results, over = self.episodes.arrived(asked)
        self.notices.messages(results)
        self.notices.team_rewards(results, self.behaviors)
        stepped = self.episodes.count(results) * self.settings.env_settings.num_areas
        self.env_steps += stepped
        with self.recorder.timers(nodes.EVALUATE):
            actions, acted = self.policies.act(results, self.episodes.router)
        self.episodes.decided(results, actions)
        with self.recorder.timers(nodes.TAKE_STEP):
            anew = self.change(self.curricula.look(results, acted, over, self.policies.take_reported(), self.behaviors))
            for result in () if anew else asked:
                self.pool.send(result.worker, {name: actions[result.worker][name] for name in result.steps})
        if over:  # before their samples are learned from (M18)
            self.recorder.followed(over)
        self.book(results, acted)
        playing = [behavior for name, behavior in self.behaviors.items() if self.opponents.takes_part(name)]
        for collector in {behavior.collector for behavior in playing}:
            collector.env_steps += stepped
        for behavior in self.behaviors.values():
            self.notices.collected(behavior)
        for behavior in list(self.behaviors.values()):
            if behavior.due():
                self.updates.use_up(behavior)
        if self.evaluation is not None:
            self.evaluate(self.evaluation, acted)
        self.turn = Turn(results, acted, self.updates.told())
        for name, learned in self.turn.learned.items():
            self.hooks.call("on_policy_updated", name, learned.metrics, self.behaviors[name].step)
        self.recorder.times.tick(len(results))
        if self.opponents.turn(self.turn.learned):
            self.break_off({})
        if self.policies.asked_to_save:
            self.policies.asked_to_save = False
            self.recorder.save(self.behaviors.saved)
        if self.recorder.due and self.turn.learned:
            self.begin_anew()
        self.recorder.show_progress(self.behaviors.saved)
        return self.unfinished()

    def reset(self, steps: Mapping[str, int]) -> None:
        """Reset all environments; `steps` are the trainer steps of the checkpoints that the run continues from."""
        exact, seed = self.recorder.exact, self.settings.env_settings.seed
        seeds = environment_seeds(seed, steps, self.pool.num_envs) if exact else None
        self.pool.reset(self.curricula.lessons.values(), seeds)

    def change(self, changes: Sequence[LessonChange]) -> bool:
        """Send new lessons to the environments. True: all were reset, and open episodes end as a lost worker's do."""
        values = {change.parameter: change.value for change in changes}
        if not any(change.require_reset for change in changes):
            if changes:
                self.pool.set_parameters(values)
            return False
        self.break_off(values)
        return True

    def break_off(self, values: Mapping[str, ParameterValue]) -> None:
        """Reset all environments, with these parameters; open episodes end as a lost worker's do."""
        self.episodes.break_off()
        self.pool.reset(values)

    def begin_anew(self) -> None:
        """Save all behaviors, and continue exactly as a run that is resumed from these checkpoints (see exact.py)."""
        self.meet(self.receive(self.pool.num_envs))  # the dropped messages may show a behavior for the first time
        self.recorder.save_all(self.behaviors.saved)
        self.episodes.begin_anew()
        with self.recorder.timers(nodes.RESET):
            self.reset({behavior.name: behavior.step for behavior in self.behaviors.saved})

    def unfinished(self) -> bool:
        """Return whether a behavior has steps left. A behavior that no agent was ever mapped to does not count."""
        if self.policies.asked_to_stop:
            log.info("A callback has stopped the run.")
            return False
        mapped = self.episodes.router is not None
        counted = [behavior for behavior in self.behaviors.values() if behavior.decisions or not mapped]
        return not counted or any(behavior.unfinished() for behavior in counted)

    def book(self, results: Sequence[EnvMessage], acted: Sequence[Acted]) -> None:
        """Write statistics, summaries and checkpoints for the answered messages, while the environments step."""
        with self.recorder.timers(nodes.TRAINER_ADVANCE):
            for result in results:
                self.recorder.environment(result)
            for behavior, before, episodes in acted:
                self.recorder.acted(behavior, before, episodes)
        self.recorder.first_look.look()

    def evaluate(self, evaluation: Evaluation, acted: Sequence[Acted]) -> None:
        """Play evaluation episodes of behaviors that have reached the step, with their present policies."""
        for behavior, before, _ in acted:
            due = evaluation.due(behavior, before) if behavior.main is None else None
            if due is not None:
                with self.recorder.timers(nodes.EVALUATION):
                    summaries = evaluation.play(behavior.name, self.behaviors, self.curricula.lessons.values())
                self.recorder.evaluated(behavior, due, summaries)

    def meet(self, results: Sequence[EnvMessage]) -> None:
        """Register behaviors that are seen for the first time (see `Behaviors.meet`); follow episodes from then on."""
        if self.behaviors.meet(results):
            self.episodes.follow()
        self.opponents.meet(results)


def interrupted(options: CheckpointSettings) -> str:
    """Return the log message for Ctrl-C or another signal."""
    if options.inference:
        return "The run was interrupted. It only acted (--inference), so there is nothing to save."
    if options.exact:
        return (
            "Learning was interrupted. With --exact the checkpoints that are there stay the last ones: --resume goes "
            "on from the newest of them, and what came after it is not saved."
        )
    return "Learning was interrupted. Please wait while the policies are saved and exported."


def closed(why: Exception, options: CheckpointSettings) -> str:
    """Return the log message for an environment that has closed without a fault."""
    if options.inference:
        return f"The run ends here: {why}. It only acted (--inference), so there is nothing to save."
    return f"Learning ends here: {why}. The policies are saved and exported."


def paused(why: Exception, settings: RunSettings) -> str:
    """Return the log message for play mode that was stopped in the Editor."""
    saved = "" if settings.checkpoint_settings.inference else "Everything is saved. "
    return (
        f"{why}. {saved}Press Play within {settings.env_settings.editor_wait:g} seconds (env_settings.editor_wait) to "
        "go on with new episodes; Ctrl-C ends the run."
    )


def failed_by_signal(error: Exception, interrupt: Interrupt) -> bool:
    """Return whether an environment failed because the signal that ends the run has reached it too."""
    return isinstance(error, EnvironmentFailure) and interrupt.requested

"""The host loop: environments → slots → act (and append) → environments, an update when enough is stored.

Read this first. Everything that is compiled is compiled here: per behavior one program that acts and appends, and one
for the update. The loop itself knows no algorithm, no file and no Unity.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import jax
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.compilation import quick_options
from jaxrl.envs.interface import EnvironmentClosed, EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.networks.observations import check_observations
from jaxrl.rollout import trajectory
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.rollout.slots import Source
from jaxrl.settings import RunSettings, behavior_settings_for, constants, with_drawn_seed
from jaxrl.training.host.actor import ActorPrograms, decide
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.exact import environment_seeds, steps_of_run
from jaxrl.training.host.launch import launched
from jaxrl.training.host.learner import LearnerPrograms, estimate, keep, learn, start
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import Action, BehaviorMessage, BehaviorSpec, EnvMessage, JaxrlError

log = logging.getLogger(__name__)

INTERRUPTED = "Learning was interrupted. Please wait while the policies are saved and exported."

Acted = tuple[Behavior, int, list[EpisodeRecords]]
"""A behavior that acted, its step before, and the episodes that had ended."""


class SpecChangedError(JaxrlError):
    """One behavior name stands for different observations or actions."""


def compile_programs(algorithm: Algorithm, time_horizon: int) -> Programs:
    """The programs of a behavior. Buffer, store and learner are donated: they are updated in place."""
    quick = quick_options()
    actor = ActorPrograms(
        decide=jax.jit(partial(decide, algorithm, time_horizon), donate_argnums=1),
        allocate=jax.jit(
            trajectory.init,
            static_argnames=("spec", "extras", "capacity", "rows", "members"),
            compiler_options=quick,
        ),
        turn=jax.jit(trajectory.turn, donate_argnums=0, compiler_options=quick),
        discard=jax.jit(lambda buffer: trajectory.take(buffer)[1], donate_argnums=0, compiler_options=quick),
    )
    learner = LearnerPrograms(
        learn=jax.jit(partial(learn, algorithm), donate_argnums=(0, 1, 2)),
        start=jax.jit(start, static_argnums=0, compiler_options=quick),
        keep=jax.jit(keep, static_argnums=0, donate_argnums=(2, 3), compiler_options=quick),
        estimate=jax.jit(estimate, static_argnums=0, compiler_options=quick),
    )
    return Programs(actor, learner)


def train(
    settings: RunSettings, console: Console | None = None, started: tuple[Interrupt, EnvPool] | None = None
) -> None:
    """One whole run, from checked settings to a results folder.

    Ends when every behavior has passed its max_steps, at Ctrl-C or when an environment is closed (saves, returns),
    or with an error (saves and raises it). `started`: from `launched(settings)`, done before JAX was imported.

    Raises:
      JaxrlError: whatever the user can mend, before anything is written if it can be known before.
    """
    settings = with_drawn_seed(settings)
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
        HostLoop(settings, recorder, interrupt, pool).run()


def failed_by_signal(error: Exception, interrupt: Interrupt) -> bool:
    """Whether an environment failed because the signal that ends the run has reached it too."""
    return isinstance(error, EnvironmentFailure) and interrupt.requested


class HostLoop:
    """Behaviors and what goes back and forth between them and the environments.

    `route` says which actor decides for a behavior id of the wire, `behaviors` who learns from it: today one each.
    """

    def __init__(self, settings: RunSettings, recorder: HostRecorder, interrupt: Interrupt, pool: EnvPool) -> None:
        self.settings = settings
        self.recorder = recorder
        self.interrupt = interrupt
        self.pool = pool
        self.behaviors: dict[str, Behavior] = {}
        self.key = jax.random.key(settings.env_settings.seed)

    def run(self) -> None:
        """Until every behavior is done; saves on every way out (not with inference)."""
        cause = None
        everybody = self.pool.num_envs
        at_least = everybody if self.settings.env_settings.mode == "lockstep" else 1
        try:
            with self.recorder.timers(nodes.LEARNING):
                self.reset(steps_of_run(self.recorder.folder) if self.settings.checkpoint_settings.resume else {})
                results = self.receive(everybody)
                while self.advance(results):
                    results = self.receive(at_least)
        except KeyboardInterrupt:
            log.info(INTERRUPTED)
        except EnvironmentClosed as end:
            if not self.behaviors:  # an environment in which nothing ever happened is a fault
                raise
            log.warning("Learning ends here: %s. The policies are saved and exported.", end)
        except Exception as error:
            if not failed_by_signal(error, self.interrupt):
                cause = error
                raise
            log.info(INTERRUPTED)
        finally:
            self.pool.hang_up()  # they close while we save
            kept = self.recorder.exact and (self.interrupt.requested or cause is not None)
            self.recorder.finish([] if kept else list(self.behaviors.values()), cause)

    def receive(self, at_least: int) -> list[EnvMessage]:
        """Wait for environments. Ctrl-C strikes only here and while the update is compiled."""
        timers = self.recorder.timers
        with timers(nodes.ENV_STEP), self.interrupt.waiting():
            results = self.pool.recv(at_least)
            for result in results:
                timers.add(nodes.WORKERS, result.seconds, is_parallel=True)
        return results

    def advance(self, results: Sequence[EnvMessage]) -> bool:
        """Act on what arrived, send the actions, then learn while the environments step. False: all are done.

        The state that waits for its reward during an update acted with the policy before it and carries that policy's
        log-probability, like ML-Agents' trajectories in flight, only shorter: one state per row.
        """
        self.meet(results)
        actions, acted = self.act(results)
        for result in results:
            self.pool.send(result.worker, actions[result.worker])
        self.book(results, acted)
        learned = [self.use_up(behavior) for behavior in self.behaviors.values() if behavior.due()]
        if self.recorder.due and any(learned):
            self.begin_anew()
        self.recorder.show_progress(list(self.behaviors.values()))
        return not self.behaviors or any(behavior.unfinished() for behavior in self.behaviors.values())

    def reset(self, steps: Mapping[str, int]) -> None:
        """New episodes everywhere; `steps` are those of the checkpoints that the run goes on from."""
        exact, seed = self.recorder.exact, self.settings.env_settings.seed
        seeds = environment_seeds(seed, steps, self.pool.num_envs) if exact else None
        self.pool.reset(constants(self.settings.environment_parameters), seeds)

    def begin_anew(self) -> None:
        """A checkpoint of everybody, and from there on as in a run that is resumed from it (see exact.py)."""
        self.meet(self.receive(self.pool.num_envs))  # what is dropped may show a behavior for the first time
        self.recorder.save_all(list(self.behaviors.values()))
        for behavior in self.behaviors.values():
            behavior.begin_anew()
        self.reset({behavior.name: behavior.step for behavior in self.behaviors.values()})

    def use_up(self, behavior: Behavior) -> bool:
        """Learn from what has been collected, or forget it where nobody learns (any more). True: it has learned."""
        if not behavior.training or not behavior.unfinished():
            behavior.actor.discard()
            return False
        with self.recorder.timers(nodes.UPDATE_POLICY):
            with self.interrupt.waiting():
                behavior.learner.await_program(behavior.actor)
            metrics = behavior.learn()
        self.recorder.updated(behavior, metrics)
        return bool(metrics)

    def route(self, behavior_id: str) -> str:
        """The name of the actor that decides for a behavior id: its teams share one."""
        return behavior_name(behavior_id)

    def act(self, results: Sequence[EnvMessage]) -> tuple[dict[int, dict[str, Action]], list[Acted]]:
        """One policy call per behavior for everything that arrived: worker → behavior id → actions, and what ended."""
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
        for result in results:
            self.recorder.environment(result, list(dict.fromkeys(map(behavior_name, result.steps))))
        for behavior, before, episodes in acted:
            self.recorder.acted(behavior, before, episodes)

    def meet(self, results: Sequence[EnvMessage]) -> None:
        """Behaviors that are seen for the first time: make their learners, all of them before any file is opened.

        Raises:
          SettingsError: one is not configured.
          SpecChangedError: one differs from what was seen under its name.
          UnsupportedObservationError: no encoder reads one of its sensors.
          CheckpointError: resume or initialize, and the checkpoint does not fit.
        """
        newcomers: dict[str, Behavior] = {}
        for result in results:
            for behavior_id, spec in result.new_specs.items():
                name = behavior_name(behavior_id)
                known = self.behaviors.get(name) or newcomers.get(name)
                if known is None:
                    check_observations(spec, behavior_id)
                    newcomers[name] = self.make(name, spec)
                elif known.spec != spec:
                    raise SpecChangedError(
                        f"{behavior_id}: its observations or actions differ from those seen as {name}."
                    )
        for name, behavior in newcomers.items():
            self.recorder.open(behavior)
            self.behaviors[name] = behavior

    def make(self, name: str, spec: BehaviorSpec) -> Behavior:
        """A learner and its actor, fresh. Raises SettingsError if the behavior is not configured."""
        settings = behavior_settings_for(self.settings, name)
        algorithm = ALGORITHMS[settings.trainer_type](spec, settings)
        key = jax.random.fold_in(self.key, zlib.crc32(name.encode()))
        training = not self.settings.checkpoint_settings.inference
        programs = compile_programs(algorithm, settings.time_horizon)
        return make_behavior(name, spec, settings, algorithm, programs, key, training=training)

"""Training from demonstrations alone: behavioral cloning without an environment.

One round is one `Cloning.learn`, as in a training with cloning: `num_epoch` passes over the demonstrations, or
`samples_per_update` of them. The trainer step counts decisions learned from, repetitions included. A tenth of the
episodes is held out, and their loss is reported too. It ends at max_steps, or when the learning rate has fallen to
zero over `steps`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Metrics, TrainState
from jaxrl.algorithms.policy_gradient import CLONING, with_clones
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.step_clock import due
from jaxrl.artifacts.run_folder import RunFolder, behavior_name
from jaxrl.demonstrations import Demonstration, decisions, remembered
from jaxrl.demonstrations.columns import keep_in
from jaxrl.demonstrations.reading import recordings
from jaxrl.demonstrations.records import kind_of
from jaxrl.learning.cloning import Cloning, Laid, Rows, as_wanted, in_sequences, make_cloning
from jaxrl.learning.schedules import LEARNING_RATE_MINIMUM
from jaxrl.networks import normalizer
from jaxrl.networks.observations import check_observations
from jaxrl.settings import LARGEST_STEP, BehaviorSettings, RunSettings, SettingsError, behavior_settings_for
from jaxrl.settings.behavior import BehavioralCloningSettings
from jaxrl.settings.rewards import GAILSettings
from jaxrl.training.checks import check_run
from jaxrl.training.host.behavior import Behavior, make_behavior
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.saver import tell_unexportable

log = logging.getLogger(__name__)

HELD_OUT = 10
"""One episode in `HELD_OUT` is held out, and at least one if there are two."""
TOGETHER = 1024
"""Number of decisions in one batch of the held-out loss, and in the samples that check an exported file."""


def imitate(settings: RunSettings, demo: str, interrupt: Interrupt, console: Console | None = None) -> None:
    """Run a whole imitation, from settings to a results folder like that of any other run.

    demo: file or folder; replaces each `demo_path` of the demonstrated behavior.

    Raises JaxrlError for all faults that the user can mend, before anything is written.
    """
    options = settings.checkpoint_settings
    _refuse(settings)
    keep_in(options.results_dir)
    name = behavior_name(kind_of(recordings(demo)[0]).behavior)
    wanted = _shown(behavior_settings_for(settings, name), demo)
    settings = settings.model_copy(update={"behaviors": {name: wanted}, "default_settings": None})
    check_run(settings)
    folder = RunFolder(options.results_dir, options.run_id)
    with ExitStack() as stack:
        stack.enter_context(folder.claimed(options, {name: wanted.init_path}))
        study = _prepared(name, wanted, settings.env_settings.seed)
        folder.prepare()
        progress = stack.enter_context(ProgressBar(console or Console()))
        recorder = stack.enter_context(HostRecorder(settings, folder, progress))
        _run(study, recorder, interrupt)


class _Study(NamedTuple):
    """The behavior that learns, and the demonstrations that it learns from."""

    behavior: Behavior
    cloning: Cloning
    learned: Laid
    held: Laid | None
    held_at: Callable[[jax.Array], Rows]  # held-out sequences by index


def _refuse(settings: RunSettings) -> None:
    """Raise SettingsError for settings that have no meaning without an environment."""
    options = settings.checkpoint_settings
    for key, value in (("inference", options.inference), ("exact", options.exact)):
        if value:
            raise SettingsError(f"checkpoint_settings.{key}: got true, expected false: imitation plays no environment")
    if settings.env_settings.seeds > 1:
        raise SettingsError(f"env_settings.seeds: got {settings.env_settings.seeds}, expected 1: imitation trains one")


def _shown(settings: BehaviorSettings, demo: str) -> BehaviorSettings:
    """Return the settings with these demonstrations, adding behavioral cloning. Raises SettingsError."""
    section = settings.behavioral_cloning or BehavioralCloningSettings(demo_path=demo)
    rate = settings.hyperparameters.learning_rate * section.strength
    if rate <= LEARNING_RATE_MINIMUM:
        raise SettingsError(f"behavioral_cloning.strength: times learning_rate is {rate:g}: nothing would be learned")
    signals = {
        name: signal.model_copy(update={"demo_path": demo}) if isinstance(signal, GAILSettings) else signal
        for name, signal in settings.reward_signals.items()
    }
    section = section.model_copy(update={"demo_path": demo})
    return settings.model_copy(update={"behavioral_cloning": section, "reward_signals": signals})


def _prepared(name: str, settings: BehaviorSettings, seed: int) -> _Study:
    """Make a fresh learner and read the demonstrations, without writing anything.

    Raises SettingsError if the algorithm does not support cloning; DemonstrationError, UnsupportedObservationError.
    """
    assert settings.behavioral_cloning is not None
    section = settings.behavioral_cloning
    spec = remembered(section.demo_path, section.demo_actions).spec
    if settings.connectors:
        raise SettingsError(f"behaviors.{name}.connectors: demonstrations hold what connectors are given: remove them")
    check_observations(spec, settings.network_settings, name)
    # A later run that plays or continues with the policy needs no demonstrations.
    plain = settings.model_copy(update={"behavioral_cloning": None, "threaded": False})
    options = section.model_dump(exclude_none=True)
    log.info("%s: behavioral cloning, %s.", name, ", ".join(f"{key} {value}" for key, value in options.items()))
    algorithm = ALGORITHMS[settings.trainer_type](spec, plain)
    if algorithm.copied is None:
        raise SettingsError(f"behaviors.{name}.trainer_type: {settings.trainer_type} does not say `Algorithm.copied`")
    found = decisions(section.demo_path, spec, demo_actions=section.demo_actions)
    among = _held_out_of(found, seed)
    memory = settings.network_settings.memory
    length = 1 if memory is None else memory.sequence_length
    learned, held = in_sequences(found, length, ~among), in_sequences(found, length, among) if among.any() else None
    copied, shape = algorithm.copied, learned.places.shape
    cloning = make_cloning(spec, settings, copied, as_wanted(copied, learned), shape)
    tell_unexportable(name, spec, plain, algorithm)
    programs = compile_programs(algorithm, plain.segment_limit)
    behavior = make_behavior(name, spec, plain, algorithm, programs, jax.random.key(seed), training=True)
    samples = tuple(x[np.flatnonzero(~among)[:TOGETHER]] for x in found.obs)
    behavior.actor.known = samples, np.ones((len(samples[0]), spec.action.mask_size), bool)
    state = behavior.state
    behavior.learner.state = state.replace(own={**state.own, CLONING: cloning.init(state.policy.params)})
    return _Study(behavior, cloning, learned, held, as_wanted(copied, learned if held is None else held))


def _held_out_of(found: Demonstration, seed: int) -> np.ndarray:
    """Return which decisions are held out, bool [n]: those of whole episodes that the seed chooses."""
    ends = found.done | found.last
    episode = np.concatenate([[0], np.cumsum(ends)[:-1]])
    count = int(episode[-1]) + 1
    if count < 2:
        log.warning("There is one demonstrated episode: none is held out.")
        return np.zeros(len(episode), bool)
    chosen = np.random.default_rng(seed).permutation(count)[: max(count // HELD_OUT, 1)]
    log.info("%d demonstrated episodes, of which %d are held out.", count, len(chosen))
    return np.isin(episode, chosen)


def _run(study: _Study, recorder: HostRecorder, interrupt: Interrupt) -> None:
    """Learn until the end; save on every way out."""
    behavior, cause = study.behavior, None
    recorder.load(behavior)
    elsewhere = recorder.settings.checkpoint_settings.initialize_from or behavior.settings.init_path
    if behavior.step == 0 and not elsewhere:
        behavior.learner.state = _normalised(behavior.state, study.learned)
    recorder.open(behavior)
    metrics = {}
    turn, loss = jax.jit(partial(_turn, study.cloning), donate_argnums=0), jax.jit(study.cloning.loss)
    try:
        while behavior.unfinished() and not interrupt.requested and not _faded(study):
            before = behavior.step
            with recorder.timers(nodes.UPDATE_POLICY):
                metrics = _learn(behavior, turn, study.cloning.size)
            if due(behavior.settings, before, behavior.step).summary is not None:
                metrics |= _held_out(study, loss)
                log.info("%s. Step: %d. %s", behavior.name, behavior.step, _in_words(metrics))
            recorder.updated(behavior, metrics)
            recorder.acted(behavior, before, [])
            recorder.show_progress([behavior])
        if metrics:
            metrics |= _held_out(study, loss)
            log.info("%s: at the end, step %d. %s", behavior.name, behavior.step, _in_words(metrics))
    except Exception as error:
        cause = error
        raise
    finally:
        recorder.finish([behavior], cause, played=False)


def _faded(study: _Study) -> bool:
    """Return whether the learning rate has fallen to zero, so that nothing more is learned; log it."""
    behavior, cloning = study.behavior, study.cloning
    rate = cloning.rate(behavior.state.own[CLONING], min(behavior.step + cloning.size, LARGEST_STEP))
    faded = bool(rate <= np.float32(LEARNING_RATE_MINIMUM))
    if faded:
        log.info("%s: cloning has faded out (behavioral_cloning.steps) at step %d.", behavior.name, behavior.step)
    return faded


def _normalised(state: TrainState, learned: Laid) -> TrainState:
    """Return the state with its normalizer filled from the demonstrations."""
    rows = learned.places[learned.places >= 0]
    states = normalizer.update_in_parts(state.policy.normalizer, learned.demonstration.obs, rows)
    return state.replace(policy=state.policy.replace(normalizer=states))


def _turn(cloning: Cloning, state: TrainState, step: jax.Array) -> tuple[TrainState, Metrics]:
    """Run one round of cloning, after which the trainer step is `step`."""
    key, used = jax.random.split(state.key)
    rate = cloning.rate(state.own[CLONING], step)
    state, metrics = with_clones(cloning, state.replace(key=key, step=step), used)
    return state, metrics | {"learning_rate": rate}


def _learn(behavior: Behavior, turn: Callable[..., tuple[TrainState, Metrics]], size: int) -> dict[str, float]:
    """Run one round of cloning for the behavior and return its metrics. Raises DivergedError."""
    learner = behavior.learner
    learner.step += size
    learner.updates += 1
    learner.state, metrics = turn(learner.state, jnp.int32(min(learner.step, LARGEST_STEP)))
    return learner.checked({name: float(value) for name, value in metrics.items()})


def _held_out(study: _Study, loss: Callable[..., jax.Array]) -> dict[str, float]:
    """Compute the loss of the held-out decisions, with the same noise each time."""
    if study.held is None:
        return {}
    policy, (count, length) = study.behavior.state.policy, study.held.places.shape
    size, total = max(TOGETHER // length, 1), 0.0
    for first in range(0, count, size):
        rows = study.held_at(jnp.arange(first, min(first + size, count)))
        normal = jax.random.normal(jax.random.key(first), (*rows.valid.shape, rows.action.continuous.shape[-1]))
        total += float(loss(policy.params, policy.normalizer, rows, normal)) * int(rows.valid.sum())
    return {"held_out_loss": total / int((study.held.places >= 0).sum())}


def _in_words(told: dict[str, float]) -> str:
    held = f", of held out episodes {told['held_out_loss']:.4f}" if "held_out_loss" in told else ""
    return f"Loss of what is learned from {told['pretraining_loss']:.4f}{held}."

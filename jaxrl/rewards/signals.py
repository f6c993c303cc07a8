"""The reward signals of a behavior (axis R), for every algorithm: their states, rewards and learning.

Functions raise AssertionError for other shapes than documented, OwnCodeError for errors in a user's own signal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax

from jaxrl.rewards import make_signal
from jaxrl.rewards.interface import Metrics, RewardSignal, as_it_is, unmoved
from jaxrl.rollout.rollout import Rollout
from jaxrl.rollout.transitions import Transitions, transitions
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.rewards import RewardSignalSettings
from jaxrl.types import Action, BehaviorSpec

_INIT, _LEARN = 0x51610000, 0x516C0000
"""Numbers folded into the keys of signals. They are large: folding in small numbers gives the keys of `split`."""

States = dict[str, Any]
"""The state of each signal, () where it learns nothing."""


def same(action: Action) -> Action:
    """Return the action as it is, for an environment that takes raw actions."""
    return action


class Signals(NamedTuple):
    """Reward signals and their settings by name, in the order of the settings."""

    bound: Mapping[str, RewardSignal]
    settings: Mapping[str, RewardSignalSettings]
    sent: Callable[[Action], Action] = same
    """(raw action of the policy) → the environment's action."""

    def init(self, key: jax.Array) -> States:
        """Make fresh states. The key may be used further."""
        return {
            name: signal.init(jax.random.fold_in(key, _INIT + i)) for i, (name, signal) in enumerate(self.bound.items())
        }

    def rewards(self, states: States, rollout: Rollout, *, cooperative: bool) -> dict[str, jax.Array]:
        """Compute the rewards of each signal, float32 [T, B, A] before `strength`; 0 where a member did not act."""
        of_signal = self._seen(rollout)
        return {
            name: signal.reward(states[name], of_signal(signal), cooperative=cooperative)
            for name, signal in self.bound.items()
        }

    def replayed(self, states: States, found: Transitions) -> dict[str, jax.Array]:
        """Compute the current rewards of each signal for replayed transitions, float32 [...] before `strength`.

        They are those of a lone agent: a replay does not hold its team beside it.
        """
        paid = {}
        for name, signal in self.bound.items():
            of_one = signal.replayed if signal.of_rollout else partial(signal.reward, cooperative=False)
            assert of_one is not None  # checked by `bind_off_policy`
            paid[name] = of_one(states[name], self._shown(signal, found))
        return paid

    def learn_replayed(self, states: States, found: Transitions, key: jax.Array) -> tuple[States, Metrics]:
        """Update every signal as `learn` does, from replayed transitions, which are also used as a minibatch."""
        gradients, of_minibatch = self.gradients(states, found, key)
        states, metrics = self._learn(
            self.apply(states, gradients),
            lambda signal: self._shown(signal, found),
            key,
            [n for n, signal in self.bound.items() if not signal.of_rollout],
        )
        return states, of_minibatch | metrics

    @property
    def in_minibatches(self) -> list[str]:
        """Names of the signals that learn from every minibatch of the policy."""
        return [name for name, signal in self.bound.items() if signal.gradient is not None]

    @property
    def lasting(self) -> list[str]:
        """Names of the signals whose streams do not end with an episode: as `episodic` says, else the signal."""
        asked = {name: self.settings[name].episodic for name in self.bound}
        return [name for name, made in self.bound.items() if (made.lasting if asked[name] is None else not asked[name])]

    @property
    def shared(self) -> list[str]:
        """Names of the signals that pay for acts of the whole team."""
        return [name for name, signal in self.bound.items() if signal.shared]

    def gradients(self, states: States, found: Transitions, key: jax.Array) -> tuple[dict[str, Any], Metrics]:
        """Compute the gradients of `in_minibatches` for `apply` from a minibatch. The key may be used further."""
        gradients, metrics = {}, {}
        for i, (name, made) in enumerate(self.bound.items()):
            if made.gradient is not None:
                at = jax.random.fold_in(key, _LEARN + i)
                gradients[name], signal_metrics = made.gradient(states[name], self._shown(made, found), at)
                metrics |= {f"{metric}/{name}": value for metric, value in signal_metrics.items()}
        return gradients, metrics

    def apply(self, states: States, gradients: Mapping[str, Any]) -> States:
        """Take one step of the signals in `gradients`. Return the new states."""
        return {**states, **{name: self.bound[name].apply(states[name], found) for name, found in gradients.items()}}

    def watch(self, states: States, rollout: Rollout) -> States:
        """Let the signals with a `watch` see a paid rollout. Return the new states."""
        watching = [name for name, signal in self.bound.items() if signal.watch is not unmoved]
        if not watching:
            return states
        found = transitions(rollout)
        seen_by_signal = {name: self._shown(self.bound[name], found) for name in watching}
        return {**states, **{name: self.bound[name].watch(states[name], x) for name, x in seen_by_signal.items()}}

    def told(self, states: States, rollout: Rollout, *, cooperative: bool) -> dict[str, jax.Array]:
        """Compute strength · reward of each decision by signal, float32 [T, B, A], for the statistics of episodes.

        The environment's own reward is left out: the loops add it up themselves.
        """
        others = {name: signal for name, signal in self.bound.items() if name != "extrinsic"}
        paid = self._replace(bound=others).rewards(states, rollout, cooperative=cooperative)
        return {name: self.settings[name].strength * rewards for name, rewards in paid.items()}

    def learn(self, states: States, rollout: Rollout, key: jax.Array) -> tuple[States, Metrics]:
        """Update every signal from the rollout, after the policy was. Metric `loss` of a signal becomes `loss/<name>`.

        The key may be used further.
        """
        return self._learn(states, self._seen(rollout), key, list(self.bound))

    def _learn(
        self, states: States, of_signal: Callable[[RewardSignal], Any], key: jax.Array, names: list[str]
    ) -> tuple[States, Metrics]:
        learned, metrics = dict(states), {}
        for i, (name, signal) in enumerate(self.bound.items()):
            if name in names and signal.learn is not as_it_is:
                learned[name], told = signal.learn(states[name], of_signal(signal), jax.random.fold_in(key, _LEARN + i))
                metrics |= {f"{metric}/{name}": value for metric, value in told.items()}
        return learned, metrics

    def _seen(self, rollout: Rollout) -> Callable[[RewardSignal], Any]:
        """Make the function that returns what a signal sees: the rollout or its transitions."""
        decisions = cache(lambda: transitions(rollout))  # lazy, since tracing unused ones costs start-up time
        return lambda made: rollout if made.of_rollout else self._shown(made, decisions())

    def _shown(self, made: RewardSignal, found: Transitions) -> Transitions:
        return found._replace(action=self.sent(found.action)) if made.as_sent else found


NO_SIGNALS = Signals({}, {})


def bind(spec: BehaviorSpec, settings: BehaviorSettings, sent: Callable[[Action], Action] = same) -> Signals:
    """Make the signals of these settings for the policy's spec; `sent` as in `Signals`.

    Raises OwnCodeError for a user's own signal that cannot be made.
    """
    sections = settings.reward_signals
    bound = {name: make_signal(name, spec, section) for name, section in sections.items()}
    return Signals(bound, sections, sent)


def bind_off_policy(spec: BehaviorSpec, settings: BehaviorSettings) -> Signals:
    """Make the signals for learning from a replay. Raises SettingsError for a signal that looks at whole rollouts."""
    signals = bind(spec, settings)
    for name, signal in signals.bound.items():
        if signal.of_rollout and signal.replayed is None:
            raise SettingsError(
                f"reward_signals.{name}: it looks at whole rollouts, and {settings.trainer_type} learns from single "
                "transitions: write it with `transitions`, or train with ppo",
                f"make_{settings.trainer_type}",
            )
    return signals

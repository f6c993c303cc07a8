"""Policies that agents may follow beside those that come with the environment: added and removed while a run goes on.

A frozen policy is an actor without a learner: it decides, and what it collects is forgotten. One that trains is a
behavior like any other, with a folder, statistics and checkpoints under its own name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import Algorithm, PolicyState, TrainState
from jaxrl.artifacts.metrics.statistics import is_trainers
from jaxrl.artifacts.run_folder import behavior_name
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import BehaviorSettings, EnvironmentSettings, RunSettings, behavior_settings_for
from jaxrl.training import saver
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.decide import ActorPrograms
from jaxrl.training.host.paged_buffer import wanted_of
from jaxrl.training.host.routing import Chosen, Router, blank, decide, join, joint, whole
from jaxrl.training.host.team import Kind, Team
from jaxrl.types import NOTHING, Action, BehaviorMessage, BehaviorSpec, EnvMessage, PolicyError

Acted = tuple[Behavior, int, list[EpisodeRecords]]
"""A behavior that acted, its step before, and the episodes that had ended."""


class Frozen(NamedTuple):
    """A policy that acts and does not change."""

    name: str
    actor: ActingPolicy

    @property
    def spec(self) -> BehaviorSpec:
        """Observations and actions."""
        return self.actor.spec

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords]]:
        """Each source's actions in its agents' order, and finished episodes; nothing is kept."""
        actions, episodes, _ = self.actor.act(messages, untrained)
        if self.actor.full or self.actor.fresh > self.actor.keeps:
            self.actor.discard()
        return actions, episodes


def make_frozen(name: str, like: Behavior, policy: PolicyState, key: jax.Array) -> Frozen:
    """An actor of the behavior's algorithm and compiled programs. The key is consumed."""
    actor = like.actor
    return frozen(name, like.spec, like.settings, like.algorithm, actor.programs, policy, key, actor.environment)


def frozen(
    name: str,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    algorithm: Algorithm,
    programs: ActorPrograms,
    policy: PolicyState,
    key: jax.Array,
    environment: EnvironmentSettings,
) -> Frozen:
    """An actor of its own for this policy of a behavior. The key is consumed."""
    run_key: list[int] = np.asarray(jax.random.key_data(key)).tolist()
    wanted = wanted_of(settings, algorithm.collect_size, learned=False)
    actor = ActingPolicy(
        name, spec, algorithm, programs, policy, run_key, wanted, environment, most=settings.team_capacity
    )
    actor.learn_no_more()
    return Frozen(name, actor)


def weights_of(
    weights: str | os.PathLike[str] | None, like: Behavior, fresh: TrainState, named: Mapping[str, Behavior | Frozen]
) -> TrainState:
    """`fresh` with the weights of a policy as it is now, or of a checkpoint; None: those of `like`.

    Weights and connectors' statistics are copies: updates and decisions overwrite what a learner and its actor hold,
    also beside a thread that learns.

    Args:
      weights: a name in `named`, else the path of a checkpoint folder `<Behavior>-<step>`.

    Raises PolicyError for what is neither, CheckpointError if the checkpoint does not fit.
    """
    origin = like if weights is None else named.get(str(weights))
    if isinstance(origin, Behavior):
        state = origin.state  # with what its connectors have learned by now
        return fresh.replace(policy=copied(state.policy), critic=copied(state.critic))
    if isinstance(origin, Frozen):
        if origin.spec != like.spec:
            raise PolicyError(f"weights: policy {origin.name} has other observations or actions than {like.name}")
        return fresh.replace(policy=copied(origin.actor.policy))
    path = Path(str(weights))
    if not path.is_dir():
        raise PolicyError(
            f"weights: {str(weights)!r} is neither a policy ({', '.join(named)}) nor the folder of a checkpoint"
        )
    loaded = saver.with_weights_of(path, fresh, like.spec, like.settings)[0]
    return loaded.replace(policy=copied(loaded.policy), critic=copied(loaded.critic))  # what it lacks is `fresh`'s


class Policies:
    """All policies of a run: its behaviors, and frozen ones. What callbacks know as `jaxrl.callbacks.Run`.

    Args:
      key_of: name → the key of a policy of that name.
      behaviors: those of the loop, which are added to.
      make: (name, specs, settings or None) → a behavior.
      begin: opens its files.
    """

    def __init__(
        self,
        settings: RunSettings,
        key_of: Callable[[str], jax.Array],
        behaviors: dict[str, Behavior],
        make: Callable[[str, BehaviorSpec, BehaviorSettings | None], Behavior],
        begin: Callable[[Behavior], None],
    ) -> None:
        self.asked_to_save, self.asked_to_stop = False, False  # by a callback
        self.over: Mapping[str, list[EpisodeRecords]] = NOTHING  # episodes that ended with the last message, by policy
        self._reported: list[tuple[str, float]] = []
        self._settings = settings
        self._key_of = key_of
        self._behaviors = behaviors
        self._frozen: dict[str, Frozen] = {}
        self._league_size = max(
            (of.self_play.league_size for _, of in settings.every_behavior() if of.self_play is not None), default=1
        )
        self._follows: dict[tuple[int, str], str] = {}  # by place in a league and behavior id; else the behavior's own
        self._teams: dict[str, Team] = {}  # by name, of behaviors that learn together
        self._waiting: dict[str, Frozen] = {}  # by behavior, until all of its team have been seen
        self._make = make
        self._begin = begin
        self.removed: Callable[[str], None] = lambda name: None
        """Is told of a policy that is no more, whose agents are to follow another; whoever follows them sets this."""

    @property
    def policy_names(self) -> list[str]:
        """Policies that agents can follow now."""
        return list(self._named())

    def act(self, results: Sequence[EnvMessage], router: Router | None) -> tuple[Chosen, list[Acted]]:
        """One call per policy for everything that arrived: worker → behavior id → actions, and what ended.

        `router`: who follows which policy; None: each agent that of its team.
        """
        if router is None:
            shares, chosen = whole(results, self.own), {result.worker: {} for result in results}
        else:
            shares, chosen = router.split(results), blank(results, lambda name: self._of(name).spec.action)
        together = {name: found for name, team in self._teams.items() if (found := joint(shares, team.names))}
        acting = [*shares, *(of for name in together for of in self._teams[name].names)]
        before = {name: self._behaviors[name].step for name in acting if name in self._behaviors}
        over = decide(shares, {**self._named(), **self._waiting}, chosen)
        for name, share in together.items():
            actions, ended = self._teams[name].act(share.messages, share.untrained)
            over |= ended
            join(chosen, share, actions)
        self.over = over
        return chosen, [(self._behaviors[name], step, over[name]) for name, step in before.items()]

    def hold(self, name: str, kind: Kind, policy: PolicyState) -> None:
        """A behavior whose team is not complete acts with this policy until it is: nobody learns from it."""
        acts = (kind.spec, kind.settings, kind.algorithm, kind.programs.actor, policy)
        self._waiting[name] = frozen(name, *acts, self._key_of(name), self._settings.env_settings)

    def gather(self, name: str, team: Team) -> None:
        """The behaviors of a team act together from now on."""
        self._teams[name] = team
        for behavior in team.names:
            self._waiting.pop(behavior, None)

    def place(self, worker: int) -> int:
        """Who of a league plays in a worker: 0 the main agents, else the exploiters of that number."""
        return worker % self._league_size

    def own(self, worker: int, behavior_id: str) -> str:
        """The policy that agents of a team follow unless they are assigned another."""
        return self._follows.get((self.place(worker), behavior_id)) or behavior_name(behavior_id)

    def route(self, behavior_id: str, policy: str | None, place: int = 0) -> None:
        """Agents of a team follow this policy from their next episode on; None: that of their behavior.

        `place`: in the workers of this place in a league.
        """
        if policy is None:
            self._follows.pop((place, behavior_id), None)
        else:
            self._follows[place, behavior_id] = policy

    def freeze(self, name: str, like: str, policy: PolicyState) -> Frozen:
        """A frozen policy that is there from now on, with weights of its own, of behavior `like`."""
        self._frozen[name] = make_frozen(name, self._behaviors[like], policy, self._key_of(name))
        return self._frozen[name]

    def lose(self, loss: Loss) -> None:
        """A process, or a copy in it, is no more: frozen policies forget its agents, as the behaviors do."""
        for policy in (*self._frozen.values(), *self._waiting.values()):
            policy.actor.lose(loss)

    def begin_anew(self) -> None:
        """All environments are reset: frozen policies forget their agents, as `Behavior.begin_anew`."""
        for policy in (*self._frozen.values(), *self._waiting.values()):
            policy.actor.begin_anew()

    def horizon(self, behavior_id: str) -> int:
        """time_horizon of a behavior id."""
        return behavior_settings_for(self._settings, behavior_name(behavior_id)).time_horizon

    def check(self, name: str, behavior_id: str) -> None:
        """Raises PolicyError if agents of this behavior id cannot follow the policy (R20).

        One that is only listed in the configuration is made now, for agents with these observations and actions.
        """
        spec, team = self._of(behavior_id).spec, self._team_of(name)
        if team is not None and name != behavior_name(behavior_id):
            raise PolicyError(
                f"policy_mapping: agents of {behavior_id} cannot follow {name}, which learns in team {team}: only "
                "agents of its own behavior are members of that"
            )
        if name not in self._named() and name in self._settings.behaviors:
            self._add(self._make(name, spec, None))
        found = self._named().get(name)
        if found is None:
            raise PolicyError(
                f"policy_mapping: an agent of {behavior_id} is mapped to {name!r}, which is none of the policies "
                f"({', '.join(self.policy_names)}); add it with add_policy, or list it below `behaviors:`"
            )
        if found.spec != spec:
            raise PolicyError(
                f"policy_mapping: agents of {behavior_id} cannot follow {name}: its observations or actions differ"
            )

    def add_policy(
        self, name: str, *, like: str, weights: str | os.PathLike[str] | None = None, trains: bool = False
    ) -> None:
        """A new policy that agents can be mapped to from now on; a resumed run has it when it is added again.

        Args:
          name: its own; with `trains` also that of its folder, whose checkpoint a resumed run goes on from.
          like: the behavior whose settings, observations and actions it has.
          weights: a policy's name (as it is now) or the folder of a checkpoint; None: those of `like`.
          trains: whether it learns from its agents, as a behavior does.

        Raises PolicyError for a name that is taken, or weights or a behavior that do not exist; CheckpointError if the
        checkpoint does not fit.
        """
        named = self._named()
        if name in named:
            raise PolicyError(f"add_policy: there is a policy {name} already; remove it, or choose another name")
        model = self._behaviors.get(like)
        if model is None:
            raise PolicyError(f"add_policy: like={like!r} is no behavior; there are: {', '.join(self._behaviors)}")
        if trains and self._team_of(like) is not None:
            raise PolicyError(
                f"add_policy: like={like!r} learns in team {self._team_of(like)}, which a new policy cannot join: add "
                "a frozen one, or one like a behavior without team"
            )
        if not trains:
            self.freeze(name, like, weights_of(weights, model, model.state, named).policy)
            return
        behavior = self._make(behavior_name(name), model.spec, model.settings)
        behavior.begin_from(weights_of(weights, model, behavior.state, named))
        self._add(behavior)

    def remove_policy(self, name: str) -> None:
        """Forget a frozen policy; agents that follow it are mapped again (R41).

        Raises PolicyError for any other: what learns belongs to the run to its end.
        """
        if name not in self._frozen:
            raise PolicyError(
                f"remove_policy: {name!r} is no frozen policy; there are: {', '.join(self._frozen) or 'none'}"
            )
        del self._frozen[name]
        self.removed(name)

    def step(self, behavior: str | None = None) -> int:
        """Trainer step of a behavior, which may be left out where there is one. Raises PolicyError for no behavior."""
        return self._behavior(behavior).step

    def max_steps(self, behavior: str | None = None) -> int:
        """The step after which a behavior learns no more. Raises as `step`."""
        return self._behavior(behavior).settings.max_steps

    def save(self) -> None:
        """Ask for a checkpoint of every behavior, see `jaxrl.callbacks.Run`."""
        self.asked_to_save = True

    def stop(self) -> None:
        """Ask for the end of the run, see `jaxrl.callbacks.Run`."""
        self.asked_to_stop = True

    def report(self, tag: str, value: float) -> None:
        """A statistic of one's own, see `jaxrl.callbacks.Run`. Raises PolicyError for a tag of the trainer's."""
        if is_trainers(tag):
            raise PolicyError(f"report: got {tag!r}, a tag of the trainer's own: expected another, as 'Game/Score'")
        self._reported.append((tag, float(value)))

    def take_reported(self) -> list[tuple[str, float]]:
        """Tags and values that were reported since the last call."""
        reported, self._reported = self._reported, []
        return reported

    def _named(self) -> dict[str, Behavior | Frozen]:
        return {**self._behaviors, **self._frozen}

    def _behavior(self, name: str | None) -> Behavior:
        known = self._behaviors
        found = known.get(name) if name is not None else next(iter(known.values())) if len(known) == 1 else None
        if found is None:
            raise PolicyError(f"step, max_steps: got behavior {name!r}, expected one of {', '.join(known)}")
        return found

    def _of(self, behavior_id: str) -> Behavior | Frozen:
        name = behavior_name(behavior_id)
        return self._behaviors[name] if name in self._behaviors else self._waiting[name]

    def _team_of(self, name: str) -> str | None:
        """The team that a behavior of the configuration file learns in."""
        found = self._settings.behaviors.get(name)
        return None if found is None else found.team

    def _add(self, behavior: Behavior) -> None:
        self._begin(behavior)
        self._behaviors[behavior.name] = behavior


def copied(tree: Any) -> Any:
    """Its own arrays: those of a learner are updated in place."""
    return jax.tree.map(jnp.copy, tree)

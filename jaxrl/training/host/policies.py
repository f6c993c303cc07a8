"""Policies of a run, which can be added and removed while it goes on.

A frozen policy is an actor without a learner: it decides, and the data that it collects is dropped. A policy that
trains is a behavior like any other, with a folder, statistics and checkpoints under its own name.
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
"""A behavior that acted, its step before that, and its episodes that ended."""


class Frozen(NamedTuple):
    """A policy that acts and does not change."""

    name: str
    actor: ActingPolicy

    @property
    def spec(self) -> BehaviorSpec:
        """Specification of its observations and actions."""
        return self.actor.spec

    def act(
        self, messages: Mapping[Source, BehaviorMessage], untrained: Mapping[Source, Collection[int]] = NOTHING
    ) -> tuple[dict[Source, Action], list[EpisodeRecords]]:
        """Return each source's actions in its agents' order, and finished episodes; store no data for long."""
        actions, episodes, _ = self.actor.act(messages, untrained)
        if self.actor.full or self.actor.fresh > self.actor.keeps:
            self.actor.discard()
        return actions, episodes


def make_frozen(name: str, like: Behavior, policy: PolicyState, key: jax.Array) -> Frozen:
    """Make a frozen policy with the algorithm and compiled programs of `like`. The key is consumed."""
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
    """Make a frozen policy with a new actor. The key is consumed."""
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
    """Return `fresh` with the present weights of a policy, or those of a checkpoint; None: those of `like`.

    Weights and connectors' statistics are copied, because updates and decisions overwrite the originals, also in a
    learner's thread.

    Args:
      weights: a name in `named`, else the path of a checkpoint folder `<Behavior>-<step>`.

    Raises PolicyError if it is neither, CheckpointError if the checkpoint does not fit.
    """
    origin = like if weights is None else named.get(str(weights))
    if isinstance(origin, Behavior):
        state = origin.state  # with its connectors' present statistics
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
    return loaded.replace(policy=copied(loaded.policy), critic=copied(loaded.critic))  # missing parts are `fresh`'s


class Policies:
    """All policies of a run: its behaviors, and frozen ones. Callbacks see it as `jaxrl.callbacks.Run`.

    Args:
      key_of: name → the key of a policy of that name.
      behaviors: the loop's behaviors; new ones are added here.
      make: (name, spec, settings or None) → a behavior.
      begin: opens a behavior's files.
    """

    def __init__(
        self,
        settings: RunSettings,
        key_of: Callable[[str], jax.Array],
        behaviors: dict[str, Behavior],
        make: Callable[[str, BehaviorSpec, BehaviorSettings | None], Behavior],
        begin: Callable[[Behavior], None],
    ) -> None:
        self.asked_to_save, self.asked_to_stop = False, False  # set by a callback
        self.over: Mapping[str, list[EpisodeRecords]] = NOTHING  # episodes that ended with the last message, by policy
        self._reported: list[tuple[str, float]] = []
        self._settings = settings
        self._key_of = key_of
        self._behaviors = behaviors
        self._frozen: dict[str, Frozen] = {}
        games = [behavior.self_play for _, behavior in settings.every_behavior()]
        self._league_size = max((game.league_size for game in games if game is not None), default=1)
        self._follows: dict[tuple[int, str], str] = {}  # by place in a league and behavior id; else the behavior's own
        self._teams: dict[str, Team] = {}  # by name: teams of several behaviors
        self._waiting: dict[str, Frozen] = {}  # by behavior, until its whole team has been seen
        self._make = make
        self._begin = begin
        self.removed: Callable[[str], None] = lambda name: None
        """Called with a removed policy, whose agents must follow another; set by `OpenEpisodes.follow`."""

    @property
    def policy_names(self) -> list[str]:
        """Names of the policies that agents can follow now."""
        return list(self._named())

    def act(self, results: Sequence[EnvMessage], router: Router | None) -> tuple[Chosen, list[Acted]]:
        """Call each policy once for all messages; return worker → behavior id → actions, and the behaviors that acted.

        `router`: knows which policy each agent follows; None: each follows its team's.
        """
        if router is None:
            shares, chosen = whole(results, self.own), {result.worker: {} for result in results}
        else:
            shares, chosen = router.split(results), blank(results, lambda name: self._of(name).spec.action)
        together = {name: share for name, team in self._teams.items() if (share := joint(shares, team.names))}
        acting = [*shares, *(behavior for name in together for behavior in self._teams[name].names)]
        before = {name: self._behaviors[name].step for name in acting if name in self._behaviors}
        over = decide(shares, {**self._named(), **self._waiting}, chosen)
        for name, share in together.items():
            actions, ended = self._teams[name].act(share.messages, share.untrained)
            over |= ended
            join(chosen, share, actions)
        self.over = over
        return chosen, [(self._behaviors[name], step, over[name]) for name, step in before.items()]

    def hold(self, name: str, kind: Kind, policy: PolicyState) -> None:
        """Let a behavior act with this policy until its team is complete, without learning."""
        acts = (kind.spec, kind.settings, kind.algorithm, kind.programs.actor, policy)
        self._waiting[name] = frozen(name, *acts, self._key_of(name), self._settings.env_settings)

    def gather(self, name: str, team: Team) -> None:
        """Let the behaviors of a complete team act together."""
        self._teams[name] = team
        for behavior in team.names:
            self._waiting.pop(behavior, None)

    def place(self, worker: int) -> int:
        """Return the league place of a worker: 0 for the main agents, else the number of the exploiters."""
        return worker % self._league_size

    def own(self, worker: int, behavior_id: str) -> str:
        """Return the policy that agents of a team follow unless they are assigned another."""
        return self._follows.get((self.place(worker), behavior_id)) or behavior_name(behavior_id)

    def route(self, behavior_id: str, policy: str | None, place: int = 0) -> None:
        """Let agents of a team follow this policy from their next episode on; None: that of their behavior.

        `place`: only in workers of this place in a league.
        """
        if policy is None:
            self._follows.pop((place, behavior_id), None)
        else:
            self._follows[place, behavior_id] = policy

    def freeze(self, name: str, like: str, policy: PolicyState) -> Frozen:
        """Add a frozen policy of behavior `like`, with these weights."""
        self._frozen[name] = make_frozen(name, self._behaviors[like], policy, self._key_of(name))
        return self._frozen[name]

    def lose(self, loss: Loss) -> None:
        """Let frozen policies forget the agents of a lost worker or copy, as the behaviors do."""
        for policy in (*self._frozen.values(), *self._waiting.values()):
            policy.actor.lose(loss)

    def begin_anew(self) -> None:
        """Let frozen policies forget all agents, as `Behavior.begin_anew`."""
        for policy in (*self._frozen.values(), *self._waiting.values()):
            policy.actor.begin_anew()

    def horizon(self, behavior_id: str) -> int:
        """Return the time_horizon of a behavior id."""
        return behavior_settings_for(self._settings, behavior_name(behavior_id)).time_horizon

    def check(self, name: str, behavior_id: str) -> None:
        """Raise PolicyError if agents of this behavior id cannot follow the policy.

        A policy that is only listed in the configuration is made now, for agents with these observations and actions.
        """
        spec, team = self._of(behavior_id).spec, self._team_of(name)
        if team is not None and name != behavior_name(behavior_id):
            raise PolicyError(
                f"policy_mapping: agents of {behavior_id} cannot follow {name}, which learns in team {team}: only "
                "agents of its own behavior are members of that"
            )
        if name not in self._named() and name in self._settings.behaviors:
            self._add(self._make(name, spec, None))
        policy = self._named().get(name)
        if policy is None:
            raise PolicyError(
                f"policy_mapping: an agent of {behavior_id} is mapped to {name!r}, which is none of the policies "
                f"({', '.join(self.policy_names)}); add it with add_policy, or list it below `behaviors:`"
            )
        if policy.spec != spec:
            raise PolicyError(
                f"policy_mapping: agents of {behavior_id} cannot follow {name}: its observations or actions differ"
            )

    def add_policy(
        self, name: str, *, like: str, weights: str | os.PathLike[str] | None = None, trains: bool = False
    ) -> None:
        """Add a policy that agents can be mapped to; a resumed run has it once it is added again.

        Args:
          name: of the policy; with `trains` also of its folder, whose checkpoint a resumed run goes on from.
          like: the behavior whose settings, observations and actions it has.
          weights: name of a policy, for its present weights, or folder of a checkpoint; None: those of `like`.
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
        """Remove a frozen policy; agents that follow it are mapped again.

        Raises PolicyError for any other policy: learning ones stay until the end of the run.
        """
        if name not in self._frozen:
            raise PolicyError(
                f"remove_policy: {name!r} is no frozen policy; there are: {', '.join(self._frozen) or 'none'}"
            )
        del self._frozen[name]
        self.removed(name)

    def step(self, behavior: str | None = None) -> int:
        """Return a behavior's trainer step; None: the only behavior's. Raises PolicyError for an unknown behavior."""
        return self._behavior(behavior).step

    def max_steps(self, behavior: str | None = None) -> int:
        """Return the step after which a behavior learns no more. Raises as `step`."""
        return self._behavior(behavior).settings.max_steps

    def save(self) -> None:
        """Ask for a checkpoint of every behavior, see `jaxrl.callbacks.Run`."""
        self.asked_to_save = True

    def stop(self) -> None:
        """Ask for the end of the run, see `jaxrl.callbacks.Run`."""
        self.asked_to_stop = True

    def report(self, tag: str, value: float) -> None:
        """Report a custom statistic, see `jaxrl.callbacks.Run`. Raises PolicyError for a tag of the trainer's."""
        if is_trainers(tag):
            raise PolicyError(f"report: got {tag!r}, a tag of the trainer's own: expected another, as 'Game/Score'")
        self._reported.append((tag, float(value)))

    def take_reported(self) -> list[tuple[str, float]]:
        """Return the tags and values that were reported since the last call."""
        reported, self._reported = self._reported, []
        return reported

    def _named(self) -> dict[str, Behavior | Frozen]:
        return {**self._behaviors, **self._frozen}

    def _behavior(self, name: str | None) -> Behavior:
        known = self._behaviors
        behavior = known.get(name) if name is not None else next(iter(known.values())) if len(known) == 1 else None
        if behavior is None:
            raise PolicyError(f"step, max_steps: got behavior {name!r}, expected one of {', '.join(known)}")
        return behavior

    def _of(self, behavior_id: str) -> Behavior | Frozen:
        name = behavior_name(behavior_id)
        return self._behaviors[name] if name in self._behaviors else self._waiting[name]

    def _team_of(self, name: str) -> str | None:
        """Return the team that a behavior of the configuration file learns in, or None."""
        settings = self._settings.behaviors.get(name)
        return None if settings is None else settings.team

    def _add(self, behavior: Behavior) -> None:
        self._begin(behavior)
        self._behaviors[behavior.name] = behavior


def copied(tree: Any) -> Any:
    """Copy all arrays of a tree, because a learner's arrays are updated in place."""
    return jax.tree.map(jnp.copy, tree)

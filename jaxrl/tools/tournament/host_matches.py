"""Plays games between two players in an environment of PettingZoo or RLlib, which is stepped in this process.

Every start is played twice, with exchanged sides, as `matches` does in JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.artifacts.names import behavior_name, team_of
from jaxrl.envs.behavior_names import NamedEnvironment
from jaxrl.envs.foreign.area import Area, AreaOutcome
from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.foreign.simulator import open_area
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.jax_envs.scene import BehaviorPart, Sizes
from jaxrl.tools.tournament.matches import CUT, Match, Player, counted
from jaxrl.tools.tournament.players import Entry
from jaxrl.tools.watch.film import Role
from jaxrl.training import player
from jaxrl.training.acting import memory_before
from jaxrl.training.trained_policy import Trained
from jaxrl.types import EnvMessage, JaxrlError

_COPIES = 16
"""Largest number of games that are played side by side."""


class HostEntry(Entry):
    """Makes players whose memory is a function of the number of agents, which varies here."""

    def _role(self, part: Sizes, trained: Trained, policy: Any) -> Role:
        role = super()._role(part, trained, policy)
        return role._replace(memory=partial(memory_before, trained.algorithm, policy))


class HostTable:
    """Plays matches; arguments as of `matches.Table`.

    Args:
      run: its `env_args` make the environment, and its behaviors name those here; None: no run.

    Raises JaxrlError if the environment cannot be made, or does not have two sides.
    """

    def __init__(
        self, address: str, run: Path | None, *, games: int, longest: int, seed: int, returns: bool = False
    ) -> None:
        self._address, self._run = address, run
        self._games, self._longest, self._seed, self._returns = games, longest, seed, returns
        self._env_args, self._parameters = player.settings_of_run(run)
        env, _ = self._open(1)
        try:
            specs = env.reset(self._parameters, seed).new_specs
        finally:
            env.close()
        sides = sorted({team_of(behavior_id) for behavior_id in specs})
        if len(sides) != 2:
            raise JaxrlError(
                f"{address}: has {len(sides)} team(s), and a game of a tournament is played by two: play a run whose "
                "--env-args say 'teams={player_0: 0, player_1: 1}', with the names of the agents"
            )
        self._place_of = {side: place for place, side in enumerate(sides)}
        by_name = {behavior_name(behavior_id): spec for behavior_id, spec in specs.items()}
        self.parts = tuple(BehaviorPart(name, spec, members=1) for name, spec in by_name.items())

    def play(self, first: Player, second: Player) -> Match:
        """Play a match."""
        starts = -(-self._games // 2)
        on_first = self._games_of((first, second), starts)
        on_second = -self._games_of((second, first), self._games - starts)
        return Match(counted(on_first), counted(np.where(on_second == -CUT, CUT, on_second)))

    def _games_of(self, players: tuple[Player, Player], games: int) -> np.ndarray:
        """Return the results of games from the first side's view, int [games]; CUT: the game had no end."""
        copies = min(games, _COPIES)
        if not copies:
            return np.zeros(0, int)
        env, areas = self._open(copies)
        try:
            rounds = [self._round(env, areas, players, self._seed + number) for number in range(-(-games // copies))]
        finally:
            env.close()
        return np.concatenate(rounds)[:games]

    def _round(
        self, env: NamedEnvironment, areas: list[_Game], players: tuple[Player, Player], seed: int
    ) -> np.ndarray:
        """Return the results of the first game of each copy."""
        actors: dict[str, player.Player] = {}
        results = np.full(len(areas), CUT)
        earned = np.zeros((len(areas), 2))
        message, number, width = env.reset(self._parameters, seed), 0, areas[0].sides
        for area in areas:
            area.over = False
        while (results == CUT).any() and number < self._longest:
            self._invite(actors, message, players, seed)
            message = env.step({name: actors[name].act(part) for name, part in message.steps.items()})
            number += 1
            paid = np.zeros((len(areas), 2))
            for behavior_id, steps in message.steps.items():
                place = self._place_of[team_of(behavior_id)]
                ended, asking = steps.ended, steps.deciding
                last = (ended.reward + ended.group_reward) * ~ended.truncated
                np.add.at(paid[:, place], (ended.group_id - 1) // width, last)
                for part in (ended, asking):
                    np.add.at(earned[:, place], (part.group_id - 1) // width, part.reward + part.group_reward)
            decides = earned if self._returns else paid
            over = np.array([area.take_over() for area in areas]) & (results == CUT)
            results[over] = np.sign(decides[over, 0] - decides[over, 1]).astype(int)
        return results

    def _invite(
        self, actors: dict[str, player.Player], message: EnvMessage, players: tuple[Player, Player], seed: int
    ) -> None:
        """Give each behavior id of a message a player."""
        if message.faults:
            raise EnvironmentFailure(message.faults[0].why)
        for behavior_id in message.steps:
            if behavior_id not in actors:
                name, place = behavior_name(behavior_id), self._place_of[team_of(behavior_id)]
                spec = {part.name: part.spec for part in self.parts}[name]
                role = players[place].roles[name]
                memory = role.memory if callable(role.memory) else lambda rows: ()
                key = jax.random.fold_in(jax.random.key(seed), len(actors))
                actors[behavior_id] = player.Player(spec, role.act, role.policy, memory, key)

    def _open(self, copies: int) -> tuple[NamedEnvironment, list[_Game]]:
        games: list[_Game] = []

        def make_area(_: int) -> Area:
            games.append(_Game(open_area(self._address, self._env_args)))
            return games[-1]

        env = ForeignEnvironment(worker=0, name=self._address, make_area=make_area, areas=copies, seed=self._seed)
        return NamedEnvironment(env, player.names_of_run(self._run)), games


class _Game:
    """Copy of an environment that notes when the game of all its agents is over."""

    def __init__(self, area: Area) -> None:
        self.over = False
        self.teams, self.sides, self.frames_per_second = area.teams, area.sides, area.frames_per_second
        self.announced, self.side = area.announced, area.side
        self.spaces, self.behavior, self.render, self.close = area.spaces, area.behavior, area.render, area.close
        self.reset, self._area = area.reset, area

    def step(self, actions: Mapping[Any, Any]) -> AreaOutcome:
        """Step the copy."""
        outcome = self._area.step(actions)
        self.over |= outcome.over
        return outcome

    def take_over(self) -> bool:
        """Return whether a game has ended since the last call."""
        over, self.over = self.over, False
        return over

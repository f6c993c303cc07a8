"""Takes `env_args` for jaxrl, not for the environment, out of the others: teams, and bounds of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.envs.foreign.arguments import ArgumentsError, take_switch


class AreaOptions(NamedTuple):
    """Options of one copy of an environment."""

    teams: bool = False  # agents of a behavior, and of a side, are a team
    sides: Mapping[str, int] = {}  # sides that play against each other, by agent or by name without number
    action_scale: float | None = None  # width of continuous actions on a side without a bound; None: refused


class Place(NamedTuple):
    """Position of a copy in a run."""

    worker: int = 0
    copy: int = 0  # within the worker
    workers: int = 1


ALONE, IN_TEAMS = AreaOptions(), AreaOptions(teams=True)
"""Defaults for environments with one agent, and with several."""


def take_options(arguments: dict[str, Any], *, one_agent: bool) -> tuple[AreaOptions, bool]:
    """Take the options, and whether a team shares its rewards, out of `arguments`. Raises ArgumentsError."""
    scale = arguments.pop("action_scale", None)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < 1e30):
        raise ArgumentsError(f"env_settings.env_args: action_scale: got {scale!r}, expected a number above 0")
    if one_agent:
        return AreaOptions(action_scale=scale), False
    team_reward = take_switch(arguments, "team_reward", False)
    teams = arguments.pop("teams", True)
    if isinstance(teams, bool):
        return AreaOptions(teams, {}, scale), team_reward
    return AreaOptions(True, _sides(teams), scale), team_reward


def _sides(teams: Any) -> dict[str, int]:
    """Return the team of each agent, by the text of its name. Raises ArgumentsError."""
    if not isinstance(teams, Mapping):
        raise ArgumentsError(
            f"env_settings.env_args: teams: got {teams!r}, expected true, false, or the team of each agent, such as "
            "teams={player_0: 0, player_1: 1}"
        )
    sides = {str(agent): team for agent, team in teams.items()}
    wrong = [team for team in sides.values() if isinstance(team, bool) or not isinstance(team, int) or team < 0]
    if wrong or len(set(sides.values())) < 2:
        raise ArgumentsError(
            f"env_settings.env_args: teams: got {sides!r}, expected the numbers, from 0 on, of two teams or "
            "more by agent, such as teams={player_0: 0, player_1: 1}, or by their names without numbers"
        )
    return sides

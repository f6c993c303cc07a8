"""`env_args` that are meant for jaxrl, not for the environment that is made: teams, and bounds of actions."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl.envs.foreign.arguments import ArgumentsError, take_switch


class AreaOptions(NamedTuple):
    """How one copy of an environment is shown."""

    teams: bool = False  # whether the agents of a behavior are a team
    action_scale: float | None = None  # width of continuous actions on a side without a bound; None: refused


ALONE, IN_TEAMS = AreaOptions(), AreaOptions(teams=True)
"""Of an environment with one agent, and with several, where `env_args` say nothing."""


def take_options(arguments: dict[str, Any], *, one_agent: bool) -> tuple[AreaOptions, bool]:
    """Take the options out of `arguments`, and whether a team shares its rewards. Raises ArgumentsError."""
    scale = arguments.pop("action_scale", None)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < 1e30):
        raise ArgumentsError(f"env_settings.env_args: action_scale: got {scale!r}, expected a number above 0")
    if one_agent:
        return AreaOptions(action_scale=scale), False
    team_reward = take_switch(arguments, "team_reward", False)
    return AreaOptions(take_switch(arguments, "teams", True), scale), team_reward

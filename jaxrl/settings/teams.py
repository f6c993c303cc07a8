"""Teams: settings that the behaviors with one `team: NAME` must share, and the size of a team. No JAX here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl.settings.behavior import BehaviorSettings
from jaxrl.settings.section import SettingsError, setting_at
from jaxrl.types import JaxrlError

COMMON = (
    "trainer_type",
    "hyperparameters.batch_size",
    "hyperparameters.buffer_size",
    "hyperparameters.num_epoch",
    "hyperparameters.lambd",
    "hyperparameters.posthumous_credit",
    "time_horizon",
    "count_by",
    "batch_mode",
    "max_episode_length",
    "threaded",
    "network_settings.hidden_units",
    "network_settings.compute_dtype",
    "network_settings.memory.sequence_length",
    "network_settings.memory.memory_size",
    "network_settings.memory.memory_type",
)
"""Keys with one value for the whole team: for its rows, returns, minibatches, and its critic's width and memory."""
_OF_SIGNAL = ("gamma", "strength", "episodic")


class TeamCapacityError(JaxrlError):
    """A team with more members than there are places for."""

    def __init__(self, capacity: int, members: int) -> None:
        super().__init__(
            f"hyperparameters.team_capacity: {capacity}, but this behavior has teams of {members} members: write at "
            f"least {members}"
        )


def check_places(name: str, places: int | None, members: int) -> None:
    """Raise SettingsError where teams of a behavior have not as many members as policies.

    `places`: as `BehaviorSettings.places`.
    """
    if places not in (None, members):
        raise SettingsError(
            f"behaviors.{name}.hyperparameters.team_capacity: got {places}, expected {members}, the members of a team "
            "here, each of whom has a policy of its own with share_policy: false"
        )


def teams_of(settings: Mapping[str, BehaviorSettings]) -> dict[str, list[str]]:
    """Return the behaviors of each team, by its name, in the order of `settings`."""
    teams: dict[str, list[str]] = {}
    for behavior, section in settings.items():
        if section.team is not None:
            teams.setdefault(section.team, []).append(behavior)
    return teams


def differences(settings: Mapping[str, BehaviorSettings]) -> Iterator[str]:
    """Yield one text, path first, for each reason why these behaviors cannot be one team."""
    first, *others = settings
    for behavior, section in settings.items():
        if section.self_play is not None:
            yield f"behaviors.{behavior}.self_play: not together with team ({section.team}): remove one of the two"
    for other in others:
        base, peer = settings[first], settings[other]
        if set(base.reward_signals) != set(peer.reward_signals):
            yield _differs(first, other, "reward_signals", list(base.reward_signals), list(peer.reward_signals), base)
            continue
        keys = [f"reward_signals.{name}.{key}" for name in base.reward_signals for key in _OF_SIGNAL]
        for key in (*COMMON, *keys):
            if setting_at(base, key) != setting_at(peer, key):
                yield _differs(first, other, key, setting_at(base, key), setting_at(peer, key), base)
                if key == "trainer_type":  # the rest follows from it
                    break


def _differs(first: str, other: str, key: str, one: Any, two: Any, settings: BehaviorSettings) -> str:
    return (
        f"behaviors.{other}.{key}: got {two}, expected {one} as behaviors.{first} has it: both are of the team "
        f"{settings.team}, which has one for all: write the same in both, or give one of them another team"
    )

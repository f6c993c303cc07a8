"""Reward signals by the name they have in `reward_signals`. A new signal is one file with one constant, and one line.

Its settings stand in `jaxrl.settings.rewards`, which knows every signal that a file may name; what is missing here is
refused. JAX is imported when a signal is looked up: the command line asks before which there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.rewards.interface import RewardSignal

_FILES = ("extrinsic",)


class _Signals(Mapping[str, "RewardSignal"]):
    """NAME of the file `name.py`, by name, imported now."""

    def __getitem__(self, name: str) -> RewardSignal:
        if name not in _FILES:
            raise KeyError(name)
        return getattr(import_module(f"jaxrl.rewards.{name}"), name.upper())

    def __iter__(self) -> Iterator[str]:
        return iter(_FILES)

    def __len__(self) -> int:
        return len(_FILES)

    def __contains__(self, name: object) -> bool:  # that of Mapping looks the signal up
        return name in _FILES


REWARD_SIGNALS: Mapping[str, RewardSignal] = _Signals()

"""Reward signals by the name they have in `reward_signals`. A new signal is one file, `<name>.py`, and one line here.

Its settings are in `jaxrl.settings.rewards`; a section there without a line here is refused. A user's own signal may be
in any file, `NAME: {type: my_file.py:make_x}`, see `jaxrl.rewards.own`. JAX is imported when a signal is made: the
command line lists the names before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from jaxrl.registry import Registry
from jaxrl.settings.rewards import OWN_SETTINGS, ExtrinsicSettings, OwnSignalSettings, RewardSignalSettings

if TYPE_CHECKING:
    from jaxrl.rewards.interface import MakeSignal, RewardSignal
    from jaxrl.types import BehaviorSpec

_AnyMake = TypeVar("_AnyMake", bound=Callable)


REWARD_SIGNALS: Mapping[str, MakeSignal] = Registry(
    {name: f"jaxrl.rewards.{name}:make_{name}" for name in ("extrinsic", "gail", "curiosity", "rnd")}
)


def reward_signal(*, settings: type[OwnSignalSettings] = OwnSignalSettings) -> Callable[[_AnyMake], _AnyMake]:
    """Declare the settings class of a user's `make_x(spec, settings)`, which has the keys of its section of the file.

        @jaxrl.reward_signal(settings=NoveltySettings)
        def make_novelty(spec, settings): ...

    Args:
      settings: the class that checks the section, below `jaxrl.OwnSignalSettings`. A function without this decorator
        takes the keys of every signal: gamma, strength, network_settings.
    """
    if not (isinstance(settings, type) and issubclass(settings, OwnSignalSettings)):
        raise TypeError(f"settings: got {settings!r}, expected a class below jaxrl.OwnSignalSettings")

    def mark(make: _AnyMake) -> _AnyMake:
        setattr(make, OWN_SETTINGS, settings)
        return make

    return mark


def make_signal(name: str, spec: BehaviorSpec, settings: RewardSignalSettings) -> RewardSignal:
    """Make the signal that the section `reward_signals.<name>` describes.

    Raises OwnCodeError for a user's own signal that cannot be made.
    """
    if isinstance(settings, OwnSignalSettings):
        return import_module("jaxrl.rewards.own").make_own(name, spec, settings)
    return REWARD_SIGNALS["extrinsic" if isinstance(settings, ExtrinsicSettings) else name](spec, settings)

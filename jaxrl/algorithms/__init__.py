"""The registry of algorithms: one line for every value of `trainer_type`, and users' own algorithms by name.

A new algorithm is one file, `<name>.py` with its function `make_<name>`, and one line here, which names the class of
its hyperparameters. That class is in `hyperparameters.py`, not in the algorithm's file, which imports JAX: the command
line reads hyperparameters while environments start, before JAX is imported.

A user's own algorithm may be anywhere: `trainer_type: my_file.py:make_x`, `my_package.module:make_x`, or a name that an
installed package offers (`jaxrl.plugins`), where `make_x(spec, settings)` returns an `Algorithm`. `@trainer_type(...)`
above it takes the place of a line here. It is imported, and JAX with it, when settings that name it are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from pydantic import ValidationError

from jaxrl import trust
from jaxrl.algorithms.hyperparameters import (
    COMAHyperparameters,
    MAPPOHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from jaxrl.own_code import NotThereError, OwnCodeError
from jaxrl.plugins import MLAGENTS_TRAINERS, Kind, installed, load, offers
from jaxrl.registry import Registry
from jaxrl.settings import BehaviorSettings, Hyperparameters, SettingsError
from jaxrl.settings.behavior import TYPES
from jaxrl.settings.section import problems_of

if TYPE_CHECKING:
    from jaxrl.algorithms.interface import Algorithm
    from jaxrl.types import BehaviorSpec

Make = Callable[["BehaviorSpec", BehaviorSettings], "Algorithm"]
_AnyMake = TypeVar("_AnyMake", bound=Make)
_MARK = "__jaxrl_trainer_type__"

BUILT_IN = ("poca", "ppo", "mappo", "coma", "sac")
"""Names of jaxrl's own algorithms, which no package can take."""


class TrainerType(NamedTuple):
    """Value of `trainer_type`."""

    hyperparameters: type[Hyperparameters]
    cooperative: bool = False  # the individual rewards of an agent's mates count as its own


def trainer_type(
    *, hyperparameters: type[Hyperparameters] = PPOHyperparameters, cooperative: bool = False
) -> Callable[[_AnyMake], _AnyMake]:
    """Declare a user's `make_x(spec, settings)` as an algorithm for `trainer_type: my_file.py:make_x`.

        @jaxrl.trainer_type(hyperparameters=MyHyperparameters)
        def make_mine(spec, settings): ...

    Args:
      hyperparameters: the class that checks `hyperparameters:` in the file, below `jaxrl.Hyperparameters`; its fields
        are read as `settings.hyperparameters.<name>`. A function without this decorator has those of PPO.
      cooperative: whether an agent is credited with its mates' individual rewards, for the statistics of rewards.
    """

    def mark(make: _AnyMake) -> _AnyMake:
        setattr(make, _MARK, TrainerType(hyperparameters, cooperative=cooperative))
        return make

    return mark


def _offered(name: object) -> bool:
    """Return whether `name` is a user's own algorithm or one of a package. A name of jaxrl's own always means jaxrl's.

    Raises OwnCodeError for a trainer that a plugin of ML-Agents offers.
    """
    if offers(Kind.TRAINER, name):
        return True
    for plugin in installed(MLAGENTS_TRAINERS):
        if plugin.name == name:
            raise OwnCodeError(
                f"trainer_type: {name} is a trainer for ML-Agents of the package {plugin.source} (entry point "
                f"{plugin.group}), which needs PyTorch and cannot run in jaxrl: write an algorithm of your own, "
                "my_file.py:make_x"
            )
    return False


def _own_function(name: str) -> Make:
    make = load(Kind.TRAINER, name, where="trainer_type: ")
    if not callable(make):
        raise NotThereError(f"trainer_type: {name} is a {type(make).__name__}, expected a function (spec, settings)")
    return cast(Make, make)


def _own_type(name: str) -> TrainerType:
    return getattr(_own_function(name), _MARK, TrainerType(PPOHyperparameters))


TRAINER_TYPES: Mapping[str, TrainerType] = Registry(
    {
        "poca": TrainerType(POCAHyperparameters, cooperative=True),
        "ppo": TrainerType(PPOHyperparameters),
        "mappo": TrainerType(MAPPOHyperparameters),
        "coma": TrainerType(COMAHyperparameters, cooperative=True),
        "sac": TrainerType(SACHyperparameters),
    },
    _offered,
    _own_type,
)
"""The registry. All other lists of algorithms are derived from it."""

HYPERPARAMETER_TYPES: Mapping[str, type[Hyperparameters]] = Registry(
    {name: entry.hyperparameters for name, entry in TRAINER_TYPES.items()},
    _offered,
    lambda name: TRAINER_TYPES[name].hyperparameters,
)
"""Hyperparameter class by trainer type, for `jaxrl.settings.load_run_settings`."""


ALGORITHMS: Mapping[str, Make] = Registry(
    {name: f"jaxrl.algorithms.{name}:make_{name}" for name in BUILT_IN},
    _offered,
    lambda name: partial(import_module("jaxrl.algorithms.connected").make_own, name, _own_function(name)),
)
"""Functions that make an `Algorithm` for a behavior, by trainer type; JAX is imported when one is looked up."""


def make_algorithm(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make the algorithm that `settings.trainer_type` names for agents with this spec.

    Raises OwnCodeError for a user's own algorithm that cannot be made.
    """
    return ALGORITHMS[settings.trainer_type](spec, settings)


def make_settings(trainer_type: str, **written: Any) -> BehaviorSettings:
    """Make a behavior's settings as from a configuration file with the keys in `written`, nested ones as dicts.

        make_settings("poca", max_steps=300_000, hyperparameters={"batch_size": 512})

    `trainer_type`: poca, ppo, mappo, coma, sac, or a user's own as `my_file.py:make_x`.

    Raises SettingsError, with all mistakes at once, or OwnCodeError.
    """
    trust.ours(trainer_type, written)
    try:
        return BehaviorSettings.model_validate(
            {"trainer_type": trainer_type, **written}, context={TYPES: HYPERPARAMETER_TYPES}
        )
    except ValidationError as error:
        raise SettingsError([text for _, text in problems_of(error)], "make_settings") from None

"""The registry of algorithms: every value of `trainer_type`, in one line each, and one's own by name.

A new algorithm is one file, `<name>.py` with its function `make_<name>`, and one line here, which names the class of
its hyperparameters. One with hyperparameters of its own has that class in `hyperparameters.py`, not in its file: the
command line reads them while environments start, before JAX is imported, and the file of an algorithm imports JAX.

One's own stands anywhere: `trainer_type: my_file.py:make_x`, `my_package.module:make_x`, or a name that an installed
package offers (`jaxrl.plugins`), where `make_x(spec, settings)` returns an `Algorithm`. `@trainer_type(...)` above it
says what a line here says. It is imported when settings that name it are read, and JAX with it.
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
"""Names of jaxrl's own, which no package can take."""


class TrainerType(NamedTuple):
    """One value of `trainer_type`."""

    hyperparameters: type[Hyperparameters]
    cooperative: bool = False  # the individual rewards of its mates are an agent's own


def trainer_type(
    *, hyperparameters: type[Hyperparameters] = PPOHyperparameters, cooperative: bool = False
) -> Callable[[_AnyMake], _AnyMake]:
    """Say of a `make_x(spec, settings)` of one's own what `trainer_type: my_file.py:make_x` means.

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
    """Whether it is one's own or of a package; raises OwnCodeError for a trainer that a plugin of ML-Agents offers.

    Where jaxrl and a package have the same name, it is jaxrl's.
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
    found = load(Kind.TRAINER, name, where="trainer_type: ")
    if not callable(found):
        raise NotThereError(f"trainer_type: {name} is a {type(found).__name__}, expected a function (spec, settings)")
    return cast(Make, found)


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
"""The registry. Everything else that lists algorithms is made of it."""

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
"""Functions that make an `Algorithm` for a behavior, by trainer type; JAX is imported when one is asked for."""


def make_algorithm(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """The algorithm that `settings.trainer_type` names, one's own included, for agents with this spec.

    Raises OwnCodeError where an own one cannot be made.
    """
    return ALGORITHMS[settings.trainer_type](spec, settings)


def make_settings(trainer_type: str, **written: Any) -> BehaviorSettings:
    """What a configuration file would give a behavior: `written` holds its keys, nested ones as dicts.

        make_settings("poca", max_steps=300_000, hyperparameters={"batch_size": 512})

    `trainer_type`: poca, ppo, mappo, coma, sac, or one's own as `my_file.py:make_x`.

    Raises SettingsError, with all mistakes at once, or OwnCodeError.
    """
    trust.ours(trainer_type, written)
    try:
        return BehaviorSettings.model_validate(
            {"trainer_type": trainer_type, **written}, context={TYPES: HYPERPARAMETER_TYPES}
        )
    except ValidationError as error:
        raise SettingsError([text for _, text in problems_of(error)], "make_settings") from None

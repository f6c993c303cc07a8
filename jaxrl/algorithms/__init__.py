"""The registry of algorithms: every value of `trainer_type`, in one line each.

A new algorithm is one file, `<name>.py` with its function `make_<name>`, and one line here, which names the class of
its hyperparameters. One with hyperparameters of its own has that class in `hyperparameters.py`, not in its file: the
command line reads them while environments start, before JAX is imported, and the file of an algorithm imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from jaxrl.algorithms.hyperparameters import (
    COMAHyperparameters,
    MAPPOHyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from jaxrl.connectors import make_chain
from jaxrl.settings import BehaviorSettings, Hyperparameters, SettingsError
from jaxrl.settings.behavior import TYPES
from jaxrl.settings.section import problems_of

if TYPE_CHECKING:
    from jaxrl.algorithms.interface import Algorithm, TrainState
    from jaxrl.connectors.chain import Chain
    from jaxrl.types import BehaviorSpec


class TrainerType(NamedTuple):
    """One value of `trainer_type`."""

    hyperparameters: type[Hyperparameters]
    cooperative: bool = False  # the individual rewards of its mates are an agent's own
    trained: bool = True  # False: read and checked, but refused, there is no file that trains it yet


TRAINER_TYPES: Mapping[str, TrainerType] = {
    "poca": TrainerType(POCAHyperparameters, cooperative=True),
    "ppo": TrainerType(PPOHyperparameters),
    "mappo": TrainerType(MAPPOHyperparameters),
    "coma": TrainerType(COMAHyperparameters, cooperative=True),
    "sac": TrainerType(SACHyperparameters, trained=False),
}
"""The registry. Everything else that lists algorithms is made of it."""

HYPERPARAMETER_TYPES: Mapping[str, type[Hyperparameters]] = {
    name: entry.hyperparameters for name, entry in TRAINER_TYPES.items()
}
"""Hyperparameter class by trainer type, for `jaxrl.settings.load_run_settings`."""


def _make(name: str, spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Of what the connectors make of the observations `spec`. Raises ConnectorError where they do not fit."""
    make = getattr(import_module(f"jaxrl.algorithms.{name}"), f"make_{name}")
    chain = make_chain(spec, settings.connectors)
    algorithm = make(spec if chain is None else chain.spec, settings)
    if settings.postprocess is not None:
        own = import_module("jaxrl.algorithms.postprocessing")
        algorithm = own.postprocessed(algorithm, own.resolve(settings.postprocess), settings.postprocess)
    return algorithm if chain is None else _connected(algorithm, chain)


def _connected(algorithm: Algorithm, chain: Chain) -> Algorithm:
    """With what the connectors share kept in its policy."""

    def init(key: Any) -> TrainState:
        state = algorithm.init(key)
        return state.replace(policy=state.policy.replace(connectors=chain.shared))

    return algorithm._replace(init=init, connectors=chain)


ALGORITHMS: Mapping[str, Callable[[BehaviorSpec, BehaviorSettings], Algorithm]] = {
    name: partial(_make, name) for name, entry in TRAINER_TYPES.items() if entry.trained
}
"""Functions that make an `Algorithm` for a behavior, by trainer type; JAX is imported when one is called."""


def make_settings(trainer_type: str, **written: Any) -> BehaviorSettings:
    """What a configuration file would give a behavior: `written` holds its keys, nested ones as dicts.

        make_settings("poca", max_steps=300_000, hyperparameters={"batch_size": 512})

    Raises SettingsError, with all mistakes at once.
    """
    try:
        return BehaviorSettings.model_validate(
            {"trainer_type": trainer_type, **written}, context={TYPES: HYPERPARAMETER_TYPES}
        )
    except ValidationError as error:
        raise SettingsError([text for _, text in problems_of(error)], "make_settings") from None

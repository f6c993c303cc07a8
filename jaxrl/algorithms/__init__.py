"""Algorithms by the name they have in `trainer_type`. A new algorithm is one file, one function and one line here.

JAX is imported when an algorithm is made: the command line reads hyperparameters before, while environments start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.algorithms.interface import Algorithm
    from jaxrl.settings import BehaviorSettings
    from jaxrl.types import BehaviorSpec


def _coma(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    from jaxrl.algorithms.coma import make_coma

    return make_coma(spec, settings)


def _mappo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    from jaxrl.algorithms.mappo import make_mappo

    return make_mappo(spec, settings)


def _poca(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    from jaxrl.algorithms.poca import make_poca

    return make_poca(spec, settings)


def _ppo(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    from jaxrl.algorithms.ppo import make_ppo

    return make_ppo(spec, settings)


ALGORITHMS = {"ppo": _ppo, "mappo": _mappo, "poca": _poca, "coma": _coma}

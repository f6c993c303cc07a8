"""Finds simulators of the host loop by kind. A new one is a module with `check` and `make_factory`, and one line here.

The modules are imported when they are needed: a worker process imports its own alone, and none of them imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from jaxrl.envs.address import Kind
from jaxrl.registry import Registry

if TYPE_CHECKING:
    from jaxrl.envs.workers.handles import EnvFactory
    from jaxrl.settings import RunSettings


class Simulator(NamedTuple):
    """Functions of a simulator's module that the host loop needs. Names are those of `Address`."""

    check: Callable[[str | None], None]
    """Raises JaxrlError if there is no environment of that name. Starts and writes nothing."""
    make_factory: Callable[[str | None, RunSettings, str], EnvFactory]
    """(name, settings, folder for logs) → a picklable function worker → HostEnv. Raises JaxrlError as `check`."""
    reseeds: bool
    """A reset takes a seed (`HostEnv.reset`); true unless the module's RESEEDS says otherwise."""


SIMULATORS: Mapping[Kind, ModuleType] = Registry({
    Kind.UNITY: "jaxrl.envs.unity.simulator",
    Kind.PLAYER: "jaxrl.jax_envs.served.launcher",
    Kind.GYMNASIUM: "jaxrl.envs.gymnasium.simulator",
    Kind.PETTINGZOO: "jaxrl.envs.pettingzoo.simulator",
    Kind.RLLIB: "jaxrl.envs.rllib.simulator",
})  # fmt: skip
"""Modules by kind."""


def simulator(kind: Kind) -> Simulator:
    """Return the simulator of a kind that the host loop steps.

    Raises:
        ValueError: environments of that kind are compiled together with the learner (`jaxrl.jax_envs`).
    """
    if kind not in SIMULATORS:
        raise ValueError(f"{kind}: is no simulator of the host loop, expected one of {', '.join(SIMULATORS)}")
    module = SIMULATORS[kind]
    reseeds = getattr(module, "RESEEDS", True)
    return Simulator(check=module.check, make_factory=module.make_factory, reseeds=reseeds)

"""Names that a configuration can use, by kind: jaxrl's own, and those of installed packages. Imports no JAX."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from jaxrl import plugins
from jaxrl.algorithms import TRAINER_TYPES
from jaxrl.artifacts.metrics.writers import WRITERS
from jaxrl.artifacts.metrics.writers.mlagents import MLAGENTS
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.plugins import Kind
from jaxrl.settings.networks import ENCODERS
from jaxrl.settings.rewards import SIGNALS

_log = logging.getLogger(__name__)

BUILT_IN: Mapping[Kind, tuple[str, ...]] = {
    Kind.TRAINER: tuple(TRAINER_TYPES),
    Kind.REWARD_SIGNAL: tuple(SIGNALS),
    Kind.ENCODER: ENCODERS,
    Kind.BODY: (),
    Kind.ENVIRONMENT: tuple(ENVIRONMENTS),
    Kind.WRITER: tuple(WRITERS),
}
"""Names that are jaxrl's own, also those that it still refuses: no package can use them."""

KEYS = {
    Kind.TRAINER: "trainer_type: NAME",
    Kind.REWARD_SIGNAL: "reward_signals: {NAME: {...}}",
    Kind.ENCODER: "network_settings.vis_encode_type: NAME",
    Kind.BODY: "network_settings.body_type: NAME",
    Kind.ENVIRONMENT: "--env jax:NAME",
    Kind.WRITER: "record_settings.writers: [NAME]",
}
"""Place in the configuration of a name of each kind."""


class Offer(NamedTuple):
    """Plugin that a package offers."""

    plugin: plugins.Plugin
    remark: str  # reason why it cannot be used; empty if it can


def offers(kind: Kind) -> Iterator[Offer]:
    """Yield the plugins of a kind that packages offer, including those whose name is taken."""
    installed = plugins.installed(kind)
    for plugin in installed:
        if plugin.name in BUILT_IN[kind]:
            yield Offer(plugin, f"hidden: {plugin.name} is jaxrl's own")
        elif sum(other.name == plugin.name for other in installed) > 1:
            yield Offer(plugin, f"refused: several packages offer {plugin.name}")
        else:
            yield Offer(plugin, "")


def of_mlagents() -> Iterator[Offer]:
    """Yield the installed plugins of ML-Agents."""
    for plugin in plugins.installed(plugins.MLAGENTS_WRITERS):
        is_mlagents = plugin.package.lower() == MLAGENTS
        yield Offer(plugin, "left out: jaxrl has its own of these" if is_mlagents else "")
    for plugin in plugins.installed(plugins.MLAGENTS_TRAINERS):
        if plugin.package.lower() != MLAGENTS:
            yield Offer(plugin, "refused: trainers of ML-Agents need PyTorch")


@cache
def warn_of_hidden() -> None:
    """Warn once of installed names that cannot be used, because jaxrl has the same ones."""
    for kind in Kind:
        for plugin, remark in offers(kind):
            if plugin.name in BUILT_IN[kind]:
                _log.warning("%s of the package %s (entry point %s) is %s.", plugin.name, plugin.source, kind, remark)

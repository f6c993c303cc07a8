"""Everything that a configuration can name, by kind: jaxrl's own, and what installed packages offer. No JAX."""

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
"""Names that are jaxrl's own, also where it refuses them still: no package can take them."""

KEYS = {
    Kind.TRAINER: "trainer_type: NAME",
    Kind.REWARD_SIGNAL: "reward_signals: {NAME: {...}}",
    Kind.ENCODER: "network_settings.vis_encode_type: NAME",
    Kind.BODY: "network_settings.body_type: NAME",
    Kind.ENVIRONMENT: "--env jax:NAME",
    Kind.WRITER: "record_settings.writers: [NAME]",
}
"""Where a name of each kind is written."""


class Offer(NamedTuple):
    """What a package brings."""

    plugin: plugins.Plugin
    remark: str  # why it cannot be used; empty where it can


def offers(kind: Kind) -> Iterator[Offer]:
    """What packages offer of a kind, with those whose name is taken."""
    found = plugins.installed(kind)
    for plugin in found:
        if plugin.name in BUILT_IN[kind]:
            yield Offer(plugin, f"hidden: {plugin.name} is jaxrl's own")
        elif sum(other.name == plugin.name for other in found) > 1:
            yield Offer(plugin, f"refused: several packages offer {plugin.name}")
        else:
            yield Offer(plugin, "")


def of_mlagents() -> Iterator[Offer]:
    """What plugins of ML-Agents there are."""
    for plugin in plugins.installed(plugins.MLAGENTS_WRITERS):
        own = plugin.package.lower() == MLAGENTS
        yield Offer(plugin, "left out: jaxrl has its own of these" if own else "")
    for plugin in plugins.installed(plugins.MLAGENTS_TRAINERS):
        if plugin.package.lower() != MLAGENTS:
            yield Offer(plugin, "refused: trainers of ML-Agents need PyTorch")


@cache
def warn_of_hidden() -> None:
    """Say once which installed names cannot be reached, because jaxrl has them itself."""
    for kind in Kind:
        for plugin, remark in offers(kind):
            if plugin.name in BUILT_IN[kind]:
                _log.warning("%s of the package %s (entry point %s) is %s.", plugin.name, plugin.source, kind, remark)

"""`jaxrl plugins`: lists the names for configurations, of jaxrl and of installed packages, without importing them."""

from __future__ import annotations

import argparse

from jaxrl.plugins import Kind
from jaxrl.training.registries import BUILT_IN, KEYS, Offer, of_mlagents, offers


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Set the description; there are no flags."""
    parser.description = (
        "List what configurations can name: jaxrl's own, and what installed packages offer by entry points. Your own "
        "code needs no package: FILE.py:NAME and module:NAME stand wherever NAME does (of a reward signal: type: NAME)."
    )


def run(given: argparse.Namespace) -> None:
    """Print the list."""
    for kind in Kind:
        print(f"{kind}  ({KEYS[kind]})")
        print(f"  jaxrl: {', '.join(BUILT_IN[kind]) or 'none'}")
        for offer in offers(kind):
            _show(offer)
    plugins = list(of_mlagents())
    if plugins:
        print("plugins of ML-Agents")
        for offer in plugins:
            _show(offer)


def _show(offer: Offer) -> None:
    plugin, remark = offer
    print(f"  {plugin.source}: {plugin.name} = {plugin.target}{f' ({remark})' if remark else ''}")

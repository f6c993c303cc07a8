"""Spread seeds and areas over devices: the mesh, and the sharding of each array."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.settings import SettingsError
from jaxrl.training.compiled.contest import rivals_of
from jaxrl.training.compiled.state import SceneState

SEEDS, AREAS = "seeds", "areas"


def mesh_of(devices: list[Any], seeds: int, areas: int, together: int = 1) -> Mesh:
    """Return the mesh of devices that share the work, with the axes seeds and areas: as many as can, equal by host.

    Devices divide the seeds; further devices divide the areas of a seed. On one host several seeds are only divided by
    seeds. Raises SettingsError if some host would have no work.

    `together`: number of seeds of a league, which lie on one device.
    """
    hosts: dict[int, list[Any]] = {}
    for device in devices:
        hosts.setdefault(device.process_index, []).append(device)
    for per_host in range(min(map(len, hosts.values())), 0, -1):
        count = per_host * len(hosts)
        of_seeds = math.gcd(count, max(seeds // together, 1))
        of_areas = count // of_seeds
        if of_areas == 1 or (areas % of_areas == 0 and (seeds == 1 or len(hosts) > 1)):
            chosen = [device for local in hosts.values() for device in local[:per_host]]
            return Mesh(np.array(chosen).reshape(of_seeds, of_areas), (SEEDS, AREAS))
    raise SettingsError(
        f"env_settings.seeds: {seeds} seed(s) of {areas} areas (num_areas) cannot be spread over {len(hosts)} hosts "
        "alike: choose a number of seeds or of areas that the number of hosts divides"
    )


def shardings(mesh: Mesh, state: SceneState) -> SceneState:
    """Return the sharding of each array: seeds over devices, and the areas of a seed."""
    of_seeds, of_areas = NamedSharding(mesh, PartitionSpec(SEEDS)), NamedSharding(mesh, PartitionSpec(SEEDS, AREAS))
    split = {name: jax.tree.map(lambda _: of_areas, play) for name, play in state.world[1].items()}
    everything = jax.tree.map(lambda _: of_seeds, state)
    parts = {name: part.replace(play=split[name]) for name, part in everything.parts.items()}
    for name, rivals in everything.rivals.items():
        parts[name] = parts[name].replace(rivals=rivals.replace(play=split[rivals_of(name)]))
    return everything.replace(areas=jax.tree.map(lambda _: of_areas, state.areas), parts=parts)


def empty_to(x: Array, place: NamedSharding) -> Array:
    """Put an empty array at its sharding: programs return empty arrays on all devices, whatever their out_shardings."""
    return x if x.size else jax.device_put(x, place)

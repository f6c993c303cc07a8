"""Gradient steps of image encoders in a loop, as an update is one: our convolutions beside XLA's.

    taskset -c 0 python benchmarks/convolutions.py            # one core
    taskset -c 0 python benchmarks/convolutions.py --repeats 9 --json FILE

Each case is ten steps of gradient descent of one encoder on a minibatch, inside `lax.scan`, uint8 pictures in, 128
units. `jaxrl` is `networks/filters.py`; `XLA` has the library's convolutions and their derived
gradients. Milliseconds of CPU time per step, medians of cases that take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks import filters
from jaxrl.networks.visual import VisualEncoder
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ObservationSpec

CASES = {"simple": (20, 256), "nature_cnn": (84, 64), "resnet": (84, 4)}
"""Encoder: pixels of a side, pictures of a minibatch."""
STEPS = 10


WAYS = {"jaxrl": filters.in_tiles, "XLA": filters.by_library}


def program_of(encoder: str, way: str) -> Callable[[], jax.Array]:
    """A compiled call of STEPS gradient steps."""
    side, rows = CASES[encoder]
    module = VisualEncoder(ObservationSpec("camera", (3, side, side)), NetworkSettings(vis_encode_type=encoder))
    images = np.random.default_rng(0).integers(0, 256, (STEPS, rows, 3, side, side), np.uint8)
    params = jax.jit(module.init)(jax.random.key(0), images[0])

    def step(params: jax.Array, batch: jax.Array) -> tuple[jax.Array, tuple[()]]:
        gradient = jax.grad(lambda p: jnp.mean(jnp.square(module.apply(p, batch))))(params)  # pyright: ignore
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient), ()

    with mock.patch.object(filters, "in_tiles", WAYS[way]):
        compiled = jax.jit(lambda p, x: jax.lax.scan(step, p, x)[0]).lower(params, images).compile()
    return lambda: jax.block_until_ready(compiled(params, images))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the encoder `simple` alone, one repeat")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    print(f"{jax.devices()[0].platform}, jax {jax.__version__}; ms per step\n{'encoder':<12}{'pictures':>14}", end="")
    print("".join(f"{way:>10}" for way in WAYS) + "  XLA / jaxrl")
    for encoder, (side, rows) in CASES.items() if not options.quick else [("simple", CASES["simple"])]:
        programs = {way: program_of(encoder, way) for way in WAYS}
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(1 if options.quick else options.repeats):
            for way, program in programs.items():
                begun = time.process_time()
                program()
                taken[way].append(1e3 * (time.process_time() - begun) / STEPS)
        found = {way: statistics.median(times) for way, times in taken.items()}
        size = f"{rows} x {side} x {side}"
        print(f"{encoder:<12}{size:>14}" + "".join(f"{ms:10.1f}" for ms in found.values()), end="")
        print(f"{found['XLA'] / found['jaxrl']:13.1f}", flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps({"encoder": encoder, "side": side, "rows": rows, **found}) + "\n")


if __name__ == "__main__":
    main()

"""Keys of the noise in actions, one per decision.

The generator is Philox (JAX's "rbg"). JAX's default, Threefry, is a loop on CPUs, with which a decision of a few agents
takes half as long again. A key gives equal numbers for equal versions of JAX and kinds of device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def noise_key(run_key: Sequence[int], decision: int) -> np.ndarray:
    """Make the key data of a decision, uint32 [4]: Philox key (two words of the run's, xor the number) and counter.

    The number is also the counter's high half: streams from neighbouring counters would overlap. The part of a number
    beyond 2^32, which a policy that only acts may reach, is the low half. The data are raw, since typed keys leave
    jit's fast path.
    """
    rest, number = divmod(decision, 1 << 32)
    return np.array((run_key[0], run_key[1] ^ number, rest, number), np.uint32)


def typed(key_data: Any) -> jax.Array:
    """Make the typed key of key data from `noise_key`."""
    return jax.random.wrap_key_data(key_data, impl="rbg")

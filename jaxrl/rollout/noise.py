"""Keys of the noise in actions, one per decision.

Philox (JAX's "rbg") instead of JAX's usual Threefry, which is a loop on CPUs: with it a decision of a few agents takes
half as long again. The same key gives the same numbers as long as JAX and the kind of device stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def noise_key(run_key: Sequence[int], decision: int) -> np.ndarray:
    """Key data of one decision, uint32 [4]: Philox key (two words of the run's, the number mixed in) and counter.

    The number is also the counter's high half: counted on from neighbouring starts, streams would overlap. Beyond 2^32
    decisions, which a policy that only acts may reach, the rest of the number stands in the low half. Raw data, since
    typed keys leave jit's fast path.
    """
    rest, number = divmod(decision, 1 << 32)
    return np.array((run_key[0], run_key[1] ^ number, rest, number), np.uint32)


def typed(key_data: Any) -> jax.Array:
    """The typed key of key data from `noise_key`."""
    return jax.random.wrap_key_data(key_data, impl="rbg")

"""Strictness of the whole suite. Broadcasting of different ranks is an error: it is the classic silent bug of RL code."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")

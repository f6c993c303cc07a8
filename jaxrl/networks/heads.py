"""Heads of a policy: from the features of its body to the parameters of its action distribution."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.initializers import fan_in_normal
from jaxrl.networks.linear import Linear, on_columns
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.types import ActionSpec

LOG_SIGMA_BOUNDS = (-20.0, 2.0)
"""Bounds of a log σ that depends on the state."""


class ActionHeads(nn.Module):
    """Heads [..., h] -> ActionDistribution; all branches are one linear layer with M outputs."""

    action: ActionSpec

    @nn.compact
    def __call__(self, x: jax.Array) -> ActionDistribution:
        c, m = self.action.continuous_size, self.action.mask_size
        mean = logits = jnp.zeros((*x.shape[:-1], 0))
        if c:
            mean = on_columns(Linear(c, fan_in_normal(0.2), name="mean"), x, from_columns=True)
        log_sigma = self._log_sigma(x)
        if m:
            logits = on_columns(Linear(m, fan_in_normal(0.1), name="logits"), x, from_columns=True)
        return ActionDistribution(mean=mean, log_sigma=log_sigma, logits=logits)

    def _log_sigma(self, x: jax.Array) -> jax.Array:
        """Return the log σ of all states, [C]."""
        c = self.action.continuous_size
        return self.param("log_sigma", nn.initializers.zeros, (c,)) if c else jnp.zeros(0)


class SquashedHeads(ActionHeads):
    """Heads like `ActionHeads`, with a log σ that depends on the state, [..., C]."""

    def _log_sigma(self, x: jax.Array) -> jax.Array:
        c = self.action.continuous_size
        if not c:
            return jnp.zeros((*x.shape[:-1], 0))
        linear = Linear(c, fan_in_normal(0.2), name="log_sigma")
        return jnp.clip(on_columns(linear, x, from_columns=True), *LOG_SIGMA_BOUNDS)


def mean_onnx(graph: OnnxGraph, x: str) -> tuple[str, np.ndarray]:
    """Add the continuous heads. Return the tensor of the means, [batch, C], and log σ [C]."""
    return graph.dense(x, "heads/mean", output="mean"), graph.param("heads/log_sigma")


def squashed_onnx_heads(graph: OnnxGraph, x: str) -> tuple[str, str]:
    """Add the continuous heads of `SquashedHeads`. Return the tensors of the means and of log σ, [batch, C]."""
    log_sigma = graph.dense(x, "heads/log_sigma", output="log_sigma/free")
    clipped = graph.add("Clip", [log_sigma], "log_sigma", min=LOG_SIGMA_BOUNDS[0], max=LOG_SIGMA_BOUNDS[1])
    return graph.dense(x, "heads/mean", output="mean"), clipped


def logits_onnx(graph: OnnxGraph, x: str, branches: tuple[int, ...]) -> list[str]:
    """Add the discrete heads. Return a tensor of logits [batch, size] for each branch."""
    ends = np.cumsum(branches)
    return [
        graph.dense(x, "heads/logits", slice(int(end) - size, int(end)), f"logits/{i}")
        for i, (end, size) in enumerate(zip(ends, branches, strict=True))
    ]

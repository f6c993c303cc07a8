"""A user's own parts of networks, by name: `vis_encode_type: my_file.py:Name`, `body_type: my_file.py:Name`.

    class Pixels(nn.Module):                       # an image encoder: no fields; a body has `units` and `layers`
        @nn.compact
        def __call__(self, images):                # float32 [N, H, W, C] -> [N, ...]; a body: [N, E] -> [N, units]
            return nn.relu(nn.Conv(8, (4, 4), strides=4)(images))

Every network of the behavior has its own instance: the policy, and each critic. An ONNX file cannot hold them; runs
say so.
"""

from __future__ import annotations

import inspect
from typing import Any

import flax.linen as nn
import jax

from jaxrl.own_code import OwnCodeError, calling
from jaxrl.plugins import Kind, load

NETWORK_PARTS = {"vis_encode_type": Kind.ENCODER, "body_type": Kind.BODY}
"""Keys of the settings that may name a user's own part."""


def own_module(key: str, address: str, **fields: Any) -> nn.Module:
    """Make the flax module at an address with `fields`. Raises OwnCodeError that begins with the settings' key."""
    module_class = load(NETWORK_PARTS[key], address, what="class", where=f"network_settings.{key}: ")
    if not (inspect.isclass(module_class) and issubclass(module_class, nn.Module)):
        raise OwnCodeError(f"network_settings.{key}: {address} is no flax.linen.Module class")
    try:
        return module_class(**fields)
    except TypeError as error:
        names = ", ".join(fields) or "none"
        raise OwnCodeError(f"network_settings.{key}: {address}: {error}; its fields should be: {names}") from error


def own_output(key: str, address: str, module: nn.Module, width: int | None, x: jax.Array) -> jax.Array:
    """Apply the module to x [N, ...] and check that it returns an array [N, ...], or [N, width] with a width.

    Raises OwnCodeError if it raises or returns something else.
    """
    where = f"network_settings.{key}: {address}"
    with calling(where):
        out = module(x)
    shape = tuple(getattr(out, "shape", ()))
    fits = len(shape) > 1 and shape[0] == x.shape[0] if width is None else shape == (x.shape[0], width)
    if not fits:
        wanted = f"({x.shape[0]}, {'...' if width is None else width})"
        raise OwnCodeError(f"{where} gives {shape} for {x.shape}, expected {wanted}")
    return out

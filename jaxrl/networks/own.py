"""Parts of networks of one's own, by name: `vis_encode_type: my_file.py:Name`, `body_type: my_file.py:Name`.

    class Pixels(nn.Module):                       # an image encoder: no fields; a body has `units` and `layers`
        @nn.compact
        def __call__(self, images):                # float32 [N, H, W, C] -> [N, ...]; a body: [N, E] -> [N, units]
            return nn.relu(nn.Conv(8, (4, 4), strides=4)(images))

Every network of the behavior has one: the policy, and each critic. An ONNX file cannot hold them; runs say so.
"""

from __future__ import annotations

import inspect
from typing import Any

import flax.linen as nn
import jax

from jaxrl.own_code import OwnCodeError, calling
from jaxrl.plugins import Kind, load

NETWORK_PARTS = {"vis_encode_type": Kind.ENCODER, "body_type": Kind.BODY}
"""Keys of the settings that may name a part of one's own."""


def own_module(key: str, address: str, **fields: Any) -> nn.Module:
    """The flax module behind an address, made with `fields`. Raises OwnCodeError that begins with the settings' key."""
    found = load(NETWORK_PARTS[key], address, what="class", where=f"network_settings.{key}: ")
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise OwnCodeError(f"network_settings.{key}: {address} is no flax.linen.Module class")
    try:
        return found(**fields)
    except TypeError as error:
        names = ", ".join(fields) or "none"
        raise OwnCodeError(f"network_settings.{key}: {address}: {error}; its fields should be: {names}") from error


def own_output(key: str, address: str, module: nn.Module, width: int | None, x: jax.Array) -> jax.Array:
    """What the module makes of x [N, ...]: an array [N, ...], or [N, width] where a width is asked for.

    Raises OwnCodeError where it raises or gives something else.
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

"""An image encoder of one's own: what is seen in each quarter of the picture.

    jaxrl train grid_world --run-id=quarters --set network_settings.vis_encode_type=own_encoder.py:Quarters

The policy and each critic of the behavior have one. An ONNX file cannot hold it: the run says so and keeps checkpoints.
Hidden layers of one's own are `body_type`, see own_network.py.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Quarters(nn.Module):
    """Filters, then the mean and the largest value of each filter over each quarter: [N, H, W, C] -> [N, 128]."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:  # float32, 0 to 1
        x = nn.relu(nn.Conv(16, (5, 5), strides=3)(images))
        top, bottom = jnp.array_split(x, 2, axis=1)
        quarters = [quarter for half in (top, bottom) for quarter in jnp.array_split(half, 2, axis=2)]
        return jnp.concatenate([f(quarter, axis=(1, 2)) for quarter in quarters for f in (jnp.mean, jnp.max)], axis=-1)

"""Hidden layers of one's own: `network_settings.body_type: own_network.py:Residual`."""

import flax.linen as nn
import jax


class Residual(nn.Module):
    """Each layer adds to what came before."""

    units: int  # hidden_units
    layers: int  # num_layers

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [N, E] -> [N, units]
        x = nn.Dense(self.units)(x)
        for _ in range(self.layers):
            x = x + nn.Dense(self.units)(nn.swish(x))
        return x

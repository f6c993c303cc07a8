"""Networks as flax modules, and the registry of observation encoders: a new encoder is one class and one line here."""

from jaxrl.networks.encoders import VectorEncoder

ENCODERS = {
    "vector": VectorEncoder,
}

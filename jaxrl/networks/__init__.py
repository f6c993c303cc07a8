"""Networks as flax modules, and the registry of observation encoders: a new encoder is one file and one line here."""

from jaxrl.networks.encoders import Encoder, VectorEncoder, vector_onnx

ENCODERS = {
    "vector": Encoder(VectorEncoder, vector_onnx),
}

"""Networks as flax modules, and the registry of observation encoders: a new encoder is one file and one line here.

Encoders of images have a registry of their own, `visual.IMAGE_ENCODERS`.
"""

from jaxrl.networks.encoders import Encoder, JointEncoder, VectorEncoder, no_problem, vector_onnx, vector_size
from jaxrl.networks.entities import EntityEncoder, entities_problem, entities_size
from jaxrl.networks.entities_onnx import entities_onnx
from jaxrl.networks.visual import VisualEncoder, visual_onnx, visual_problem, visual_size
from jaxrl.registry import Registry

ENCODERS = Registry[str, Encoder]({
    "vector": Encoder(VectorEncoder, vector_onnx, vector_size, no_problem),
    "visual": Encoder(VisualEncoder, visual_onnx, visual_size, visual_problem),
})  # fmt: skip
JOINT_ENCODERS = Registry[str, JointEncoder]({
    "entities": JointEncoder(EntityEncoder, entities_onnx, entities_size, entities_problem),
})  # fmt: skip

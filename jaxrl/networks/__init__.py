"""Networks as flax modules, and the registry of observation encoders: a new encoder is one file and one line here.

The registry of image encoders is `visual.IMAGE_ENCODERS`.
"""

from jaxrl.networks.encoders import Encoder, JointEncoder, VectorEncoder, no_problem
from jaxrl.networks.entities import EMBEDDING, EntityEncoder, entities_problem
from jaxrl.networks.entities_onnx import entities_onnx
from jaxrl.networks.visual import VisualEncoder, visual_onnx, visual_problem
from jaxrl.registry import Registry

ENCODERS = Registry[str, Encoder]({
    "vector": Encoder(VectorEncoder, lambda _, given: given.x, lambda sensor, _: sensor.shape[0], no_problem),
    "visual": Encoder(VisualEncoder, visual_onnx, lambda _, settings: settings.hidden_units, visual_problem),
})  # fmt: skip
JOINT_ENCODERS = Registry[str, JointEncoder]({
    "entities": JointEncoder(EntityEncoder, entities_onnx, EMBEDDING, entities_problem),
})  # fmt: skip

"""Whether a behavior can have an ONNX file, which holds jaxrl's own actor and nothing else."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl.algorithms import BUILT_IN, policy_gradient
from jaxrl.artifacts.checkpoint.tree import leaves_of
from jaxrl.connectors.chain import Chain
from jaxrl.networks.encoders import kind_of
from jaxrl.networks.memory import start
from jaxrl.networks.models import Actor
from jaxrl.settings import BehaviorSettings
from jaxrl.settings.networks import ENCODERS
from jaxrl.types import BehaviorSpec

_VALUE_HEADS = "params/values/"


def obstacles(spec: BehaviorSpec, settings: BehaviorSettings, chain: Chain | None, params: Any) -> list[str]:
    """What a file cannot do of this policy, in words; empty where it can do everything.

    `params`: of the policy, arrays or their shapes. An algorithm of one's own has a file if they are those of
    `networks.models.Actor`.
    """
    shape, shown = settings.network_settings, spec if chain is None else chain.spec
    found = [] if chain is None else [f"its connectors ({', '.join(chain.unexportable)})"] if chain.unexportable else []
    if shape.vis_encode_type not in ENCODERS and any(kind_of(o) == "visual" for o in shown.observations):
        found.append(f"the image encoder {shape.vis_encode_type}")
    if shape.body_type is not None:
        found.append(f"the hidden layers {shape.body_type}")
    if settings.trainer_type not in BUILT_IN and not _is_actor(spec, settings, chain, params):
        found.append(f"the network of {settings.trainer_type}, which is not jaxrl's Actor")
    return found


def _is_actor(spec: BehaviorSpec, settings: BehaviorSettings, chain: Chain | None, params: Any) -> bool:
    shown, shape = spec if chain is None else chain.spec, settings.network_settings
    actor = Actor(shown, shape)
    wanted = jax.eval_shape(actor.init, jax.random.key(0), policy_gradient.no_obs(shown), start(shape.memory, (1, 1)))
    given = {path: entry for path, entry in leaves_of(params).items() if not path.startswith(_VALUE_HEADS)}
    return given == leaves_of(wanted)

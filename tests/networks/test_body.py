"""The body that actor and critics share: paths and initial values of parameters, the carry, joint encoders."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from jaxrl.networks import JOINT_ENCODERS
from jaxrl.networks.body import NetworkBody, body_onnx
from jaxrl.networks.encoders import JointEncoder, JointEncoderInput, no_problem
from jaxrl.networks.joint import JointCritic, JointValue
from jaxrl.networks.models import Actor, SharedActorCritic, TeamCritic, ValueNetwork
from jaxrl.networks.onnx_graph import OnnxGraph
from jaxrl.settings.networks import NetworkSettings
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec

SPEC = BehaviorSpec((ObservationSpec("a", (4,)), ObservationSpec("b", (3,))), ActionSpec(2, (3, 2)))
SETTINGS = NetworkSettings(hidden_units=16, num_layers=2)
STREAMS = ("extrinsic", "curiosity")
OBS = (jnp.ones((2, 3, 4)), jnp.ones((2, 3, 3)))
ENCODING, PRESENT, SIZE = jnp.ones((2, 3, 7)), jnp.ones((2, 3), bool), jnp.float32(3)

NETWORKS: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "Actor": (Actor(SPEC, SETTINGS), (OBS,)),
    "ValueNetwork": (ValueNetwork(SPEC, SETTINGS, STREAMS), (OBS,)),
    "SharedActorCritic": (SharedActorCritic(SPEC, SETTINGS, STREAMS), (OBS,)),
    "TeamCritic": (TeamCritic(SPEC, SETTINGS, STREAMS), (OBS, ENCODING, PRESENT, SIZE)),
    "JointValue": (JointValue(SPEC, SETTINGS, STREAMS, 4), (OBS, PRESENT)),
    "JointCritic": (JointCritic(SPEC, SETTINGS, STREAMS, 4), (OBS, ENCODING, PRESENT, SIZE)),
}
RECORDED: dict[str, dict[str, tuple[tuple[int, ...], float]]] = {
    "Actor": {
        "body/layer_0/kernel": ((7, 16), 32.6559),
        "body/layer_1/kernel": ((16, 16), 48.20407),
        "heads/log_sigma": ((2,), 0),
        "heads/logits/kernel": ((16, 5), 1.70419),
        "heads/mean/kernel": ((16, 2), 1.295131),
    },
    "ValueNetwork": {
        "body/layer_0/kernel": ((7, 16), 32.6559),
        "body/layer_1/kernel": ((16, 16), 48.20407),
        "values/kernel": ((16, 2), 8.838031),
    },
    "SharedActorCritic": {
        "body/layer_0/kernel": ((7, 16), 32.6559),
        "body/layer_1/kernel": ((16, 16), 48.20407),
        "heads/log_sigma": ((2,), 0),
        "heads/logits/kernel": ((16, 5), 1.70419),
        "heads/mean/kernel": ((16, 2), 1.295131),
        "values/kernel": ((16, 2), 8.838031),
    },
    "TeamCritic": {
        "attention/out_bias": ((16,), 0),
        "attention/out_kernel": ((16, 16), 16.93322),
        "attention/qkv/kernel": ((16, 48), 53.56175),
        "body/layer_0/kernel": ((16, 16), 4.504943),
        "body/layer_1/kernel": ((16, 16), 4.260678),
        "embed_obs/kernel": ((7, 16), 9.614824),
        "embed_obs_action/kernel": ((14, 16), 16.0314),
        "values/kernel": ((17, 2), 9.320011),
    },
    "JointValue": {
        "body/layer_0/kernel": ((32, 16), 75.34527),
        "body/layer_1/kernel": ((16, 16), 48.20407),
        "values/kernel": ((16, 2), 8.838031),
    },
    "JointCritic": {
        "baselines/kernel": ((16, 2), 9.757989),
        "body/layer_0/kernel": ((52, 16), 93.92732),
        "body/layer_1/kernel": ((16, 16), 48.20407),
        "value/body/layer_0/kernel": ((32, 16), 75.00692),
        "value/body/layer_1/kernel": ((16, 16), 54.96975),
        "value/values/kernel": ((16, 2), 8.622458),
    },
}
"""Shape and Σ|x| of each parameter for key 3, as jaxrl 0.1.0 drew them; biases, all 0, are left out.

Checkpoints name these paths, and flax derives the draws from them.
"""


@pytest.mark.parametrize("name", NETWORKS)
def test_paths_and_initial_values_are_those_of_old_checkpoints(name):
    network, inputs = NETWORKS[name]
    found = flatten_dict(jax.jit(network.init)(jax.random.key(3), *inputs)["params"], sep="/")
    weights = {path: x for path, x in found.items() if not path.endswith("/bias")}
    assert {path: x.shape for path, x in weights.items()} == {
        path: shape for path, (shape, _) in RECORDED[name].items()
    }
    for path, (_, total) in RECORDED[name].items():
        np.testing.assert_allclose(np.abs(np.asarray(weights[path], np.float64)).sum(), total, rtol=1e-5, err_msg=path)
    layers = {path.removesuffix("/kernel"): x.shape[1:] for path, x in weights.items() if path.endswith("/kernel")}
    biases = {path.removesuffix("/bias"): x.shape for path, x in found.items() if path.endswith("/bias")}
    assert biases == layers
    assert not any(x.any() for path, x in found.items() if path.endswith("/bias"))


def test_without_memory_the_carry_comes_back_empty():
    actor = Actor(SPEC, SETTINGS)
    params = actor.init(jax.random.key(0), OBS)
    dist, carry = actor.apply(params, OBS, (), method="step")
    assert carry == ()
    for ours, plain in zip(dist, actor.apply(params, OBS), strict=True):
        np.testing.assert_array_equal(ours, plain)


class ToldApart(nn.Module):
    """A joint encoder: Σ of entities [..., n, F], times the sum of what it sees, times hidden_units."""

    observations: tuple[ObservationSpec, ...]
    settings: NetworkSettings

    @nn.compact
    def __call__(self, xs: tuple[jax.Array, ...], own: jax.Array | None) -> jax.Array:
        assert own is not None
        (x,) = xs
        return self.settings.hidden_units * jnp.sum(own, axis=-1, keepdims=True) * jnp.sum(x, axis=-2)


def told_apart_onnx(graph: OnnxGraph, given: JointEncoderInput) -> str:
    assert given.own is not None
    return graph.add("ToldApart", [*given.xs, given.own], given.path, units=given.settings.hidden_units)


def test_a_joint_encoder_sees_the_settings_and_all_other_encodings(monkeypatch):
    """Entities stand between two vectors; their encoding comes last and has seen both."""
    told_apart = JointEncoder(ToldApart, told_apart_onnx, 3, no_problem)
    monkeypatch.setitem(JOINT_ENCODERS, "entities", told_apart)
    entities = ObservationSpec("others", (2, 3), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE))
    spec = BehaviorSpec((SPEC.observations[1], entities, ObservationSpec("c", (1,))), SPEC.action)
    body = NetworkBody(spec, SETTINGS)
    obs = (jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[[1.0, 0.0, 5.0], [2.0, 0.0, 5.0]]]), jnp.array([[4.0]]))
    params = body.init(jax.random.key(0), obs, ())
    # 16 units · (1 + 2 + 3 + 4) · (1 + 2, 0, 5 + 5)
    encoded = body.apply(params, obs, method="encode")
    np.testing.assert_array_equal(encoded, [[1, 2, 3, 4, 16 * 10 * 3, 0, 16 * 10 * 10]])

    arrays = {path: np.asarray(x) for path, x in flatten_dict(params["params"], sep="/").items()}
    graph = OnnxGraph(arrays)
    body_onnx(graph, spec, SETTINGS, (None, None, None))
    assert [tensor.shape for tensor in graph.inputs] == [("batch", 3), ("batch", 2, 3), ("batch", 1)]
    own, attention, joined = graph.nodes[:3]
    assert own.inputs == ("obs_0", "obs_2")
    assert attention == ("ToldApart", ("obs_1", own.output), "encoder/entities", {"units": 16})
    assert joined.inputs == ("obs_0", "obs_2", "encoder/entities")

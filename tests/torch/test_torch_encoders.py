"""Weights of encoders and conditioned bodies: there and back, orientation of filters, names of the original."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl.networks.models import Actor, TeamCritic
from jaxrl.networks.visual import IMAGE_ENCODERS
from jaxrl.settings.networks import NetworkSettings
from jaxrl.torch import weights as torch_weights
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

PROCESSOR = "network_body.observation_encoder.processors"
VARIABLE = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
SENSORS = (
    ObservationSpec("tiles", (4, 3), VARIABLE),
    ObservationSpec("sign", (1, 37, 38), observation_type=ObservationType.GOAL_SIGNAL, dtype="uint8"),
    ObservationSpec("enemies", (2, 5), VARIABLE),
    ObservationSpec("vector", (3,)),
    ObservationSpec("camera", (2, 36, 40)),
)
SPEC = BehaviorSpec(SENSORS, ActionSpec(2, (3,)))


def make(name: str, layers: int = 2, team: bool = False):
    """Parameters of an actor or team critic, drawn by numpy, and their layout."""
    settings = NetworkSettings(hidden_units=8, num_layers=layers, vis_encode_type=name)
    lead = (1, 2) if team else (1,)
    obs = tuple(np.zeros((*lead, *sensor.shape), sensor.dtype) for sensor in SENSORS)
    if team:
        network, layout = TeamCritic(SPEC, settings, ("extrinsic",)), torch_weights.team_critic_layout
        inputs = obs, np.zeros((1, 2, 5), np.float32), np.ones((1, 2), bool), np.float32(2)
        entries = layout(SPEC, settings, ("extrinsic",))
    else:
        network, inputs = Actor(SPEC, settings), (obs,)
        entries = torch_weights.actor_layout(SPEC, settings)
    shapes, rng = jax.eval_shape(network.init, jax.random.key(0), *inputs), np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes), entries


@pytest.mark.parametrize("name", IMAGE_ENCODERS)
@pytest.mark.parametrize(("layers", "team"), [(1, False), (2, False), (2, True)])
def test_there_and_back(name, layers, team):
    """Every parameter has its place in the layout, in any mixture of sensors, and comes back bit for bit."""
    params, layout = make(name, layers, team)
    weights = torch_weights.export_arrays(params, layout)
    again = torch_weights.import_arrays(weights, layout)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert any("hypernet" in key for key in weights) is not team


def test_names_and_shapes_of_the_original():
    """Indices in the names are those of the sensors; entities come with [self, features], 8 + 3 + 8 of others."""
    params, layout = make("nature_cnn")
    shapes = {name: x.shape for name, x in torch_weights.export_arrays(params, layout).items()}
    assert shapes[f"{PROCESSOR}.1.conv_layers.0.weight"] == (32, 1, 8, 8)
    assert shapes[f"{PROCESSOR}.4.conv_layers.4.weight"] == (64, 64, 3, 3)
    assert shapes[f"{PROCESSOR}.4.dense.0.weight"] == (8, 64 * 1 * 1)  # 36 x 40 -> 8 x 9 -> 3 x 3 -> 1 x 1
    assert shapes[f"{PROCESSOR}.2.self_ent_encoder.seq_layers.0.weight"] == (128, 128 + 5)
    assert shapes["network_body.observation_encoder.x_self_encoder.seq_layers.0.weight"] == (128, 8 + 3 + 8)
    assert shapes["network_body._body_endoder.layers.0.weight"] == (8, 8 + 3 + 8 + 128)
    assert shapes["network_body._body_endoder.layers.2.hypernet.0.weight"] == (8, 8)
    assert shapes["network_body._body_endoder.layers.2.hypernet.5.weight"] == (8 * 8, 8)


def test_filters_are_turned():
    """Their [output 5, input 1, row 2, column 0] is our [row 2, column 0, input 1, output 5]."""
    params, layout = make("resnet")
    weights = torch_weights.export_arrays(params, layout)
    name = f"{PROCESSOR}.4.sequential.0.weight"
    changed = dict(weights) | {name: np.array(weights[name])}
    changed[name][5, 1, 2, 0] = 123.0
    trunk = torch_weights.import_arrays(changed, layout)["params"]["encoder"]["observation_4"]["trunk"]
    assert trunk["stack_0"]["kernel"][2, 0, 1, 5] == 123.0
    assert int((trunk["stack_0"]["kernel"] == 123.0).sum()) == 1

"""Weights of ML-Agents checkpoints as ours and back."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks import normalizer
from jaxrl.networks.models import Actor, SharedActorCritic, TeamCritic, ValueNetwork
from jaxrl.torch import weights as torch_weights
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

SPEC = BehaviorSpec((ObservationSpec("a", (3,)), ObservationSpec("b", (2,))), ActionSpec(2, (3, 4)))
STREAMS = ("extrinsic", "rnd")


class Shape(NamedTuple):
    hidden_units: int = 8
    num_layers: int = 3
    vis_encode_type: str = "simple"
    body_type: None = None
    goal_conditioning_type: str = "hyper"
    compute_dtype: str = "float32"
    memory: None = None


def networks():
    obs = (jnp.ones((1, 2, 3)), jnp.ones((1, 2, 2)))
    arguments = (SPEC, Shape(), STREAMS)
    team = (jnp.ones((1, 2, 9)), jnp.ones((1, 2), bool), jnp.float32(2))
    return {
        "actor": (Actor(SPEC, Shape()), (obs,), torch_weights.actor_layout(SPEC, Shape())),
        "value": (ValueNetwork(*arguments), (obs,), torch_weights.value_layout(*arguments)),
        "shared": (SharedActorCritic(*arguments), (obs,), torch_weights.shared_layout(*arguments)),
        "team": (TeamCritic(*arguments), (obs, *team), torch_weights.team_critic_layout(*arguments)),
    }


@pytest.fixture(params=["actor", "value", "shared", "team"])
def exported(request):
    """Random parameters of one network, their layout, and the same as a checkpoint would hold them."""
    network, inputs, layout = networks()[request.param]
    params = network.init(jax.random.key(0), *inputs)
    params = jax.tree.map(
        lambda x: jnp.asarray(np.random.default_rng(x.size).normal(size=x.shape), jnp.float32), params
    )
    return params, layout, torch_weights.export_arrays(params, layout)


def test_round_trip(exported):
    params, layout, weights = exported
    extra = {torch_weights.MAX_TEAM: np.int64(4)} if any("self_attn" in name for name in weights) else {}
    imported = torch_weights.import_weights(weights | extra, layout, SPEC)
    assert jax.tree.structure(imported.params) == jax.tree.structure(params)
    for a, b in zip(jax.tree.leaves(imported.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert imported.normalizer == (None, None)
    assert (imported.max_team == 4) if extra else (imported.max_team is None)


def test_torch_orientation_and_names():
    network, inputs, layout = networks()["actor"]
    weights = torch_weights.export_arrays(network.init(jax.random.key(0), *inputs), layout)
    shapes = {name: array.shape for name, array in weights.items()}
    assert shapes == {
        "network_body._body_endoder.seq_layers.0.weight": (8, 5),
        "network_body._body_endoder.seq_layers.0.bias": (8,),
        "network_body._body_endoder.seq_layers.2.weight": (8, 8),
        "network_body._body_endoder.seq_layers.2.bias": (8,),
        "network_body._body_endoder.seq_layers.4.weight": (8, 8),
        "network_body._body_endoder.seq_layers.4.bias": (8,),
        "action_model._continuous_distribution.mu.weight": (2, 8),
        "action_model._continuous_distribution.mu.bias": (2,),
        "action_model._continuous_distribution.log_sigma": (1, 2),
        "action_model._discrete_distribution.branches.0.weight": (3, 8),
        "action_model._discrete_distribution.branches.0.bias": (3,),
        "action_model._discrete_distribution.branches.1.weight": (4, 8),
        "action_model._discrete_distribution.branches.1.bias": (4,),
    }


def test_a_single_changed_element_lands_in_its_place():
    network, inputs, layout = networks()["actor"]
    weights = torch_weights.export_arrays(network.init(jax.random.key(0), *inputs), layout)
    name = "action_model._discrete_distribution.branches.1.weight"
    weights[name] = np.array(weights[name])
    weights[name][2, 5] = 123.0
    kernel = torch_weights.import_arrays(weights, layout)["params"]["heads"]["logits"]["kernel"]
    # branch 1 starts after the 3 columns of branch 0; torch's (output 2, input 5) is our [5, 3 + 2]
    assert kernel[5, 5] == 123.0 and int((kernel == 123.0).sum()) == 1


def test_normalizer_round_trip_and_duplicates_and_constants():
    network, inputs, layout = networks()["actor"]
    weights = torch_weights.export_arrays(network.init(jax.random.key(0), *inputs), layout)
    states = normalizer.update_all(normalizer.init_all(SPEC, True), (jnp.ones((4, 3)), jnp.ones((4, 2))), None)
    statistics = torch_weights.export_normalizer(states)
    assert statistics["network_body.observation_encoder.processors.1.normalizer.normalization_steps"] == 5
    duplicates = {name.replace("observation_encoder.", ""): x for name, x in statistics.items()}
    constants = {name: np.zeros(1, np.float32) for name in torch_weights.CONSTANTS}
    imported = torch_weights.import_weights(weights | statistics | duplicates | constants, layout, SPEC)
    for ours, theirs in zip(jax.tree.leaves(imported.normalizer), jax.tree.leaves(states), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_statistics_that_began_with_data_can_be_divided_by():
    """Of a number that never changed M2 is 0: ML-Agents would divide by it. Before any data its own first state."""
    fresh = normalizer.init_all(SPEC, True, from_data=True)
    name = "network_body.observation_encoder.processors.{}.normalizer.{}".format
    first = torch_weights.export_normalizer(fresh)
    assert (first[name(1, "normalization_steps")], *first[name(1, "running_variance")]) == (1, 1, 1)
    rows = jnp.array([[0.0, 5e4, 1.0], [0.0, 5e4, 3.0]])
    states = normalizer.update_all(fresh, (rows, rows[:, :2]), None)
    statistics = torch_weights.export_normalizer(states)
    mean, m2, steps = (
        statistics[name(0, leaf)] for leaf in ("running_mean", "running_variance", "normalization_steps")
    )
    assert steps == 2 and m2[2] == 2.0 and (m2 > 0).all()
    seen = np.array([0.5, 5e4 + 1.0, 3.0], np.float32)
    shown = np.clip((seen - mean) / np.sqrt(m2 / steps), -5, 5)
    np.testing.assert_allclose(shown, normalizer.normalize(states[0], jnp.asarray(seen)), rtol=1e-5)


def test_errors_name_the_entry():
    network, inputs, layout = networks()["actor"]
    weights = torch_weights.export_arrays(network.init(jax.random.key(0), *inputs), layout)
    name = "action_model._continuous_distribution.mu.bias"
    with pytest.raises(torch_weights.TorchImportError, match=f"missing in the checkpoint: {name}"):
        torch_weights.import_weights({k: v for k, v in weights.items() if k != name}, layout, SPEC)
    with pytest.raises(torch_weights.TorchImportError, match=r"left over in the checkpoint: lstm\.weight"):
        torch_weights.import_weights(weights | {"lstm.weight": np.zeros(1)}, layout, SPEC)
    with pytest.raises(torch_weights.TorchImportError, match=r"mu\.bias: shape \(3,\).*\(2,\) expected"):
        torch_weights.import_weights(weights | {name: np.zeros(3)}, layout, SPEC)
    deeper = torch_weights.actor_layout(SPEC, Shape(num_layers=4))
    with pytest.raises(torch_weights.TorchImportError, match=r"seq_layers\.6\.bias"):
        torch_weights.import_weights(weights, deeper, SPEC)
    statistics = {"network_body.observation_encoder.processors.0.normalizer.running_mean": np.zeros(3)}
    with pytest.raises(torch_weights.TorchImportError, match="running_variance"):
        torch_weights.import_weights(weights | statistics, layout, SPEC)
    with pytest.raises(torch_weights.TorchImportError, match=r"body\.layer_2"):
        torch_weights.export_arrays(
            network.init(jax.random.key(0), *inputs), torch_weights.actor_layout(SPEC, Shape(num_layers=2))
        )

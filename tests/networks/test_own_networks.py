"""Image encoders and hidden layers of one's own: what they compute is what the network computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.networks.models import Actor
from jaxrl.networks.observations import check_observations
from jaxrl.networks.onnx_graph import ExportError
from jaxrl.networks.policy import actor_network
from jaxrl.own_code import NotThereError, OwnCodeError
from jaxrl.settings import NetworkSettings, SettingsError
from jaxrl.training.saver import obstacles
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

OWN = """
import flax.linen as nn

class Doubles(nn.Module):
    @nn.compact
    def __call__(self, images):
        return 2 * images

class Flat(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(5)(images.reshape(images.shape[0], -1))

class Body(nn.Module):
    units: int
    layers: int

    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(self.units, use_bias=False, name="only")(x))

class Wide(Body):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.units + self.layers)(x)

class Sums(nn.Module):
    @nn.compact
    def __call__(self, images):
        return images.sum()

class Raises(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(5)(images) @ 3

def function(images):
    return images
"""
SPEC = BehaviorSpec(
    (ObservationSpec("camera", (2, 3, 4), dtype="uint8"), ObservationSpec("v", (3,))), ActionSpec(1, ())
)
PICTURES = np.random.default_rng(0).integers(0, 256, (5, 2, 3, 4), np.uint8)
OBS = (jnp.asarray(PICTURES), jnp.ones((5, 3)))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "nets.py"
    path.write_text(OWN)
    return path


def shape(**keys: Any) -> NetworkSettings:
    return NetworkSettings(hidden_units=4, num_layers=2, **keys)


def test_the_features_of_an_encoder_reach_the_linear_layer(own: Path) -> None:
    """One that doubles the picture is like none at all, with a linear layer of half the weights."""
    plain, double = (
        Actor(SPEC, shape(vis_encode_type="fully_connected")),
        Actor(SPEC, shape(vis_encode_type=f"{own}:Doubles")),
    )
    params = plain.init(jax.random.key(0), OBS)
    halved = jax.tree_util.tree_map_with_path(
        lambda path, x: x / 2 if "observation_0" in str(path) and "kernel" in str(path) else x, params
    )
    expected, found = plain.apply(params, OBS), double.apply(halved, OBS)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)  # pyright: ignore


def test_an_encoder_may_give_a_vector(own: Path) -> None:
    params = Actor(SPEC, shape(vis_encode_type=f"{own}:Flat")).init(jax.random.key(0), OBS)["params"]
    assert params["encoder"]["observation_0"]["trunk"]["Dense_0"]["kernel"].shape == (24, 5)
    assert params["encoder"]["observation_0"]["dense"]["kernel"].shape == (5, 4)


@pytest.mark.parametrize("lead", [(5,), (2, 3)])
def test_hidden_layers_take_the_place_of_the_others(own: Path, lead: tuple[int, ...]) -> None:
    spec = BehaviorSpec(SPEC.observations[1:], ActionSpec(1, ()))
    actor = Actor(spec, shape(body_type=f"{own}:Body"))
    obs = (jnp.asarray(np.random.default_rng(0).normal(size=(*lead, 3)), jnp.float32),)
    params = actor.init(jax.random.key(0), obs)
    kernel = params["params"]["body"]["only"]["kernel"]
    assert kernel.shape == (3, 4) and list(params["params"]["body"]) == ["only"]
    np.testing.assert_allclose(
        actor.apply(params, obs, method="encode"),
        np.maximum(np.asarray(obs[0]) @ np.asarray(kernel), 0),
        rtol=1e-5,
        atol=1e-6,
    )


def test_every_algorithm_takes_them(own: Path) -> None:
    """Critics of whole teams have hidden layers, too."""
    network = {"hidden_units": 4, "num_layers": 2, "body_type": f"{own}:Body", "memory": {"memory_size": 4}}
    for trainer in ("ppo", "poca", "mappo", "coma"):
        needed = {"team_capacity": 2} if trainer in ("mappo", "coma") else {}
        settings = jaxrl.make_settings(trainer, hyperparameters=needed, network_settings=network)
        spec = BehaviorSpec(SPEC.observations[1:], ActionSpec(1, ()))
        state = jax.eval_shape(jaxrl.make_algorithm(spec, settings).init, jax.random.key(0))
        for params in (state.policy.params, state.critic):
            found = [str(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
            assert any("'body'" in path and "'only'" in path for path in found)


@pytest.mark.parametrize(
    ("keys", "kind", "words"),
    [
        (
            {"vis_encode_type": "{}:Douples"},
            NotThereError,
            "vis_encode_type: .* has no class Douples, did you mean Doubles",
        ),
        ({"vis_encode_type": "{}:function"}, OwnCodeError, "vis_encode_type: .* is no flax.linen.Module class"),
        ({"vis_encode_type": "{}:Body"}, OwnCodeError, "vis_encode_type: .*its fields should be: none"),
        ({"vis_encode_type": "{}:Sums"}, OwnCodeError, r"vis_encode_type: .* gives \(\) for \(5, 3, 4, 2\), expected"),
        ({"vis_encode_type": "{}:Raises"}, OwnCodeError, r"vis_encode_type: .* raised .*nets\.py, line 35\)"),
        ({"body_type": "{}:Wide"}, OwnCodeError, r"body_type: .* gives \(5, 6\) for \(5, 7\), expected \(5, 4\)"),
        ({"body_type": "{}:Flat"}, OwnCodeError, "body_type: .*its fields should be: units, layers"),
    ],
)
def test_mistakes_are_one_sentence(own: Path, keys: dict[str, str], kind: type[Exception], words: str) -> None:
    settings = shape(**{"vis_encode_type": "fully_connected"} | {key: name.format(own) for key, name in keys.items()})
    with pytest.raises(kind, match=f"network_settings.{words}") as error:
        check_observations(SPEC, settings)
        Actor(SPEC, settings).init(jax.random.key(0), OBS)
    assert "\n" not in str(error.value)


def test_settings_that_are_no_name() -> None:
    for key in ("vis_encode_type", "body_type"):
        with pytest.raises(SettingsError, match=rf"network_settings\.{key}: got 'mine', expected .*my_file.py:Name"):
            jaxrl.make_settings("ppo", network_settings={key: "mine"})
    assert "body_type" not in NetworkSettings().model_dump()


def test_a_file_cannot_hold_them_and_that_is_said(own: Path) -> None:
    settings = jaxrl.make_settings(
        "ppo", network_settings={"vis_encode_type": f"{own}:Flat", "body_type": f"{own}:Body"}
    )
    assert obstacles(SPEC, settings, None, ()) == [f"the image encoder {own}:Flat", f"the hidden layers {own}:Body"]
    blind = BehaviorSpec(SPEC.observations[1:], SPEC.action)
    assert obstacles(blind, settings, None, ()) == [f"the hidden layers {own}:Body"]
    from jaxrl.artifacts.onnx.graph import build

    for key, spec in (("vis_encode_type", SPEC), ("body_type", blind)):
        name = getattr(settings.network_settings, key)
        with pytest.raises(ExportError, match=f"a file cannot hold .*{name}"):
            build(spec, actor_network(spec, shape(**{key: name})), {}, (None,) * len(spec.observations))

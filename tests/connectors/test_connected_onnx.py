"""X4, X5: an ONNX file does to raw observations what connectors and policy do one after the other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnx
import pytest

from jaxrl.artifacts.onnx import check as onnx_check
from jaxrl.artifacts.onnx import export as exporter
from jaxrl.artifacts.onnx import operators
from jaxrl.connectors import chain as chains
from jaxrl.connectors.chain import Chain
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests.artifacts.onnx_policies import ROWS, make_masks, make_policy, run
from tests.connectors.chains import chain_of

SPEC = BehaviorSpec(
    (ObservationSpec("body", (4,)), ObservationSpec("picture", (2, 2, 3)), ObservationSpec("kind", (3,))),
    ActionSpec(2, (3, 2)),
)
CHAIN = (
    {"type": "scale", "factor": 0.5, "sensors": ["body"]},
    {"type": "flatten"},
    {"type": "one_hot", "sensor": "kind", "column": 1, "values": 3},
    {"type": "mask", "sensors": ["body"], "columns": [1]},
    {"type": "normalize", "sensors": ["body", "picture"]},
    {"type": "clip", "low": -1.0, "high": 1.5},
    {"type": "normalize_rewards"},
    {"type": "clip", "of": "actions", "low": -0.2, "high": 0.3},
    {"type": "unsquash", "low": [0.0, -2.0], "high": [10.0, 2.0]},
)


def raw_obs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    body, picture = rng.normal(size=(ROWS, 4)), rng.random((ROWS, 2, 2, 3))
    kind = np.stack([rng.normal(size=ROWS), np.arange(ROWS) % 3, rng.normal(size=ROWS)], axis=1)
    return tuple(x.astype(np.float32) for x in (body, picture, kind))


def learned(chain: Chain, obs: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
    """Statistics of these observations."""
    everybody = np.ones((ROWS, 1), bool)
    state = chains.start(chain, chain.shared, (ROWS, 1))
    seen = tuple(jax.numpy.asarray(x[:, None]) for x in obs)
    state, _ = chains.observed(chain, state, seen, jax.numpy.asarray(everybody), jax.numpy.asarray(everybody))
    return state.shared


def test_x4_x5_the_file_is_the_chain_before_and_after_the_policy(tmp_path) -> None:
    chain, obs = chain_of(SPEC, *CHAIN), raw_obs()
    shared, masks = learned(chain, obs), make_masks(SPEC)
    policy = make_policy(chain.spec)
    seen = chains.shown(chain, chains.start(chain, shared, (ROWS,)), obs, (ROWS,))  # pyright: ignore[reportArgumentType]
    plain = {**policy, "sample_obs": tuple(map(np.asarray, seen))}
    exporter.export(tmp_path / "plain.onnx", **plain)
    connected = {**policy, "spec": SPEC, "sample_obs": obs, "sample_masks": masks, "connectors": (chain, shared)}
    assert exporter.export(tmp_path / "connected.onnx", **connected) < 1e-4
    expected, found = (
        run(tmp_path / "plain.onnx", plain["sample_obs"], masks),
        run(tmp_path / "connected.onnx", obs, masks),
    )
    name = "deterministic_discrete_actions"
    np.testing.assert_array_equal(found[name], expected[name])
    continuous = np.clip(expected["deterministic_continuous_actions"], -0.2, 0.3)
    np.testing.assert_allclose(
        found["deterministic_continuous_actions"], continuous * [5.0, 2.0] + [5.0, 0.0], rtol=1e-4, atol=1e-4
    )
    assert np.ptp(found["continuous_actions"][:, 0]) > 0.0 and found["continuous_actions"][:, 0].max() <= 6.5 + 1e-5
    assert onnx_check.check_contract(tmp_path / "connected.onnx", SPEC) == []
    assert operators.check_operators(onnx.load(tmp_path / "connected.onnx")) == []


def test_a_file_whose_connectors_are_corrupted_is_refused(tmp_path, monkeypatch) -> None:
    chain, obs = chain_of(SPEC, *CHAIN), raw_obs()
    wrong = chains.frozen(chain_of(SPEC, {**CHAIN[0], "factor": 0.6}, *CHAIN[1:]))
    policy, build = make_policy(chain.spec), exporter.build
    monkeypatch.setattr(exporter, "build", lambda *args: build(args[0], args[1], args[2], args[3], (wrong, args[4][1])))
    connected = {**policy, "spec": SPEC, "sample_obs": obs, "connectors": (chain, learned(chain, obs))}
    with pytest.raises(exporter.ExportError, match="differs from the policy"):
        exporter.export(tmp_path / "a.onnx", **connected)
    assert not (tmp_path / "a.onnx").exists()


def test_images_of_whole_numbers_are_given_as_zero_to_one(tmp_path) -> None:
    spec = BehaviorSpec((ObservationSpec("picture", (2, 2, 3), dtype="uint8"),), ActionSpec(1, ()))
    chain = chain_of(spec, {"type": "flatten"})
    picture = np.random.default_rng(0).integers(0, 256, (ROWS, 2, 2, 3)).astype(np.uint8)
    policy = make_policy(chain.spec)
    connected = {**policy, "spec": spec, "sample_obs": (picture,), "connectors": (chain, chain.shared)}
    assert exporter.export(tmp_path / "a.onnx", **connected) < 1e-4


@pytest.mark.parametrize("connector", [{"type": "frame_stack", "frames": 2}, {"type": "previous_action"},
                                       {"type": "previous_reward"}], ids=lambda c: c["type"])  # fmt: skip
def test_x7_what_remembers_cannot_be_exported(connector: dict) -> None:
    assert chain_of(SPEC, {"type": "flatten"}, connector).unexportable == (connector["type"],)

"""Every fixture beside this file passes, and the comparison itself notices what it must notice."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.footprint import give_back
from tests.parity.__main__ import FIXTURES
from tests.parity.compare import Comparison
from tests.parity.runner import find, run_case

LONG = (  # half of the time of all
    "d_poca_trajectories_lstm", "d_ppo_trajectories_lstm", "f_sac_lstm_continuous_norm", "g_streams_ppo_curiosity_rnd",
    "g_streams_ppo_gail", "j_sac_signals_curiosity_continuous", "j_sac_signals_rnd_discrete",
    "h_bc_sac_hybrid", "c_poca_update_discrete",
)  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem in LONG else (), id=path.stem) for path in find(FIXTURES)],
)
def test_fixture(path):
    outcome = run_case(path)
    give_back()  # no two cases have a program in common
    assert outcome.status == "pass", str(outcome)
    assert outcome.error < 1e-5, str(outcome)


def test_a_changed_number_fails(tmp_path):
    source = FIXTURES / "b_poca_vec_discrete"
    (tmp_path / "b_poca.json").write_text(source.with_suffix(".json").read_text())
    with np.load(source.with_suffix(".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["out/4_baseline/extrinsic"] = arrays["out/4_baseline/extrinsic"] + np.float32(1e-3)
    np.savez(tmp_path / "b_poca.npz", allow_pickle=False, **arrays)
    outcome = run_case(tmp_path / "b_poca.json")
    assert (outcome.status, outcome.note) == ("FAIL", "out/4_baseline/extrinsic")


def test_an_array_that_nobody_compares_fails(tmp_path):
    source = FIXTURES / "b_ppo_vec_continuous"
    (tmp_path / "b_ppo.json").write_text(source.with_suffix(".json").read_text())
    with np.load(source.with_suffix(".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files} | {"out/new": np.zeros(1)}
    np.savez(tmp_path / "b_ppo.npz", allow_pickle=False, **arrays)
    outcome = run_case(tmp_path / "b_ppo.json")
    assert (outcome.status, outcome.note) == ("FAIL", "not compared: out/new")


def test_what_is_not_there_yet_is_unsupported(tmp_path):
    source = FIXTURES / "b_ppo_vec_continuous"
    (tmp_path / "z_new.json").write_text(source.with_suffix(".json").read_text())
    (tmp_path / "z_new.npz").write_bytes(source.with_suffix(".npz").read_bytes())
    outcome = run_case(tmp_path / "z_new.json")
    assert (outcome.status, outcome.note) == ("unsupported", "no runner for this family")


def test_a_case_with_a_mask_of_tiny_gradients_and_without_the_first_weights_is_compared(tmp_path):
    """As the reference writes large cases, such as an update of MA-POCA with entities."""
    source = FIXTURES / "c_ppo_update_continuous"
    (tmp_path / "c_ppo_update.json").write_text(source.with_suffix(".json").read_text())
    with np.load(source.with_suffix(".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files if not name.startswith(("g1/", "w1/"))}
        tiny = {f"g1_tiny/{k.removeprefix('g1/')}": np.abs(archive[k]) < 1e-7 for k in archive.files if k[:3] == "g1/"}
    np.savez(tmp_path / "c_ppo_update.npz", allow_pickle=False, **arrays, **tiny)
    outcome = run_case(tmp_path / "c_ppo_update.json")
    assert outcome.status == "pass", str(outcome)
    changed = "w3/actor/action_model._continuous_distribution.mu.weight"
    arrays[changed] = arrays[changed] + np.float32(1e-3)
    np.savez(tmp_path / "c_ppo_update.npz", allow_pickle=False, **arrays, **tiny)
    assert run_case(tmp_path / "c_ppo_update.json").status == "FAIL"


def test_a_shared_critic_with_memory_says_why_it_is_not_compared(tmp_path):
    source = FIXTURES / "c_ppo_update_lstm"
    meta = json.loads(source.with_suffix(".json").read_text()) | {"shared_critic": True}
    (tmp_path / "c_ppo_update.json").write_text(json.dumps(meta))
    (tmp_path / "c_ppo_update.npz").write_bytes(source.with_suffix(".npz").read_bytes())
    outcome = run_case(tmp_path / "c_ppo_update.json")
    assert outcome.status == "unsupported" and "one memory" in outcome.note


def test_a_case_that_breaks_is_a_failure(tmp_path):
    source = FIXTURES / "b_ppo_vec_continuous"
    meta = json.loads(source.with_suffix(".json").read_text())
    meta["network_settings"]["hidden_units"] = 12
    (tmp_path / "b_ppo.json").write_text(json.dumps(meta))
    (tmp_path / "b_ppo.npz").write_bytes(source.with_suffix(".npz").read_bytes())
    outcome = run_case(tmp_path / "b_ppo.json")
    assert outcome.status == "FAIL" and "check hidden_units" in outcome.note


def test_scaled_error_golden():
    comparison = Comparison()
    comparison.add("relative", [10.0, 1.1], [10.0, 1.0])
    comparison.add("floor", [0.0], [0.01], floor=0.1)
    comparison.add("elementwise", [10.0, 1.1], [10.0, 1.0], elementwise=True)
    comparison.add("shape", [1.0], [[1.0]])
    comparison.add("nan", [math.nan], [1.0])
    assert comparison.errors == pytest.approx(
        {"relative": 0.01, "floor": 0.1, "elementwise": 0.1, "shape": math.inf, "nan": math.inf}
    )


def test_weights_after_adam_are_tight_only_where_there_is_a_gradient():
    noise = np.array([False, True])
    comparison = Comparison()
    comparison.add_after_adam("noise within the bound", [1.0, 0.9999], [1.0, 1.0], noise, bound=1e-3)
    comparison.add_after_adam("noise beyond", [1.0, 0.99], [1.0, 1.0], noise, bound=1e-3)
    comparison.add_after_adam("true gradient", [0.9999, 1.0], [1.0, 1.0], noise, bound=1e-3)
    assert comparison.errors["noise within the bound"] == 0.0
    assert comparison.errors["noise beyond"] == math.inf
    assert comparison.errors["true gradient"] == pytest.approx(1e-4, rel=1e-3)

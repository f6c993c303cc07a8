"""Every fixture beside this file passes, and the comparison itself notices what it must notice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.footprint import give_back
from tests.parity.__main__ import FIXTURES
from tests.parity.cases import Case, load
from tests.parity.compare import Comparison
from tests.parity.runner import find, run_case
from tests.parity.signal_cases import _seen
from tests.parity.stream_cases import _Signals

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


def copied(name: str, folder: Path, *suffixes: str) -> Path:
    """The case in another folder, with the files of these suffixes beside it."""
    for suffix in (".json", ".npz", *suffixes):
        (folder / f"{name}{suffix}").write_bytes((FIXTURES / f"{name}{suffix}").read_bytes())
    return folder / f"{name}.json"


def changed(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """The case with other arrays."""
    with np.load(path.with_suffix(".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files}
    change(arrays)
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)
    return path


def test_the_demonstration_is_read_that_lies_beside_the_case(tmp_path):
    assert run_case(copied("i_demo_legacy_discrete", tmp_path, ".demo")).status == "pass"
    for name in ("i_demo_legacy_discrete", "h_bc_continuous"):
        path = copied(name, tmp_path)
        path.with_suffix(".demo").unlink(missing_ok=True)
        outcome = run_case(path)
        assert outcome.status == "FAIL" and str(path.with_suffix(".demo")) in outcome.note, outcome.note


def test_weights_that_a_case_leaves_out_are_not_compared_and_all_others_are(tmp_path):
    left_out = "actor/network_body._body_endoder.seq_layers.0.bias"
    path = copied("c_ppo_update_continuous", tmp_path)

    def without(arrays: dict[str, np.ndarray]) -> None:
        del arrays[f"w3/{left_out}"], arrays[f"g1/{left_out}"]

    def wrong(arrays: dict[str, np.ndarray]) -> None:
        arrays[f"w1/{left_out}"] = arrays[f"w1/{left_out}"] + np.float32(1e-3)

    outcome = run_case(changed(path, without))
    assert outcome.status == "pass", str(outcome)
    assert run_case(changed(path, wrong)).note == f"w1/{left_out}"


def test_nothing_that_was_compared_is_no_pass(tmp_path):
    outcome = run_case(changed(copied("e_normalizer", tmp_path), dict.clear))
    assert outcome.status == "FAIL"
    assert Comparison().worst == ("nothing was compared", math.inf)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("l_curriculum_resume", "state/smoothed"),
        ("l_curriculum_resume", "state/must_reset"),
        ("l_curriculum_two_behaviors", "message/size/0"),
        ("l_curriculum_errors", "accepted"),
    ],
)
def test_a_changed_lesson_fails(tmp_path, name, array):
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[array] = arrays[array].copy()
        arrays[array].flat[-1] = not arrays[array].flat[-1]

    outcome = run_case(changed(copied(name, tmp_path), change))
    assert (outcome.status, outcome.note) == ("FAIL", array)


def normalised(case: Case, signal: str) -> Case:
    """A case of streams whose `signal` has `normalize: true`."""
    section = case.meta["signals"][signal]
    section = {**section, "network_settings": {**section["network_settings"], "normalize": True}}
    return case._replace(meta={**case.meta, "signals": {**case.meta["signals"], signal: section}})


def test_the_normaliser_of_gail_beside_another_stream_is_compared():
    """By hand, of ML-Agents' rule: mean 0, M2 1 and count 1, and then the experts of the update."""
    case = normalised(load(FIXTURES / "g_streams_ppo_gail.json"), "gail")
    experts = case.arrays["demo/obs_0"][case.arrays["r1/expert_index"]].astype(np.float64)
    count = 1 + len(experts)
    mean = experts.sum(0) / count
    m2 = 1 + ((experts - mean) * experts).sum(0)
    place = "gail/encoder.observation_encoder.processors.0.normalizer."
    ones = {"running_mean": np.zeros(4), "running_variance": np.ones(4), "normalization_steps": np.array(1)}
    after = {"running_mean": mean, "running_variance": m2, "normalization_steps": np.array(count)}
    states = {f"w/{place}{name}": x for name, x in ones.items()} | {f"w1/{place}{name}": x for name, x in after.items()}
    case = case._replace(arrays={k: x for k, x in case.arrays.items() if not k.startswith("w1/")} | states)
    signals, comparison = _Signals(case), Comparison()
    signals.learn(_seen(case), "r1/")
    signals.compare(comparison, "w1/")
    assert comparison.errors.keys() == {f"w1/{place}{name}" for name in after}
    assert comparison.worst[1] < 1e-6, comparison.worst


def test_the_normaliser_of_curiosity_beside_another_stream_is_compared_and_does_not_move():
    case = normalised(load(FIXTURES / "g_streams_ppo_curiosity_rnd.json"), "curiosity")
    place = "w1/curiosity/_state_encoder.observation_encoder.processors.0.normalizer.running_mean"
    signals, comparison = _Signals(case._replace(arrays={**case.arrays, place: np.full(5, 0.5)})), Comparison()
    signals.compare(comparison, "w1/")
    assert comparison.errors[place] == 1.0  # 0.5 away, of 0.5


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

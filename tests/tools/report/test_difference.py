"""`jaxrl diff`: what differs first between two runs or checkpoints, and its exit codes."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.artifacts.checkpoint import store
from jaxrl.artifacts.metrics.statistics import STEPS_PER_SECOND
from jaxrl.artifacts.versions import versions
from jaxrl.cli import main
from jaxrl.torch.writing import Ordered, write_torch_file
from tests.tools.report.report_folders import write_events, write_run


def state(**changes):
    """A few kinds of leaves; with `b` = 2.5 the largest difference is 0.5."""
    leaves = {"a": jnp.arange(3.0), "b": np.float32(2.0), "key": jax.random.key(1), "step": np.int64(7)}
    return {"train": leaves | changes}


def run(results: Path, name: str, *, steps=(100, 200), changes=None, **more) -> Path:
    """A run of which `changes` are made to the state at the second step."""
    path = write_run(results, name, **more)
    for step in steps:
        saved = state(**(changes or {})) if step == 200 else state()
        store.save(path / "Walker", step, saved, settings={"max_steps": 5})
    return path


def diff(capsys, *paths) -> tuple[int, list[str]]:
    code = main(["diff", *map(str, paths)])
    printed = capsys.readouterr()
    return code, (printed.out + printed.err).splitlines()


@pytest.fixture
def first(tmp_path):
    return run(tmp_path, "first")


EQUAL = ["settings: equal", "versions: equal", "statistics: equal", "parameters: equal"]


def test_equal_runs_but_for_their_names(tmp_path, first, capsys):
    assert diff(capsys, first, run(tmp_path, "second")) == (0, EQUAL)


def test_the_first_of_each_kind_is_named(tmp_path, first, capsys, monkeypatch):
    changes = {"b": np.float32(2.5), "a": jnp.arange(3.0) + 0.25}
    monkeypatch.setattr(store, "versions", lambda: versions() | {"jax_version": "9"})
    other = run(tmp_path, "other", seed=2, scores=(0.0, 0.75), changes=changes)
    code, lines = diff(capsys, first, other)
    assert code == 1
    assert lines[0] == "settings: env_settings.seed: 1 / 2"
    assert lines[1].startswith("versions: jax_version: ") and lines[1].endswith(" / 9")
    assert lines[2] == "statistics: Walker: first at step 2000, Environment/Group Cumulative Reward: 0.5 / 0.75"
    assert lines[3] == "parameters: Walker-200: train/a: largest difference 0.5, 2 of 4 arrays differ"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key": jax.random.key(2)}, "train/key: largest difference 1, 1 of 4 arrays differ"),
        ({"b": np.float32(np.nan)}, "train/b: largest difference inf, 1 of 4 arrays differ"),
        ({"a": jnp.arange(4.0)}, "train/a: float32[3] / float32[4]"),
        ({"c": np.float32(1)}, "train/c: not there / float32[]"),
    ],
)
def test_kinds_of_parameters(tmp_path, first, capsys, changes, text):
    code, lines = diff(
        capsys, first / "Walker" / "Walker-200", run(tmp_path, "o", changes=changes) / "Walker" / "Walker-200"
    )
    assert (code, lines) == (1, ["settings: equal", "versions: equal", f"parameters: {text}"])


def test_a_run_that_went_on(tmp_path, first, capsys):
    longer = run(tmp_path, "longer", steps=(200, 300), scores=(0.0, 0.5, 0.625))
    code, lines = diff(capsys, first, longer)
    assert code == 1
    assert lines[2] == "statistics: Walker: first at step 3000, Environment/Group Cumulative Reward: not there / 0.625"
    assert lines[3] == "parameters: Walker: last step 200 / 300, equal at step 200"


def test_seeds_are_told_apart(tmp_path, capsys):
    first, second = (
        write_run(tmp_path, name, seeds=2, scores=scores) for name, scores in (("a", (0, 0.5)), ("b", (0, 0.6)))
    )
    code, lines = diff(capsys, first, second)
    assert code == 1 and lines[2].startswith("statistics: Walker, seed 0: first at step 2000")
    assert lines[3] == "parameters: none were compared, neither run has a checkpoint"


def test_measured_times_are_no_difference(tmp_path, first, capsys):
    other = run(tmp_path, "other")
    for path, speed in ((first, 10.0), (other, 20.0)):
        write_events(path / "Walker", {1000: speed}, STEPS_PER_SECOND)
    assert diff(capsys, first, other) == (0, EQUAL)


def test_a_run_without_curves_is_named_and_unitys_files_are_passed_over(tmp_path, first, capsys):
    meta = b"fileFormatVersion: 2\nguid: 0123456789abcdef0123456789abcdef\n"
    (whole,) = first.rglob("events.out.*")
    for path in [whole, *first.glob("Walker/Walker-*")]:
        path.with_name(f"{path.name}.meta").write_bytes(meta)
    empty = run(tmp_path, "empty")
    assert diff(capsys, first, empty) == (0, EQUAL)
    (events,) = empty.glob("Walker/events.out.*")
    events.write_bytes(b"")
    for pair in ((first, empty), (empty, first)):
        code, lines = diff(capsys, *pair)
        assert code == 1 and lines[2] == f"statistics: {empty} has no curves"
    assert diff(capsys, empty, empty) == (0, [*EQUAL[:2], "statistics: none in either", EQUAL[3]])
    (empty / "Pilot").mkdir()
    shutil.copy(whole, empty / "Pilot" / events.name)
    code, lines = diff(capsys, first, empty)
    assert code == 1 and lines[2] == f"statistics: Pilot: {first} has no curves of it"


def original(results: Path, name: str, weight: float = 1.0, steps=(500, 1000), torch_version="2.1.0") -> Path:
    """A run of ML-Agents, of which `weight` stands in the last checkpoint."""
    path = write_run(results, name)
    for step in steps:
        policy = Ordered(weight=np.full((2, 3), weight if step == 1000 else 1.0, np.float32), bias=np.zeros(2, "f4"))
        adam = {"state": {0: {"step": 3.0, "exp_avg": np.ones(3, "f4")}}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
        contents = {"Policy": policy, "Optimizer:adam": adam, "global_step": Ordered(step=np.array([step], "i8"))}
        write_torch_file(path / "Walker" / f"Walker-{step}.pt", contents)
    status = {"metadata": {"mlagents_version": "1.1.0", "torch_version": torch_version}}
    (path / "run_logs").mkdir(exist_ok=True)
    (path / "run_logs" / "training_status.json").write_text(json.dumps(status))
    return path


def test_runs_of_ml_agents_are_compared_by_their_files(tmp_path, first, capsys):
    one, same = original(tmp_path, "one"), original(tmp_path, "same")
    assert diff(capsys, one, same) == (0, EQUAL)
    code, lines = diff(capsys, one, original(tmp_path, "other", 1.25, torch_version="2.2.0"))
    assert code == 1 and lines[1] == "versions: torch_version: 2.1.0 / 2.2.0"
    assert lines[3] == "parameters: Walker-1000: Policy/weight: largest difference 0.25, 1 of 7 arrays differ"
    _, lines = diff(capsys, one, original(tmp_path, "short", steps=(500,)))
    assert lines[3] == "parameters: Walker: last step 1000 / 500, equal at step 500"
    _, lines = diff(capsys, first, original(tmp_path, "kind", steps=(100, 200)))
    assert lines[3] == "parameters: Walker-100: a checkpoint of jaxrl / one of ML-Agents"
    (one / "Walker" / "Walker-500.pt").write_bytes(b"PK")
    code, lines = diff(capsys, one, same)
    assert code == 2 and len(lines) == 1 and "Walker-500.pt: the file is damaged" in lines[0]


def test_what_neither_has_is_not_called_equal(tmp_path, capsys):
    paths = [write_run(tmp_path, name, configuration=False) for name in ("a", "b")]
    code, lines = diff(capsys, *paths)
    assert (code, lines) == (1, ["settings: none in either", "versions: none in either", "statistics: equal",
                                 "parameters: none were compared, neither run has a checkpoint"])  # fmt: skip


def test_bad_input(tmp_path, first, capsys):
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "no", "does not exist"), (tmp_path / "empty", "neither the results folder")):
        code, lines = diff(capsys, first, path)
        assert code == 2 and len(lines) == 1 and str(path) in lines[0] and words in lines[0]
    code, lines = diff(capsys, first, first / "Walker" / "Walker-200")
    assert code == 2 and "is a run and" in lines[0]
    (first / "Walker" / "Walker-200" / "checkpoint.json").write_text("{")
    code, lines = diff(capsys, first, first)
    assert code == 2 and len(lines) == 1 and "checkpoint.json" in lines[0]

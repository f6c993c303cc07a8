"""training_status.json."""

import json
import logging
from pathlib import Path

import pytest

from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.status import FINAL, LESSON, TrainingStatus
from jaxrl.training.lessons import read_lessons


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def resumed(path: Path) -> TrainingStatus:
    status = TrainingStatus(path)
    status.resume()
    return status


def test_round_trip_in_the_format_of_ml_agents(tmp_path, log):
    path = tmp_path / "run_logs" / "training_status.json"
    status = TrainingStatus(path)
    status.set("wall_height", LESSON, 2)
    status.set("metadata", LESSON, 3)  # a parameter may be called so
    folder = Path("results/run/Walker")
    for step, reward in ((100, None), (200, float("nan")), (300, 1.5)):
        auxiliary = [folder / f"Walker-{step}"]
        status.add_checkpoint("Walker", step, folder / f"Walker-{step}.onnx", reward, auxiliary, keep=2)
    status.note("Walker", FINAL, 300, Path("results/run/Walker.onnx"), 1.5)
    status.write()

    document = json.loads(path.read_text())
    assert set(document) == {"wall_height", "Walker", "metadata"}
    assert document["wall_height"] == {"lesson_num": 2}
    first, last = document["Walker"]["checkpoints"]
    assert (first["steps"], first["reward"]) == (200, None)
    assert set(last) == {"steps", "file_path", "reward", "creation_time", "auxillary_file_paths"}
    assert last["file_path"] == "results/run/Walker/Walker-300.onnx"
    assert last["auxillary_file_paths"] == ["results/run/Walker/Walker-300"]
    assert document["Walker"]["final_checkpoint"]["file_path"] == "results/run/Walker.onnx"
    assert document["metadata"]["stats_format_version"] == "0.3.0"
    assert read_lessons(path)["parameters"].keys() == {"wall_height", "metadata"}

    again = resumed(path)
    assert again.get("metadata", LESSON) == 3 and again.get("metadata", "stats_format_version") is None
    assert again.get("wall_height", LESSON, 0) == 2
    assert again.get("other", LESSON, 0) == 0
    assert log.records == []


def test_saving_the_same_step_again_replaces_its_entry(tmp_path):
    status = TrainingStatus(tmp_path / "s.json")
    for reward in (1.0, 2.0, None):  # None: resumed, and nothing has happened since
        status.add_checkpoint("Walker", 100, Path("w.onnx"), reward)
    assert [item["reward"] for item in status.get("Walker", "checkpoints")] == [2.0]


def test_a_run_that_went_back_lists_what_is_on_disk(tmp_path):
    """Behind step 300, whose checkpoint is damaged: it is neither removed nor counted until it is passed again."""
    status, walker, found = TrainingStatus(tmp_path / "s.json"), tmp_path / "Walker", []
    for step in (100, 200, 300, 250, 400):
        checkpoint.save(walker, step, {"weight": 1.0}, keep=3)
        status.add_checkpoint("Walker", step, walker / f"Walker-{step}.onnx", 1.0, keep=3)
        found.append([item["steps"] for item in status.get("Walker", "checkpoints")])
        assert found[-1] == [item.step for item in checkpoints(walker)]
    assert found[-2:] == [[100, 200, 250, 300], [250, 300, 400]]


def test_a_missing_file_warns_and_starts_empty(tmp_path, log):
    status = resumed(tmp_path / "s.json")
    assert status.get("Walker", "checkpoints", []) == []
    assert [record.levelname for record in log.records] == ["WARNING"]


DAMAGES = {
    "half a count": b'{"metadata": {}, "wall": {"lesson_num": 0, "since_look": [1.0, 2.5]}}',
    "a count that is no number": b'{"metadata": {}, "wall": {"lesson_num": 0, "since_look": [1.0, "nan"]}}',
    "no metadata": b'{"Walker": {}}',
    "null": b"null",
    "a list": b"[1, 2]",
    "empty": b"",
    "cut": b'{"Walker": {"checkpoints": [',
    "not UTF-8": b'{"metadata": {}, "\xff\xfe": {}}',
    "NUL bytes": bytes(300),
    "a behavior that is null": b'{"metadata": {}, "Walker": null}',
    "checkpoints that are no list": b'{"metadata": {}, "Walker": {"checkpoints": {}}}',
    "a checkpoint without its step": b'{"metadata": {}, "Walker": {"checkpoints": [{"file_path": "x"}]}}',
    "a step in words": b'{"metadata": {}, "Walker": {"checkpoints": [{"steps": "100"}]}}',
    "a lesson below zero": b'{"metadata": {}, "wall": {"lesson_num": -1}}',
    "a rule without its counts": b'{"metadata": {}, "Walker": {"stop": {"reward": {"value": 1.0}}}}',
    "nested without end": b"[" * 200_000,
    "metadata that is a list": b'{"metadata": []}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_kept_and_written_anew(tmp_path, log, damage):
    path = tmp_path / "training_status.json"
    path.write_bytes(DAMAGES[damage])
    status = resumed(path)
    (record,) = log.records
    assert record.levelname == "WARNING" and record.getMessage().startswith(f"{path}: ")
    assert "training_status.json.damaged" in record.getMessage() and "\n" not in record.getMessage()
    assert (tmp_path / "training_status.json.damaged").read_bytes() == DAMAGES[damage]
    status.add_checkpoint("Walker", 100, Path("w.onnx"), 1.0)
    status.write()
    assert [item["steps"] for item in resumed(path).get("Walker", "checkpoints")] == [100]


def test_other_versions_warn_one_by_one(tmp_path, log):
    path = tmp_path / "s.json"
    TrainingStatus(path).write()
    document = json.loads(path.read_text())
    document["metadata"] |= {"jaxrl_version": "0.0.1", "numpy_version": "1.0"}
    path.write_text(json.dumps(document))
    resumed(path)
    assert len(log.records) == 2 and "jaxrl_version was 0.0.1" in log.text

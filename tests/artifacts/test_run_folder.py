"""Checks before a run starts, the folder's layout, and what --force removes, and when."""

import logging
import os
import re
import shutil
import sys

import numpy as np
import pytest

from jaxrl.artifacts import files
from jaxrl.artifacts import run_folder as module
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError, behavior_name
from jaxrl.settings import CheckpointSettings


@pytest.fixture
def log(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


@pytest.fixture
def old_run(tmp_path):
    """A finished run with two checkpoints of one behavior."""
    run = RunFolder(tmp_path / "results", "old")
    run.prepare()
    folder = run.behavior("Walker?team=0")
    for step in (100, 200):
        checkpoint.save(folder, step, {"params": np.ones(3)})
        (folder / f"Walker-{step}.onnx").write_text("onnx")
    (folder / "events.out.tfevents.1.host").write_text("events")
    (folder / "notes.txt").write_text("the user's own")
    for path in (run.configuration, run.status, run.timers, run.final_onnx("Walker"), (run.logs / "Player-0.log")):
        path.write_text("{}")
    return run


def everything(run):
    return sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*"))


def test_the_layout_is_that_of_ml_agents(tmp_path):
    run = RunFolder(tmp_path, "a")
    paths = (run.configuration, run.final_onnx("W?team=1"), run.behavior("W?team=1"), run.timers, run.status)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "a/configuration.yaml",
        "a/W.onnx",
        "a/W",
        "a/run_logs/timers.json",
        "a/run_logs/training_status.json",
    ]


def test_a_new_run_passes_and_the_check_leaves_nothing(tmp_path):
    RunFolder(tmp_path / "results", "new").check()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_needs_a_decision(old_run):
    with pytest.raises(RunFolderError) as caught:
        old_run.check()
    assert all(word in str(caught.value) for word in (str(old_run.path), "--run-id", "--resume", "--force"))
    old_run.check(force=True)
    old_run.check(resume=True)


def test_logs_of_a_failed_start_do_not_count_as_a_run(tmp_path):
    run = RunFolder(tmp_path, "a")
    run.prepare()
    (run.logs / "Player-0.log").write_text("crashed")
    run.check()


def test_resume_needs_a_run_with_a_checkpoint(tmp_path, old_run):
    with pytest.raises(RunFolderError, match=r"new.*does not exist.*--resume.*--run-id"):
        RunFolder(tmp_path / "results", "new").check(resume=True)
    for document in old_run.path.glob("*/*/checkpoint.json"):
        document.unlink()
    with pytest.raises(CheckpointError, match=r"Walker-200.*checkpoint\.json is missing.*Walker-100.*--force"):
        old_run.check(resume=True)
    for folder in old_run.path.glob("*/*/"):
        shutil.rmtree(folder)
    with pytest.raises(RunFolderError, match=r"no complete checkpoint.*--force"):
        old_run.check(resume=True)


def test_resume_of_a_run_of_ml_agents_says_so(tmp_path):
    folder = RunFolder(tmp_path, "unity").behavior("Walker")
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes(b"torch")
    with pytest.raises(CheckpointError, match="PyTorch"):
        RunFolder(tmp_path, "unity").check(resume=True)


def test_initialize_from_needs_the_run_and_each_listed_behavior(tmp_path, old_run):
    run = RunFolder(tmp_path / "results", "new")
    run.check(initialize_from="old", behaviors={"Walker": None})
    with pytest.raises(RunFolderError, match=r"--initialize-from nothing.*does not exist"):
        run.check(initialize_from="nothing")
    with pytest.raises(CheckpointError, match="Crawler"):
        run.check(initialize_from="old", behaviors={"Walker": None, "Crawler": None})


def test_a_behavior_with_an_init_path_of_its_own_starts_from_that(tmp_path, old_run):
    run, path = RunFolder(tmp_path / "results", "new"), str(old_run.behavior("Walker") / "Walker-100")
    run.check(initialize_from="old", behaviors={"Walker": None, "Crawler": path})
    for source in (None, "old"):
        with pytest.raises(CheckpointError, match=r"^behaviors\.Crawler\.init_path: .*gone/Crawler-5: does not exist"):
            run.check(initialize_from=source, behaviors={"Walker": path, "Crawler": "gone/Crawler-5"})
    old_run.check(resume=True, behaviors={"Walker": "gone/Walker-5"})  # what is resumed starts from nothing else


def test_where_the_first_weights_come_from(tmp_path, old_run):
    run = RunFolder(tmp_path / "results", "new")
    folder = old_run.behavior("Walker")
    assert run.initial_checkpoint("Walker") is None
    assert run.initial_checkpoint("Walker?team=1", "old") == folder / "Walker-200"
    assert run.initial_checkpoint("Walker", "old", "Walker-100") == folder / "Walker-100"
    assert run.initial_checkpoint("Walker", None, str(folder / "Walker-100")) == folder / "Walker-100"
    assert run.initial_checkpoint("Walker", None, str(folder / "checkpoint")) == folder / "Walker-200"
    for path in ("nowhere", "model.pt"):
        with pytest.raises(CheckpointError, match=path):
            run.initial_checkpoint("Walker", None, path)
    for model, known in ("Walker-100.onnx", str(folder / "Walker-100")), ("W.onnx", "a checkpoint folder such as"):
        with pytest.raises(CheckpointError, match=f"{model}: is a policy for playing, .* Name {re.escape(known)}"):
            run.initial_checkpoint("Walker", None, str(folder / model))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RunFolderError, match=r"results"):
        RunFolder(tmp_path, "results").check()
    with pytest.raises(files.ArtifactError, match="--results-dir"):
        RunFolder(tmp_path / "results", "a").check()


@pytest.mark.parametrize("name", ["configuration.yaml", "run_logs/timers.json", "Walker.onnx"])
def test_a_folder_where_a_file_shall_be_written_is_found_before_the_start(old_run, name):
    (old_run.path / name).unlink()
    (old_run.path / name).mkdir()
    with pytest.raises(RunFolderError, match=rf"{name} is a folder where the run writes a file"):
        old_run.check(resume=True, behaviors={"Walker": None})


def test_a_file_where_a_folder_shall_be_is_found_before_the_start(old_run):
    shutil.rmtree(old_run.logs)
    old_run.logs.write_text("")
    with pytest.raises(RunFolderError, match="run_logs is no folder"):
        old_run.check(resume=True)
    old_run.check(resume=True, writes=False)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(files.ArtifactError, match="--results-dir"):
        RunFolder(tmp_path, "a").check()


def test_an_almost_full_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MIN_FREE_BYTES", 2**62)
    with pytest.raises(RunFolderError, match=r"almost full.*MiB free"):
        RunFolder(tmp_path, "a").check()


def test_force_keeps_the_old_run_until_training_begins(old_run, log):
    before = everything(old_run)
    old_run.check(force=True)
    old_run.prepare()
    assert everything(old_run) == before
    old_run.begin(resume=False)
    assert everything(old_run) == ["Walker", "Walker/notes.txt", "run_logs", "run_logs/Player-0.log"]
    assert [record.levelname for record in log.records] == ["WARNING"]
    assert "events.out.tfevents.1.host" in log.text


def test_force_removes_events_of_seeds_and_exploiters_and_of_no_other_folder(old_run):
    for name in ("seed_3", "exploiter_4", "sextant_5", "sets_6"):
        (old_run.path / "Walker" / name).mkdir()
        (old_run.path / "Walker" / name / "events.out.tfevents.1.host").write_text("events")
        (old_run.path / "Walker" / name / "metrics.csv").write_text("table")
    old_run.begin(resume=False)
    left = {path.parent.name for path in (old_run.path / "Walker").glob("*/*")}
    assert left == {"sextant_5", "sets_6"}
    assert {path.name for path in (old_run.path / "Walker").iterdir()} == {"notes.txt", "sextant_5", "sets_6"}


def test_resume_keeps_everything_but_unfinished_saves(old_run, log):
    before = everything(old_run)
    (old_run.behavior("Walker") / "Walker-300.partial").mkdir()
    old_run.check(resume=True)
    old_run.prepare()
    old_run.begin(resume=True)
    assert everything(old_run) == before
    assert "Walker-300.partial" in log.text


def test_a_checkpoint_set_aside_when_the_run_was_killed_counts_for_resume(old_run):
    folder = old_run.behavior("Walker")
    for item in ("Walker-100", "Walker-200"):
        (folder / item).rename(folder / f"{item}.old")
    old_run.check(resume=True)
    assert (folder / "Walker-200" / "checkpoint.json").is_file()


BAD_NAMES = ["", "a/", "a:b", "..", "a ", " a", "a\\b", "a|b", "a\x00b", "a\nb", "nul", "COM1.x", "\udcff"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_no_folder_can_have(tmp_path, name):
    with pytest.raises(RunFolderError):
        behavior_name(name)
    with pytest.raises(RunFolderError, match=r"--run-id .* cannot be the name of a folder"):
        RunFolder(tmp_path, name).check()


@pytest.mark.parametrize("name", ["run_logs", "Run_Logs", "configuration.yaml"])
def test_a_behavior_does_not_take_the_name_of_what_stands_beside_it(name):
    with pytest.raises(RunFolderError, match="cannot be the name of a folder"):
        behavior_name(name)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux: 255 bytes a name, 4096 a path")
def test_names_and_paths_that_are_too_long(tmp_path):
    with pytest.raises(RunFolderError, match=r"--run-id xxxxx.* is 256 bytes long, this file system takes 255"):
        RunFolder(tmp_path, "x" * 256).check()
    with pytest.raises(RunFolderError, match="is 256 bytes long"):
        RunFolder(tmp_path, "ä" * 128).check()  # 2 bytes each
    RunFolder(tmp_path, "x" * 255).check()
    with pytest.raises(RunFolderError, match=r"behavior name yyy.* is 176 bytes long.*at most 175 fit"):
        RunFolder(tmp_path, "run").check(behaviors={"y" * 176: None})
    RunFolder(tmp_path, "run").check(behaviors={"y" * 175: None})
    deep = tmp_path.joinpath(*["d" * 200] * 20)  # 4020 bytes and more: legal alone, not with the names below
    with pytest.raises(RunFolderError, match=r"--results-dir .* this system takes 4096"):
        RunFolder(deep, "run").check()
    assert list(tmp_path.iterdir()) == []


def test_a_name_of_the_greatest_length_can_really_be_saved(tmp_path):
    folder = RunFolder(tmp_path, "run").behavior("y" * 175)
    checkpoint.save(folder, 2**31 - 1, {"params": np.ones(3)})
    assert (folder / f"{'y' * 175}-2147483647" / "checkpoint.json").is_file()


def test_force_deletes_nothing_through_a_link(tmp_path, old_run):
    before = everything(old_run)
    (tmp_path / "linked").symlink_to(tmp_path / "results")
    (tmp_path / "results" / "alias").symlink_to(tmp_path / "results" / "old")
    for run in (RunFolder(tmp_path / "linked", "old"), RunFolder(tmp_path / "results", "alias")):
        with pytest.raises(RunFolderError, match=r"is a symbolic link to .*--force deletes nothing through a link"):
            run.check(force=True)
        run.check(resume=True)
    (tmp_path / "elsewhere").mkdir()
    (old_run.path / "Walker" / "kept").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=r"kept is a symbolic link"):
        old_run.check(force=True)
    (old_run.path / "Walker" / "kept").unlink()
    assert everything(old_run) == before


def test_a_run_that_goes_on_writes_nothing_through_a_link_out_of_its_folder(tmp_path, old_run):
    """It may be somebody else's: abandoned files are deleted there, and a lock is written over."""
    outside, file = tmp_path / "outside", tmp_path / "file"
    outside.mkdir()
    (outside / "report.tmp").write_text("mine")
    file.write_text("mine")
    resumes = CheckpointSettings(resume=True)
    (old_run.path / "inner").symlink_to(old_run.path / "Walker")
    for name, target in (("Other", outside), ("run.lock", file), ("Walker/self_play", outside), ("run_logs/a", file),
                         ("Walker/metrics.csv", file), ("gone", tmp_path / "nowhere")):  # fmt: skip
        link = old_run.path / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target)
        with (
            pytest.raises(RunFolderError, match=rf"{name} is a symbolic link to .*--resume writes and deletes nothing"),
            old_run.claimed(resumes),
        ):
            pass
        with old_run.claimed(CheckpointSettings(resume=True, inference=True)):
            pass
        link.unlink()
    assert file.read_text() == (outside / "report.tmp").read_text() == "mine"
    with old_run.claimed(resumes):
        old_run.begin(resume=True)


def test_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for run in (RunFolder(tmp_path / "gone", "run"), RunFolder(tmp_path, "gone")):
        with pytest.raises(RunFolderError, match=r"symbolic link to .*nowhere, which is not there"):
            run.check()


def test_a_results_folder_with_nul(tmp_path):
    with pytest.raises(RunFolderError, match=r"--results-dir .* NUL"):
        RunFolder(f"{tmp_path}/a\x00b", "run").check()


def test_what_is_refused_leaves_no_folder(tmp_path, old_run):
    with pytest.raises(RunFolderError), RunFolder(tmp_path / "r", "run").claimed(CheckpointSettings(resume=True)):
        pytest.fail("there is nothing to resume")
    assert not (tmp_path / "r").exists()
    run = RunFolder(tmp_path / "r" / "s", "run")
    with run.claimed(CheckpointSettings()):
        assert (run.path / "run.lock").is_file()
    assert not (tmp_path / "r").exists()
    with pytest.raises(KeyboardInterrupt), run.claimed(CheckpointSettings()):
        run.prepare()  # for players, of which none has started
        raise KeyboardInterrupt
    assert not (tmp_path / "r").exists()
    with run.claimed(CheckpointSettings()):
        run.prepare()
        (run.logs / "Player-0.log").write_text("no display")
    assert everything(run) == ["run_logs", "run_logs/Player-0.log"]


def test_an_evaluation_takes_no_lock(old_run):
    before = everything(old_run)
    options = CheckpointSettings(run_id="old", resume=True)
    evaluation = options.model_copy(update={"inference": True})
    with old_run.claimed(options), old_run.claimed(evaluation):
        assert everything(old_run) == sorted([*before, "run.lock"])
    assert everything(old_run) == before


def test_names_with_blanks_dots_and_teams_are_fine():
    assert behavior_name("My Walker v1.2?team=3") == "My Walker v1.2"


def test_a_run_may_lie_in_folders_below_the_results_but_in_no_other_run(tmp_path):
    """`levels/easy` beside `levels/hard`; nothing leads out of the results folder."""
    results = tmp_path / "results"
    for name in ("levels/easy", "levels/hard"):
        with RunFolder(results, name).claimed(CheckpointSettings(run_id=name)):
            RunFolder(results, name).prepare()
            (results / name / "Walker.onnx").write_text("a policy")
            RunFolder(results, name).timers.write_text("{}")
    with pytest.raises(RunFolderError, match="holds a run, and another cannot lie in it"):
        RunFolder(results, "levels/easy/Walker").check()
    with pytest.raises(RunFolderError, match="already holds a run"):
        RunFolder(results, "levels/easy").check()
    with RunFolder(results, "other/one").claimed(CheckpointSettings(run_id="other/one")):
        pass
    assert sorted(path.name for path in results.iterdir()) == ["levels"], "nothing is left where nothing was written"
    for name in ("../out", "levels/../../out", "/out", "levels//easy", "levels/", "levels/."):
        with pytest.raises(RunFolderError, match="cannot be the name of a folder"):
            RunFolder(results, name).check()


@pytest.mark.parametrize("names", [("B", "B.onnx"), ("b.ONNX", "B"), ("Walker", "walker?team=1")])
def test_behaviors_whose_files_would_be_the_same_are_refused(tmp_path, names):
    with pytest.raises(RunFolderError, match=r"would both write to '(b\.onnx|walker)' in the run's folder") as caught:
        RunFolder(tmp_path, "run").check(behaviors=dict.fromkeys(names))
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []
    RunFolder(tmp_path, "run").check(behaviors=dict.fromkeys(["B?team=0", "B?team=1", "C.onnx"]))

"""Which folders are one experiment, and what is refused."""

import shutil

import pytest

from jaxrl.tools.report.events import ReportError
from jaxrl.tools.report.report import remarks_on, write_report
from jaxrl.tools.report.runs import group, read_run
from jaxrl.tools.report.tables import time_of
from tests.tools.report.report_folders import TIMERS, write_run


def labels(*folders):
    return [(e.label, len(e.seeds("Walker"))) for e in group([read_run(folder) for folder in folders])]


def test_runs_that_differ_in_their_seed_alone_are_one_experiment(tmp_path):
    poca = [write_run(tmp_path, f"poca-{seed}", seed=seed) for seed in (1, 2, 3)]
    ppo = [write_run(tmp_path, f"ppo-{seed}", seed=seed, trainer="ppo") for seed in (1, 2)]
    assert labels(*poca, *ppo) == [("poca", 3), ("ppo", 2)]
    again = write_run(tmp_path, "later", seed=1)  # a seed that was there: another version, perhaps
    assert labels(poca[0], poca[1], again) == [("poca", 2), ("later", 1)]


def test_many_seeds_in_one_run(tmp_path):
    many = write_run(tmp_path, "many", seeds=12)
    (run,) = group([read_run(many)])[0].runs
    assert list(run.behaviors["Walker"]) == [str(n) for n in range(12)]  # 2 before 10
    assert labels(many, write_run(tmp_path, "more", seed=12)) == [("many and 1 more", 13)]
    assert labels(many, write_run(tmp_path, "again", seed=11)) == [("many", 12), ("again", 1)]


def test_runs_without_configuration_stay_alone(tmp_path):
    folders = [write_run(tmp_path / str(n), "a", seed=n, configuration=False) for n in (1, 2)]
    assert labels(*folders) == [("a #1", 1), ("a #2", 1)]


def test_time_split_and_throughput(tmp_path):
    run = read_run(write_run(tmp_path, "many", seeds=3))
    spent = time_of(run)
    assert spent is not None
    assert spent.phases == {"environment": 4.0, "act": 2.0, "update": 3.0, "compiled loop": 0.0, "other": 1.0}
    assert (spent.seconds, spent.steps_per_second) == (10.0, 3 * 2000 / 10.0)
    began = max(seed.began for seed in run.behaviors["Walker"].values())
    for seconds, known in ((0, True), (-2, False)):  # of the session before: this one goes on, or was killed
        metadata = {"end_time_seconds": str(int(began) + seconds)}
        told = run._replace(timers={**TIMERS, "metadata": metadata})
        assert (time_of(told) is not None) == known and known != ("its time" in str(remarks_on(group([told]))))
    nested = {"env_step": {"total": 7.0, "children": {"TorchPolicy.evaluate": {"total": 2.0}}}}  # as ML-Agents does
    advance = {"TrainerController.advance": {"total": 9.0, "children": nested}}
    tree = {"children": {"TrainerController.start_learning": {"total": 10.0, "children": advance}}}
    spent = time_of(run._replace(timers=tree))
    assert spent is not None and spent.phases == {
        "environment": 5.0,
        "act": 2.0,
        "update": 0.0,
        "compiled loop": 0.0,
        "other": 3.0,
    }
    assert time_of(run._replace(timers={"children": {}})) is None and time_of(run._replace(timers=None)) is None


def test_what_is_refused(tmp_path):
    run = write_run(tmp_path, "a")
    with pytest.raises(ReportError, match=r"'.pdf', expected .html or .png"):
        write_report([run], tmp_path / "report.pdf")
    with pytest.raises(ReportError, match="is a folder"):
        (tmp_path / "x.html").mkdir()
        write_report([run], tmp_path / "x.html")
    with pytest.raises(ReportError, match="b does not exist"):
        write_report([run, tmp_path / "b"], tmp_path / "report.html")
    with pytest.raises(ReportError, match=rf"It holds runs: give those, such as {tmp_path / 'a'}"):
        read_run(tmp_path)
    with pytest.raises(ReportError, match="is a file, not a folder"):
        read_run(run / "configuration.yaml")
    shutil.rmtree(run / "Walker")
    with pytest.raises(ReportError, match="holds no summaries of training"):
        read_run(run)
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"--out .* cannot be written"):
        write_report([write_run(tmp_path, "b")], tmp_path / "file" / "report.html")


def test_runs_and_behaviors_without_curves_are_named(tmp_path):
    """A run that ended before its first summary, one of whose behaviors never came, and Unity's files beside events."""
    run, empty, none = (write_run(tmp_path, name) for name in "abc")
    meta = next(run.glob("Walker/events.out.*"))
    meta.with_name(f"{meta.name}.meta").write_text("fileFormatVersion: 2\n")
    (run / "Pilot").mkdir()
    (run / "Pilot" / meta.name).write_bytes(b"")
    next(empty.glob("Walker/events.out.*")).write_bytes(b"")
    shutil.rmtree(none / "Walker")
    remarks = write_report([run, empty, none], tmp_path / "report.html")
    hint = "Expected <Behavior>/events.out.tfevents.* in it: did training get as far as its first summary_freq?"
    assert remarks == [
        *(f"Left out, it has no curves: {path} holds no summaries of training. {hint}" for path in (empty, none)),
        "a: has no curves of Pilot, only empty event files.",
    ]
    assert "has no curves of Pilot" in (tmp_path / "report.html").read_text()
    with pytest.raises(ReportError, match=r"b holds no summaries of training"):
        write_report([empty, none], tmp_path / "other.html")
    with pytest.raises(ReportError, match=r"It holds runs: give those"):
        write_report([run, tmp_path], tmp_path / "other.html")


def test_a_broken_configuration_is_named(tmp_path):
    run = write_run(tmp_path, "a")
    (run / "configuration.yaml").write_text("behaviors: [")
    with pytest.raises(ReportError, match=r"configuration\.yaml: cannot be read"):
        read_run(run)

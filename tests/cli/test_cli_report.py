"""The command `jaxrl report`."""

import argparse
import logging

import pytest

from jaxrl.cli import report
from jaxrl.tools.report.events import ReportError
from tests.tools.report.report_folders import write_run


def call(*argv):
    parser = argparse.ArgumentParser()
    report.add_flags(parser)
    report.run(parser.parse_args(list(map(str, argv))))


@pytest.fixture(autouse=True)
def quiet_logger():
    """Take the console handler off again that the command sets up."""
    logger = logging.getLogger("jaxrl")
    handlers, propagate, level = list(logger.handlers), logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_a_report_of_one_run_in_the_current_folder(tmp_path, monkeypatch, capsys):
    write_run(tmp_path, "first")
    monkeypatch.chdir(tmp_path)
    call("first")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert "Wrote report.html." in capsys.readouterr().out


def test_remarks_are_shown_and_errors_reach_the_caller(tmp_path, capsys):
    call(write_run(tmp_path, "a", configuration=False), "--out", tmp_path / "a.html")
    assert "a: no configuration.yaml" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(ReportError, match="does not exist"):
        call(tmp_path / "missing", "--out", tmp_path / "b.html")
    with pytest.raises(SystemExit):
        call()


def test_a_report_that_cannot_be_written_whole_leaves_the_one_before(tmp_path):
    resource = pytest.importorskip("resource")  # not on Windows
    run, out = write_run(tmp_path, "a"), tmp_path / "out" / "a.html"
    call(run, "--out", out)
    before, limits = out.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ReportError, match="cannot be written"):
            call(run, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_bytes() == before and list(out.parent.iterdir()) == [out]

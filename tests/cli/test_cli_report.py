"""The command `jaxrl report`."""

import argparse
import logging

import pytest

from jaxrl.cli import report
from jaxrl.report.events import ReportError
from tests.report.report_folders import write_run


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

"""The summary line, the settings listing, log lines and the progress bar."""

import io
import logging
import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from jaxrl.artifacts.metrics import statistics as metrics
from jaxrl.artifacts.metrics.console import lesson_texts, listing, setup_logging, summary_line
from jaxrl.artifacts.metrics.progress import ProgressBar, progress_text
from jaxrl.artifacts.metrics.statistics import StatsAggregator, Summary
from jaxrl.settings import Curriculum
from jaxrl.types import Aggregation


@pytest.fixture
def jaxrl_logger():
    logger = logging.getLogger("jaxrl")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


def summaries(group=None, elo=None, rewards=(1.0, 2.0, 6.0), training=1.0):
    stats = StatsAggregator()
    stats.extend(metrics.CUMULATIVE_REWARD, rewards, Aggregation.HISTOGRAM)
    stats.extend(metrics.GROUP_CUMULATIVE_REWARD, group or (), Aggregation.HISTOGRAM)
    stats.extend(metrics.ELO, elo or ())
    stats.add(metrics.IS_TRAINING, training, Aggregation.MOST_RECENT)
    return stats.take()


def test_the_line_is_that_of_ml_agents():
    """Word for word, but that the std of group rewards stands there too."""
    # std of (1, 2, 6) around 3: sqrt(14 / 3) = 2.160
    assert summary_line("Walker", 5000, 3.4561, summaries()) == (
        "Walker. Step: 5000. Time Elapsed: 3.456 s. Mean Reward: 3.000. Std of Reward: 2.160. Training."
    )
    assert summary_line("DungeonEscape", 5000, 3.4561, summaries(group=[0.5])) == (
        "DungeonEscape. Step: 5000. Time Elapsed: 3.456 s. Mean Reward: 3.000. Mean Group Reward: 0.500. "
        "Std of Group Reward: 0.000. Training."
    )
    assert summary_line("Soccer", 1, 0.0, summaries(elo=[1200.0], training=0.0)) == (
        "Soccer. Step: 1. Time Elapsed: 0.000 s. Mean Reward: 3.000. Std of Reward: 2.160. Not Training. ELO: 1200.000."
    )
    assert summary_line("Walker", 5000, 1.0, summaries(rewards=())) == (
        "Walker. Step: 5000. Time Elapsed: 1.000 s. No episode was completed since last summary. Training."
    )


def test_lessons_stand_behind_the_line():
    lesson = {"value": 0.0, "completion_criteria": {"behavior": "B", "measure": "progress", "threshold": 0.5}}
    lessons = [{"name": name, **lesson} for name in ("Easy", "Middle", "Hard")]
    wall, door = (Curriculum.model_validate({"curriculum": lessons[:count]}) for count in (3, 1))
    parameters = {"wall": wall, "gravity": 9.8, "door": door}
    seeds = [{metrics.lesson_tag(name): Summary.of(1.0) for name in parameters}] * 2
    assert lesson_texts(parameters, seeds) == ["Lesson of wall: 2 of 3 (Middle)"]
    seeds[1] = {metrics.lesson_tag("wall"): Summary.of(2.0)}
    assert lesson_texts(parameters, [*seeds, {}]) == ["Lesson of wall: 2 to 3 of 3"]
    assert lesson_texts(parameters, [{}]) == [] and lesson_texts(None, seeds) == []
    line = summary_line("Walker", 5, 1.0, summaries(elo=[1200.0]), ["Lesson of wall: 2 of 3 (Middle)"])
    assert line.endswith("Training. ELO: 1200.000. Lesson of wall: 2 of 3 (Middle).")
    line = summary_line("Walker", 5, 1.0, summaries(rewards=()), ["Lesson of wall: 2 of 3 (Middle)"])
    assert line.endswith("since last summary. Training. Lesson of wall: 2 of 3 (Middle).")


def test_settings_are_listed_as_ml_agents_lists_them():
    settings = {"trainer_type": "poca", "network_settings": {"hidden_units": 256, "memory": None}, "empty": {}}
    assert listing(settings).splitlines() == [
        "\ttrainer_type:\tpoca",
        "\tnetwork_settings:\t",
        "\t  hidden_units:\t256",
        "\t  memory:\tNone",
        "\tempty:\t{}",
    ]


def test_log_lines_are_plain_unwrapped_and_survive_the_encoding(jaxrl_logger):
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="cp1252", write_through=True))
    setup_logging(console)
    setup_logging(console)  # twice must not print twice
    text = "[red]not markup[/red] " + "long " * 40 + "行動"
    logging.getLogger("jaxrl.training.host.loop").warning("%s", text)
    logging.getLogger("jaxrl.training.host.loop").debug("hidden")
    assert raw.getvalue().decode("cp1252").splitlines() == ["[WARNING] " + text.replace("行動", "\\u884c\\u52d5")]


def test_debug_lines_carry_date_file_and_line(jaxrl_logger):
    out = io.StringIO()
    setup_logging(Console(file=out), debug=True)
    logging.getLogger("jaxrl.x").debug("shown")
    assert "DEBUG [test_console.py:" in out.getvalue() and out.getvalue().startswith("20")


def test_without_a_terminal_there_is_no_bar():
    out = io.StringIO()
    with ProgressBar(Console(file=out)) as bar:
        assert not bar.due()
        bar.show("Walker", 10, 100, 1.0, {"environment": 1.0})
    assert out.getvalue() == ""


def test_the_text_beside_the_bar():
    text = progress_text(60_000, 500_000, 1.23456, 1000.0, {"environment": 6.0, "act": 1.0, "update": 3.0})
    # 440,000 steps left at 1,000 steps/s = 440 s = 7:20
    assert text == ("60,000/500,000 · 1,000 steps/s · 0:07:20 left · reward 1.235 · environment 60% act 10% update 30%")
    assert progress_text(0, 10, None, 0.0, {}) == "0/10"
    assert progress_text(11, 10, 0.5, 3.0, {}) == "11/10 · 3 steps/s · done · reward 0.500", "others are not"
    assert progress_text(10, 10, None, 3.0, {}) == "10/10 · 3 steps/s · 0:00:00 left", "equality continues"
    assert progress_text(1234, None, None, 3.0, {}) == "1,234 · 3 steps/s", "with inference"


BAR = """
import threading, time, sys
from rich.console import Console
from jaxrl.artifacts.metrics.console import setup_logging
from jaxrl.artifacts.metrics.progress import ProgressBar
console = Console()
logger = setup_logging(console)
with ProgressBar(console) as bar:
    shown = calls = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < 1.2:
        calls += 1
        if bar.due():
            shown += 1
            bar.show("Walker", shown * 100, 1000, 0.5, {"environment": shown * 0.2, "act": 0.0})
            logger.info("line %d", shown)
    assert threading.active_count() == 1, threading.enumerate()
print("shown", shown, "calls", calls)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_real_terminal_shows_bar_and_lines_a_few_times_per_second():
    import pty

    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140"}
    child = subprocess.Popen([sys.executable, "-c", BAR], stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    output, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux: the other side has closed
            break
        if not chunk:
            break
        output += chunk
    os.close(master)
    assert child.wait(timeout=60) == 0, output.decode()
    text = output.decode()
    assert "100/1,000" in text and "environment 100%" in text and "steps/s" in text
    assert "[INFO] line 1\r\n" in text
    shown = int(text.split("shown ")[1].split()[0])
    assert 1 <= shown <= 6  # 1.2 s at 4 Hz, plus the first
    assert "calls" in text.rstrip().splitlines()[-1]

"""Real players and workers that die in the middle of a run, and play mode that is stopped: the run goes on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import pytest

from jaxrl.envs.unity import environment as unity
from tests import trainer
from tests.envs.processes import comes_true
from tests.envs.unity_build import free_port
from tests.event_files import read_events

pytestmark = trainer.MARKS
RESTART_TAGS = {"Environment/Worker Restarts", "Environment/Faulty Episodes"}
RARE = {
    **trainer.QUICK,
    "*.max_steps": trainer.ENDLESS,
    "*.checkpoint_interval": trainer.ENDLESS,
    "env_settings.num_areas": 2,
}


def count(process: trainer.Trainer, words: str) -> int:
    return " ".join(process.stdout.split()).count(words)


def test_u31_u32_s22_killed_workers_and_players_are_replaced_while_the_run_goes_on(start, tmp_path):
    """X11: each time the log says how many episodes were lost. Afterwards no process is left."""
    process = start(trainer.config(tmp_path, RARE), "--num-envs", "2", "--restarts-rate-limit-n", "-1")
    process.says("Step: 300.")
    for number, word in enumerate((trainer.WORKER, trainer.PLAYER, trainer.WORKER), start=1):
        victim = process.living(word)[-1]
        (victim.suspend if number == 3 else victim.kill)()
        if number == 3:
            victim.kill()
        assert comes_true(lambda n=number: count(process, "faulty episodes of worker") == n, 60), process.stdout
        last = process.stdout.count("Step: ")
        assert comes_true(lambda n=last: process.stdout.count("Step: ") > n, 60), process.stdout
    assert count(process, "is started again (restart ") == 3
    assert len(process.living(trainer.WORKER)) == len(process.living(trainer.PLAYER)) == 2
    process.interrupt()
    assert process.wait() == 0 and process.leaves_nothing(), process.living()
    assert "Traceback" not in process.stdout + process.stderr


def test_m25_a_second_death_within_the_minute_ends_the_run_saved_and_explained(start, tmp_path):
    process = start(trainer.config(tmp_path, RARE))
    for number in (1, 2):
        process.says(f"Step: {300 * number}.")
        process.one(trainer.PLAYER).kill()
        if number == 1:
            assert comes_true(lambda: count(process, "faulty episodes of worker 0") == 1, 60), process.stdout
    assert process.wait(90) == 1 and process.leaves_nothing()
    error = " ".join(process.stderr.split())
    assert "environment worker 0 is not started again: it has had 1 within the last 60 s" in error
    assert "env_settings.restarts_rate_limit_n" in error and "SIGKILL" in error and "Traceback" not in error
    (step,) = trainer.steps(tmp_path / "results")
    assert step >= 600
    previous = tmp_path / "results" / "run" / "run_logs" / "Player-0.previous.log"
    assert previous.is_file() == (previous.parent / "Player-0.log").is_file()


class Heard(logging.Handler):
    """What the run has said so far."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"

    def count(self, words: str) -> int:
        return self.text.count(words)


class Editor:
    """Presses Play and Stop on the Editor's port, beside the trainer."""

    def __init__(self, port: int) -> None:
        script = trainer.ENVS / "countdown_player.py"
        self._command = [sys.executable, str(script), "--mlagents-port", str(port), "--answer-seconds", "600"]
        self._player: subprocess.Popen[bytes] | None = None

    def play(self) -> None:
        self._player = subprocess.Popen(self._command, env=os.environ | {"PYTHONPATH": str(trainer.ROOT)})

    def stop(self) -> None:
        if self._player is not None:
            self._player.terminate()
            self._player.wait(10)


def test_stop_in_the_editor_pauses_the_run_and_play_goes_on(tmp_path, monkeypatch):
    """Stopped twice: it is saved each time; after the first, Play goes on with new episodes; after the second nobody
    presses it within 3 seconds, and the run ends as it did before, in order. No restart is allowed, needed or counted.
    """
    monkeypatch.setattr(unity, "EDITOR_PORT", free_port())
    editor, saved, heard = Editor(unity.EDITOR_PORT), [], Heard()
    logging.getLogger("jaxrl").addHandler(heard)  # the fixture `runs` takes it away
    results = tmp_path / "results"
    changes = {**RARE, "env_settings.env_path": None, "env_settings.max_lifetime_restarts": 0}

    def play_and_stop() -> None:
        for number in (1, 2):
            editor.play()
            comes_true(lambda n=number: heard.count("Step: ") >= 3 * n, 200)
            editor.stop()
            comes_true(lambda n=number: heard.count("Press Play within 3 seconds") == n, 30)
            saved.extend(trainer.steps(results)[-1:])

    hand = threading.Thread(target=play_and_stop)
    hand.start()
    try:
        flags = ("--inline", "--editor-wait", "3", "--timeout-wait", "100")
        assert trainer.train(trainer.config(tmp_path, changes), results, *flags) == 0
    finally:
        hand.join(60)
        editor.stop()
    assert len(saved) == 2 and 900 <= saved[0] < saved[1] == trainer.steps(results)[-1]
    assert heard.count(" episodes of worker 0 end here") == 1
    (events,) = (results / "run" / trainer.BEHAVIOR).glob("events*")
    tags = {value.tag for event in read_events(events) for value in event.summary.value}
    assert not heard.count("faulty") and not tags & RESTART_TAGS and "Environment/Episode Length" in tags
    assert heard.count("Learning ends here") == heard.count("nobody pressed Play") == 1
    assert heard.count("is started again") == 0


NAN, MISSING = ("nan_observation", "nan is not a finite number"), ("floats_missing", "received (3,) with 2 numbers")


@pytest.mark.parametrize(
    ("scenario", "words", "on_bad_data"),
    [
        (*NAN, "error"),
        (*NAN, "restart"),
        pytest.param(*MISSING, "error", marks=pytest.mark.slow),  # both halves are shown by its neighbours
        (*MISSING, "restart"),
    ],
)
def test_unusable_data_of_an_agent_end_the_run_or_its_episodes(start, tmp_path, scenario, words, on_bad_data):
    """The player sends NaN, or too little, in its second message, also after a restart: one is allowed in a minute."""
    script = ("scripted_player.py", f"--scenario {scenario}")
    changes = {"env_settings.env_path": str(trainer.player(tmp_path, *script)), **RARE}
    process = start(trainer.config(tmp_path, changes, behavior="Walker"), "--on-bad-data", on_bad_data)
    assert process.wait(200) == 1 and process.leaves_nothing()
    error = " ".join(process.stderr.split())
    assert "agent 2, sensor 0 ('vector'): " in error and words in error
    assert ("is not started again: it has had 1" in error) == (on_bad_data == "restart")
    assert ("on_bad_data: restart" in error) == (on_bad_data == "error")

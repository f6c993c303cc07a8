"""Processes that die or hang in the middle of a run: one clear error, what was learnt is saved, nobody is left over."""

from __future__ import annotations

import time

import pytest

from tests import trainer

pytestmark = trainer.MARKS
ENDLESS = {**trainer.QUICK, "*.max_steps": trainer.ENDLESS}
RARE = {**ENDLESS, "*.checkpoint_interval": trainer.ENDLESS}
ONCE = {**RARE, "env_settings.max_lifetime_restarts": 0}
"""What a fault means where nobody is started again; where somebody is stands in test_restarts.py."""


def ends_with_one_error(process: trainer.Trainer, *words: str, seconds: float = 40.0) -> str:
    """Exit code 1, all words in one message on standard error (a player's log may follow), no process left."""
    assert process.wait(seconds) == 1
    assert process.leaves_nothing(), process.living()
    error = process.stderr
    assert [word for word in words if word not in error] == [], error
    assert "Traceback" not in error + process.stdout and "[ERROR]" not in process.stdout
    assert error.count("environment worker 0 is not started again: env_settings.max_lifetime_restarts is 0.") == 1
    return error


def test_killed_player(start, tmp_path):
    process = start(trainer.config(tmp_path, ONCE))
    process.says("Step: 600.")
    process.one(trainer.PLAYER).kill()
    ends_with_one_error(process, "worker 0", "SIGKILL", "To see its output, run")
    (step,) = trainer.steps(tmp_path / "results")
    assert step >= 600 and trainer.final_state(tmp_path / "results")["step"] == step


def test_player_that_is_closed(start, tmp_path):
    """As the player's window, or play mode in the Editor: the run saves and ends normally."""
    process = start(trainer.config(tmp_path, RARE))
    process.says("Step: 600.")
    process.one(trainer.PLAYER).terminate()
    assert process.wait() == 0
    assert process.leaves_nothing()
    text = " ".join(process.stdout.split())
    assert "Learning ends here: environment worker 0 has closed" in text and "(status 400)" in text
    assert "Traceback" not in process.stdout + process.stderr
    (step,) = trainer.steps(tmp_path / "results")
    assert step >= 600 and (tmp_path / "results" / "run" / "Countdown.onnx").is_file()


def test_killed_worker(start, tmp_path):
    process = start(trainer.config(tmp_path, ONCE))
    process.says("Step: 600.")
    process.one(trainer.WORKER).kill()
    ends_with_one_error(process, "worker 0", "SIGKILL", "out of memory")
    assert len(trainer.steps(tmp_path / "results")) == 1


def test_hanging_player(start, tmp_path):
    process = start(trainer.config(tmp_path, ONCE), "--timeout-wait", "3")
    process.says("Step: 600.")
    process.one(trainer.PLAYER).suspend()
    begin = time.monotonic()
    ends_with_one_error(process, "no answer within 3 seconds")
    assert time.monotonic() - begin < 20
    assert len(trainer.steps(tmp_path / "results")) == 1


DEAF = f"""
import signal, sys, time
sys.path.insert(0, {str(trainer.ENVS)!r})
import countdown_player
signal.signal = lambda number, handler: None
countdown_player.main()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
time.sleep(100)
"""
"""A player that hears neither that the trainer stops nor SIGTERM."""


@pytest.mark.parametrize(
    "state",
    [
        "learning",
        pytest.param("hanging player", marks=pytest.mark.slow),
        pytest.param("deaf player", marks=pytest.mark.slow),
        "start-up",
    ],
)
def test_killed_trainer_leaves_no_process(start, tmp_path, state):
    changes = dict(ENDLESS)
    (tmp_path / "deaf_player.py").write_text(DEAF)
    if state == "deaf player":
        changes["env_settings.env_path"] = str(trainer.player(tmp_path, str(tmp_path / "deaf_player.py")))
    if state == "start-up":
        script = ("scripted_player.py", "--scenario never_connects")
        changes["env_settings.env_path"] = str(trainer.player(tmp_path, *script))
    process = start(trainer.config(tmp_path, changes))
    player = process.one(trainer.PLAYER)
    if state != "start-up":
        process.says("Step: 900.")  # after the first checkpoint
    if state == "hanging player":
        player.suspend()
    process.process.kill()
    process.wait()
    assert process.leaves_nothing(8), process.living()
    if state == "learning":
        resumes(tmp_path)


def resumes(tmp_path) -> None:
    """The run goes on from its last checkpoint."""
    results = tmp_path / "results"
    last = trainer.steps(results)[-1]
    assert not (results / "run" / "run_logs" / "timers.json").exists()  # the run had no time to say goodbye
    configuration = trainer.config(tmp_path, {**trainer.QUICK, "*.max_steps": last + 300})
    assert trainer.train(configuration, results, "--resume") == 0
    assert trainer.steps(results)[-1] > last + 300


def test_diverged_training_keeps_the_good_checkpoint(runs, tmp_path, capsys):
    first = {**trainer.QUICK, "*.max_steps": 600, "*.checkpoint_interval": 250}
    assert trainer.train(trainer.config(tmp_path, first), tmp_path) == 0
    before = trainer.steps(tmp_path)
    capsys.readouterr()
    wild = {**ENDLESS, "environment_parameters": {"bonus": 1e38}}  # rewards whose squares are beyond float32
    assert trainer.train(trainer.config(tmp_path, wild), tmp_path, "--resume") == 1
    error = capsys.readouterr().err
    assert "training has diverged. Lower hyperparameters.learning_rate (now 0.001)" in error
    assert len(error.strip().splitlines()) == 1
    assert trainer.steps(tmp_path) == before

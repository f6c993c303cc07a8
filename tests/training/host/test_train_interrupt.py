"""Signals in real processes: the first saves (exit code 0, of SIGTERM 143), the second leaves at once; no strays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from jaxrl.training.interrupt import EXIT_CODE, SAME_SECONDS, Interrupt, in_thread
from tests import trainer

pytestmark = trainer.MARKS
ENDLESS = {**trainer.QUICK, "*.max_steps": trainer.ENDLESS, "*.checkpoint_interval": trainer.ENDLESS}


CODES = {"ctrl-c": 0, "sigterm": 143, "sigterm to the group": 143, "sighup": 129}


@pytest.mark.parametrize("how", [pytest.param(how, marks=pytest.mark.slow if how == "sighup" else ()) for how in CODES])
def test_first_signal_saves_and_ends(start, tmp_path, how):
    """A scheduler's SIGTERM reaches workers and players as well, or the trainer alone."""
    if how == "sighup" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("the tests were started under nohup, where SIGHUP stays ignored")
    process = start(trainer.config(tmp_path, ENDLESS))
    process.says("Step: 600.")
    begin = time.monotonic()
    if how == "ctrl-c":
        process.interrupt()
    elif how == "sigterm to the group":
        os.killpg(process.process.pid, signal.SIGTERM)
    else:
        os.kill(process.process.pid, signal.SIGHUP if how == "sighup" else signal.SIGTERM)
    assert process.wait() == CODES[how], process.stdout + process.stderr
    seconds = time.monotonic() - begin
    print(f"{how}: saved and gone after {seconds:.2f} s")
    assert seconds < 10 and process.leaves_nothing()
    assert "Learning was interrupted" in process.stdout and "Traceback" not in process.stdout + process.stderr
    (step,) = trainer.steps(tmp_path / "results")
    assert step >= 600 and (tmp_path / "results" / "run" / "Countdown.onnx").is_file()
    state = trainer.final_state(tmp_path / "results")
    assert state["step"] == step
    assert not (tmp_path / "results" / "run" / "run.lock").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_while_the_environment_starts(start, tmp_path, number, code):
    silent = str(trainer.player(tmp_path, "scripted_player.py", "--scenario never_connects"))
    process = start(trainer.config(tmp_path, {"env_settings.env_path": silent}))
    process.one(trainer.PLAYER)
    begin = time.monotonic()
    os.killpg(process.process.pid, number)
    assert process.wait() == code, process.stdout + process.stderr
    assert time.monotonic() - begin < 8 and process.leaves_nothing()
    assert "nothing to save" in process.stdout
    assert trainer.contents(tmp_path / "results") == {}


@pytest.mark.parametrize("moment", ["start-up", "learning"])
def test_second_signal_leaves_at_once(start, tmp_path, moment):
    changes = dict(ENDLESS)
    if moment == "start-up":  # the player ignores everything, so that the first signal cannot be done soon
        script = tmp_path / "deaf.py"
        script.write_text("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)\n")
        changes["env_settings.env_path"] = str(trainer.player(tmp_path, str(script)))
    process = start(trainer.config(tmp_path, changes))
    if moment == "start-up":
        process.one("deaf.py")
    else:
        process.says("Step: 300.")
        process.one(trainer.PLAYER).suspend()  # closing it takes its time
    process.interrupt()
    time.sleep(SAME_SECONDS + 0.3)
    process.interrupt()
    assert process.wait(3) == EXIT_CODE
    assert "Second interrupt" in process.stderr
    assert process.leaves_nothing(), process.living()


def test_the_first_signal_waits_for_a_safe_point(capsys):
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # at once again: counts as the same
        time.sleep(0.05)
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt), interrupt.waiting():
            pytest.fail("it must not begin to wait")
    with Interrupt() as interrupt, pytest.raises(KeyboardInterrupt), interrupt.waiting():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert interrupt.exit_code == 143
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "ending at the next safe point" in capsys.readouterr().err


BUSY = """
import ctypes, signal
from jaxrl.training.interrupt import Interrupt
with Interrupt():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # other threads take it: nothing ends the call below
    print("ready", flush=True)
    ctypes.CDLL(None).sleep(60)
"""


def test_the_second_signal_is_noticed_while_a_program_runs():
    """The main thread is inside one long call, as when XLA compiles: Python runs no signal handler meanwhile."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUSY], cwd=trainer.ROOT, stdout=pipe, stderr=pipe, text=True) as busy:
        assert busy.stdout is not None and busy.stdout.readline() == "ready\n"
        busy.send_signal(signal.SIGINT)
        time.sleep(SAME_SECONDS + 0.2)
        busy.send_signal(signal.SIGINT)
        assert busy.wait(5) == EXIT_CODE


COMPILING = """
import jax, jax.numpy as jnp
from jaxrl.training.host.learner import compile_ahead
from jaxrl.training.interrupt import Interrupt, leave_if_busy
def slow(x):
    for i in range(600):
        x = jnp.sort(jnp.sin(x @ x + i), axis=0)
    return x
with Interrupt() as interrupt:
    compiled = compile_ahead("Slow", jax.jit(slow), jnp.ones((64, 64)))
    print("ready", flush=True)
    try:
        with interrupt.waiting():
            compiled.result()
    except KeyboardInterrupt:
        print("saved")
leave_if_busy()
"""


def test_an_interrupted_process_does_not_wait_for_the_compiler():
    """What `HostLoop.advance` and `launched` do; XLA cannot be stopped, and crashes in a process that just exits."""
    command, pipe = [sys.executable, "-c", COMPILING], subprocess.PIPE
    with subprocess.Popen(command, cwd=trainer.ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(1.5)  # now in XLA
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "saved\n"), error
        assert time.monotonic() - begin < 5


def test_a_long_wait_for_a_program_tells_what_for_and_what_failed_there_is_raised(monkeypatch, caplog):
    monkeypatch.setattr("jaxrl.training.interrupt.TELL_SECONDS", 0.0)

    def fails() -> None:
        time.sleep(0.3)
        raise ValueError("cannot be compiled")

    with Interrupt() as signals, pytest.raises(ValueError, match="cannot be compiled"):
        in_thread(signals, fails)
    assert [record.getMessage()[:55] for record in caplog.records] == [
        "Waiting for the program of this run to be compiled, for"
    ]

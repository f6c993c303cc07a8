"""What a worker does with commands, faults and signals; signals go to real processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
from contextlib import contextmanager
from functools import partial

import pytest
from faulty_env import FailingEnv, FixedEnv, PlayerEnv, SlowEnv
from processes import is_gone
from toy_env import ToyEnv, no_actions

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.transport import Channel, ChannelClosedError, Message, decode_result, encode_actions
from jaxrl.envs.workers.worker import execute, failure_message, parameters_message, reset_message, worker_main
from jaxrl.types import EnvMessage


@contextmanager
def started(factory):
    """A spawned worker 0 and the channel to it."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(
        target=worker_main, args=(theirs, pickle.dumps(factory), 0), daemon=True
    )
    process.start()
    theirs.close()
    channel = Channel(ours, 10.0)
    try:
        yield process, channel
    finally:
        channel.close()
        process.join(10.0)
        process.kill()
        process.join(5.0)


def result_of(message: Message | None) -> EnvMessage:
    assert message is not None
    return decode_result(message, worker=0)


def test_seconds_are_the_environments_own_time():
    environment = SlowEnv(1, step=0.05)
    first = result_of(execute(environment, reset_message(None)))
    second = result_of(execute(environment, encode_actions(no_actions(first))))
    assert first.seconds < 0.05
    assert 0.1 <= second.seconds < 0.5  # worker 1 takes twice 0.05 s


def test_parameters_reach_the_environment_with_and_without_a_reset():
    environment = ToyEnv(0)
    execute(environment, reset_message({"mass": 1.0}))
    assert execute(environment, parameters_message({"wind": 2.0})) is None
    assert environment.parameters == {"mass": 1.0, "wind": 2.0}


def test_an_environment_that_takes_parameters_at_a_reset_only_says_so():
    with pytest.raises(EnvironmentFailure, match=r"FixedEnv takes parameters \(wind\) only with a reset"):
        execute(FixedEnv(0), parameters_message({"wind": 2.0}))


def test_our_own_errors_speak_for_themselves_and_others_name_their_type():
    assert failure_message(EnvironmentFailure("port 5005 is taken"), "step").facts.summary == "port 5005 is taken"
    assert failure_message(KeyError("x"), "step").facts.summary == "KeyError: 'x'"


def test_an_exception_is_sent_with_its_traceback_and_the_worker_ends_cleanly():
    with started(partial(FailingEnv, how="raise", who=0)) as (process, channel):
        assert channel.receive().kind == "ready"
        channel.send(reset_message(None))
        for _ in range(3):
            result = result_of(channel.receive())
            channel.send(encode_actions(no_actions(result)))
        failure = channel.receive()
        assert (failure.kind, failure.facts.doing, failure.facts.summary) == ("failure", "step", "ValueError: boom")
        assert 'raise ValueError("boom")' in failure.facts.trace
        with pytest.raises(ChannelClosedError):
            channel.receive()
        process.join(5.0)
        assert process.exitcode == 0


def test_a_factory_that_cannot_be_loaded_is_reported():
    class Unloadable:
        def __reduce__(self):
            return (eval, ("missing_name",))

    with started(Unloadable()) as (_, channel):
        failure = channel.receive()
    assert failure.facts.doing == "start-up"
    assert failure.facts.summary == "NameError: name 'missing_name' is not defined"


def test_a_worker_ignores_ctrl_c_and_closes_its_environment_when_its_parent_hangs_up(tmp_path):
    with started(partial(PlayerEnv, folder=str(tmp_path))) as (process, channel):
        assert channel.receive().kind == "ready"
        os.kill(process.pid or 0, signal.SIGINT)
        channel.send(reset_message(None))
        assert channel.receive().kind == "result"
        channel.close()
        process.join(5.0)
        assert process.exitcode == 0
        assert is_gone(int((tmp_path / "player0").read_text()))
        assert (tmp_path / "closed0").exists()


def test_a_terminated_worker_closes_its_environment(tmp_path):
    with started(partial(PlayerEnv, folder=str(tmp_path))) as (process, channel):
        assert channel.receive().kind == "ready"
        process.terminate()
        process.join(5.0)
        assert process.exitcode == 128 + signal.SIGTERM
        assert (tmp_path / "closed0").exists()


def test_a_terminated_worker_whose_environment_does_not_close_ends_all_the_same(tmp_path):
    with started(partial(PlayerEnv, folder=str(tmp_path), closing_seconds=60.0)) as (process, channel):
        assert channel.receive().kind == "ready"
        process.terminate()
        process.join(6.0)
        assert process.exitcode == 128 + signal.SIGTERM
        os.kill(int((tmp_path / "player0").read_text()), signal.SIGKILL)


def test_the_answer_to_a_message_comes_after_the_parameters_before_it():
    with started(ToyEnv) as (_, channel):
        assert channel.receive().kind == "ready"
        channel.send(parameters_message({"wind": 2.0}))
        channel.send(reset_message(None))
        assert channel.receive().kind == "result"
        assert channel.poll() is None
        channel.send(Message(kind="step", facts=(), arrays=()))  # no actions for the agents that asked
        assert channel.receive().facts.summary == "KeyError: 'Toy?team=0'"

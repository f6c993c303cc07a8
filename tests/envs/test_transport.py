"""Messages over a real socket pair: exact contents, any size, and a peer that stops, leaves or resets."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_env import ToyEnv, ToySettings, no_actions

from jaxrl.envs.workers.transport import (
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    Message,
    decode_actions,
    decode_result,
    encode_actions,
    encode_result,
    pack,
    through_bytes,
)
from jaxrl.types import Action, EnvMessage, Taken


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def leaves(result: EnvMessage) -> list[np.ndarray]:
    return [leaf for steps in result.steps.values() for record in steps[:2] for leaf in (*record[:5], *record.obs)]


def assert_same(left: EnvMessage, right: EnvMessage) -> None:
    assert (left.worker, left.new_specs, left.stats, left.seconds) == (
        right.worker,
        right.new_specs,
        right.stats,
        right.seconds,
    )
    assert list(left.steps) == list(right.steps)
    for one, other in zip(leaves(left), leaves(right), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "int64", "int32", "bool", "uint8"]),
    before=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_arrays_of_any_shape_arrive_exactly_aligned_and_writable(shape, dtype, before):
    array = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype)
    odd = np.ones(before, np.uint8)  # puts the next array at any offset
    received = through_bytes(Message(kind="x", facts={"a": 1}, arrays=[odd, array]))
    assert (received.kind, received.facts) == ("x", {"a": 1})
    np.testing.assert_array_equal(received.arrays[1], array)
    assert received.arrays[1].dtype == array.dtype
    assert received.arrays[1].flags.writeable
    assert received.arrays[1].flags.aligned


def test_an_array_that_is_not_contiguous_arrives_in_order():
    array = np.arange(12.0).reshape(3, 4).T[::2]
    np.testing.assert_array_equal(through_bytes(Message("x", None, [array])).arrays[0], array)


def test_an_array_of_objects_is_refused():
    with pytest.raises(TypeError, match="'result' has dtype object; expected numbers"):
        pack(Message(kind="result", arrays=[np.array([None])]))


def test_results_and_actions_of_several_behaviors_survive_the_way():
    toy = ToySettings(behaviors=("A?team=0", "B?team=1"), deaths=0.3, skips=0.3, branches=(3, 2), stats=True)
    environment = ToyEnv(3, toy)
    result = environment.reset()
    for _ in range(12):
        assert_same(decode_result(through_bytes(encode_result(result)), worker=3), result)
        actions = no_actions(result, toy)
        received = decode_actions(through_bytes(encode_actions(actions)))
        assert list(received) == list(actions)
        for behavior, action in actions.items():
            np.testing.assert_array_equal(received[behavior].continuous, action.continuous)
            np.testing.assert_array_equal(received[behavior].discrete, action.discrete)
        result = environment.step(actions)


@pytest.mark.parametrize("floats", [0, 1, 10_000, 3_000_000])
def test_a_message_larger_than_the_socket_buffer_arrives(ends, floats):
    array = np.arange(floats, dtype=np.float32)
    sender = threading.Thread(target=Channel(ends[0], 5.0).send, args=(Message("x", "facts", [array]),))
    sender.start()
    received = Channel(ends[1], 5.0).receive()
    sender.join(5.0)
    np.testing.assert_array_equal(received.arrays[0], array)


def test_poll_returns_nothing_until_a_message_comes_and_keeps_messages_apart(ends):
    left, right = Channel(ends[0], 1.0), Channel(ends[1], 1.0)
    assert right.poll() is None
    left.send(Message("first"))
    left.send(Message("second"))
    assert [right.poll(), right.receive()] == [Message("first", None, []), Message("second", None, [])]
    assert right.poll() is None


def test_a_peer_that_stops_within_a_message_runs_into_the_time_out(ends):
    whole = b"".join(pack(Message("x", None, [np.zeros(100)])))
    ends[0].sendall(whole[:50])
    start = time.monotonic()
    with pytest.raises(ChannelTimeoutError):
        Channel(ends[1], 0.3).poll()
    assert 0.2 < time.monotonic() - start < 2


def test_a_peer_that_takes_nothing_runs_into_the_time_out(ends):
    with pytest.raises(ChannelTimeoutError):
        Channel(ends[0], 0.2).send(Message("x", None, [np.zeros(10_000_000)]))


@pytest.mark.parametrize("sent", [0, 5, 50])
def test_a_peer_that_leaves_before_or_within_a_message_is_noticed(ends, sent):
    whole = b"".join(pack(Message("x", None, [np.zeros(100)])))
    ends[0].sendall(whole[:sent])
    ends[0].close()
    with pytest.raises(ChannelClosedError):
        Channel(ends[1], 1.0).poll()


def test_last_words_are_read_although_the_peer_left_without_reading_ours(ends):
    left, right = Channel(ends[0], 1.0), Channel(ends[1], 1.0)
    right.send(Message("unread"))
    left.send(Message("last words"))
    left.close()  # the unread message makes this a connection reset on the other side
    assert right.poll() == Message("last words", None, [])
    with pytest.raises(ChannelClosedError):
        right.poll()
    with pytest.raises(ChannelClosedError):
        right.send(Message("more"))


def test_m21_r16_infos_and_the_actions_that_agents_took_themselves_arrive():
    result = ToyEnv(0, ToySettings()).reset()
    behavior, steps = next(iter(result.steps.items()))
    took = Taken(
        agent_id=steps.deciding.agent_id[:1],
        action=Action(continuous=np.float32([[0.5, -1.0]]), discrete=np.int32([[2]])),
    )
    steps = steps._replace(infos={1: {"lives": 3}}, taken=took)
    result = result._replace(steps={behavior: steps}, infos={"weather": "rain"})
    again = decode_result(through_bytes(encode_result(result)), result.worker)
    assert again.infos == {"weather": "rain"}
    assert again.steps[behavior].infos == {1: {"lives": 3}}
    assert again.steps[behavior].taken is not None
    for sent, received in zip(
        (took.agent_id, *took.action),
        (again.steps[behavior].taken.agent_id, *again.steps[behavior].taken.action),
        strict=True,
    ):
        np.testing.assert_array_equal(sent, received)

"""Round trips between a parent and one worker: actions there, a result of 48 agents back.

Run: python benchmarks/env_transport.py

Compares what the pool uses with bare bytes over a pipe (the floor), pickling over a pipe and shared memory. Prints the
lower quartile and the median in microseconds; the kinds take turns, so that other load on the machine hits all of them.
"""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import struct
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy as np

from jaxrl.envs.workers.transport import Channel, decode_actions, decode_result, encode_actions, encode_result
from jaxrl.types import Action, BehaviorMessage, DecisionSteps, EnvMessage, TerminalSteps

AGENTS = 48
ROUNDS, TRIPS = 10, 50
KINDS = ("pipe, bare bytes", "pipe, pickle", "pipe, pickle 5", "shared memory, pickle 5", "jaxrl")
SIZE = struct.Struct("<Q")


def steps(kind: Callable[..., Any], agents: int, fields: int, **mask: np.ndarray) -> Any:
    ids, rewards = np.arange(agents), np.zeros(agents, np.float32)
    obs = (np.ones((agents, fields), np.float32),)
    return kind(agent_id=ids, group_id=ids, reward=rewards, group_reward=rewards, obs=obs, **mask)


def sample_result(fields: int) -> EnvMessage:
    both = BehaviorMessage(
        ended=steps(TerminalSteps, 0, fields, truncated=np.zeros(0, bool)),
        deciding=steps(DecisionSteps, AGENTS, fields, action_mask=np.ones((AGENTS, 3), bool)),
    )
    return EnvMessage(worker=0, steps={"Agent?team=0": both}, new_specs={}, stats=(), seconds=0.0)


def sample_actions() -> dict[str, Action]:
    continuous, discrete = np.zeros((AGENTS, 4), np.float32), np.zeros((AGENTS, 1), np.int32)
    return {"Agent?team=0": Action(continuous=continuous, discrete=discrete)}


def serve(kind: str, end: Any, fields: int, memory_name: str) -> None:
    """The worker's side: answer every message with the result, until killed."""
    result = sample_result(fields)
    bare = bytes(len(pickle.dumps(result, 5)))
    memory = shared_memory.SharedMemory(memory_name)
    channel = Channel(end, None) if kind == "jaxrl" else None
    assert memory.buf is not None
    while True:
        if channel:
            decode_actions(channel.receive())
            channel.send(encode_result(result))
        elif kind == "pipe, bare bytes":
            end.recv_bytes()
            end.send_bytes(bare)
        elif kind == "pipe, pickle":
            end.recv()
            end.send(result)
        else:
            pickle.loads(end.recv_bytes())
            answer = pickle.dumps(result, 5)
            if kind.startswith("shared"):
                memory.buf[: len(answer)] = answer
                answer = SIZE.pack(len(answer))
            end.send_bytes(answer)


def round_trip(kind: str, end: Any, memory: shared_memory.SharedMemory) -> None:
    """The parent's side of one exchange."""
    assert memory.buf is not None
    actions = sample_actions()
    if kind == "jaxrl":
        end.send(encode_actions(actions))
        decode_result(end.receive(), worker=0)
    elif kind == "pipe, bare bytes":
        end.send_bytes(bytes(1200))
        end.recv_bytes()
    elif kind == "pipe, pickle":
        end.send(actions)
        end.recv()
    else:
        end.send_bytes(pickle.dumps(actions, 5))
        answer = end.recv_bytes()
        pickle.loads(bytes(memory.buf[: SIZE.unpack(answer)[0]]) if kind.startswith("shared") else answer)


def measure(fields: int) -> None:
    context = multiprocessing.get_context("spawn")
    memory = shared_memory.SharedMemory(create=True, size=1 << 22)
    ends, processes = {}, []
    for kind in KINDS:
        ours, theirs = socket.socketpair() if kind == "jaxrl" else context.Pipe()
        process = context.Process(target=serve, args=(kind, theirs, fields, memory.name), daemon=True)
        process.start()
        processes.append(process)
        ends[kind] = Channel(ours, 10.0) if isinstance(ours, socket.socket) else ours
        round_trip(kind, ends[kind], memory)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for kind in KINDS * ROUNDS:
        for _ in range(TRIPS):
            start = time.perf_counter()
            round_trip(kind, ends[kind], memory)
            times[kind].append(1e6 * (time.perf_counter() - start))
    for process in processes:
        process.kill()
        process.join(5.0)
    memory.close()
    memory.unlink()
    print(f"{AGENTS} agents x {fields} floats, {len(pickle.dumps(sample_result(fields), 5))} bytes")
    for kind, values in times.items():
        print(f"  {kind:24} {np.percentile(values, 25):6.0f} {np.median(values):6.0f}")


if __name__ == "__main__":
    for width in (40, 400, 6000):
        measure(width)

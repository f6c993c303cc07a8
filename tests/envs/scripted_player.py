"""A player process that follows a script, for faults that no healthy environment shows.

Two agents (ids 1, 2) of behavior `Walker?team=0` with a vector of 3 numbers, 2 continuous actions and branches (3, 2).
Message number t, counted from the reset (t = 0), carries the observation [t, agent id, sum of the last actions].
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import threading
import time
import uuid
from pathlib import Path

import grpc
import numpy as np

from jaxrl.envs.player.messages import encode_png
from jaxrl.envs.protobuf import messages

m = messages()
BEHAVIOR = "Walker?team=0"
STATS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
UNKNOWN = uuid.UUID("00000000-0000-0000-0000-00000000abcd")
FLOATS = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")


def frame(channel: uuid.UUID, payload: bytes) -> bytes:
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def stat(name: str, value: float, aggregation: int) -> bytes:
    text = name.encode("ascii")
    return frame(STATS, struct.pack("<i", len(text)) + text + struct.pack("<fi", value, aggregation))


def add_brain(output, name: str) -> None:
    brain = output.rl_initialization_output.brain_parameters.add(brain_name=name, is_training=True)
    brain.action_spec.num_continuous_actions = 2
    brain.action_spec.num_discrete_actions = 2
    brain.action_spec.discrete_branch_sizes.extend([3, 2])


def add_agent(output, name: str, agent: int, numbers, shape=(3,), **fields) -> None:
    info = output.rl_output.agentInfos[name].value.add(id=agent, reward=fields.pop("reward", 1.0), **fields)
    sensor = info.observations.add(name="vector", shape=shape, dimension_properties=[1])
    sensor.float_data.data.extend(numbers)


def act_sum(inputs) -> float:
    rows = inputs.rl_input.agent_actions[BEHAVIOR].value if BEHAVIOR in inputs.rl_input.agent_actions else []
    return sum(sum(row.continuous_actions) + sum(row.discrete_actions) for row in rows)


class Player:
    def __init__(self, arguments) -> None:
        self.arguments = arguments
        self.call = self.connect()

    def connect(self):
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1)]
        channel = grpc.insecure_channel(f"localhost:{self.arguments.port}", options=options)
        grpc.channel_ready_future(channel).result(timeout=10)
        self.torn = channel.stream_unary("/communicator_objects.UnityToExternalProto/Exchange")
        return channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")

    def send(self, output=None, status: int = 200):
        message = m.UnityMessageProto()
        message.header.status = status
        if output is not None:
            message.unity_output.CopyFrom(output)
        reply = m.UnityMessageProto.FromString(self.call(message.SerializeToString(), timeout=120))
        if reply.header.status != 200:
            print("told to stop", flush=True)
            sys.exit(0)
        return reply.unity_input

    def introduce(self) -> None:
        output = m.UnityOutputProto()
        hello = output.rl_initialization_output
        hello.name = "scripted"
        hello.communication_version = "0.9.0" if self.arguments.scenario == "old_version" else "1.5.0"
        if self.arguments.scenario == "no_version":
            hello.communication_version = ""
        hello.package_version = "2.2.1"
        hello.capabilities.baseRLCapabilities = True
        hello.capabilities.hybridActions = True
        start = self.send(output).rl_initialization_input
        if self.arguments.record:
            known = {"seed": start.seed, "num_areas": start.num_areas, "version": start.communication_version}
            Path(self.arguments.record).write_text(json.dumps({**known, "argv": sys.argv[1:]}))

    def run(self) -> None:
        self.introduce()
        inputs = self.send()
        t = 0
        while True:
            reset = inputs.rl_input.command == m.RESET
            t = 0 if reset else t + 1
            output = m.UnityOutputProto()
            if reset:
                self.note(inputs)
                add_brain(output, BEHAVIOR)
            SCENARIOS.get(self.arguments.scenario, normal)(self, output, t, inputs)
            inputs = self.send(output)

    def note(self, inputs) -> None:
        if self.arguments.record:
            path = Path(self.arguments.record)
            path.write_text(json.dumps({**json.loads(path.read_text()), "side": inputs.rl_input.side_channel.hex()}))


def normal(player, output, t, inputs) -> None:
    for agent in (1, 2):
        add_agent(output, BEHAVIOR, agent, [t, agent, act_sum(inputs)])


def nan_observation(player, output, t, inputs) -> None:
    add_agent(output, BEHAVIOR, 1, [t, 1, 0])
    add_agent(output, BEHAVIOR, 2, [t, float("nan") if t == 1 else 2, 0])


def infinite_reward(player, output, t, inputs) -> None:
    add_agent(output, BEHAVIOR, 1, [t, 1, 0], reward=float("inf") if t == 1 else 0.0)


def nan_reward(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    output.rl_output.agentInfos[BEHAVIOR].value[1].reward = float("nan") if t == 1 else 0.0


def wrong_shape(player, output, t, inputs) -> None:
    add_agent(output, BEHAVIOR, 1, [t, 1, 0])
    add_agent(output, BEHAVIOR, 2, [0.0] * (3 + t), (3 + t,))


def add_sensor(output, agent: int, name: str, shape, properties):
    """A second sensor of an agent that is there."""
    info = output.rl_output.agentInfos[BEHAVIOR].value[agent - 1]
    return info.observations.add(name=name, shape=shape, dimension_properties=properties)


def small_grid(player, output, t, inputs) -> None:
    """A second sensor with six channels of 8 x 20 cells: translational in height and width, so an image."""
    normal(player, output, t, inputs)
    for agent in (1, 2):
        add_sensor(output, agent, "GridSensor", (6, 8, 20), [1, 2, 2]).float_data.data.extend([0.0] * 960)


def table_sensor(player, output, t, inputs) -> None:
    """Four rows that are always there, so that they are no entities."""
    normal(player, output, t, inputs)
    for agent in (1, 2):
        add_sensor(output, agent, "Table", (4, 2), [1, 1]).float_data.data.extend([0.0] * 8)


def add_camera(output, agent: int, height: int, broken: bool) -> None:
    camera = add_sensor(output, agent, "camera", (3, height, 5), [1, 2, 2])
    camera.compression_type = m.PNG
    picture = bytearray(encode_png(np.full((1, height, 5, 3), 9, np.uint8))[0])
    if broken:
        picture[45:49] = bytes(4)  # within the packed lines
    camera.compressed_data = bytes(picture)


def broken_png(player, output, t, inputs) -> None:
    """The picture of agent 2 breaks in the middle of the run."""
    normal(player, output, t, inputs)
    for agent in (1, 2):
        add_camera(output, agent, 4, broken=t == 1 and agent == 2)


def camera_grows(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    for agent in (1, 2):
        add_camera(output, agent, 8 if t == 1 and agent == 2 else 4, broken=False)


def too_many_entities(player, output, t, inputs) -> None:
    """The sensor holds 2 entities of 2 numbers."""
    normal(player, output, t, inputs)
    for agent in (1, 2):
        count = 3 if t == 1 and agent == 2 else 2
        add_sensor(output, agent, "tiles", (count, 2), [4, 1]).float_data.data.extend([0.0] * 2 * count)


def floats_missing(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    if t == 1:
        output.rl_output.agentInfos[BEHAVIOR].value[1].observations[0].float_data.data.pop()


def garbage(player, output, t, inputs) -> None:
    if t == 1:
        player.call(b"\xff\xff\xff not a message", timeout=30)
    normal(player, output, t, inputs)


def status_400(player, output, t, inputs) -> None:
    if t == 1:
        player.send(status=400)
    normal(player, output, t, inputs)


def quits(player, output, t, inputs) -> None:
    """Without a word."""
    if t == 1:
        sys.exit(0)
    normal(player, output, t, inputs)


def last_words(player, output, t, inputs) -> None:
    """Says that it stops, then fails."""
    if t == 1:
        print("log line 0", flush=True)
        message = m.UnityMessageProto()
        message.header.status, message.header.message = 400, "no more memory"
        player.call(message.SerializeToString(), timeout=30)
        sys.exit(3)
    normal(player, output, t, inputs)


def goodbye(player, output, t, inputs) -> None:
    """Says that it stops on a second connection, while the first call waits for its answer."""
    normal(player, output, t, inputs)
    if t == 0:
        message = m.UnityMessageProto()
        message.header.status, message.header.message = 400, "told to stop by the system"
        threading.Timer(0.2, lambda: player.connect()(message.SerializeToString(), timeout=2)).start()


def silent(player, output, t, inputs) -> None:
    if t == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    normal(player, output, t, inputs)


def crash(player, output, t, inputs) -> None:
    if t == 1:
        for line in range(30):
            print(f"log line {line}", flush=True)
        os._exit(7)
    normal(player, output, t, inputs)


def killed(player, output, t, inputs) -> None:
    if t == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    normal(player, output, t, inputs)


def late(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    if t == 1:
        add_brain(output, "Late?team=1")
    if t >= 2:
        add_agent(output, "Late?team=1", 9, [t, 9, 0])


def unannounced(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    if t == 1:
        add_agent(output, "Ghost?team=0", 9, [t, 9, 0])


def channels(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    sums = b"".join(stat(f"stat{number}", 0.5 + number + t, number) for number in range(4))
    output.rl_output.side_channel = frame(UNKNOWN, b"abc") + sums


def properties(player, output, t, inputs) -> None:
    """Tells `Wind`, t and a half, on the channel of float properties."""
    normal(player, output, t, inputs)
    output.rl_output.side_channel = frame(FLOATS, struct.pack("<i", 4) + b"Wind" + struct.pack("<f", t + 0.5))


def unknown_aggregation(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    output.rl_output.side_channel = stat("Speed", 1.0, 4) if t == 1 else b""


def cut_off_channel(player, output, t, inputs) -> None:
    normal(player, output, t, inputs)
    output.rl_output.side_channel = stat("Speed", 1.0, 0)[:-1] if t == 1 else b""


def gaps(player, output, t, inputs) -> None:
    """Agents ask at t = 2 (not at 0 and 1); at t = 4 one ends and nobody asks; at t = 6 they ask again."""
    if t in (2, 6):
        normal(player, output, t, inputs)
    if t == 4:
        add_agent(output, BEHAVIOR, 1, [t, 1, 0], done=True, max_step_reached=True)
    output.rl_output.side_channel = stat("Tick", t, 1)


def twice(player, output, t, inputs) -> None:
    """Agent 2 asks twice in one message."""
    normal(player, output, t, inputs)
    if t == 1:
        add_agent(output, BEHAVIOR, 2, [t, 2, 0])


def ends_twice(player, output, t, inputs) -> None:
    """Agent 2 ends twice in one message and begins anew, which alone is nothing unusual."""
    normal(player, output, t, inputs)
    for _ in range(t):
        add_agent(output, BEHAVIOR, 2, [t, 2, 0], done=True)


def large(player, output, t, inputs) -> None:
    """Two million bytes in the second message."""
    normal(player, output, t, inputs)
    output.rl_output.side_channel = bytes(2_000_000 * (t == 1))


def killed_while_it_sends(player, output, t, inputs) -> None:
    """Its second message is begun and never arrives."""
    normal(player, output, t, inputs)
    if t == 1:

        def none():
            time.sleep(0.5)  # until the trainer has begun to read, also on a busy machine
            os.kill(os.getpid(), signal.SIGKILL)
            yield b""

        player.torn(none(), timeout=20)


def never_asks(player, output, t, inputs) -> None:
    time.sleep(0.01)


SCENARIOS = {
    function.__name__: function
    for function in (
        nan_observation, nan_reward, infinite_reward, wrong_shape, small_grid, table_sensor, broken_png, camera_grows,
        too_many_entities, floats_missing, garbage, status_400, quits, last_words, goodbye, silent, crash, killed, late,
        unannounced, channels, unknown_aggregation, cut_off_channel, gaps, never_asks, properties, twice, ends_twice,
        large, killed_while_it_sends,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mlagents-port", dest="port", type=int)
    parser.add_argument("--scenario", default="normal")
    parser.add_argument("--record")
    parser.add_argument("-logFile", dest="log")
    arguments, _ = parser.parse_known_args()
    if arguments.log:
        sys.stdout = sys.stderr = open(arguments.log, "w", encoding="utf-8")  # noqa: SIM115, open for the whole life
    if arguments.scenario == "dies_at_once":
        print("no licence")
        sys.exit(3)
    if arguments.scenario == "quits_at_once":
        sys.exit(0)
    if arguments.scenario == "never_connects":
        time.sleep(60)
    Player(arguments).run()


if __name__ == "__main__":
    main()

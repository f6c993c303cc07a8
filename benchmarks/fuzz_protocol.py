"""Mutated messages of a player: each is read as a valid result, or refused as one of jaxrl's own errors.

    python benchmarks/fuzz_protocol.py               # 20,000 mutations
    python benchmarks/fuzz_protocol.py 1000000 --seed 7 --jobs 2

Recorded bytes (an introduction, specs with the first agents, later agents, statistics, pictures) are mutated: bits,
bytes, cut, doubled and exchanged pieces, lengths that lie, and fields of the parsed message with numbers at the ends of
their range. A run fails at any other exception, at a result that does not fit its specification or is not finite, when
one message takes more than 2 seconds, or when memory grows by more than 512 MiB. Exit code 1 then; a failure is printed
with the bytes in hexadecimal. The mutations come in slices of 10,000, each with a seed of its own: --jobs changes the
time alone.
"""

from __future__ import annotations

import argparse
import io
import logging
import multiprocessing
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from jaxrl.envs.player.channels import pack_stats
from jaxrl.envs.player.messages import PlayerMessages
from jaxrl.envs.protobuf import RUNNING
from jaxrl.envs.unity.client import UnityClient, introduced
from jaxrl.envs.unity.communicator import check_status, parse
from jaxrl.envs.unity.side_channels import ChannelManager, StatsChannel
from jaxrl.envs.workers.transport import decode_result, encode_result, through_bytes
from jaxrl.types import (
    ActionSpec,
    Aggregation,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    EnvironmentStat,
    EnvMessage,
    JaxrlError,
    ObservationSpec,
    TerminalSteps,
)

SECONDS = 2.0  # longest time of one message
MEBIBYTES = 512.0  # most that the resident set may grow
SLICE = 10_000  # mutations between two lines of progress
MOVES = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
SPEC = BehaviorSpec(
    observations=(
        ObservationSpec("vector", (3,), (DimensionProperty.NONE,)),
        ObservationSpec("camera", (3, 4, 5), (DimensionProperty.NONE, MOVES, MOVES)),
        ObservationSpec("grid", (5, 3, 2), (DimensionProperty.NONE, MOVES, MOVES), dtype="uint8"),
        ObservationSpec("tiles", (4, 2), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)),
    ),
    action=ActionSpec(continuous_size=2, discrete_branches=(3, 2)),
)
EXTREMES = (0, -1, 1, 2, 127, 128, 255, -(2**31), 2**31 - 1, 2**16, float("nan"), float("inf"), -1e38, 3e38)


class Reading(UnityClient):
    """A client without a player: what it does with messages, and nothing else."""

    def __init__(self) -> None:
        self.steps, self.specs, self.new_specs, self.connection = {}, {}, {}, ""
        self._brains, self._wires, self._unmarked_last = {}, {}, True
        self.stats = StatsChannel()
        self._side_channel_manager = ChannelManager([self.stats])

    def read(self, data: bytes) -> EnvMessage:
        """What a worker would send on. Raises JaxrlError."""
        message = parse(data)
        check_status(message)
        output = message.unity_output
        if output.HasField("rl_initialization_output") and output.rl_initialization_output.name:
            self.connection = introduced(output.rl_initialization_output)
        self._update_behavior_specs(output)
        self._update_state(output.rl_output)
        new, self.new_specs = self.new_specs, {}
        result = EnvMessage(worker=0, steps=self.steps, new_specs=new, stats=self.stats.take(), seconds=0.0)
        return decode_result(through_bytes(encode_result(result)), worker=0)


def recorded() -> list[bytes]:
    """An introduction and four more messages of a healthy player, as bytes."""
    player, rng = PlayerMessages("Walker", SPEC, teams=2), np.random.default_rng(0)
    stats = pack_stats([EnvironmentStat("Speed", 1.5, kind) for kind in Aggregation])
    said = [player.handshake()]
    for clock in range(3):
        steps = BehaviorMessage(_ended(rng, [4 + clock]), _deciding(rng, [1, 2, 3]))
        said.append(player.output([steps, steps], stats if clock else b""))
    said.append(_with_pictures(said[-1]))
    return [message.SerializeToString() for message in said]


def mutate(rng: random.Random, said: list[bytes]) -> tuple[int, bytes]:
    """The number of a recorded message, and what became of it."""
    number = rng.randrange(len(said))
    data = bytearray(said[number])
    if rng.random() < 0.4:
        return number, _with_other_fields(rng, bytes(data))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        rng.choice(MUTATIONS)(rng, data, said)
    return number, bytes(data)


def check(result: EnvMessage, specs: dict[str, BehaviorSpec]) -> None:
    """Raise AssertionError if a result does not fit what was announced."""
    for behavior, steps in result.steps.items():
        spec = specs[behavior]
        for part in (steps.ended, steps.deciding):
            count = len(part.agent_id)
            assert [x.shape for x in part.obs] == [(count, *s.shape) for s in spec.observations], behavior
            assert [x.dtype for x in part.obs] == [s.dtype for s in spec.observations], behavior
            numbers = (part.reward, part.group_reward, *part.obs)
            assert all(len(x) == count and np.isfinite(x).all() for x in numbers), behavior
        assert steps.deciding.action_mask.shape == (len(steps.deciding.agent_id), spec.action.mask_size), behavior


def fuzz(count: int, seed: int | str) -> Counter[str]:
    """So many mutations. Returns how often each kind of answer came. Raises AssertionError at the first fault."""
    said, rng, outcomes = recorded(), random.Random(seed), Counter[str]()
    for _ in range(count):
        number, data = mutate(rng, said)
        reading = Reading()
        if number > 1:
            reading.read(said[1])  # the specification
        begin = time.perf_counter()
        try:
            check(reading.read(data), reading.specs)
            outcomes["valid"] += 1
        except JaxrlError as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} of message {number}: {data.hex()}") from error
        assert time.perf_counter() - begin < SECONDS, f"too slow, message {number}: {data.hex()}"
    return outcomes


class Slice(NamedTuple):
    """What came of some mutations."""

    outcomes: Counter[str]
    grown: float  # MiB, of the process since its first 200


class Job:
    """A process that takes slices; quiet, and with everything loaded that the first messages load."""

    before = 0.0  # MiB

    @classmethod
    def begin(cls) -> None:
        logging.disable(logging.WARNING)  # unknown side channels are said once per reader
        fuzz(200, 0)
        cls.before = _peak()

    @classmethod
    def take(cls, count: int, seed: str) -> Slice:
        """Raises AssertionError."""
        outcomes = fuzz(count, seed)
        return Slice(outcomes, _peak() - cls.before)


def slices(count: int, seed: int, jobs: int) -> Iterator[Slice]:
    """All of them, in the order in which they are done. Raises AssertionError."""
    work = [(min(SLICE, count - begin), f"{seed}/{begin}") for begin in range(0, count, SLICE)]
    if jobs == 1:
        Job.begin()
        for part in work:
            yield Job.take(*part)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=Job.begin) as executor:
        futures = [executor.submit(Job.take, *part) for part in work]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            executor.shutdown(cancel_futures=True)


def main() -> int:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    outcomes, grown, begin = Counter[str](), 0.0, time.perf_counter()
    try:
        for done in slices(options.count, options.seed, options.jobs):
            outcomes += done.outcomes
            grown = max(grown, done.grown)
            rate = outcomes.total() / (time.perf_counter() - begin)
            line = f"{outcomes.total():>9} of {options.count}, {rate:.0f} per second, memory grew by {grown:.0f} MiB"
            print(line, file=sys.stderr, flush=True)
    except AssertionError:
        traceback.print_exc()
        return 1
    print(f"{outcomes.total()} mutations in {time.perf_counter() - begin:.1f} s, memory grew by {grown:.0f} MiB")
    for name, times in outcomes.most_common():
        print(f"  {times:>9}  {name}")
    return int(grown > MEBIBYTES)


def _peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024.0 if sys.platform != "darwin" else 2.0**20)


def _ended(rng: np.random.Generator, agents: list[int]) -> TerminalSteps:
    n = len(agents)
    return TerminalSteps(
        agent_id=np.array(agents, np.int64),
        group_id=np.full(n, 7, np.int64),
        reward=np.ones(n, np.float32),
        group_reward=np.ones(n, np.float32),
        truncated=np.ones(n, bool),
        obs=_obs(rng, n),
    )


def _deciding(rng: np.random.Generator, agents: list[int]) -> DecisionSteps:
    n = len(agents)
    return DecisionSteps(
        agent_id=np.array(agents, np.int64),
        group_id=np.full(n, 7, np.int64),
        reward=np.ones(n, np.float32),
        group_reward=np.zeros(n, np.float32),
        action_mask=np.ones((n, SPEC.action.mask_size), bool),
        obs=_obs(rng, n),
    )


def _obs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return tuple(
        (255 * rng.random((n, *sensor.shape), np.float32)).astype(sensor.dtype) for sensor in SPEC.observations
    )


def _with_pictures(message: Any) -> Any:
    """The same with compressed cameras, where the first agents sent floats."""
    changed = type(message)()
    changed.CopyFrom(message)
    file = io.BytesIO()
    Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)).save(file, "PNG")
    for infos in changed.unity_output.rl_output.agentInfos.values():
        for info in infos.value:
            info.observations[1].compression_type = 1
            info.observations[1].compressed_data = file.getvalue()
            info.observations[1].compressed_channel_mapping.extend([0, 1, 2])
    return changed


def _flip(rng: random.Random, data: bytearray, said: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray, said: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.randrange(1, 9)] = rng.choice(
        (b"\xff" * 9, b"\x00" * 4, b"\xff\xff\xff\xff\x07", rng.randbytes(4))
    )


def _cut(rng: random.Random, data: bytearray, said: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 4, 64, len(data)))]


def _double(rng: random.Random, data: bytearray, said: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.randrange(1, 200)] * rng.choice((1, 1, 1, 20))


def _splice(rng: random.Random, data: bytearray, said: list[bytes]) -> None:
    other, at = rng.choice(said), rng.randrange(len(data) + 1)
    begin = rng.randrange(len(other))
    data[at:at] = other[begin : begin + rng.randrange(1, 200)]


MUTATIONS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _flip, _flip, _overwrite, _cut, _double, _splice,
)  # fmt: skip


def _with_other_fields(rng: random.Random, data: bytes) -> bytes:
    """The message with one to three of its fields at odd values: what is still well-formed goes deepest."""
    message = parse(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        fields = list(_fields(message))
        if fields:
            _spoil(rng, *rng.choice(fields))
    return message.SerializeToString()


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """All fields that are set, with the messages that own them."""
    for field, value in message.ListFields():
        yield message, field
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = list(value.values())
        else:
            parts = value if field.is_repeated else [value]
        for part in parts:
            yield from _fields(part)


def _spoil(rng: random.Random, owner: Any, field: Any) -> None:
    value = getattr(owner, field.name)
    if field.type == field.TYPE_MESSAGE or rng.random() < 0.1:
        owner.ClearField(field.name)
    elif field.is_repeated:
        odd = _odd(rng, field)
        rng.choice((lambda: value.append(odd), lambda: value.__setitem__(rng.randrange(len(value)), odd), value.pop))()
    else:
        setattr(owner, field.name, _odd(rng, field))


def _odd(rng: random.Random, field: Any) -> Any:
    """A value of the field's type from the ends of its range."""
    if field.type == field.TYPE_STRING:
        return rng.choice(("", "\x00", "é" * 50, "9" * 5000, "1.2", "1." * 9, "Walker?team=0"))
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", b"\x89PNG\r\n\x1a\n", rng.randbytes(40)))
    number = rng.choice(EXTREMES)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return float(number)
    if field.type == field.TYPE_BOOL:
        return number == 1
    if field.type == field.TYPE_ENUM:
        return rng.choice([kind.number for kind in field.enum_type.values] + [99])
    return int(number) if abs(number) < 2**31 else RUNNING


if __name__ == "__main__":
    sys.exit(main())

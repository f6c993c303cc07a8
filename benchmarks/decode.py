"""Time of the decoder against that of `mlagents_envs`, on the same protobuf runtime.

    python benchmarks/decode.py
    python benchmarks/decode.py --json FILE

Prints microseconds per message (best of 5 rounds) and the ratio. Both get the parsed message; "parse" is the time that
the protobuf runtime takes for it, which both pay.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from jaxrl.envs.protobuf import messages, register
from jaxrl.envs.unity.decode import decode_spec, decode_steps

_ROUNDS = 5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="length of one of the 5 rounds of each case")
    parser.add_argument("--quick", action="store_true", help="rounds of 0.01 seconds")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    seconds = 0.01 if options.quick else options.seconds
    register()
    from mlagents_envs import rpc_utils  # importable from here on

    print(f"{'message':<40}{'parse us':>10}{'package us':>12}{'jaxrl us':>10}{'ratio':>8}")
    for name, infos, brain in _cases():
        ours = decode_spec(name, brain, infos.value[0])
        theirs = rpc_utils.behavior_spec_from_proto(brain, infos.value[0])
        parse = _microseconds(partial(type(infos).FromString, infos.SerializeToString()), seconds)
        package = _microseconds(partial(rpc_utils.steps_from_proto, infos.value, theirs), seconds)
        own = _microseconds(partial(decode_steps, name, infos.value, ours), seconds)
        print(f"{name:<40}{parse:>10.1f}{package:>12.1f}{own:>10.1f}{package / own:>7.1f}x")
        if options.json:
            found = {"message": name, "parse_us": parse, "package_us": package, "jaxrl_us": own, "ratio": package / own}
            with open(options.json, "a") as file:
                file.write(json.dumps(found) + "\n")


def _cases() -> list[tuple[str, Any, Any]]:
    rng = np.random.default_rng(0)
    return [
        ("1 agent x 8 floats", *_message(rng, 1, [(8,)])),
        ("12 agents x 40 floats", *_message(rng, 12, [(40,)])),
        ("48 agents x 40 floats", *_message(rng, 48, [(40,)])),
        ("48 agents x 40 floats, masks", *_message(rng, 48, [(40,)], (3, 4))),
        ("48 agents x 40 floats + 20 x 8 entities", *_message(rng, 48, [(40,), (20, 8)])),
        ("128 agents x 256 floats", *_message(rng, 128, [(256,)])),
        ("16 agents x camera 64 x 64, floats", *_message(rng, 16, [(64, 64, 3)])),
        ("16 agents x camera 64 x 64, PNG", *_message(rng, 16, [(64, 64, 3)], compress=True)),
    ]


def _message(rng: np.random.Generator, agents: int, shapes: list[tuple[int, ...]], branches=(), compress=False):
    """A `ListAgentInfoProto` that went through the wire, and the matching `BrainParametersProto`."""
    m = messages()
    infos = m.UnityRLOutputProto.ListAgentInfoProto()
    for number in range(agents):
        info = infos.value.add(
            id=1000 + number, group_id=number // 3 + 1, reward=0.5, action_mask=[False] * sum(branches)
        )
        for shape in shapes:
            _add_sensor(info, rng, shape, compress)
    brain = m.BrainParametersProto()
    brain.action_spec.num_continuous_actions = 2
    brain.action_spec.num_discrete_actions = len(branches)
    brain.action_spec.discrete_branch_sizes.extend(branches)
    return type(infos).FromString(infos.SerializeToString()), brain


def _add_sensor(info: Any, rng: np.random.Generator, shape: tuple[int, ...], compress: bool) -> None:
    sensor = info.observations.add(name="sensor", shape=shape)
    if not compress:
        sensor.float_data.data.extend(rng.normal(size=shape).ravel().tolist())
        return
    file = io.BytesIO()
    Image.fromarray(rng.integers(256, size=shape, dtype=np.uint8)).save(file, "PNG")
    sensor.compression_type = messages().PNG
    sensor.compressed_data = file.getvalue()


def _microseconds(call: Callable[[], object], seconds: float) -> float:
    """Best mean of the rounds: other load on the machine only adds."""
    call()
    best = float("inf")
    for _ in range(_ROUNDS):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            call()
            count += 1
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


if __name__ == "__main__":
    main()

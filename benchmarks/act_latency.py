"""Host time of one decision: numpy in, actions as numpy out, the states appended to the trajectory buffer.

    python benchmarks/act_latency.py
    python benchmarks/act_latency.py --leaves 6 50 --rows 16 128 --json FILE
    python benchmarks/act_latency.py --sensors nature_cnn entities --rows 16 --calls 5

`decide` is the one compiled call of `training.host.decide.decide` with its results read; the policy of 2 x 64 units
is padded with small parameters that it uses, up to --leaves. `ingest` turns the message into rows before it
(`Slots.ingest`, all agents ask again); `act` is `ActingPolicy.act`, both together and the actions handed back. `bare`
is a jitted call that takes the same number of parameter leaves and returns one number, blocked: the least that JAX can
do.
Rows hold 3 agents with 34 numbers and 7 actions each. Columns are lower quartile and median of the wall time, and mean
CPU time of the calling thread, in microseconds; cases take turns, so that another load of the machine hits all of them.
`--sensors`: what `sensors.py` lists instead of the 34 numbers, 128 x 2 units.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from sensors import SENSORS, random_obs

from jaxrl import make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm, PolicyState, acting
from jaxrl.cli.device import choose_device
from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.noise import noise_key
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.paged_buffer import Wanted
from jaxrl.training.host.programs import compile_programs
from jaxrl.types import ActionSpec, BehaviorMessage, BehaviorSpec, DecisionSteps, ObservationSpec, TerminalSteps

MEMBERS = 3
SPEC = BehaviorSpec((ObservationSpec("vector", (34,)),), ActionSpec(0, (7,)))
SOURCE = Source(0, "Bench?team=0")
ROUNDS = 8


class Times(NamedTuple):
    """Microseconds."""

    quartile: float
    median: float
    cpu: float


def message(rows: int, spec: BehaviorSpec = SPEC) -> BehaviorMessage:
    """All agents of `rows` teams ask for a decision."""
    agents = rows * MEMBERS
    nobody = np.zeros(0, np.int64)
    return BehaviorMessage(
        ended=TerminalSteps(
            agent_id=nobody,
            group_id=nobody,
            reward=np.zeros(0, np.float32),
            group_reward=np.zeros(0, np.float32),
            truncated=np.zeros(0, bool),
            obs=tuple(random_obs(spec.observations, (0,))),
        ),
        deciding=DecisionSteps(
            agent_id=np.arange(agents),
            group_id=np.arange(agents) // MEMBERS + 1,
            reward=np.zeros(agents, np.float32),
            group_reward=np.zeros(agents, np.float32),
            action_mask=np.ones((agents, 7), bool),
            obs=tuple(random_obs(spec.observations, (agents,))),
        ),
    )


def padded(algorithm: Algorithm, leaves: int) -> Algorithm:
    """The algorithm with a policy of `leaves` parameters or more; those added are zeros that shift the observation."""

    def init(key: jax.Array) -> Any:
        state = algorithm.init(key)
        missing = max(leaves - len(jax.tree.leaves(state.policy)), 0)
        extra = [jax.numpy.zeros(64) for _ in range(missing)]
        return state.replace(policy=state.policy.replace(params=(state.policy.params, extra)))

    def act(policy: PolicyState, obs: tuple[jax.Array, ...], mask: jax.Array, carry: Any, key: jax.Array) -> Any:
        params, extra = policy.params
        shift = sum((x[0] for x in extra), jax.numpy.zeros(()))
        shifted = tuple(o + shift if o.dtype == np.float32 else o for o in obs)
        return algorithm.act(policy.replace(params=params), shifted, mask, carry, key)

    return algorithm._replace(init=init, act=act)


def cases_of(rows: int, leaves: int, sensors: str = "") -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    spec, network = SPEC, {"hidden_units": 64, "num_layers": 2}
    if sensors:
        spec, network = SPEC._replace(observations=SENSORS[sensors].observations), dict(SENSORS[sensors].network)
    settings = make_settings("poca", network_settings=network)
    algorithm = padded(ALGORITHMS["poca"](spec, settings), leaves)
    programs = compile_programs(algorithm, settings.time_horizon).actor
    policy, key = acting(algorithm, jax.jit(algorithm.init)(jax.random.key(0))), noise_key([1, 2], 7)
    actor = ActingPolicy(
        "Bench", spec, algorithm, programs, policy, [1, 2], Wanted(settings.hyperparameters.buffer_size)
    )
    messages = {SOURCE: message(rows, spec)}

    def act() -> None:
        actor.act(messages)
        if actor.fresh > actor.keeps:  # as often as an update would empty the buffer
            actor.discard()

    act()
    paged = actor.paged
    assert paged is not None
    steps = paged.slots.ingest(messages).steps
    bare = jax.jit(lambda tree: sum(x.ravel()[0] for x in jax.tree.leaves(tree)))

    def decide() -> None:
        action, paged.buffer, actor.connected = programs.decide(policy, paged.buffer, steps, key, actor.connected)
        np.asarray(action.continuous)
        np.asarray(action.discrete)

    return {
        "ingest": partial(paged.slots.ingest, messages),
        "decide": decide,
        "act": act,
        "bare": lambda: bare(policy).block_until_ready(),
    }


def measure(cases: dict[Any, Callable[[], Any]], calls: int) -> dict[Any, Times]:
    """Times of every case, in turn."""
    walls: dict[Any, list[float]] = {name: [] for name in cases}
    cpu = dict.fromkeys(cases, 0.0)
    for call in cases.values():
        for _ in range(min(calls, 50)):
            call()
    for _ in range(ROUNDS):
        for name, call in cases.items():
            thread = time.thread_time()
            for _ in range(calls):
                begun = time.perf_counter()
                call()
                walls[name].append(time.perf_counter() - begun)
            cpu[name] += time.thread_time() - thread
    return {
        name: Times(*(1e6 * np.percentile(wall, (25, 50))), 1e6 * cpu[name] / len(wall)) for name, wall in walls.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 128])
    parser.add_argument("--leaves", type=int, nargs="+", default=[50])
    parser.add_argument("--calls", type=int, default=200, help="calls of each case in each of 8 rounds")
    parser.add_argument("--sensors", nargs="+", choices=SENSORS, default=[""], help="what the agents see instead")
    parser.add_argument("--quick", action="store_true", help="16 rows and 20 calls a round alone")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.calls = [16], 20
    choose_device(None)
    grid = [(rows, leaves, seen) for seen in options.sensors for leaves in options.leaves for rows in options.rows]
    cases = {(*place, name): call for place in grid for name, call in cases_of(*place).items()}
    times = measure(cases, options.calls)
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}; us: lower quartile, median, CPU of the thread")
    names = ("ingest", "decide", "act", "bare")
    print("sensors     leaves  rows  " + "  ".join(f"{name:>17}" for name in names) + "  decide / bare")
    for rows, leaves, seen in grid:
        found = {name: times[rows, leaves, seen, name] for name in names}
        cells = "  ".join(f"{t.quartile:5.0f} {t.median:5.0f} {t.cpu:5.0f}" for t in found.values())
        ratio = found["decide"].quartile / found["bare"].quartile
        print(f"{seen or 'vector':10}  {leaves:6}  {rows:4}  {cells}  {ratio:13.1f}", flush=True)
        if options.json:
            with open(options.json, "a") as file:
                row = {"rows": rows, "leaves": leaves, "sensors": seen or "vector"}
                file.write(json.dumps(row | {name: t._asdict() for name, t in found.items()}) + "\n")


if __name__ == "__main__":
    main()

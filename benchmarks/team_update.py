"""Time of one update of a team of several behaviors against one behavior with the same members.

    python benchmarks/team_update.py                      # 2 kinds of 2 members each, 256 x 2 units, 10,240 agent steps

MA-POCA with 32 observations and 7 discrete actions for everybody, batch 1024, 3 epochs. Both programs update by turns
in one process (A B A B), so that a busy machine is as slow for one as for the other; CPU seconds of the process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl import make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.team import make_team
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec

SPEC = BehaviorSpec((ObservationSpec("vector", (32,)),), ActionSpec(0, (7,)))
ROWS = 16


def random_rollout(members: int, states: int, seed: int) -> Rollout:
    """Full teams, whose episodes end every 50 states."""
    rng = np.random.default_rng(seed)
    lead = (states, ROWS, members)
    flags = {name: np.zeros(lead, bool) for name in ("waiting", "truncated", "left", "cut", "begin")}
    nothing = {name: np.zeros(lead, np.float32) for name in ("reward", "mates_reward")}
    acted, ended = np.ones(lead, bool), np.zeros(lead, bool)
    acted[-1], ended[49:-1:50] = False, True
    return Rollout(
        obs=(rng.normal(size=(*lead, 32)).astype(np.float32),),
        carry=(),
        action_mask=np.ones((*lead, 7), bool),
        action=Action(np.zeros((*lead, 0), np.float32), rng.integers(0, 7, (*lead, 1)).astype(np.int32)),
        extras={"log_prob": np.full((*lead, 1), -np.log(7.0), np.float32)},
        present=np.ones(lead, bool),
        acted=acted,
        group_reward=np.broadcast_to(rng.normal(size=(*lead[:2], 1)), lead).astype(np.float32),
        terminated=ended,
        **flags,
        **nothing,
    )


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of the process, all threads."""
    begun = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - begun


def main() -> None:
    """Print the median of each, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=int, default=2)
    parser.add_argument("--members", type=int, default=2, help="of each kind")
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10_240, help="of all agents")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    settings = make_settings("poca", network_settings={"hidden_units": options.units, "num_layers": 2})
    one = ALGORITHMS["poca"](SPEC, settings)
    names = [f"Kind{i}" for i in range(options.kinds)]
    team = make_team("team", dict.fromkeys(names, one), dict.fromkeys(names, settings))
    every = options.kinds * options.members
    states = options.steps // (ROWS * every) + 1
    whole = random_rollout(every, states, 0)
    parts = {
        name: jax.tree.map(lambda x, i=i: x[:, :, i * options.members : (i + 1) * options.members], whole)
        for i, name in enumerate(names)
    }
    alone, together = (
        one.init(jax.random.key(0)),
        {of: kind.init(jax.random.key(i)) for i, (of, kind) in enumerate(team.kinds.items())},
    )
    calls = {
        "one behavior": (jax.jit(one.learn), (alone, whole)),
        f"{options.kinds} behaviors": (jax.jit(team.learn), (together, parts)),
    }
    for call, given in calls.values():
        seconds(lambda call=call, given=given: call(*given))  # compiled
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, (call, given) in calls.items():
            took[name].append(seconds(lambda call=call, given=given: call(*given)))
    first, second = (statistics.median(of) for of in took.values())
    for name, of in took.items():
        print(f"{name}: {statistics.median(of):.2f} CPU seconds ({min(of):.2f} to {max(of):.2f})")
    print(f"ratio: {second / first:.2f} of {options.kinds * options.members} members, {options.units} x 2 units")


if __name__ == "__main__":
    main()

"""How soon signals and demonstrations teach a small task, and what a signal adds to an update.

    python benchmarks/signals.py                 # all, some minutes
    python benchmarks/signals.py curiosity gail  # these alone
    python benchmarks/signals.py keeps           # what keeps GAIL's task: 8 seeds of each, some minutes
    python benchmarks/signals.py update          # what an update costs with curiosity and RND, beside one without

The task: on a line from -1 to 1 an agent begins in the middle and goes 0.2 to the left or right with each decision. One
end is the goal, drawn for each episode and shown. Its end pays 1, the other -1, each decision costs 0.01: 0.95 at most.
In the team two walk, each with a goal of its own, who arrives waits; the team is paid the mean at the end.

Three seeds in one program, 16 areas. Told are the steps after which the mean return of a thousand steps is 0.9 or more
for each seed, in how many of three it fell below 0.5 later, and CPU seconds: all, and without compilation. Seeds that
only imitate are not paid by the environment at all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl import make_algorithm, make_jitted_trainer
from jaxrl.cli.device import choose_device
from jaxrl.demonstrations import Pair, write
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.settings.traced import by_seed, variable
from tests.algorithms.team_rollouts import random_rollout
from tests.helpers import make_spec, settings_of

STEP, COST, LIMIT = 0.2, 0.01, 40
AREAS, SEEDS, REACHED, LOST = 16, 3, 0.9, 0.5


class Line(NamedTuple):
    """One area."""

    goal: Array  # float32 [A], -1 or 1
    place: Array  # float32 [A]
    clock: Array  # int32 []


def make_line(members: int = 1) -> JaxEnv:
    """The task, for one agent or a team."""

    def arrived(state: Line) -> Array:
        return jnp.abs(state.place) > 1.0 - STEP / 2

    def view(state: Line, over: Array) -> TeamView:
        obs = jnp.stack([state.goal, state.place], axis=1)
        return TeamView((obs,), jnp.ones((members, 2), bool), jnp.broadcast_to(~over, (members,)))

    def reset(key: Array, parameters: EnvParams) -> tuple[Line, TeamView]:
        goal = 2.0 * jax.random.bernoulli(key, shape=(members,)) - 1.0
        state = Line(goal, jnp.zeros(members), jnp.int32(0))
        return state, view(state, jnp.bool_(False))

    def step(key: Array, state: Line, actions: TeamActions) -> tuple[Line, TeamStep]:
        way = jnp.where(arrived(state), 0.0, STEP * (2.0 * actions.discrete[:, 0] - 1.0))
        state = Line(state.goal, state.place + way, state.clock + 1)
        over = arrived(state).all() | (state.clock >= LIMIT)
        result = jnp.where(arrived(state), jnp.where(state.goal * state.place > 0, 1.0, -1.0), 0.0).mean()
        paid = jnp.full(members, jnp.where(over, result, 0.0) - COST)
        nothing = jnp.zeros(members)
        own, group = (paid, nothing) if members == 1 else (nothing, paid)
        ended = jnp.broadcast_to(over, (members,))
        return state, TeamStep(view(state, over), own, group, ended, jnp.zeros(members, bool), over, {})

    return JaxEnv("Line", make_spec((2,), branches=(2,)), members, {}, reset, step)


def demonstrate(path: Path, episodes: int = 40) -> str:
    """An expert walks to its goal."""

    def pairs() -> Any:
        for number in range(episodes):
            goal = 1.0 if number % 2 else -1.0
            for t in range(5):
                yield Pair([np.array([goal, goal * STEP * t])], discrete=[int(goal > 0)], reward=-COST * (t > 0))
            yield Pair([np.array([goal, goal])], reward=1.0 - COST, done=True)

    write(path, "Line", make_line().spec, pairs())
    return str(path)


class Case(NamedTuple):
    """One way to learn it."""

    trainer: str
    steps: int
    signals: Callable[[str], dict[str, Any]]  # of the file of demonstrations
    cloning: bool = False
    hyper: Mapping[str, Any] = MappingProxyType({})


NETWORK = {"hidden_units": 32, "num_layers": 1}
PAID = {"extrinsic": {"gamma": 0.95}}
UNPAID = {"extrinsic": {"gamma": 0.95, "strength": 0.0}}
GAIL = {"gamma": 0.95, "learning_rate": 1e-3, "network_settings": NETWORK}
STEADY = {"reward_form": "negative", "learning_rate": 5e-3, "use_actions": True, "gradient_penalty": 1.0}
"""Of GAIL: who is done sooner earns more, the discriminator learns five times as fast as the policy, and it may tell
apart what lies near each other.
"""
CASES = {
    "alone": Case("ppo", 16_000, lambda _: PAID),
    "curiosity": Case(
        "ppo", 16_000, lambda _: {**PAID, "curiosity": {"strength": 0.02, "gamma": 0.95, "network_settings": NETWORK}}
    ),
    "rnd": Case(
        "ppo", 16_000, lambda _: {**PAID, "rnd": {"strength": 0.02, "gamma": 0.95, "network_settings": NETWORK}}
    ),
    "gail": Case("ppo", 24_000, lambda demo: {"gail": {"demo_path": demo, **GAIL}}),
    "gail_steady": Case(
        "ppo",
        24_000,
        lambda demo: {"gail": {"demo_path": demo, **GAIL, **STEADY}},
        hyper={"learning_rate": 1e-3, "beta": 0.02, "buffer_size": 256},
    ),
    "gail_sac": Case("sac", 6_000, lambda demo: {"gail": {"demo_path": demo, **GAIL}}),
    "gail_sac_steady": Case(
        "sac",
        6_000,
        lambda demo: {"gail": {"demo_path": demo, **GAIL, **STEADY}},
        hyper={"learning_rate": 1e-3, "steps_per_update": 2, "init_entcoef": 0.5},
    ),
    "cloning": Case("ppo", 8_000, lambda _: UNPAID, cloning=True),
    "cloning_poca": Case("poca", 16_000, lambda _: UNPAID, cloning=True),
}
ON_POLICY = {
    "batch_size": 64, "buffer_size": 512, "learning_rate": 3e-3, "learning_rate_schedule": "constant", "beta": 0.005,
    "num_epoch": 3,
}  # fmt: skip
SAC = {"batch_size": 64, "buffer_size": 5000, "learning_rate": 3e-3, "steps_per_update": 8, "init_entcoef": 0.1}


def section(name: str, demo: str) -> dict[str, Any]:
    """A case as a behavior of a configuration file has it."""
    case = CASES[name]
    written: dict[str, Any] = {
        "hyperparameters": {**(SAC if case.trainer == "sac" else ON_POLICY), **case.hyper},
        "network_settings": NETWORK,
        "reward_signals": case.signals(demo),
        "max_steps": 10 * case.steps,
    }
    if case.cloning:
        written["behavioral_cloning"] = {"demo_path": demo, "strength": 1.0}
    return written


def learned(name: str, demo: str, overrides: dict[str, Any] | None = None) -> str:
    """One line of the table."""
    case, written = CASES[name], section(name, demo)
    env, began = make_line(2 if case.trainer == "poca" else 1), time.process_time()
    settings = settings_of(case.trainer, {**written, **(overrides or {})})
    trainer = make_jitted_trainer(env, make_algorithm(env.spec, settings), settings, areas=AREAS, seeds=SEEDS)
    state, compiled = trainer.init(range(SEEDS)), time.process_time()
    curves, each = curve_of(trainer, state, case.steps, env.members > 1)
    ended = time.process_time()
    first, lost = first_and_lost(curves)
    steps = ["never" if at < 0 else f"{(at + 1) * each:,}" for at in first]
    last = " ".join(f"{x:.2f}" for x in curves[-1])
    return (
        f"| {name} | {case.trainer} | {' '.join(steps)} | {lost} of {SEEDS} | {last} | {ended - began:.1f} s | "
        f"{ended - compiled:.1f} s for {SEEDS} x {case.steps:,} |"
    )


RATE, PENALTY = "reward_signals.gail.learning_rate", "reward_signals.gail.gradient_penalty"
KEEPS: tuple[tuple[str, int, dict[str, Any], list[dict[str, float]]], ...] = (
    (
        "gail_steady",
        48_000,
        {},
        [{}, {PENALTY: 0.1}, {PENALTY: 3}, {PENALTY: 10}, {RATE: 1e-3}, {RATE: 1e-3, PENALTY: 10}],
    ),
    ("gail_steady", 24_000, {"reward_form": "logit"}, [{}, {PENALTY: 10}]),
    (
        "gail_steady",
        24_000,
        {"reward_form": "positive"},
        [{}, {PENALTY: 0.1}, {PENALTY: 10}, {RATE: 1e-3}, {RATE: 1e-3, PENALTY: 10}],
    ),
    ("gail_steady", 24_000, {"use_actions": False}, [{}, {PENALTY: 10}]),
    ("gail_sac_steady", 20_000, {}, [{}, {PENALTY: 10}, {"hyperparameters.tau": 0.02, PENALTY: 10}]),
)
"""Case, steps, keys of GAIL beside the case's, and the values of one program's seeds."""
OF_EACH = 8


def kept(name: str, steps: int, keys: dict[str, Any], points: list[dict[str, float]]) -> list[str]:
    """Lines of the table of what keeps the task: one program."""
    with tempfile.TemporaryDirectory() as folder:
        written = section(name, demonstrate(Path(folder) / "line.demo"))
        written["reward_signals"]["gail"] |= keys
        settings = settings_of(CASES[name].trainer, written)
        numbers = [variable(settings) | point for point in points]
        env, seeds = make_line(), range(OF_EACH * len(points))
        given = {"values": by_seed(numbers, OF_EACH), "areas": AREAS, "seeds": len(seeds)}
        trainer = make_jitted_trainer(env, make_algorithm(env.spec, settings), settings, **given)
    curves, each = curve_of(trainer, trainer.init(seeds), steps)
    lines = []
    for point, of in zip(points, np.split(curves, len(points), axis=1), strict=True):
        first, lost = first_and_lost(of)
        found = [(at + 1) * each for at in first if at >= 0]
        low = min((of[at:, i].min() for i, at in enumerate(first) if at >= 0), default=np.nan)
        changed = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in (keys | point).items())
        told = f"{min(found):,} to {max(found):,}" if found else "never"
        of_all = f"{len(found)} of {OF_EACH}"
        lines.append(f"| {name}, {steps:,} | {changed or 'nothing'} | {of_all} | {told} | {lost} | {low:.2f} |")
    return lines


def curve_of(trainer: Any, state: Any, steps: int, teams: bool = False) -> tuple[np.ndarray, int]:
    """Mean returns of each thousand steps or so [chunks, S], and how many steps these are."""
    each = trainer.steps * AREAS * trainer.agents
    chunk, curve = max(round(1000 / each), 1), []
    while len(curve) * chunk * each < steps:
        state, log = trainer.run(state, chunk)
        curve.append(log.group_reward if teams else log.reward)
    return np.array(curve), chunk * each


def first_and_lost(curves: np.ndarray) -> tuple[list[int], int]:
    """Of each seed, where the mean is 0.9 or more first, -1 for never; how many seeds fall below 0.5 afterwards."""
    good = curves >= REACHED
    first = [int(found.argmax()) if found.any() else -1 for found in good.T]
    return first, sum(at >= 0 and bool((curves[at:, i] < LOST).any()) for i, at in enumerate(first))


SMALL = {"without": {}, "curiosity": {"curiosity": {"strength": 0.02}}, "rnd": {"rnd": {"strength": 0.01}}}
PYRAMIDS = {
    "without": {},
    "curiosity": {"curiosity": {"strength": 0.02, "network_settings": {"hidden_units": 256}}},
    "rnd": {"rnd": {"strength": 0.01, "network_settings": {"hidden_units": 64, "num_layers": 3}}},
}
"""As ML-Agents' Pyramids and PyramidsRND have them."""


def updates(signals: Mapping[str, Any], units: int, batch: int, turns: int = 8) -> str:
    """CPU seconds of one update of 2,048 decisions of 32 numbers in 3 epochs, two layers: by turns."""
    spec = make_spec((32,), branches=(3,))
    sizes = {"batch_size": batch, "buffer_size": 2048, "num_epoch": 3}
    network, rollout = {"hidden_units": units, "num_layers": 2}, random_rollout(0, t=128, b=16, a=1, spec=spec)
    programs, states = {}, {}
    for name, more in signals.items():
        written = {"hyperparameters": sizes, "network_settings": network, "reward_signals": {**PAID, **more}}
        algorithm = make_algorithm(spec, settings_of("ppo", written))
        programs[name] = jax.jit(algorithm.learn)
        states[name] = jax.block_until_ready(programs[name](algorithm.init(jax.random.key(0)), rollout)[0])
    spent: dict[str, list[float]] = {name: [] for name in signals}
    for _ in range(turns):
        for name, program in programs.items():
            began = time.process_time()
            jax.block_until_ready(program(states[name], rollout))
            spent[name].append(time.process_time() - began)
    middle = {name: float(np.median(of)) for name, of in spent.items()}
    told = "; ".join(f"{name} {1e3 * of:.1f} ms ({of / middle['without']:.2f}x)" for name, of in middle.items())
    return f"{units} x 2 units, batches of {batch}: {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", default=[*CASES, "keeps", "update"], metavar="NAME", help="cases (default: all)"
    )
    given = parser.parse_args()
    unknown = sorted({*given.names} - {*CASES, "keeps", "update"})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(CASES)}, keeps and update")
    choose_device("cpu")
    asked = [name for name in given.names if name in CASES]
    if asked:
        print("| case | trainer | steps to 0.9 | lost again | at the end | CPU in all | without compilation |")
        print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        demo = demonstrate(Path(folder) / "line.demo")
        for name in asked:
            print(learned(name, demo), flush=True)
    if "keeps" in given.names:
        print("| case, steps | changed | reach 0.9 | after | lost again | lowest mean after it |")
        print("|---|---|---|---|---|---|")
        for program in KEEPS:
            print("\n".join(kept(*program)), flush=True)
    if "update" in given.names:
        print(updates(SMALL, 128, 256))
        print(updates(PYRAMIDS, 512, 128))


if __name__ == "__main__":
    main()

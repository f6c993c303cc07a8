"""What one point of `scale.py` costs: CPU time and memory of a host loop or a compiled loop of given sizes."""

from __future__ import annotations

import resource
import time
from typing import Any

import jax
import jax.numpy as jnp
import psutil
from crowd import Crowd, host_loop
from jax import Array

from jaxrl import make_algorithm, make_settings
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.jax_envs.interface import EnvParams, TeamActions, TeamView
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep
from jaxrl.training.compiled.trainer import make_scene_trainer

DECISIONS = 16
"""Of each agent in an update."""
PHASES = {"environment": nodes.ENV_STEP, "policy": nodes.EVALUATE, "update": nodes.UPDATE_POLICY}


def settings_of(trainer: str, agents: int) -> dict[str, Any]:
    """Of a behavior with so many agents in all: a tiny network, one epoch of four minibatches."""
    buffer = max(DECISIONS * agents, 64)
    return {
        "trainer_type": trainer,
        "max_steps": 10**9,
        "summary_freq": 10**6,
        "checkpoint_interval": 10**9,
        "hyperparameters": {
            "buffer_size": buffer,
            "batch_size": buffer // 4,
            "num_epoch": 1,
            "learning_rate_schedule": "constant",
        },
        "network_settings": {"hidden_units": 8, "num_layers": 1},
    }


def host_point(
    crowd: Crowd,
    *,
    trainer: str = "ppo",
    workers: int = 1,
    inline: bool = True,
    mode: str = "lockstep",
    played: int = 0,
    seconds: float = 2.0,
) -> dict[str, Any]:
    """Whole updates for about `seconds` of CPU time, once everything is compiled and `played` agent steps are over.

    `us` are CPU microseconds of the trainer for each agent step, the environment's inline ones among them, `phases` how
    the clock's time is shared; `start` the CPU seconds until everybody has learned twice. `mib` is the most memory
    that the trainer held, `worker_mib` what a worker has for itself.
    """
    began, at_least = time.process_time(), workers if mode == "lockstep" else 1
    settings = settings_of(trainer, crowd.agents * workers)
    with host_loop(crowd, settings, workers=workers, inline=inline, mode=mode) as loop:

        def steps() -> int:
            return sum(behavior.step for behavior in loop.behaviors.values())

        def play(updates: int) -> None:
            last = list(loop.behaviors.values())[-1]
            until = last.updates + updates
            while last.updates < until:
                loop.advance(loop.receive(at_least))

        play(2 if mode == "lockstep" else 8)  # numbers of rows that come are compiled for as they come
        start, timers = time.process_time() - began, loop.recorder.timers.root
        while steps() < played:
            play(1)
        before = {phase: timers.seconds_of(name) for phase, name in PHASES.items()}
        begun, clock, first = time.process_time(), time.perf_counter(), steps()
        while time.process_time() - begun < seconds:
            play(1)
        spent, elapsed, done = time.process_time() - begun, time.perf_counter() - clock, steps() - first
        phases = {phase: timers.seconds_of(name) - before[phase] for phase, name in PHASES.items()}
        own = [child.memory_full_info().uss / 2**20 for child in psutil.Process().children()]
    shares = {phase: taken / elapsed for phase, taken in phases.items()}
    return {
        "us": 1e6 * spent / done,
        "start": start,
        "mib": most_mib(),
        "worker_mib": sum(own) / len(own) if own else None,
        "phases": {**shares, "rest": 1.0 - sum(shares.values())},
        "agent_steps": done,
    }


def compiled_point(
    crowd: Crowd, *, trainer: str = "ppo", areas: int = 16, seeds: int = 1, played: int = 0, seconds: float = 2.0
) -> dict[str, Any]:
    """Iterations of the compiled loop for about `seconds`, as `host_point`; `planned_mib` is the compiler's plan."""
    began, scene = time.process_time(), jax_crowd(crowd)
    settings = {name: make_settings(**_flat(trainer, crowd.agents * areas)) for name in crowd.names()}
    algorithms = {part.name: make_algorithm(part.spec, settings[part.name]) for part in scene.parts}
    made = make_scene_trainer(scene, algorithms, settings, areas=areas, seeds=seeds)
    state, _ = jax.block_until_ready(made.run(made.init(range(seeds)), 1))
    state, _ = jax.block_until_ready(made.run(state, 1))
    start, each = time.process_time() - began, made.steps * areas * seeds * crowd.agents * crowd.behaviors
    for _ in range(played // each):
        state, _ = jax.block_until_ready(made.run(state, 1))
    begun, iterations = time.process_time(), 0
    while time.process_time() - begun < seconds:
        state, _ = jax.block_until_ready(made.run(state, 1))
        iterations += 1
    spent = time.process_time() - begun
    done = iterations * each
    numbers = {"us": 1e6 * spent / done, "start": start, "mib": most_mib(), "planned_mib": made.bytes / 2**20}
    return {**numbers, "agent_steps": done}


def _flat(trainer: str, agents: int) -> dict[str, Any]:
    """For `make_settings`, which has no place for what concerns files."""
    given = settings_of(trainer, agents)
    return {key: value for key, value in given.items() if key not in ("summary_freq", "checkpoint_interval")}


def most_mib() -> float:
    """The most that this process ever held (on Linux, in whose unit the system tells it)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def jax_crowd(crowd: Crowd) -> JaxScene:
    """One area of the crowd in JAX: each behavior is one team of `agents`."""
    specs = {name: crowd.spec(i) for i, name in enumerate(crowd.names())}
    parts = tuple(BehaviorPart(name, spec, crowd.agents) for name, spec in specs.items())

    def views(clock: Array, over: Array) -> dict[str, TeamView]:
        at = clock.astype(jnp.float32) / crowd.episode

        def view(part: BehaviorPart) -> TeamView:
            shape = (part.members, *part.spec.observations[0].shape)
            return TeamView(
                obs=(jnp.broadcast_to(at, shape),),
                action_mask=jnp.ones((part.members, 2), bool),
                alive=jnp.broadcast_to(~over, part.members),
            )

        return {part.name: view(part) for part in parts}

    def reset(key: Array, parameters: EnvParams) -> tuple[Array, dict[str, TeamView]]:
        return jnp.int32(0), views(jnp.int32(0), jnp.bool_(False))

    def step(key: Array, clock: Array, actions: dict[str, TeamActions]) -> tuple[Array, SceneStep]:
        clock = clock + 1
        over = clock >= crowd.episode

        def came(part: BehaviorPart, view: TeamView) -> BehaviorStep:
            paid = actions[part.name].discrete[:, 0].astype(jnp.float32)
            ended, nobody = jnp.broadcast_to(over, part.members), jnp.zeros(part.members, bool)
            return BehaviorStep(view, paid, jnp.zeros(part.members), ended, nobody)

        seen = views(clock, over)
        return clock, SceneStep({part.name: came(part, seen[part.name]) for part in parts}, over, {})

    return JaxScene("Crowd", parts, {}, reset, step)

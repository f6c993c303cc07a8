"""Checks one environment: finds it, starts it, connects, reads its behaviors, and answers. Every wait has an end."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxrl.envs import simulator
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.unity.ports import EDITOR_PORT, port_problem
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings
from jaxrl.tools.doctor.findings import Finding, Outcome, fail, ok, warn
from jaxrl.types import EnvMessage, JaxrlError

_COMPILED_SECONDS = 300.0
"""Time in which a compiled environment has to be traced, compiled and played for a moment."""
_PORTS = (Kind.UNITY, Kind.PLAYER)
_EDITOR = "open the scene, start `jaxrl train` (or this), and press Play while it waits"


def environment(settings: RunSettings) -> Iterator[Finding]:
    """Start the environment that `env_settings.env_path` names once, end it, and yield findings."""
    options = settings.env_settings
    try:
        kind, name = parse_address(options.env_path)
        if not kind.compiled:
            simulator(kind).check(name)
    except JaxrlError as error:
        yield fail("environment", str(error))
        return
    if kind.compiled:
        finding = compiled(str(options.env_path), options.env_args or ())
        yield finding
        if finding.outcome is Outcome.OK:
            from jaxrl.tools.doctor.learner import of_compiled

            yield from of_compiled(settings)
        return
    where = "the Unity Editor" if options.env_path is None else f"{options.env_path} can be started"
    yield ok("environment", where)
    if kind in _PORTS:
        findings = list(ports(EDITOR_PORT if options.env_path is None else options.base_port, options.num_envs))
        yield from findings
        if any(finding.remedy for finding in findings):
            return
    yield from started(settings)


def ports(first: int, count: int) -> Iterator[Finding]:
    """Check that the ports of all workers are free."""
    problems = [text for port in range(first, first + count) if (text := port_problem(port))]
    if problems:
        other = "" if first == EDITOR_PORT else f"--base-port {first + 100 if first < 65000 else 5005}, or "
        yield fail("port", problems[0], f"{other}end what holds it")
        return
    yield ok("port", f"{first} is free" if count == 1 else f"{first} to {first + count - 1} are free")


def started(settings: RunSettings) -> Iterator[Finding]:
    """Check launch, handshake, behaviors, and a first decision for each of them."""
    kind, name = parse_address(settings.env_settings.env_path)
    logs, named_log = Path(tempfile.mkdtemp(prefix="jaxrl-doctor-")), False
    try:
        yield from _played(settings, simulator(kind).make_factory(name, settings, str(logs)))
    except EnvironmentFailure as error:
        if settings.env_settings.env_path is None:
            wait = settings.env_settings.timeout_wait
            yield warn("connection", f"no Editor has connected within {wait:g} s", _EDITOR)
        else:
            named_log = any(logs.iterdir())  # the error may name the player's log
            yield fail("connection", str(error))
    except JaxrlError as error:
        yield fail("decision", str(error))
    finally:
        if not named_log:
            shutil.rmtree(logs, ignore_errors=True)


def _played(settings: RunSettings, factory: EnvFactory) -> Iterator[Finding]:
    """Play the environment from its launch to its end. Raises JaxrlError."""
    wait, begun = settings.env_settings.timeout_wait, time.monotonic()
    with _told() as lines, EnvPool(factory, 1, timeout=wait + 10.0, startup_timeout=wait + 60.0) as pool:
        about = lines[0].removesuffix(" (worker 0)") if lines else "it runs"
        yield ok("connection", f"{about}, after {time.monotonic() - begun:.1f} s")
        begun = time.monotonic()
        pool.reset()
        (first,) = pool.recv()
        yield from behaviors(first, time.monotonic() - begun)
        if first.steps:
            from jaxrl.tools.doctor.learner import decisions, replays

            findings = list(replays(settings, {name: first.new_specs[name] for name in first.steps}))
            yield from findings
            if all(finding.outcome is Outcome.OK for finding in findings):
                yield from decisions(settings, pool, first)


def behaviors(first: EnvMessage, seconds: float) -> Iterator[Finding]:
    """Yield the behaviors that asked for a decision in the first step, which took `seconds`."""
    if not first.steps:
        yield warn(
            "behaviors",
            f"no agent has asked for a decision in the first step ({seconds:.1f} s)",
            "give agents a Decision Requester and Behavior Type Default; agents that appear later are fine",
        )
    for behavior_id, message in first.steps.items():
        spec, count = first.new_specs[behavior_id], len(message.deciding.agent_id)
        teams = len(set(message.deciding.group_id.tolist()) - {0})
        sensors = ", ".join(f"{sensor.name} {'x'.join(map(str, sensor.shape))}" for sensor in spec.observations)
        action = spec.action
        parts = [f"{action.continuous_size} continuous"] if action.continuous_size else []
        parts += [f"branches of {', '.join(map(str, action.discrete_branches))}"] if action.discrete_branches else []
        in_teams = f" in {teams} team(s)" if teams else ""
        yield ok("behaviors", f"{behavior_id}: {count} agent(s){in_teams}; sees {sensors}; does {' and '.join(parts)}")


def compiled(env_path: str, env_args: Sequence[str] = ()) -> Finding:
    """Play an environment in JAX for a moment, in a process of its own: it may hang."""
    command = [sys.executable, "-m", "jaxrl.cli", "check-env", env_path, "--steps", "20", "--areas", "4"]
    command += ["--env-args", *env_args] if env_args else []
    begun = time.monotonic()
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILED_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return fail("environment", f"{env_path} has not been played within {_COMPILED_SECONDS:.0f} s",
                    f"see where it stays: jaxrl check-env {env_path}")  # fmt: skip
    lines = (process.stdout + process.stderr).strip().splitlines() or [f"exit code {process.returncode}"]
    if process.returncode:
        problems = [line for line in lines if line.startswith("problem:")]
        if not problems:  # it could not even be made
            return fail("environment", lines[-1])
        return fail("environment", "; ".join(problems), f"jaxrl check-env {env_path} plays it for longer")
    return ok("environment", f"{lines[-1]}, {time.monotonic() - begun:.1f} s with its compilation")


@contextmanager
def _told() -> Iterator[list[str]]:
    """Collect the pool's log messages: they name the connected environment."""
    lines: list[str] = []
    logger, handler = logging.getLogger("jaxrl.envs.workers.supervisor"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

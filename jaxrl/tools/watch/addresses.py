"""Which environments can be watched, and what to do about the others."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs import simulator
from jaxrl.envs.address import Kind, parse_address, split_function, unknown
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.jax_envs import ENVIRONMENTS, is_installed
from jaxrl.settings import load_run_settings
from jaxrl.types import JaxrlError

FOREIGN = (Kind.GYMNASIUM, Kind.PETTINGZOO)
_SHOWN = 8  # names of runs in one message
_UNITY = (
    "{what} draws in a window of its own, of which no film is made; to see a trained policy play in it: "
    "jaxrl train {config}{env} --run-id={run} --results-dir={results} --resume --inference"
)


class WatchError(JaxrlError):
    """What was asked for cannot be shown. The text says why and what to do."""


def environment_of(run: Path | None) -> str:
    """The address in the configuration of a run. Raises WatchError: there is none."""
    if run is None:
        raise WatchError("Nothing to watch: name an environment, such as jax:dungeon_escape, or a run with --run")
    path = RunFolder(run.parent, run.name).configuration
    if not path.is_file():
        runs = sorted(found.parent.name for found in run.glob("*/configuration.yaml"))
        if runs:
            raise WatchError(
                f"{run}: is the folder of a sweep or of several runs, and no run itself; name one of them, such as "
                f"--run {shlex.quote(str(run / runs[0]))} (there are: {', '.join(runs[:_SHOWN])}"
                f"{f' and {len(runs) - _SHOWN} more' if len(runs) > _SHOWN else ''})"
            )
        raise WatchError(f"{path}: not there, so the run does not tell its environment; name it before --run")
    address = load_run_settings(path, {}, HYPERPARAMETER_TYPES, of_folder=True).env_settings.env_path
    if address is None:
        raise WatchError(_unity("the Unity Editor", None, run))
    return address


def arguments_of(run: Path | None, address: str) -> dict[str, Any]:
    """What the run's environment was made with, if `address` is compiled and is that environment; else nothing."""
    path = None if run is None else RunFolder(run.parent, run.name).configuration
    if path is None or not path.is_file() or not parse_address(address).kind.compiled:
        return {}
    options = load_run_settings(path, {}, HYPERPARAMETER_TYPES, of_folder=True).env_settings
    return keyword_arguments(options.env_args) if options.env_path == address else {}


def check_watchable(address: str, run: Path | None) -> None:
    """Raise WatchError unless there is such an environment, of a kind that can be drawn.

    Raises JaxrlError: the package of Gymnasium or PettingZoo is missing, or has no such environment.
    """
    kind, name = parse_address(address)
    if kind in FOREIGN:
        simulator(kind).check(name)
        return
    if kind in (Kind.JAXMARL, Kind.GYMNAX, Kind.RLLIB):
        raise WatchError(f"{address}: the environments of {kind} have no picture here; watch jax:NAME instead")
    if kind is Kind.UNITY and (Path(address).exists() or Path(address).name != address):
        raise WatchError(_unity(f"{address}: a Unity build", address, run))
    own = kind is Kind.FUNCTION or (kind is Kind.PLAYER and split_function(name or "") is not None)
    known = kind in (Kind.JAX, Kind.PLAYER) and (name in ENVIRONMENTS or is_installed(name))
    if not own and not known:
        prefix = f"{Kind.PLAYER if kind is Kind.PLAYER else Kind.JAX}:"
        raise WatchError(unknown(address, name or "", ENVIRONMENTS, there_are="jaxrl can show", prefix=prefix))


def compiled(name: str) -> str:
    """The address at which an environment that a player serves can be compiled."""
    return name if split_function(name) else f"{Kind.JAX}:{name}"


def _unity(what: str, build: str | None, run: Path | None) -> str:
    config = "CONFIG" if run is None else shlex.quote(str(run / "configuration.yaml"))
    return _UNITY.format(
        what=what,
        config=config,
        env="" if build is None else f" --env={shlex.quote(build)}",
        run="ID" if run is None else shlex.quote(run.name),
        results="results" if run is None else shlex.quote(str(run.parent)),
    )

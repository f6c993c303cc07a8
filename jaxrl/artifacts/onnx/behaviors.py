"""Finds the spec of the behavior that a model is for: in the run that wrote the file, or in an environment."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl.artifacts.checkpoint.document import METADATA, read_info
from jaxrl.artifacts.checkpoint.folder import MEMBER, choose
from jaxrl.artifacts.checkpoint.spec import spec_from_json
from jaxrl.envs import simulator
from jaxrl.envs.address import parse_address, unknown
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import BehaviorSpec, JaxrlError

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings

_STEP, _MEMBER = re.compile(r"-\d+$"), re.compile(MEMBER + r"\d+$")


def behavior_of_run(path: Path) -> tuple[str, BehaviorSpec] | None:
    """Return name and spec of the behavior whose run wrote the file at `path`; None if it lies in no run's folder.

    `<run>/<Behavior>/<Behavior>-<step>.onnx` stands beside its checkpoint, `<run>/<Behavior>.onnx` beside the folder of
    all of them. Raises CheckpointError or DamagedError for one that cannot be read.
    """
    beside = path.with_name(_MEMBER.sub("", path.with_suffix("").name))
    if not beside.is_dir():
        return None
    checkpoint = beside if (beside / METADATA).is_file() else choose(beside).path
    if checkpoint is None:
        return None
    info = read_info(checkpoint)
    return (info.behavior, spec_from_json(info.spec)) if info.spec else None


def behavior_of_environment(settings: RunSettings, wanted: str | None, path: Path) -> tuple[str, BehaviorSpec]:
    """Return name and spec of one behavior of `env_settings.env_path`, which is started, reset once and ended.

    `wanted`: its name, with or without `?team=`; None: the only one, or that which the file at `path` is called after.

    Raises:
        JaxrlError: there is none of that name, or it is not clear which of several is meant.
        EnvironmentFailure, UnknownEnvironmentError: it does not start.
    """
    env_path = settings.env_settings.env_path
    specs = _compiled(settings) if parse_address(env_path).kind.compiled else _stepped(settings)
    short: dict[str, str] = {}  # without `?team=` → the first team's
    for name in specs:
        short.setdefault(name.partition("?")[0], name)
    names = (wanted, wanted.partition("?")[0]) if wanted else (path.stem, _STEP.sub("", _MEMBER.sub("", path.stem)))
    match = next((short.get(name, name) for name in names if name in specs or name in short), None)
    if match is None and wanted is None and len(short) == 1:
        (match,) = short.values()
    if match is not None:
        return match, specs[match]
    if wanted is None:
        raise JaxrlError(f"--behavior: {env_path} has {', '.join(short)}: say which of them the model is for")
    what = f"is not in the first step of {env_path}"
    raise JaxrlError(unknown(f"--behavior {wanted}", wanted, short, what=what))


def _stepped(settings: RunSettings) -> Mapping[str, BehaviorSpec]:
    """Return the specs of an environment in a process of its own: of the behaviors that ask in the first step."""
    environment = settings.env_settings
    kind, name = parse_address(environment.env_path)
    chosen = simulator(kind)
    chosen.check(name)
    with tempfile.TemporaryDirectory(prefix="jaxrl-check-") as logs:
        factory = chosen.make_factory(name, settings, logs)
        wait = environment.timeout_wait
        with EnvPool(factory, 1, timeout=wait + 10.0, startup_timeout=wait + 60.0) as pool:
            pool.reset()
            (result,) = pool.recv()
            return dict(result.new_specs)


def _compiled(settings: RunSettings) -> Mapping[str, BehaviorSpec]:
    """Return the specs of an environment that is compiled together with the learner."""
    from jaxrl.jax_envs import environment_in
    from jaxrl.jax_envs.scene import parts_of

    return {part.name: part.spec for part in parts_of(environment_in(settings.env_settings))}

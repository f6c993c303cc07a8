"""`jaxrl import-torch`: converts a run of ML-Agents into one of jaxrl. JAX is imported inside `run` alone."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.types import BehaviorSpec, JaxrlError

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings
    from jaxrl.torch.checkpoint import TorchCheckpoint
    from jaxrl.torch.migration import Imported, Source

LATEST = "checkpoint.pt"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the old run and the new one."""
    parser.description = (
        "Make a run of jaxrl from a checkpoint of ML-Agents (PPO, MA-POCA, SAC): weights, statistics of observations, "
        "Adam and step. It is continued with --resume, or trained from with --initialize-from. PyTorch is not needed, "
        "and nothing in the file is run."
    )
    parser.add_argument("source", type=Path, metavar="FILE.pt|RUN",
                        help="a checkpoint, or the folder of a run: the latest of each of its behaviors")  # fmt: skip
    parser.add_argument("--config", type=Path, metavar="CONFIG",
                        help="YAML file it was trained with (default: the run's configuration.yaml)")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="folder of the new run, RESULTS/RUN-ID; not there yet")  # fmt: skip
    parser.add_argument("--behavior", metavar="NAME", help="whose the file is (default: the name of its folder)")
    parser.add_argument("--onnx", type=Path, metavar="FILE",
                        help="its ONNX file, which tells what it sees (default: the one beside it)")  # fmt: skip
    parser.add_argument("--env", metavar="PATH", help="the environment, asked for its observations instead")


def run(given: argparse.Namespace) -> int:
    """Read everything, write the run and print its contents. Raises JaxrlError before anything is written."""
    from jaxrl.cli.device import choose_device

    if not given.source.exists():
        raise JaxrlError(f"{given.source}: no such file; ML-Agents keeps it as results/<run-id>/<Behavior>/{LATEST}")
    choose_device("cpu")
    from jaxrl.torch.migration import Source, import_run

    settings, sources = _settings(given), []
    for name, path in _checkpoints(given, settings):
        read = _read(path)
        spec, model = _spec(given, settings, name, path, read)
        sources.append(Source(name, path, read, spec, model))
    learners = import_run(sources, settings, _old_run(given.source) / "run_logs" / "training_status.json")
    for learner, source in zip(learners, sources, strict=True):
        print("\n  ".join(_told(learner, source)))
    parent, name = shlex.quote(str(given.out.parent)), shlex.quote(given.out.name)
    print(f"Written to {given.out}. Continue it: jaxrl train {_config(given)} --results-dir={parent} --run-id={name} "
          f"--resume; or start with its weights: --initialize-from={name} and another --run-id.")  # fmt: skip
    return 0


def _old_run(source: Path) -> Path:
    """Return the folder of ML-Agents' run."""
    return source if source.is_dir() else source.absolute().parents[1]


def _config(given: argparse.Namespace) -> Path:
    """Return the configuration file. Raises JaxrlError where there is none."""
    if given.config is not None:
        return given.config
    path = _old_run(given.source) / "configuration.yaml"
    if not path.is_file():
        raise JaxrlError(f"--config: give the YAML file of the training; {path}, which would do, is not there")
    return path


def _settings(given: argparse.Namespace) -> RunSettings:
    """Return settings of the new run: those of the training, in its own folder."""
    from jaxrl.algorithms import HYPERPARAMETER_TYPES
    from jaxrl.settings import load_run_settings

    out = given.out.absolute()
    where = {"run_id": out.name, "results_dir": str(given.out.parent), "initialize_from": None}
    plain = {"resume": False, "force": False, "load_model": False, "train_model": False, "inference": False}
    overrides: dict[str, Any] = {"checkpoint_settings": where | plain}
    if given.env is not None:
        overrides["env_settings"] = {"env_path": given.env}
    return load_run_settings(_config(given), overrides, HYPERPARAMETER_TYPES)


def _checkpoints(given: argparse.Namespace, settings: RunSettings) -> Iterator[tuple[str, Path]]:
    """Yield behaviors and their files. Raises JaxrlError where there is none, or a file's behavior is not clear."""
    source: Path = given.source
    if source.is_dir():
        files = sorted(path for path in source.glob(f"*/{LATEST}") if given.behavior in (None, path.parent.name))
        left = [] if given.behavior else _leftovers(given, settings, files)
        for path in left:
            files.remove(path)
            print(f"left out: {path.parent}, which no behavior of the configuration is called after; --behavior "
                  f"{path.parent.name} takes it alone")  # fmt: skip
        if not files:
            where = f"{given.behavior}/{LATEST}" if given.behavior else f"<Behavior>/{LATEST}"
            raise JaxrlError(f"{source}: holds no {where}, where ML-Agents keeps what it resumes from")
        yield from ((path.parent.name, path) for path in files)
        return
    folder = source.absolute().parent.name
    listed = ", ".join(settings.behaviors)
    if given.behavior is None and folder not in settings.behaviors and settings.default_settings is None:
        raise JaxrlError(f"--behavior: {source} lies in the folder {folder}, and the configuration lists "
                         f"{listed or 'no behaviors'}: say whose it is")  # fmt: skip
    yield given.behavior or folder, source


def _leftovers(given: argparse.Namespace, settings: RunSettings, paths: Sequence[Path]) -> list[Path]:
    """Return files of behaviors of an earlier run, into whose folder ML-Agents wrote this one.

    ML-Agents lists all behaviors of a run in the configuration.yaml that it writes into its folder.
    """
    if given.config is not None and settings.default_settings is not None:
        return []
    return [path for path in paths if path.parent.name not in settings.behaviors]


def _read(path: Path) -> TorchCheckpoint:
    from jaxrl.torch.checkpoint import parsed
    from jaxrl.torch.reading import read_torch_file
    from jaxrl.torch.weights import TorchImportError

    contents = read_torch_file(path)
    try:
        return parsed(contents)
    except TorchImportError as error:
        raise TorchImportError(f"{path}: {error}") from error


def _spec(
    given: argparse.Namespace, settings: RunSettings, name: str, path: Path, read: TorchCheckpoint
) -> tuple[BehaviorSpec, Path | None]:
    """Return the spec of the behavior, and the ONNX file of the same step, if it is there."""
    from jaxrl.artifacts.onnx.behaviors import behavior_of_environment
    from jaxrl.artifacts.onnx.model_spec import observations_of
    from jaxrl.torch.settings import action_of

    exact = path.with_name(f"{name}-{read.step}.onnx")
    model = given.onnx or (exact if exact.is_file() else None)
    if given.env is not None:
        return behavior_of_environment(settings, name, path)[1], model
    of_run = path.absolute().parent.parent / f"{name}.onnx"
    shown = model or next(
        (file for file in (*sorted(path.parent.glob(f"{name}-*.onnx")), of_run) if file.is_file()), None
    )
    if shown is None:
        raise JaxrlError(
            f"{path}: a .pt does not say what its observations are, and there is no {exact.name} beside it: give the "
            "ONNX file of the policy (--onnx FILE), or the environment (--env PATH)"
        )
    return BehaviorSpec(observations_of(shown), action_of(read.policy)), model


def _told(one: Imported, source: Source) -> list[str]:
    """Return lines that describe the imported run."""
    sensors = ", ".join(
        f"{sensor.name} {'x'.join(map(str, sensor.shape))}{' goal' if sensor.observation_type else ''}"
        for sensor in one.spec.observations
    )
    action = one.spec.action
    actions = [f"{action.continuous_size} continuous"] if action.continuous_size else []
    actions += [f"branches of {', '.join(map(str, action.discrete_branches))}"] if action.discrete_branches else []
    lines = [f"{one.name}: {one.settings.trainer_type}, step {int(one.state.step)}, from {source.path}",
             f"observations: {sensors}; actions: {' and '.join(actions)}",
             f"Adam: {source.read.adam.count} updates"]  # fmt: skip
    if one.remarks:
        lines.append(f"not taken: {'; '.join(one.remarks)}")
    if one.compared is not None and source.model is not None:
        lines.append(f"acts as {source.model.name} does: actions differ by at most {one.compared.difference:.1e}, "
                     f"{one.compared.same_choices:.0%} of the choices are the same")  # fmt: skip
    return lines

"""`jaxrl sweep --resume`: points that have begun go on, and those that an interrupt came before begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import RunSettings, SettingsError, with_seed
from jaxrl.settings.reading import read_yaml


def with_seed_of_sweep(base: RunSettings, folder: Path) -> RunSettings:
    """Settings of a sweep in `folder` that goes on: without a seed of their own, with the first that its runs had."""
    if not base.checkpoint_settings.resume or base.env_settings.seed >= 0:
        return base
    files = [*folder.glob("configuration.yaml"), *folder.glob("*/configuration.yaml")]
    seeds = [seed for seed in map(_seed_in, files) if seed is not None]
    return with_seed(base, min(seeds)) if seeds else base


def begun_or_new(runs: Sequence[RunSettings]) -> list[RunSettings]:
    """The runs of a sweep: with --resume those without a checkpoint begin, unless none has one (which is then refused).

    What such a run has written before it was killed is written over.
    """
    there = [_is_saved(run) for run in runs]
    if not any(there) or not any(run.checkpoint_settings.resume for run in runs):
        return list(runs)
    return [run if begun else _new(run) for run, begun in zip(runs, there, strict=True)]


def _new(run: RunSettings) -> RunSettings:
    options = run.checkpoint_settings
    return run.model_copy(update={"checkpoint_settings": options.model_copy(update={"resume": False, "force": True})})


def _is_saved(run: RunSettings) -> bool:
    return any(checkpoints(behavior) for behavior in _folder(run).path.glob("*/"))


def _folder(run: RunSettings) -> RunFolder:
    return RunFolder(run.checkpoint_settings.results_dir, run.checkpoint_settings.run_id)


def _seed_in(path: Path) -> int | None:
    try:
        seed = read_yaml(path)["env_settings"]["seed"]
    except (SettingsError, KeyError, TypeError):
        return None  # `RunFolder.check` says what is wrong with a folder
    return seed if isinstance(seed, int) and seed >= 0 else None

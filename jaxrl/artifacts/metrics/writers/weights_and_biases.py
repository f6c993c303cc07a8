"""Weights & Biases: one of its runs for each behavior and seed, in a group named after the run.

Trainer steps are the metric `Step`, which all others are plotted over: W&B's own step may only rise, and that of a run
that is resumed goes back to its checkpoint.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.artifacts.metrics.statistics import STEP, Summary
from jaxrl.artifacts.metrics.writers.background import BackgroundWriter
from jaxrl.artifacts.metrics.writers.interface import Place, RecordError

_ADVICE = "metrics.csv and the event files have everything; `wandb sync` sends what lies in run_logs/wandb."
_UNSENT = ("offline", "dryrun", "disabled")


def check(target: str) -> None:
    """Raise RecordError if W&B is not installed, or nobody is logged in."""
    if importlib.util.find_spec("wandb") is None:
        raise RecordError(
            "record_settings.wandb: Weights & Biases is not installed: pip install 'jaxrl[wandb]', or leave out --wandb"
        )
    import wandb

    if wandb.setup().settings.mode not in _UNSENT and not wandb.login(prompt=False, verify=False):
        raise RecordError(
            "record_settings.wandb: W&B has no API key: log in with `wandb login`, or set WANDB_MODE=offline, which "
            "keeps everything in run_logs/wandb until `wandb sync`"
        )


def open_writer(place: Place) -> BackgroundWriter:
    """Open a run of the project `place.target`."""
    return BackgroundWriter("Weights & Biases", lambda: WandbWriter(place), _ADVICE, place.told)


class WandbWriter:
    """Writer of a run in W&B, new or continued."""

    def __init__(self, place: Place) -> None:
        import wandb

        self._wandb = wandb
        place.logs.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=place.target,
            group=place.run_id,
            name=place.title,
            id=place.identity,
            resume="allow",
            dir=str(place.logs),
            config=dict(place.configuration),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric=STEP)

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        """Write the settings into the run's configuration, as `behavior`."""
        self._run.config.update({"behavior": dict(settings)}, allow_val_change=True)

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Write all tags of one moment, with histograms where there are any."""
        values: dict[str, Any] = {tag: s.value for tag, s in summaries.items()}
        for tag, summary in summaries.items():
            if summary.histogram is not None and np.isfinite(summary.histogram).all():
                values[f"{tag}_hist"] = self._wandb.Histogram(summary.histogram)  # pyright: ignore[reportArgumentType]
        self._run.log({**values, STEP: step})

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        self._run.log({**{tag: self._wandb.Image(pixels) for tag, pixels in images.items()}, STEP: step})

    def close(self) -> None:
        """Wait until W&B has everything."""
        self._run.finish()

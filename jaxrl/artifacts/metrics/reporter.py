"""One behavior's numbers on their way out: TensorBoard, console line, gauges and the progress bar's mean reward."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.console import ConsoleWriter, listing
from jaxrl.artifacts.metrics.statistics import StatsAggregator, signal_tag
from jaxrl.artifacts.metrics.tensorboard import TensorBoardWriter
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.rollout.episodes import EpisodeRecords
from jaxrl.types import Aggregation, EnvironmentStat

RECENT_EPISODES = 100

UPDATE_TAGS = {
    "policy_loss": tags.POLICY_LOSS,
    "value_loss": tags.VALUE_LOSS,
    "baseline_loss": tags.BASELINE_LOSS,
    "entropy": tags.ENTROPY,
    "learning_rate": tags.LEARNING_RATE,
    "epsilon": tags.EPSILON,
    "beta": tags.BETA,
    "value_estimate/extrinsic": signal_tag(tags.VALUE_ESTIMATE, "extrinsic"),
    "baseline_estimate/extrinsic": signal_tag(tags.BASELINE_ESTIMATE, "extrinsic"),
}
"""ML-Agents' tag of each metric that an algorithm returns."""


class Reporter:
    """Collects between summaries; `summary` writes everything and starts afresh."""

    def __init__(self, behavior: str, folder: Path, console: ConsoleWriter, timers: Timers) -> None:
        self.behavior = behavior
        self._folder = folder
        self._console = console
        self._timers = timers
        self._stats = StatsAggregator()
        self._writer: TensorBoardWriter | None = None
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._team_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._since_update: list[float] = []

    def begin(self, settings: Mapping[str, Any], resume_step: int | None) -> None:
        """Open the event file and list the settings, on the console and as TensorBoard text."""
        self._writer = TensorBoardWriter(self._folder, resume_step)
        self._writer.hyperparameters(listing(settings), resume_step or 0)
        self._console.hyperparameters(self.behavior, settings)

    def episodes(self, records: Sequence[EpisodeRecords], *, group_rewards: bool) -> None:
        """Finished episodes. Group returns are reported once any group reward was seen, or always for MA-POCA."""
        for record in records:
            self._stats.extend(tags.CUMULATIVE_REWARD, record.returns, Aggregation.HISTOGRAM)
            self._stats.extend(tags.EPISODE_LENGTH, record.lengths)
            self._stats.extend(signal_tag(tags.SIGNAL_REWARD, "extrinsic"), record.returns)
            self._returns.extend(record.returns)
            self._since_update.extend(record.returns)
            if group_rewards:
                self._stats.extend(tags.GROUP_CUMULATIVE_REWARD, record.group_returns, Aggregation.HISTOGRAM)
                self._team_returns.extend(record.team_returns)

    def environment(self, stats: Sequence[EnvironmentStat], worker: int) -> None:
        """Values that an environment sent through its stats channel."""
        self._stats.add_environment_stats(stats, worker)

    def update(self, metrics: Mapping[str, float]) -> None:
        """Metrics of one update."""
        for name, value in metrics.items():
            self._stats.add(UPDATE_TAGS[name], value)
        self._since_update.clear()

    def mean_reward(self) -> float | None:
        """Mean over the last 100 team episodes (group return) or, without teams, agent episodes; None before any."""
        recent = self._team_returns or self._returns
        return float(np.mean(recent)) if recent else None

    def result_line(self) -> str:
        """How the run ended, in words."""
        if self._team_returns:
            what, recent = "group reward", self._team_returns
        else:
            what, recent = "reward", self._returns
        if not recent:
            return f"{self.behavior}: no episode was completed."
        kind = "team episodes" if self._team_returns else "episodes"
        return f"{self.behavior}: mean {what} {np.mean(recent):.3f} over the last {len(recent)} {kind}."

    def checkpoint_reward(self) -> float | None:
        """Mean agent return since the last update, as training_status.json records it."""
        return float(np.mean(self._since_update)) if self._since_update else None

    def summary(self, step: int, *, training: bool) -> None:
        """Write one summary, labelled with `step`, and start afresh."""
        self._stats.add(tags.IS_TRAINING, float(training), Aggregation.MOST_RECENT)
        self._stats.add(tags.STEP, float(step), Aggregation.MOST_RECENT)
        summaries = self._stats.take()
        if self._writer is not None:
            self._writer.summaries(step, summaries)
        self._timers.gauge_summaries(self.behavior, summaries)
        self._console.summaries(self.behavior, step, summaries)

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

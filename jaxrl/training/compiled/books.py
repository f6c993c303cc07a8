"""Everything that a compiled run writes: summaries of each seed, checkpoints, configuration, status and timers.

A run of one seed leaves the same files as the host loop. With several seeds `<Behavior>/` has a folder of events per
seed (`seed_<number>/`), one checkpoint holds them all, and the ONNX files are those of the seed that does best lately.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import jax
import numpy as np

from jaxrl.artifacts.files import write_text
from jaxrl.artifacts.metrics import statistics as metrics
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.console import ConsoleWriter, listing
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.reporter import RECENT_EPISODES, UPDATE_TAGS
from jaxrl.artifacts.metrics.statistics import Summary, signal_tag
from jaxrl.artifacts.metrics.tensorboard import TensorBoardWriter
from jaxrl.artifacts.metrics.timers import Timers
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import TrainingStatus
from jaxrl.settings import RunSettings, to_yaml
from jaxrl.training import saver
from jaxrl.training.compiled.iteration import IterationLog, JittedState
from jaxrl.training.compiled.saver import Subject, snapshot
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments
from jaxrl.training.trained_policy import BEST_SEED

log = logging.getLogger(__name__)


class JittedBooks:
    """Files and console of one compiled run. All statistics are numpy arrays with the leading axis S."""

    def __init__(self, settings: RunSettings, folder: RunFolder, subject: Subject) -> None:
        self.settings = settings
        self.folder = folder
        self.subject = subject
        self.timers = Timers()
        self._console = ConsoleWriter()
        self._status = TrainingStatus(folder.status)
        self._writers: list[TensorBoardWriter] = []
        self._since: IterationLog | None = None  # since the last summary
        self._recent: deque[EpisodeFigures] = deque()
        self._group_rewards = False
        self._saved_step = -1

    def begin(self, step: int) -> None:
        """Training begins: remove an overwritten run, open event files, write the configuration."""
        resume = self.settings.checkpoint_settings.resume
        self.folder.begin(resume)
        if resume:
            self._status = TrainingStatus.load(self.folder.status)
        behavior, described = self.folder.behavior(self.subject.name), self.subject.described()
        seeds = self.subject.seeds
        for folder in [behavior] if len(seeds) == 1 else [behavior / f"seed_{number}" for number in seeds]:
            writer = TensorBoardWriter(folder, step if resume else None)
            self._writers.append(writer)
            writer.hyperparameters(listing(described), step)
        self._console.hyperparameters(self.subject.name, described)
        write_text(self.folder.configuration, to_yaml(self.settings))

    def add(self, chunk: IterationLog) -> None:
        """Some iterations have run."""
        self._since = chunk if self._since is None else jax.tree.map(np.add, self._since, chunk)
        self._group_rewards |= bool(np.any(chunk.episodes.group_reward.square > 0))
        self._recent.append(chunk.episodes)
        while len(self._recent) > 1 and self._enough(list(self._recent)[1:]):
            self._recent.popleft()

    def recent_reward(self) -> np.ndarray:
        """Mean return of each seed over about its last 100 episodes, of teams if they earn; NaN before any."""
        if not self._recent:
            return np.full(len(self.subject.seeds), np.nan)
        chosen = self._returns(_sum(list(self._recent)))
        with np.errstate(invalid="ignore", divide="ignore"):
            return chosen.total / chosen.count

    def summary(self, step: int) -> None:
        """Write what was collected since the last summary, labelled with `step`: each seed's events, one line."""
        if self._since is None:
            return
        of_seeds = [self._summaries(self._since, i) for i in range(len(self.subject.seeds))]
        for writer, summaries in zip(self._writers, of_seeds, strict=True):
            writer.summaries(step, summaries)
        tags = dict.fromkeys(tag for summaries in of_seeds for tag in summaries)
        together = {tag: _over_seeds([s[tag] for s in of_seeds if tag in s]) for tag in tags}
        self.timers.gauge_summaries(self.subject.name, together)
        state = {metrics.IS_TRAINING: 1.0, metrics.STEP: float(step)}
        together |= {tag: Summary(value, value, 0.0, value, 1, None) for tag, value in state.items()}
        self._console.summaries(self._title(), step, together)
        self._since = None

    def show_progress(self, progress: ProgressBar, step: int) -> None:
        """Refresh the progress bar: the step of the slowest seed, the mean reward over seeds."""
        rewards, root = self.recent_reward(), nodes.LEARNING
        compiled = self.timers.seconds(root, nodes.ITERATIONS)
        seconds = {"iterations": compiled, "checkpoints": self.timers.seconds(root, nodes.CHECKPOINT)}
        reward = None if np.isnan(rewards).all() else float(np.nanmean(rewards))
        progress.show(self._title(), step, self.subject.settings.max_steps, reward, seconds)

    def save(self, state: JittedState, step: int) -> None:
        """A checkpoint of all seeds and the ONNX file of the best, unless this step is saved already.

        Raises DivergedError, CheckpointError or ExportError.
        """
        if step == self._saved_step:
            return
        rewards = self.recent_reward()
        if np.isnan(rewards).all():  # resumed, and no episode has ended since
            best = int(self._status.get(self.subject.name, BEST_SEED, 0))
        else:
            best = int(np.nanargmax(rewards))
        if len(rewards) > 1:
            log.info("%s: seed %d does best lately.", self.subject.name, self.subject.seeds[best])
        self._status.set(self.subject.name, BEST_SEED, best)
        saver.save_checkpoint(
            snapshot(self.subject, state, step, best), self.folder, self._status, _finite(rewards[best])
        )
        self._saved_step = step

    def finish(self, state: JittedState, step: int) -> None:
        """The last save, and the policy where Unity's user looks for it."""
        rewards = self.recent_reward()
        if np.isfinite(rewards).any():
            spread = "" if len(rewards) == 1 else f" (seeds: {np.nanmin(rewards):.3f} to {np.nanmax(rewards):.3f})"
            what = "group reward" if self._group_rewards else "reward"
            log.info("%s: mean %s %.3f at the end%s.", self.subject.name, what, np.nanmean(rewards), spread)
        self.save(state, step)
        saver.publish(self.subject.name, step, self.folder, self._status, _finite(np.nanmax(rewards, initial=-np.inf)))

    def __enter__(self) -> JittedBooks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close event files and write timers and status. Nothing if training never began."""
        for writer in self._writers:
            writer.close()
        if self._writers:
            self.timers.write(self.folder.timers)
            self._status.write()

    def _title(self) -> str:
        seeds = len(self.subject.seeds)
        return self.subject.name if seeds == 1 else f"{self.subject.name} ({seeds} seeds)"

    def _returns(self, episodes: EpisodeFigures) -> Moments:
        return episodes.group_reward if self._group_rewards else episodes.reward

    def _enough(self, chunks: Sequence[EpisodeFigures]) -> bool:
        return bool(np.all(self._returns(_sum(chunks)).count >= RECENT_EPISODES))

    def _summaries(self, collected: IterationLog, seed: int) -> dict[str, Summary]:
        """What one seed's event file gets, by tag."""
        episodes = jax.tree.map(lambda x: float(x[seed]), collected.episodes)
        found = {
            metrics.CUMULATIVE_REWARD: episodes.reward,
            metrics.EPISODE_LENGTH: episodes.length,
            signal_tag(metrics.SIGNAL_REWARD, "extrinsic"): episodes.reward,
        }
        if self._group_rewards:
            found[metrics.GROUP_CUMULATIVE_REWARD] = episodes.group_reward
        found |= episodes.stats
        summaries = {tag: _summary(moments) for tag, moments in found.items() if moments.count > 0}
        updates = int(collected.updates[seed])
        for name in collected.metrics if updates else ():
            total = float(collected.metrics[name][seed])
            summaries[UPDATE_TAGS[name]] = Summary(total / updates, total / updates, 0.0, total, updates, None)
        return summaries


def _sum(chunks: Sequence[EpisodeFigures]) -> EpisodeFigures:
    return jax.tree.map(lambda *x: np.sum(x, axis=0), *chunks)


def _summary(moments: Moments) -> Summary:
    mean = moments.total / moments.count
    std = max(moments.square / moments.count - mean * mean, 0.0) ** 0.5
    return Summary(value=mean, mean=mean, std=std, sum=moments.total, count=int(moments.count), histogram=None)


def _over_seeds(summaries: Sequence[Summary]) -> Summary:
    """Seeds count equally; the standard deviation is that of episodes, averaged."""
    mean = float(np.mean([s.mean for s in summaries]))
    return Summary(
        value=mean,
        mean=mean,
        std=float(np.mean([s.std for s in summaries])),
        sum=float(np.sum([s.sum for s in summaries])),
        count=sum(s.count for s in summaries),
        histogram=None,
    )


def _finite(reward: float) -> float | None:
    return float(reward) if np.isfinite(reward) else None

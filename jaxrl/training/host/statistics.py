"""Statistics of one behavior in the host loop, collected by episode between two summaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.episode_figures import EpisodeFigures, EpisodeNumbers
from jaxrl.artifacts.metrics.statistics import RECENT_EPISODES, StatsAggregator, Summary, tag_of
from jaxrl.rollout.booking.episodes import EpisodeRecords
from jaxrl.rollout.following.followed import Episode
from jaxrl.settings import EVALUATED, BehaviorSettings
from jaxrl.training.signal_rewards import extrinsic_sum
from jaxrl.types import Aggregation, EnvironmentStat

_UNDECIDED = {
    tags.UNDECIDED_REWARD: tags.CUMULATIVE_REWARD,
    tags.UNDECIDED_GROUP_REWARD: tags.GROUP_CUMULATIVE_REWARD,
}
"""Tags of rewards for no decision, and the tags of the returns that they are reported with."""


class EpisodeStatistics:
    """Statistics between two summaries. `teams`: write group returns from the first episode on, even zeros."""

    def __init__(self, settings: BehaviorSettings, *, teams: bool) -> None:
        self.group_rewards = False  # whether any group reward was seen
        self.undecided = False  # whether any reward came for no decision, see `EpisodeRecords.undecided`
        self._teams = teams
        self.updated = False  # whether an update has run since the last summary
        self._settings = settings
        self._first_signal = next(iter(settings.reward_signals))
        self._stats = StatsAggregator()
        self._figures = EpisodeFigures(settings.episode_window)
        self._media: dict[str, np.ndarray] = {}
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._team_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._undecided = dict.fromkeys(_UNDECIDED, 0.0)  # by tag, sums that are not written yet
        self._since_update: list[float] = []

    def episodes(self, records: Sequence[EpisodeRecords]) -> None:
        """Add finished episodes. Group returns are reported once any group reward was seen, or always with `teams`."""
        for record in records:
            self._stats.extend(tags.CUMULATIVE_REWARD, record.returns, Aggregation.HISTOGRAM)
            self._stats.extend(tags.EPISODE_LENGTH, record.lengths)
            collected = extrinsic_sum(
                self._settings,
                own=np.asarray(record.returns),
                group=np.asarray(record.group_rewards),
                mates=np.asarray(record.mates_returns),
            )
            if collected is not None:
                self._stats.extend(tag_of("reward/extrinsic"), collected)
            self._returns.extend(record.returns)
            self._since_update.extend(record.returns)
            self._stats.extend(tags.GROUP_CUMULATIVE_REWARD, record.team_returns, Aggregation.HISTOGRAM)
            self._team_returns.extend(record.team_returns)
            self.group_rewards |= any(record.team_returns)
            for tag, values in zip(_UNDECIDED, (record.undecided, record.team_undecided), strict=True):
                self._undecided[tag] += sum(values)
                self.undecided |= any(values)

    def lost(self, episodes: int) -> None:
        """Count a worker that was restarted, and the number of agents' episodes lost with it."""
        self._stats.add(tags.WORKER_RESTARTS, 1.0, Aggregation.SUM)
        self._stats.add(tags.FAULTY_EPISODES, float(episodes), Aggregation.SUM)

    def followed(self, name: str, episode: Episode) -> None:
        """Add a followed episode that is over, with those of its agents that are of behavior `name`."""
        agents = [agent for agent in episode.agents if agent.behavior == name]
        self._figures.add(
            EpisodeNumbers(
                total=sum(agent.own_return for agent in agents) + episode.group_return,
                length=episode.length,
                agent_returns=[(agent.policy, agent.own_return) for agent in agents],
                custom=episode.custom_metrics,
                histograms=episode.hist_data,
            )
        )
        self._media |= episode.media

    def of_evaluation(self, found: dict[str, Summary]) -> dict[str, Summary]:
        """Return an evaluation's summaries by tag, with group returns only once any group reward was seen."""
        group = EVALUATED[1]
        self.group_rewards |= group in found and any(found[group].values)
        return {tag: summary for tag, summary in found.items() if self.group_rewards or tag != group}

    def media(self) -> dict[str, np.ndarray]:
        """Return the newest picture, uint8 [H, W, 3], of each name that episodes left since the last call."""
        taken, self._media = self._media, {}
        return taken

    def environment(self, stats: Sequence[EnvironmentStat], worker: int) -> None:
        """Add values that an environment sent through its stats channel."""
        self._stats.add_environment_stats(stats, worker)

    def reported(self, tag: str, value: float) -> None:
        """Add a value from a callback."""
        self._stats.add(tag, value)

    def lessons(self, numbers: Mapping[str, int]) -> None:
        """Add the present lesson of each environment parameter."""
        for parameter, number in numbers.items():
            self._stats.add(tags.lesson_tag(parameter), number, Aggregation.MOST_RECENT)

    def update(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of one update."""
        self.estimates(metrics)
        self.updated = True
        self._since_update.clear()

    def signals(self, sums: Mapping[str, Sequence[float]]) -> None:
        """Add the rewards of each signal except the environment's, summed over each episode that has ended."""
        for name, of_episodes in sums.items():
            self._stats.extend(tag_of(f"reward/{name}"), of_episodes)

    def times(self, milliseconds: Mapping[str, float]) -> None:
        """Add the smoothed mean costs of an environment step in milliseconds, by name."""
        for name, value in milliseconds.items():
            self._stats.add(f"Time/{name}", value)

    def estimates(self, metrics: Mapping[str, float]) -> None:
        """Add metrics that were computed without an update."""
        for name, value in metrics.items():
            self._stats.add(tag_of(name, self._first_signal), value)

    def begin_anew(self) -> None:
        """Drop all statistics, as in a run that is resumed now."""
        self._stats, self.updated = StatsAggregator(), False
        self._undecided = dict.fromkeys(_UNDECIDED, 0.0)
        self._figures, self._media = EpisodeFigures(self._settings.episode_window), {}
        for returns in (self._returns, self._team_returns, self._since_update):
            returns.clear()

    def take(self) -> list[dict[str, Summary]]:
        """Return the summary of each tag, for the one event file, and empty the statistics."""
        self.updated = False
        taken = self._stats.take()
        if not (self.group_rewards or self._teams):
            taken.pop(tags.GROUP_CUMULATIVE_REWARD, None)
        return [taken | self._take_undecided(taken) | self._figures.take()]

    def _take_undecided(self, taken: Mapping[str, Summary]) -> dict[str, Summary]:
        """Return rewards for no decision, as a mean over the episodes in `taken`; empty until there were any.

        The mean return and this number add up to the scene's reward per episode.
        """
        summaries = {}
        for tag, total in self._undecided.items() if self.undecided else ():
            returns = taken.get(_UNDECIDED[tag])
            if returns is not None:
                summaries[tag] = Summary.of(total / returns.count)
                self._undecided[tag] = 0.0
        return summaries

    def mean_reward(self) -> float | None:
        """Compute the mean return of the last 100 team episodes with group rewards, else agent episodes, or None."""
        recent = self._team_returns if self.group_rewards else self._returns
        return float(np.mean(recent)) if recent else None

    def result_line(self, name: str) -> str:
        """Return a sentence with the run's last mean return."""
        recent = self._team_returns if self.group_rewards else self._returns
        if not recent:
            return f"{name}: no episode was completed."
        what, kind = ("group reward", "team episodes") if self.group_rewards else ("reward", "episodes")
        return f"{name}: mean {what} {np.mean(recent):.3f} over the last {len(recent)} {kind}."

    def checkpoint_reward(self) -> float | None:
        """Compute the mean agent return since the last update, as training_status.json records it, or None."""
        return float(np.mean(self._since_update)) if self._since_update else None

"""Lessons in the host loop: read their measures once for each environment message, and advance them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from jaxrl.artifacts.metrics.episode_figures import CUSTOM
from jaxrl.rollout.following.followed import Episode
from jaxrl.settings import RunSettings
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.policies import Acted
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.lessons import LessonChange
from jaxrl.types import Aggregation, EnvMessage

log = logging.getLogger(__name__)

PATIENCE = 100
"""Agents' episodes of a behavior after which a statistic that was never reported is warned about, once."""


class Curricula:
    """Lessons of a run, which advance by their criteria; in an evaluation they stay as they are."""

    def __init__(self, settings: RunSettings, recorder: HostRecorder) -> None:
        self.lessons = recorder.lessons
        self._recorder = recorder
        self._goes_on = not settings.checkpoint_settings.inference
        self._ended: dict[str, int] = {}  # agents' episodes, by behavior
        self._heard: set[str] = set()  # tags of statistics that were reported, or warned about
        for line in self.lessons.lines():
            log.info("%s", line)

    def look(
        self,
        results: Sequence[EnvMessage],
        acted: Sequence[Acted],
        over: Sequence[Episode],
        reported: Sequence[tuple[str, float]],
        behaviors: Mapping[str, Behavior],
    ) -> list[LessonChange]:
        """Return the parameters that advance to another lesson, after messages that have arrived together.

        Args:
          acted: holds the episodes that have ended.
          over: episodes that callbacks follow; their custom metrics are statistics.
          reported: tags and values from callbacks.
        """
        self._recorder.reported(reported)
        if self.lessons.finished or not self._goes_on:
            return []
        for behavior, _, episodes in acted:
            for records in episodes:
                self.lessons.episodes(behavior.name, records.returns, records.team_returns)
                self._ended[behavior.name] = self._ended.get(behavior.name, 0) + len(records.returns)
        self._hear(results, over, reported)
        self._miss()
        progress = {name: behavior.step / behavior.settings.max_steps for name, behavior in behaviors.items()}
        changes = [change for _ in results for change in self.lessons.advance(progress)]
        for change in changes:
            log.info("%s%s", change.line, " All environments begin anew." if change.require_reset else "")
        return changes

    def _hear(
        self, results: Sequence[EnvMessage], over: Sequence[Episode], reported: Sequence[tuple[str, float]]
    ) -> None:
        for result in results:
            for stat in result.stats:
                if stat.aggregation is not Aggregation.MOST_RECENT or result.worker == 0:  # as summaries take them
                    self._take(stat.name, stat.value)
        for episode in over:
            for name, value in () if episode.faulty else episode.custom_metrics.items():
                self._take(CUSTOM.format(name=name), value)
        for tag, value in reported:
            self._take(tag, value)

    def _take(self, tag: str, value: float) -> None:
        self._heard.add(tag)
        self.lessons.statistic(tag, value)

    def _miss(self) -> None:
        for path, criteria in self.lessons.awaited().values():
            if criteria.measure not in self._heard and self._ended.get(criteria.behavior, 0) >= PATIENCE:
                self._heard.add(criteria.measure)
                log.warning(
                    "%s: nobody has reported %r in %d episodes, and the lesson goes on until somebody does: check the "
                    "tag. Reported were: %s.",
                    path, criteria.measure, PATIENCE, ", ".join(sorted(self._heard - {criteria.measure})) or "none",
                )  # fmt: skip

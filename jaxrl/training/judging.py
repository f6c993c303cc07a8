"""Decide from a behavior's statistics when its training ends (`stop`), and which moment is best (`keep_best`).

A run of several seeds ends when every seed has reached a rule, each at any summary: seeds share one program, and all of
them are trained for the same number of steps. A seed that was left out is not waited for. The best moment is the one at
which any seed has had the highest value.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.settings import EVALUATED, BehaviorSettings
from jaxrl.types import JaxrlError

_OF_GAMES = (tags.ELO, tags.DECIDED)
LATE = frozenset({*EVALUATED, *_OF_GAMES, tags.CUMULATIVE_REWARD, tags.GROUP_CUMULATIVE_REWARD, tags.EPISODE_LENGTH})
"""Tags that may appear long after the first summary: when an episode ends, or the first group reward comes."""
_log = logging.getLogger(__name__)


class Highest(NamedTuple):
    """Highest value of a statistic over seeds."""

    value: float
    index: int  # index of the seed


class Judge:
    """Watches the statistics of one behavior. `seeds`: number of seeds."""

    def __init__(self, name: str, settings: BehaviorSettings, seeds: int = 1) -> None:
        self.verdict: str | None = None
        """Sentence that says why the training ends; None while it goes on."""
        self._name, self._rules, self._keep_best = name, settings.stop, settings.keep_best
        self._in_a_row = {tag: np.zeros(seeds, int) for tag in self._rules}
        self._reached = {tag: np.zeros(seeds, bool) for tag in self._rules}
        self._waited_for = np.ones(seeds, bool)
        self._written: dict[str, None] = {}  # tags seen so far, in order
        self._unseen = dict.fromkeys([*self._rules, *([self._keep_best] if self._keep_best else [])])

    def leave_out(self, index: int) -> None:
        """Leave a seed out of all decisions."""
        self._waited_for[index] = False

    def counting(self, of_seeds: Sequence[Mapping[str, Summary]]) -> list[Mapping[str, Summary]]:
        """Return the summaries of the seeds that were not left out."""
        return [shown for shown, counts in zip(of_seeds, self._waited_for, strict=True) if counts]

    def state(self) -> dict[str, Any]:
        """Return the counts of each rule as plain JSON values; empty once a rule has ended the training.

        So earlier counts do not end a resumed training again.
        """
        rules = self._rules if self.verdict is None else {}
        return {
            tag: {
                **self._rules[tag].model_dump(),
                "in_a_row": self._in_a_row[tag].tolist(),
                "reached": self._reached[tag].tolist(),
            }
            for tag in rules
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`. Counts of a rule that has changed, or of another number of seeds, begin anew."""
        for tag, count in self._in_a_row.items():
            saved = state.get(tag, {"in_a_row": (), "reached": ()})
            rule = self._rules[tag].model_dump()
            same = {key: saved.get(key) for key in rule} == rule
            if same and len(saved["in_a_row"]) == len(saved["reached"]) == len(count):
                count[:], self._reached[tag][:] = saved["in_a_row"], saved["reached"]

    def see(self, step: int, summaries: Sequence[Mapping[str, Summary]]) -> Highest | None:
        """Judge each seed's summary of trainer step `step`. Returns the highest value of the statistic `keep_best`.

        Sets `verdict` if the training ends. Raises JaxrlError if a statistic of the settings is still missing in a
        summary that follows both an episode and an update.
        """
        for of_seed in summaries:
            self._written |= dict.fromkeys(of_seed)
        self._look_for_unknown()
        for tag, rule in self._rules.items():
            values = _values(summaries, tag)
            high, written = values >= rule.value, ~np.isnan(values)
            row = self._in_a_row[tag]
            row[written] = np.where(high, row + 1, 0)[written]
            self._reached[tag] |= row >= rule.patience
            if self.verdict is None and self._waited_for.any() and self._reached[tag][self._waited_for].all():
                self.verdict = self._sentence(tag, step, values)
        if self._keep_best is None:
            return None
        return _highest(np.where(self._waited_for, _values(summaries, self._keep_best), np.nan))

    def _sentence(self, tag: str, step: int, values: np.ndarray) -> str:
        rule = self._rules[tag]
        often = "" if rule.patience == 1 else f" {rule.patience} times in a row"
        if len(values) == 1:
            what = f"{tag} is {values[0]:.3f} at step {step}, and was at least {rule.value:g} (stop){often}"
        else:
            what = f"{tag} has been at least {rule.value:g} (stop){often} in every seed at step {step}"
        return f"{self._name}: {what}. The training ends here, as at max_steps."

    def _look_for_unknown(self) -> None:
        for tag in [tag for tag in self._unseen if tag in self._written]:
            del self._unseen[tag]
        begun = tags.CUMULATIVE_REWARD in self._written and any(tag.startswith("Losses/") for tag in self._written)
        if not self._unseen or not begun:
            return
        there, missing = ", ".join(self._written), [tag for tag in self._unseen if tag not in LATE]
        if missing:
            key = "keep_best" if missing[0] == self._keep_best else "stop"
            raise JaxrlError(
                f"behaviors.{self._name}.{key}: got {missing[0]!r}, which nobody writes; expected one of {there}"
            )
        for tag in [tag for tag in self._unseen if tag not in EVALUATED]:
            del self._unseen[tag]
            _log.warning(
                "%s: %s decides something (keep_best, stop) and has not come yet, only %s.", self._name, tag, there
            )


def _values(summaries: Sequence[Mapping[str, Summary]], tag: str) -> np.ndarray:
    """Return each seed's value of a statistic, float64 [S], NaN where it was not written."""
    return np.array([of_seed[tag].value if tag in of_seed else np.nan for of_seed in summaries], float)


def _highest(values: np.ndarray) -> Highest | None:
    if np.isnan(values).all():
        return None
    index = int(np.nanargmax(values))
    return Highest(float(values[index]), index)

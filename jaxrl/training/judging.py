"""What the statistics of a behavior decide: when its training ends (`stop`), and which moment is best (`keep_best`).

A run of several seeds ends when every seed has reached a rule, at whatever summaries: seeds share one program, and all
of them are trained for the same number of steps. A seed that was left behind is not waited for. The best moment is the
one at which any seed has had the highest value.
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
"""Tags that jaxrl knows to come, perhaps long after the first summary: as soon as an episode ends, or a team earns."""
_log = logging.getLogger(__name__)


class Highest(NamedTuple):
    """Of a statistic, over seeds."""

    value: float
    index: int  # of the seed


class Judge:
    """Watches the statistics of one behavior. `seeds`: how many there are."""

    def __init__(self, name: str, settings: BehaviorSettings, seeds: int = 1) -> None:
        self.verdict: str | None = None
        """Why the training ends, as a sentence; None while it goes on."""
        self._name, self._rules, self._keep_best = name, settings.stop, settings.keep_best
        self._in_a_row = {tag: np.zeros(seeds, int) for tag in self._rules}
        self._reached = {tag: np.zeros(seeds, bool) for tag in self._rules}
        self._waited_for = np.ones(seeds, bool)
        self._written: dict[str, None] = {}  # tags so far, in order
        self._unseen = dict.fromkeys([*self._rules, *([self._keep_best] if self._keep_best else [])])

    def leave_out(self, index: int) -> None:
        """This seed is left behind, or never counted."""
        self._waited_for[index] = False

    def counting(self, of_seeds: Sequence[Mapping[str, Summary]]) -> list[Mapping[str, Summary]]:
        """Of what seeds show, that of those which were not left out."""
        return [shown for shown, counts in zip(of_seeds, self._waited_for, strict=True) if counts]

    def state(self) -> dict[str, Any]:
        """By rule what has been counted so far, plain JSON values; nothing once the training has ended by one of them,
        so that who resumes it is not ended again by what was before.
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
        """Go on from a `state`. A rule that is another now begins anew, and one of other seeds."""
        for tag, count in self._in_a_row.items():
            found = state.get(tag, {"in_a_row": (), "reached": ()})
            rule = self._rules[tag].model_dump()
            same = {key: found.get(key) for key in rule} == rule
            if same and len(found["in_a_row"]) == len(found["reached"]) == len(count):
                count[:], self._reached[tag][:] = found["in_a_row"], found["reached"]

    def see(self, step: int, summaries: Sequence[Mapping[str, Summary]]) -> Highest | None:
        """By seed, what is written at trainer step `step`. Returns the highest value of the statistic `keep_best`.

        Afterwards `verdict` says whether the training ends. Raises JaxrlError if a statistic that is asked for is
        not among those of a summary that follows both an episode and an update.
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
    """float64 [S], NaN where it was not written."""
    return np.array([of_seed[tag].value if tag in of_seed else np.nan for of_seed in summaries], float)


def _highest(values: np.ndarray) -> Highest | None:
    if np.isnan(values).all():
        return None
    index = int(np.nanargmax(values))
    return Highest(float(values[index]), index)

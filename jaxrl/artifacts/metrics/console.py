"""Text for the user while training: ML-Agents' summary line, the settings listing, and the log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxrl.artifacts.metrics.statistics import (
    CUMULATIVE_REWARD,
    ELO,
    GROUP_CUMULATIVE_REWARD,
    IS_TRAINING,
    Summary,
    lesson_tag,
)
from jaxrl.log_lines import line_format
from jaxrl.settings import Curriculum, EnvironmentParameter

_log = logging.getLogger(__name__)


class ConsoleWriter:
    """Logs one line per summary; elapsed time counts from the creation of this object."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def summaries(
        self, behavior: str, step: int, summaries: Mapping[str, Summary], lessons: Sequence[str] = ()
    ) -> None:
        """Log the line of one behavior's summary, and the lessons in words."""
        _log.info("%s", summary_line(behavior, step, time.monotonic() - self._begun, summaries, lessons))

    def hyperparameters(self, behavior: str, settings: Mapping[str, Any]) -> None:
        """Log the settings of one behavior."""
        _log.info("Hyperparameters for behavior name %s:\n%s", behavior, listing(settings))


def summary_line(
    behavior: str, step: int, elapsed: float, summaries: Mapping[str, Summary], lessons: Sequence[str] = ()
) -> str:
    """Return the console line of one summary. `elapsed` in seconds.

    Of one seed it is that of ML-Agents, word for word, and the std of group rewards and the lessons beside it. The std
    is the population standard deviation, beside it that between several seeds; "Is Training" > 0 means training; the
    rating follows when present.
    """
    parts = [behavior, f"Step: {step}", f"Time Elapsed: {elapsed:.3f} s"]
    training = IS_TRAINING in summaries and summaries[IS_TRAINING].value > 0
    state = "Training" if training else "Not Training"
    reward = summaries.get(CUMULATIVE_REWARD)
    if reward is None:
        return ". ".join([*parts, "No episode was completed since last summary", state, *lessons]) + "."
    parts.append(f"Mean Reward: {reward.mean:.3f}")
    group = summaries.get(GROUP_CUMULATIVE_REWARD)
    if group is None:
        parts.append(f"Std of Reward: {reward.std:.3f}")
    else:
        parts += [f"Mean Group Reward: {group.mean:.3f}", f"Std of Group Reward: {group.std:.3f}"]
    shown = reward if group is None else group
    if shown.between is not None:
        parts[-1] += f" within seeds, {shown.between:.3f} between seeds"
    parts.append(state)
    if ELO in summaries:
        parts.append(f"ELO: {summaries[ELO].value:.3f}")
    return ". ".join([*parts, *lessons]) + "."


def lesson_texts(
    parameters: Mapping[str, EnvironmentParameter] | None, taken: Sequence[Mapping[str, Summary]]
) -> list[str]:
    """Return the present lesson of every parameter that has several, in words; of several seeds from which to which.

    Args:
      parameters: `environment_parameters` of the settings.
      taken: the summaries of each seed.
    """
    texts = []
    for name, parameter in (parameters or {}).items():
        lessons = parameter.curriculum if isinstance(parameter, Curriculum) else ()
        numbers = [int(seed[tag].value) for seed in taken if (tag := lesson_tag(name)) in seed]
        if len(lessons) > 1 and numbers:
            first, last = min(numbers), max(numbers)
            place = f"{first + 1}" if first == last else f"{first + 1} to {last + 1}"
            shown = f" ({lessons[first].name})" if first == last else ""
            texts.append(f"Lesson of {name}: {place} of {len(lessons)}{shown}")
    return texts


def listing(settings: Mapping[str, Any], depth: int = 0) -> str:
    """Write nested settings in ML-Agents' form: a tab, two blanks per level, the key, a colon, a tab and the value.

    The tab in front also makes Markdown show the lines as they are.
    """
    lines = []
    for key, value in settings.items():
        nested = isinstance(value, Mapping) and value
        lines.append(f"\t{'  ' * depth}{key}:\t{'' if nested else value}")
        if nested:
            lines.append(listing(value, depth + 1))
    return "\n".join(lines)


class ConsoleHandler(logging.Handler):
    """Prints log records through rich, so that they appear above a running progress bar."""

    def __init__(self, console: Console, debug: bool = False) -> None:
        super().__init__(logging.DEBUG if debug else logging.INFO)
        self._console = console
        self.setFormatter(line_format(debug=debug))

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record; characters that the terminal's encoding lacks are escaped."""
        try:
            encoding = self._console.encoding
            line = self.format(record).encode(encoding, "backslashreplace").decode(encoding)
            self._console.print(Text(line), soft_wrap=True, highlight=False)
        except Exception:  # logging's contract: report through handleError, never raise into the caller
            self.handleError(record)


def setup_logging(console: Console, debug: bool = False) -> logging.Logger:
    """Send the records of the `jaxrl` loggers to `console`, replacing a console handler set up before."""
    logger = logging.getLogger("jaxrl")
    for handler in [h for h in logger.handlers if isinstance(h, ConsoleHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(ConsoleHandler(console, debug))
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False
    return logger

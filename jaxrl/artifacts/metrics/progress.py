"""The progress bar: steps, speed, mean reward, and the phases that limit the speed (environment, acting, updating).

It has no thread: the host loop asks `due()` at every message (a comparison of clocks) and shows a state when it is.
When standard output is not a terminal nothing is shown; the log lines suffice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

REFRESH_SECONDS = 0.25
WINDOW_SECONDS = 10.0


class _Sample(NamedTuple):
    time: float
    step: int
    seconds: Mapping[str, float]


class ProgressBar:
    """Progress lines of behaviors. A context manager, so that the terminal's cursor comes back on any exit."""

    def __init__(self, console: Console) -> None:
        self.enabled = bool(console.file.isatty()) and not console.is_dumb_terminal
        self._next = 0.0 if self.enabled else float("inf")
        self._tasks: dict[str, TaskID] = {}
        self._windows: dict[str, deque[_Sample]] = {}
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[text]}"))
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True, expand=True)

    def __enter__(self) -> ProgressBar:
        if self.enabled:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            self._progress.stop()

    def due(self) -> bool:
        """Return whether a new state would be shown now: at most every REFRESH_SECONDS, never without a terminal."""
        return time.perf_counter() >= self._next

    def show(
        self, behavior: str, step: int, max_steps: int | None, reward: float | None, seconds: Mapping[str, float]
    ) -> None:
        """Show the state of one behavior; call it for each behavior after `due()` was true.

        `seconds` are totals since the start by phase, for example {"environment": 9.1, "act": 1.2, "update": 2.0};
        the bar shows each one's share of their sum over the last WINDOW_SECONDS. `reward` is the mean (group) reward,
        None when no episode has ended yet. `max_steps` None: the run ends when it is interrupted.
        """
        if not self.enabled:
            return
        now = time.perf_counter()
        self._next = now + REFRESH_SECONDS
        window = self._windows.setdefault(behavior, deque())
        window.append(_Sample(time=now, step=step, seconds=dict(seconds)))
        while len(window) > 2 and now - window[0].time > WINDOW_SECONDS:
            window.popleft()
        text = progress_text(step, max_steps, reward, *_rates(window[0], window[-1]))
        if behavior not in self._tasks:
            self._tasks[behavior] = self._progress.add_task(behavior, total=max_steps, text=text)
        self._progress.update(self._tasks[behavior], completed=min(step, max_steps or step), text=text)
        self._progress.refresh()


def _rates(first: _Sample, last: _Sample) -> tuple[float, dict[str, float]]:
    """Return steps per second and seconds per phase between two samples."""
    elapsed = last.time - first.time
    spent = {phase: total - first.seconds.get(phase, 0.0) for phase, total in last.seconds.items()}
    return (last.step - first.step) / elapsed if elapsed > 0 else 0.0, spent


def progress_text(
    step: int, max_steps: int | None, reward: float | None, steps_per_second: float, seconds: Mapping[str, float]
) -> str:
    """Write the text right of the bar: steps, speed, time left, mean reward, share of each phase in percent.

    A behavior that has passed its max_steps is done, and goes on where others are not.
    """
    parts = [f"{step:,}" if max_steps is None else f"{step:,}/{max_steps:,}"]
    if steps_per_second > 0:
        parts.append(f"{steps_per_second:,.0f} steps/s")
    if max_steps is not None and step > max_steps:
        parts.append("done")
    elif max_steps is not None and steps_per_second > 0:
        left = int((max_steps - step) / steps_per_second)
        parts.append(f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left")
    if reward is not None:
        parts.append(f"reward {reward:.3f}")
    total = sum(seconds.values())
    if total > 0:
        parts.append(" ".join(f"{phase} {100 * value / total:.0f}%" for phase, value in seconds.items()))
    return " · ".join(parts)

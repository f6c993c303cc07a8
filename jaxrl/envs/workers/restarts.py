"""Decides how often a worker that failed may be started again, and how long that waits.

The limits are ML-Agents': for each worker a number of restarts in the whole run, and one within a period. A worker
whose new process never answered waits longer each time, so that a broken one does not keep the machine busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

_FIRST_WAIT = 1.0  # seconds before the second attempt in a row
_LONGEST_WAIT = 30.0


class RestartLimits(NamedTuple):
    """Restarts of one worker; -1: no limit."""

    lifetime: int = 0  # env_settings.max_lifetime_restarts
    rate: int = -1  # env_settings.restarts_rate_limit_n, within `period`
    period: float = 60.0  # seconds, env_settings.restarts_rate_limit_period_s


class Loss(NamedTuple):
    """A worker's process, or one copy in it, is lost with its agents' open episodes. Another one follows."""

    worker: int
    incarnation: int  # of the process that is lost
    why: str
    in_order: bool = False  # it was closed (play mode was stopped): no fault, and no restart
    agents: Mapping[str, Collection[int]] | None = None  # ids by behavior id; None: all agents of the process

    def concerns(self, worker: int, behavior_id: str, incarnation: int, agent: int) -> bool:
        """Return whether the agent of this process is lost with it."""
        here = (worker, incarnation) == (self.worker, self.incarnation)
        return here and (self.agents is None or agent in self.agents.get(behavior_id, ()))


class Restarts:
    """The restarts of one worker up to now. Times are seconds of one clock that never goes back."""

    def __init__(self, limits: RestartLimits) -> None:
        self._limits = limits
        self._count = 0
        self._recent: deque[float] = deque()
        self._in_vain = 0  # processes in a row that never gave a result

    def refusal(self, now: float) -> str | None:
        """Return which limit forbids another restart, in words; None: it is allowed."""
        lifetime, rate, period = self._limits
        while self._recent and now - self._recent[0] >= period:
            self._recent.popleft()
        if lifetime == 0:
            return "env_settings.max_lifetime_restarts is 0"
        if 0 < lifetime <= self._count:
            return f"it has had {self._count}, as many as env_settings.max_lifetime_restarts allows (-1: no limit)"
        if 0 <= rate <= len(self._recent):
            return (
                f"it has had {len(self._recent)} within the last {period:g} s, as many as "
                "env_settings.restarts_rate_limit_n allows (-1: no limit)"
            )
        return None

    def begin(self, now: float, *, in_vain: bool) -> float:
        """Count a restart, of a process that gave no result (`in_vain`) or did; return seconds to wait before it."""
        self._count += 1
        self._recent.append(now)
        self._in_vain = self._in_vain + 1 if in_vain else 0
        return min(_FIRST_WAIT * 2.0 ** (self._in_vain - 1), _LONGEST_WAIT) if self._in_vain else 0.0

    def __str__(self) -> str:
        """Return the newest restart beside the limit, for the log."""
        lifetime = self._limits.lifetime
        return f"restart {self._count}" + (f" of at most {lifetime}" if lifetime >= 0 else "")

"""What a run says once while it collects: buffers that grow large, environments in which nobody asks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jaxrl.training.host.behavior import Behavior
from jaxrl.types import EnvMessage

log = logging.getLogger(__name__)

LEAST_LARGE, TIMES_LARGE = 1000, 10
"""A buffer is large above so many agent steps, or so many times buffer_size (R4)."""
IDLE_MESSAGES = 100
"""Messages in a row without a decision after which that is said (R54)."""


class Notices:
    """Looks at every message, for some 0.5 microseconds, and warns once of each."""

    def __init__(self) -> None:
        self._large: set[str] = set()  # behaviors of which it was said
        self._idle = 0  # messages in a row
        self._said_idle = False

    def messages(self, results: Sequence[EnvMessage]) -> None:
        """What arrived: environments that step on without any agent that asks are named (R54, M15)."""
        for result in results:
            if any(len(steps.deciding.agent_id) for steps in result.steps.values()):
                self._idle = 0
                continue
            self._idle += 1
            if self._idle >= IDLE_MESSAGES and not self._said_idle:
                self._said_idle = True
                log.warning(
                    "Environments have sent %d messages in a row in which no agent asks for a decision (worker "
                    "%d sent the last): nothing is collected, and steps of the environment alone do not count. Check "
                    "that episodes begin again and that agents have a Decision Requester.",
                    self._idle, result.worker,
                )  # fmt: skip

    def collected(self, behavior: Behavior) -> None:
        """What a behavior's buffer holds now: a large one is named (R59, M14). Nothing is dropped."""
        size = behavior.settings.hyperparameters.buffer_size
        held = behavior.actor.held
        if held <= max(LEAST_LARGE, TIMES_LARGE * size) or behavior.name in self._large or not behavior.training:
            return
        self._large.add(behavior.name)
        log.warning(
            "%s: %d agent steps wait for an update, buffer_size asks for %d %s. Every agent's steps count. %s",
            behavior.name, held, size, behavior.settings.count_by.replace("_", " "),
            "An update takes episodes that have ended alone: they may be endless, then let the environment end them or "
            "set max_episode_length." if behavior.settings.batch_mode == "complete_episodes"
            else "Where many agents share an environment, lower buffer_size or write count_by: agent_steps.",
        )  # fmt: skip

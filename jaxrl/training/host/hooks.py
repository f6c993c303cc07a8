"""Calls the callbacks of a run, in order; what one of them raises becomes one sentence and a traceback in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from jaxrl.callbacks import CallbackError, Callbacks, Follows, overrides
from jaxrl.rollout.following.followed import AgentRecord, Episode
from jaxrl.training.host.routing import Assignment
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


class Hooks:
    """All callbacks of a run as one."""

    def __init__(self, callbacks: Sequence[Callbacks]) -> None:
        self.callbacks = list(callbacks)

    def wants(self, method: str) -> bool:
        """Whether anybody overrides the method."""
        return any(overrides(each, method) for each in self.callbacks)

    def call(self, method: str, *arguments: Any) -> None:
        """Call it on everybody who overrides it. Raises CallbackError for what they raise."""
        for each in self.callbacks:
            if overrides(each, method):
                self._call(each, method, *arguments)

    def assignments(self) -> list[Assignment]:
        """The mappings of those who have one; asked, they raise CallbackError for what a mapping raises or answers."""
        return [partial(self._mapped, each) for each in self.callbacks if overrides(each, "policy_mapping")]

    def _mapped(self, each: Callbacks, agent: AgentRecord, episode: Episode) -> Follows | None:
        answer = self._call(each, "policy_mapping", agent, episode, episode.worker)
        if answer is not None and not isinstance(answer, str | Follows):
            raise CallbackError(
                f"{_name(each)}.policy_mapping: got {answer!r}, expected the name of a policy, Follows or None"
            )
        return Follows(answer) if isinstance(answer, str) else answer

    def _call(self, each: Callbacks, method: str, *arguments: Any) -> Any:
        try:
            return getattr(each, method)(*arguments)
        except JaxrlError:  # of the run itself: says what is wrong
            raise
        except Exception as error:
            log.error("%s.%s raised:", _name(each), method, exc_info=error)
            text = f"{_name(each)}.{method} raised {type(error).__name__}: {error} (traceback above); the run ends here"
            if method == "on_trajectory_complete" and "read-only" in str(error):
                text += ". A trajectory is a copy: to change what is learned from, set `postprocess`"
            raise CallbackError(text) from error


class MappedBy(Callbacks):
    """A function `policy_mapping(agent, episode, worker)` given in Python, as callbacks."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str | Follows | None:
        return self._function(agent, episode, worker)


def _name(callbacks: Callbacks) -> str:
    kind = type(callbacks)
    return f"{kind.__module__}:{kind.__qualname__}"

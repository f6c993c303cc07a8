"""Call the callbacks of a run, in order; turn an exception into a one-sentence error with a traceback in the log."""

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
        """Return whether any callback overrides the method."""
        return any(overrides(callbacks, method) for callbacks in self.callbacks)

    def call(self, method: str, *arguments: Any) -> None:
        """Call the method of each callback that overrides it. Raises CallbackError for any exception."""
        for callbacks in self.callbacks:
            if overrides(callbacks, method):
                self._call(callbacks, method, *arguments)

    def assignments(self) -> list[Assignment]:
        """Return the policy mappings of all callbacks; they raise CallbackError for exceptions and wrong answers."""
        return [partial(self._mapped, item) for item in self.callbacks if overrides(item, "policy_mapping")]

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
        except JaxrlError:  # the run's own error, which already says what is wrong
            raise
        except Exception as error:
            log.error("%s.%s raised:", _name(each), method, exc_info=error)
            text = f"{_name(each)}.{method} raised {type(error).__name__}: {error} (traceback above); the run ends here"
            if method == "on_trajectory_complete" and "read-only" in str(error):
                text += ". A trajectory is a copy: to change what is learned from, set `postprocess`"
            raise CallbackError(text) from error


class MappedBy(Callbacks):
    """Callbacks made of a Python function `policy_mapping(agent, episode, worker)`."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str | Follows | None:
        return self._function(agent, episode, worker)


def _name(callbacks: Callbacks) -> str:
    kind = type(callbacks)
    return f"{kind.__module__}:{kind.__qualname__}"

"""What could not be written while a run goes on: told once for each kind, and again when it works."""

from __future__ import annotations

import logging

from jaxrl.artifacts.files import ArtifactError

_log = logging.getLogger(__name__)


class LostWrites:
    """Counts what is lost by kind, so that a full disk is one message and not one per summary."""

    def __init__(self) -> None:
        self._lost: dict[str, int] = {}

    def failed(self, kind: str, error: ArtifactError) -> None:
        """One more thing of this kind ("checkpoint", "summary") was lost; the first time says why."""
        self._lost[kind] = self._lost.get(kind, 0) + 1
        if self._lost[kind] == 1:
            _log.error("%s The run goes on without this %s and tries again with the next one.", error, kind)

    def worked(self, kind: str) -> None:
        """Something of this kind was written; says so if the one before was lost."""
        lost = self._lost.pop(kind, 0)
        if lost:
            _log.info("A %s could be written again; %d before it could not.", kind, lost)

"""Errors of both loops: one that ends a run, and failed writes that a run survives."""

from __future__ import annotations

import logging

from jaxrl.artifacts.files import ArtifactError
from jaxrl.settings import BehaviorSettings
from jaxrl.types import JaxrlError

_log = logging.getLogger(__name__)


class DivergedError(JaxrlError):
    """Training has produced numbers that are not finite; earlier checkpoints are good."""

    def __init__(self, behavior: str, what: str, settings: BehaviorSettings) -> None:
        normalizes, rate = settings.network_settings.normalize, settings.hyperparameters.learning_rate
        large = "" if normalizes else "set network_settings.normalize: true if observations are large, or "
        super().__init__(
            f"{behavior}: {what}: training has diverged. Lower hyperparameters.learning_rate (now {rate:g}), or "
            f"{large}scale down large rewards; then continue from the last checkpoint, which is good, with --resume."
        )


class LostWrites:
    """Counts failed writes by kind while a run goes on; logs the first of a row, and when writing works again.

    So a full disk is one message and not one per summary.
    """

    def __init__(self) -> None:
        self._lost: dict[str, int] = {}

    def failed(self, kind: str, error: ArtifactError) -> None:
        """Count a failed write of this kind ("checkpoint", "summary"); the first time, log the error."""
        self._lost[kind] = self._lost.get(kind, 0) + 1
        if self._lost[kind] == 1:
            _log.error("%s The run goes on without this %s and tries again with the next one.", error, kind)

    def worked(self, kind: str) -> None:
        """Note a write of this kind that worked; log it if the one before failed."""
        lost = self._lost.pop(kind, 0)
        if lost:
            _log.info("A %s could be written again; %d before it could not.", kind, lost)

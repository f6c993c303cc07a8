"""What goes wrong in either loop: what ends a run, and what it goes on without."""

from __future__ import annotations

import logging

from jaxrl.artifacts.files import ArtifactError
from jaxrl.settings import BehaviorSettings
from jaxrl.types import JaxrlError

_log = logging.getLogger(__name__)


class DivergedError(JaxrlError):
    """Training has produced numbers that are not finite; what was saved before is good."""

    def __init__(self, behavior: str, what: str, settings: BehaviorSettings) -> None:
        normalizes, rate = settings.network_settings.normalize, settings.hyperparameters.learning_rate
        large = "" if normalizes else "set network_settings.normalize: true if observations are large, or "
        super().__init__(
            f"{behavior}: {what}: training has diverged. Lower hyperparameters.learning_rate (now {rate:g}), or "
            f"{large}scale down large rewards; then continue from the last checkpoint, which is good, with --resume."
        )


class LostWrites:
    """What could not be written while a run goes on: told once for each kind, and again when it works.

    Counted by kind, so that a full disk is one message and not one per summary.
    """

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

"""The end of a run: every step of it is taken, whatever becomes of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.onnx.export import ExportError
from jaxrl.training.errors import DivergedError
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


def take_all(steps: Sequence[Callable[[], object]], cause: BaseException | None) -> None:
    """Take every step, whatever becomes of the others, and raise the first error if nothing was wrong before.

    Otherwise what is wrong now is logged, unless it follows from the cause: a full disk is reported once.
    """
    first = None
    for step in steps:
        try:
            step()
        except JaxrlError as error:
            if cause is None:
                cause = first = error
            elif not _follows(error, cause):
                log.error("%s", error)
    if first is not None:
        raise first


def _follows(error: JaxrlError, cause: BaseException) -> bool:
    kinds = (ArtifactError, ExportError, DivergedError)
    return any(isinstance(error, kind) and isinstance(cause, kind) for kind in kinds)

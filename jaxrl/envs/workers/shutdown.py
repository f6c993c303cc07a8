"""The end of all workers, within bounds: asked, then terminated, then killed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from jaxrl.envs.workers.handles import WorkerHandle

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 10.0
_FORCE_SECONDS = 4.0  # after SIGTERM a worker has 3 s for closing its environment
_HURRY_SECONDS = 1.0


def close_workers(workers: Sequence[WorkerHandle]) -> None:
    """Ask, then terminate, then kill; each stage is bounded and over as soon as all have ended."""
    try:
        for worker in workers:
            worker.hang_up()
        left = _still_running(workers, _CLOSE_SECONDS)
        if left:
            logger.warning("%d environment workers did not close within %g s: terminated", len(left), _CLOSE_SECONDS)
        _force(left, _FORCE_SECONDS)
    except BaseException:
        # A second Ctrl-C: the user wants to leave now.
        _force(workers, _HURRY_SECONDS)
        raise


def _force(workers: Sequence[WorkerHandle], seconds: float) -> None:
    for worker in workers:
        worker.force("terminate")
    left = _still_running(workers, seconds)
    for worker in left:
        worker.force("kill")
    _still_running(left, seconds)


def _still_running(workers: Sequence[WorkerHandle], seconds: float) -> list[WorkerHandle]:
    deadline = time.monotonic() + seconds
    return [worker for worker in workers if not worker.join(deadline - time.monotonic())]

"""What a line of the log looks like, in the trainer and in its worker processes. Standard library only."""

from __future__ import annotations

import logging
import sys


def line_format(*, debug: bool, who: str = "") -> logging.Formatter:
    """`[INFO] text`, with date, level, file and line under --debug; `who` speaks stands before the text."""
    long = "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] "
    return logging.Formatter((long if debug else "[%(levelname)s] ") + f"{who}%(message)s", "%Y-%m-%d %H:%M:%S")


def current_level() -> int:
    """From which level on this process logs what jaxrl has to say."""
    return logging.getLogger("jaxrl").getEffectiveLevel()


def log_as_worker(worker: int, level: int) -> None:
    """In a worker process: jaxrl's loggers write to standard error from the trainer's level on, with their number."""
    logger, handler = logging.getLogger("jaxrl"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(line_format(debug=level <= logging.DEBUG, who=f"Worker {worker}: "))
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False

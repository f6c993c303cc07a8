"""A parent of its own, for tests that kill or interrupt it: `pool_parent.py FOLDER HOW CLOSING_SECONDS`."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

from faulty_env import PlayerEnv

from jaxrl.envs.workers.pool import EnvPool


def main(folder: str, how: str, closing_seconds: str) -> None:
    """With `how` "leave" it exits without closing its pool, with "wait" it waits for the test's signal."""
    pool = EnvPool(partial(PlayerEnv, folder=folder, closing_seconds=float(closing_seconds)), 2)
    pool.reset()
    pool.recv(2)
    if how == "leave":
        return
    try:
        Path(folder, "waiting").touch()
        time.sleep(60)
    finally:
        Path(folder, "closing").touch()
        pool.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

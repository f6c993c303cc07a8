"""What the pool says of a worker that does not answer."""

from __future__ import annotations

import time

from jaxrl.envs.workers.handles import WorkerHandle
from jaxrl.envs.workers.transport import ChannelClosedError, ChannelTimeoutError

_EXIT_SECONDS = 1.0  # for the exit code of a process whose socket has closed

_ADVICE_DEAD = {
    True: "Its output above may say why; a training script needs the guard `if __name__ == '__main__':`, because each "
    "worker imports the script again",
    False: "Killed from outside, out of memory, or crashed in native code: its output above may say why",
}
_ADVICE_SILENT = (
    "Check that the environment runs (not paused, no dialog open) and that its agents request decisions; if it is only "
    "slow, allow more time"
)


def why_silent(
    handle: WorkerHandle, doing: str, since: float, cause: ChannelClosedError | ChannelTimeoutError | None
) -> str:
    """Whether the worker died or hangs in its `doing`, begun at `since` (time.monotonic), and what to do."""
    known = handle.diagnose(_EXIT_SECONDS if isinstance(cause, ChannelClosedError) else 0.0)
    if handle.has_ended():
        return f"died during its {doing}: {known}. {_ADVICE_DEAD[doing == 'start-up']}"
    waited = time.monotonic() - since
    return f"has not answered its {doing} for {waited:.1f} s: {known}. {_ADVICE_SILENT}"

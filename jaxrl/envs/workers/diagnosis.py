"""What is known of a worker that does not answer, and what the pool says of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl.envs.workers.transport import ChannelClosedError, ChannelTimeoutError

if TYPE_CHECKING:
    from jaxrl.envs.workers.handles import WorkerHandle

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


def describe_exit(code: int) -> str:
    """An exit code in words: negative codes, and those above 128, stand for signals."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return f"exit code {code} ({name})"


def process_state(pid: int | None) -> str:
    """What the process is doing, from Linux's /proc; empty elsewhere."""
    names = {"R": "computing", "S": "waiting", "D": "waiting for a disk or device", "T": "stopped by a signal"}
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return f" and {names.get(letter, f'in state {letter}')}"

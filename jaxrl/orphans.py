"""Guards of processes that must not outlive the process that started them, however it ends.

After SIGKILL nobody closes anything. A player would notice its broken connection and quit, unless it is stopped or has
not connected yet; the run of a sweep would go on for hours. So a shell waits beside each: it reads from a pipe that the
system closes together with whoever started it, and ends the whole group, also behind a script, and where no signal
tells of a parent's death.
"""

from __future__ import annotations

import logging
import subprocess
from contextlib import suppress

from jaxrl import platforms

logger = logging.getLogger(__name__)

_SCRIPT = """
read -r _ && exit
if [ "$2" -gt 0 ]; then
    kill -s TERM "$1"
    while [ "$2" -gt 0 ] && kill -s 0 "$1"; do sleep 1; set -- "$1" $(($2 - 1)); done
fi
kill -s KILL -- "-$1"
"""
_RELEASE_SECONDS = 2.0


class Guard:
    """Ends a process group when this process is no more. Does nothing where there are no groups (Windows).

    Args:
        group: number of its leader.
        patience: seconds that the leader has for its own end after SIGTERM; 0: everybody is killed at once.
    """

    def __init__(self, group: int, patience: int = 0) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        if not platforms.guards_orphans():
            return
        try:
            self._shell = platforms.begin(
                ["/bin/sh", "-c", _SCRIPT, "jaxrl-guard", str(group), str(patience)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            logger.warning("process %d would outlive a kill -9 of its parent: /bin/sh: %s", group, error.strerror)

    def release(self) -> None:
        """Release the guard: the group has ended, in whatever way. May be called twice."""
        shell, self._shell = self._shell, None
        if shell is None or shell.stdin is None:
            return
        with suppress(OSError):  # somebody has ended it
            shell.stdin.write(b"\n")
            shell.stdin.flush()
        with suppress(OSError):
            shell.stdin.close()
        try:
            shell.wait(_RELEASE_SECONDS)
        except subprocess.TimeoutExpired:
            shell.kill()
            shell.wait(_RELEASE_SECONDS)

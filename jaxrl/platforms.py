"""Differences of POSIX and Windows: processes with their children, locks, folders, signals. No JAX.

The only file that asks for the system, but for the names of things (`device.advice`, the executable's suffix) and
`envs/unity/peers.py`, which reads tables of Linux that nobody else has. `sys.platform` is looked at when a function is
called, so that the tests run Windows' forms as far as Linux has what they call. What was run on which system:
docs/windows.md.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from pathlib import Path
from typing import Any, cast

_KILL_SECONDS = 5.0  # taskkill


def on_windows() -> bool:
    return sys.platform == "win32"


# Processes


def begin(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process (`subprocess.Popen`) whose children end with it (`end_session`), out of reach of Ctrl-C."""
    if sys.platform == "win32":
        process = subprocess.Popen(words, **options, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    else:
        process = subprocess.Popen(words, **options, start_new_session=True)
    return cast("subprocess.Popen[bytes]", process)


def end_session(process: subprocess.Popen[Any], *, kill: bool) -> None:
    """Tell a process begun with `begin`, or a player, and its children to end; with `kill` they are ended.

    Windows can only end them.
    """
    if sys.platform == "win32":
        _end_tree(process)
        return
    with suppress(ProcessLookupError, PermissionError):  # nobody is left (macOS: a group of zombies is not permitted)
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)


def ask_to_end(process: subprocess.Popen[Any]) -> None:
    """Tell a run of jaxrl that was begun with `begin` to save and end; its workers are its own affair."""
    if sys.platform == "win32":
        with suppress(OSError):  # it has ended
            process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        process.terminate()


def _end_tree(process: subprocess.Popen[Any]) -> None:
    """End a process of Windows with its children, which stay when it alone is ended; they are found while it lives."""
    if process.poll() is None:
        words = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(words, capture_output=True, timeout=_KILL_SECONDS, check=False)
    process.kill()


def guards_orphans() -> bool:
    """Return whether a shell can end a group of processes once their parent is gone (`jaxrl.orphans`)."""
    return not on_windows()


def lives(process: int) -> bool:
    """Return whether a process of this machine is still there; True for one that cannot be asked.

    On Windows signal 0 is Ctrl-C. Another user's process may not be signalled.
    """
    if not can_ask_for_processes():
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def can_ask_for_processes() -> bool:
    """Return whether `lives` can look at processes."""
    return not on_windows()


def state_of(process: int | None) -> str:
    """Return the letter of a process's state, as Linux has it: R computes, S waits, ...; empty elsewhere."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


# Signals

HANGUP = getattr(signal, "SIGHUP", None)
"""Signal of a closed terminal; Windows ends the process."""
_BREAK = getattr(signal, "SIGBREAK", None)  # Windows alone: Ctrl-Break, which `ask_to_end` sends too
END_SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP, _BREAK) if number is not None)
"""Signals that ask a run to save and end."""
CATCHES_TERMINATION = hasattr(signal, "pthread_sigmask")
"""True if a process that gets SIGTERM may still close its files; Windows ends it there and then."""


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT inside: a process started there inherits this, so that Ctrl-C cannot end it before it ignores it.

    Ours is delivered afterwards, not lost. Windows blocks no signals: nothing happens.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interrupts_unblocked() -> None:
    """Unblock SIGINT in a process that was started within `interrupts_blocked`."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay `END_SIGNALS` until after the block: nothing that it begins is torn apart or forgotten.

    Unlike blocked signals, held ones reach a process that is started inside.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in END_SIGNALS}
    held = {number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}
    for number in held:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


# Files


def lock(descriptor: int) -> None:
    """Take the system's lock on an open file, which goes with the process. Raises OSError if somebody holds it.

    Windows locks a byte, far behind the text, which others want to read.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 2**30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def try_lock(path: Path) -> None:
    """Look whether `lock` would be refused, and let go at once: OSError. A file that may only be read will do on POSIX.

    Raises FileNotFoundError or PermissionError too where it cannot be opened.
    """
    if sys.platform == "win32":
        descriptor = os.open(path, os.O_RDWR)
        try:
            lock(descriptor)
        finally:
            os.close(descriptor)
    else:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)


def keeps_open_files() -> bool:
    """Return whether a file that somebody has open can be neither removed nor replaced."""
    return on_windows()


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk, so that a rename survives a power cut. Nothing to do on Windows."""
    if on_windows():
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def longest_name(folder: Path) -> int:
    """Return the most bytes of a name in a folder, which exists."""
    return 255 if sys.platform == "win32" else _path_limit(folder, "PC_NAME_MAX", 255)


def longest_path(folder: Path) -> int:
    """Return the most bytes of a path below a folder, which exists; few on Windows unless long paths are on."""
    if sys.platform == "win32":
        return 32_000 if _long_paths() else 259
    return _path_limit(folder, "PC_PATH_MAX", 4096)


def _path_limit(folder: Path, name: str, usual: int) -> int:
    """Return the file system's own number, or the usual one where it does not tell."""
    if sys.platform == "win32":
        return usual
    try:
        return os.pathconf(folder, name)
    except (OSError, ValueError):
        return usual


def _long_paths() -> bool:
    """Return whether LongPathsEnabled is set (Windows 10 from 1607 on)."""
    if sys.platform != "win32":
        return False
    try:
        import winreg

        where = r"SYSTEM\CurrentControlSet\Control\FileSystem"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:
            return winreg.QueryValueEx(key, "LongPathsEnabled")[0] == 1
    except (ImportError, OSError):
        return False


def lacks_inodes(path: Path) -> bool:
    """Return whether the disk of `path`, which exists, takes no more files, however small; False on Windows."""
    if sys.platform == "win32":
        return False
    disk = os.statvfs(path)
    return disk.f_files > 0 and disk.f_favail == 0  # a file system without such a number tells 0 of both


def cache_folder() -> Path:
    """Return the platform's folder for files that can be made anew, with `~` for the home folder."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    if sys.platform == "darwin":
        return Path("~/Library/Caches")
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")


class Waiting:
    """Sockets and ends of processes, of which some become ready; one that is closed must be removed before another one.

    `multiprocessing.connection.wait` registers all of them each time. Windows waits for sockets and processes in
    different ways, which only that knows.
    """

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}  # by number
        self._poll: Any = None
        self._second = 1000.0  # in the unit of `_poll`
        if sys.platform == "linux":  # its cost grows with ready items, not with watched ones
            self._poll, self._second = select.epoll(), 1.0
        elif sys.platform != "win32":
            self._poll = select.poll()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> int:
        """Watch `item`, a number or an object with a `fileno`. Return the number by which `wait` names it."""
        number = item if isinstance(item, int) else item.fileno()
        self._items[number] = item
        if sys.platform != "win32":
            self._poll.register(number, select.POLLIN)
        return number

    def remove(self, number: int) -> None:
        """Stop watching the item of this number; it may be closed already."""
        if self._items.pop(number, None) is not None and self._poll is not None:
            with suppress(OSError, KeyError):
                self._poll.unregister(number)

    def wait(self, seconds: float) -> list[int]:
        """Return the numbers of items that are ready within `seconds`. Does not wait without any item."""
        if not self._items:
            return []
        if self._poll is not None:
            return [number for number, _ in self._poll.poll(self._second * seconds) if number in self._items]
        ready = {id(item) for item in connection.wait(list(self._items.values()), timeout=seconds)}
        return [number for number, item in self._items.items() if id(item) in ready]


# The machine


def cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """Return the processes that wanted a core, averaged over the last minute; None on Windows, which does not tell."""
    return None if sys.platform == "win32" else os.getloadavg()[0]


def available_memory() -> int | None:
    """Return the bytes that the system can give without writing to disk; None where not known (macOS, Windows)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def container_memory() -> int | None:
    """Return the bytes that this process's container may still take (Linux cgroup v2); None without a limit."""
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):
        return None
    return max(limit - used, 0)


def free_memory() -> int | None:
    """Return the bytes that the system and this process's container can still give; None where neither tells."""
    return min((x for x in (available_memory(), container_memory()) if x is not None), default=None)


def processor() -> str:
    """Return the processor's name as the system tells it, else its architecture."""
    try:
        if sys.platform == "darwin":
            words = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        else:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except (OSError, subprocess.SubprocessError):
        name = ""
    return name or platform.processor() or platform.machine()

"""`jaxrl/platforms.py`: POSIX's forms on this system, and Windows' as far as this system has what they call.

Here Windows is a word in `sys.platform`. What its own functions do (taskkill, msvcrt, Ctrl-Break) is not run anywhere.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jaxrl import platforms, unfinished
from jaxrl.artifacts import lock
from jaxrl.artifacts.names import RunFolderError, check_run_names
from jaxrl.cache import cache_folder
from jaxrl.envs.address import Kind, parse_address
from jaxrl.orphans import Guard
from jaxrl.own_code import split_address
from tests.envs.processes import comes_true

PACKAGE = Path(platforms.__file__).parent
SYSTEMS = ("linux", "darwin", "win32")
ELSEWHERE = {
    "platforms.py", "envs/unity/peers.py",  # see the first
    "cli/device.py",  # what JAX has for which system
}  # fmt: skip
OF_ONE_SYSTEM = re.compile(
    r"\bos\.(name|fork|killpg|setsid|getpgid|getuid|sched_\w+|getloadavg|statvfs|mkfifo)\b|\bsignal\.SIG(KILL|HUP|QUIT|BREAK|USR\d)\b"
    r"|import (fcntl|resource|termios|pwd|grp|msvcrt|winreg)\b|start_new_session|preexec_fn|\"/(proc|dev|sys)/"
    r"|sys\.platform|select\.(poll|epoll)|pthread_sigmask"
)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks takes this for Windows."""
    monkeypatch.setattr(sys, "platform", "win32")


def test_one_file_knows_the_systems() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {match[0]}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).as_posix() not in ELSEWHERE
        for line in path.read_text(encoding="utf-8").splitlines()
        if (match := OF_ONE_SYSTEM.search(line.partition("#")[0])) and not line.lstrip().startswith('"""')
    }
    assert found == set()


@pytest.mark.skipif(os.name == "nt", reason="signals are those of POSIX")
@pytest.mark.parametrize("kill", [False, True])
def test_children_end_with_the_process(kill: bool) -> None:
    """A shell that starts another process, and waits for it."""
    process = platforms.begin(["/bin/sh", "-c", "sleep 60 & wait"])
    try:
        assert comes_true(lambda: len(psutil.Process(process.pid).children()) == 1, 10)
        (child,) = psutil.Process(process.pid).children()
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        platforms.end_session(process, kill=kill)
        assert process.wait(10) == (-9 if kill else -15)
        assert comes_true(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)
        platforms.end_session(process, kill=kill)  # nobody is left
    finally:
        process.kill()
        process.wait(10)


def test_windows_ends_the_process_where_there_is_no_taskkill(windows: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    platforms.end_session(process, kill=False)
    assert process.wait(10) != 0
    platforms.end_session(process, kill=True)
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize("system", SYSTEMS)
def test_waits_for_sockets_and_processes(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    ours, theirs = socket.socketpair()
    others, silent = socket.socketpair()
    with ours, theirs, others, silent:
        waiting, begun = platforms.Waiting(), time.monotonic()
        assert waiting.wait(5.0) == [], "nothing to wait for"
        numbers = [waiting.add(end) for end in (ours, others)]
        assert len(waiting) == 2 and waiting.wait(0.01) == []
        theirs.send(b"x")
        assert waiting.wait(5.0) == numbers[:1]
        waiting.remove(numbers[0])
        assert waiting.wait(0.01) == []
        silent.close()
        assert waiting.wait(5.0) == numbers[1:], "the other side is gone"
        others.close()
        waiting.remove(numbers[1])
        assert time.monotonic() - begun < 4.0


@pytest.mark.parametrize("keeps", [False, True])
def test_a_lock_comes_and_goes_whatever_may_be_removed_when(
    keeps: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Windows removes the file after it has closed it; its locks themselves are not those that are taken here."""
    monkeypatch.setattr(platforms, "keeps_open_files", lambda: keeps)
    folder = tmp_path / "a run"
    with lock.RunLock(folder):
        seen = lock.look(folder)
        assert seen is not None and seen.held and seen.owner is not None and seen.owner.process == os.getpid()
    assert not folder.exists()


def test_windows_is_not_asked_what_it_does_not_know(windows: None, tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert platforms.lives(int(dead.stdout)), "a process cannot be asked, and is taken to live"
    name = f"x.{int(dead.stdout)}-{unfinished._host()}{unfinished.PARTIAL}"
    (tmp_path / name).mkdir()
    assert unfinished.remove(tmp_path) == [], "what was touched a moment ago may still be written"
    Guard(1).release()
    platforms.sync_folder(tmp_path / "is not there")
    assert platforms.load() is None and not platforms.lacks_inodes(tmp_path / "is not there")
    assert platforms.cores() >= 1
    with platforms.interrupts_blocked():
        platforms.interrupts_unblocked()


def test_caches_lie_where_each_system_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAXRL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "/c/Users/A B/AppData/Local")
    found = {}
    for system in SYSTEMS:
        monkeypatch.setattr(sys, "platform", system)
        found[system] = cache_folder()
    home = Path.home()
    assert found == {
        "linux": home / ".cache" / "jaxrl",
        "darwin": home / "Library" / "Caches" / "jaxrl",
        "win32": Path("/c/Users/A B/AppData/Local/jaxrl"),
    }


@pytest.mark.parametrize("path", [r"C:\My Games\game.exe", r"D:game", r"\\server\share\a game\game", "C:/games/game"])
def test_a_drive_is_no_kind_of_environment(path: str) -> None:
    assert parse_address(path) == (Kind.UNITY, path)


def test_own_code_may_lie_on_a_drive() -> None:
    assert split_address(r"C:\My Code\own.py:make") == (r"C:\My Code\own.py", "make")
    assert parse_address(r"C:\My Code\own.py:make").kind is Kind.FUNCTION


def test_paths_that_windows_does_not_take_are_refused_before_anything_is_written(windows: None) -> None:
    folder = Path("/", "x" * 200)
    with pytest.raises(RunFolderError, match="this system takes 259"):
        check_run_names(folder, "run")
    check_run_names(Path("/results"), "run")

"""Admits one player at a port: where Linux shows the owner of a connection, the one that was started.

Every process on this machine can dial a loopback port. Linux lists both ends of each connection, and a process's
sockets among its open files; so each caller is looked up once per connection.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

_TABLES = tuple(Path("/proc/self/net", name) for name in ("tcp", "tcp6"))
CHECKED = _TABLES[0].exists()
"""The system shows the owner of a connection. Elsewhere, the first caller is the player."""
_REMEMBERED = 1000  # largest number of refused connections that are kept


class Peers:
    """Callers at `port` on loopback; with `anywhere`, the first caller is the player.

    Attributes:
        process: leader of the session that was started; None: the first caller is the player (the Editor).
    """

    def __init__(self, port: int, *, anywhere: bool) -> None:
        self.process: int | None = None
        self._port = port
        self._looks = CHECKED and not anywhere
        self._admitted: dict[str, int | None] = {}  # connections, with their process where it is known
        self._refused: set[str] = set()
        self._lock = threading.Lock()  # a player may call twice at once

    def admits(self, peer: str) -> bool:
        """Return whether this connection, in gRPC's words, is the player's. The answer never changes."""
        with self._lock:
            if peer in self._admitted:
                return True
            if peer in self._refused:
                return False
            owner = _owner(peer, self._port) if self._looks else UNKNOWN
            if self._is_player(owner):
                self._admitted[peer] = owner.pid
                return True
            if len(self._refused) >= _REMEMBERED:
                self._refused.clear()
            self._refused.add(peer)
            return False

    def _is_player(self, owner: Owner) -> bool:
        if self.process is not None and owner.known:
            return owner.pid in _family(self.process)
        return not self._admitted or (owner.pid is not None and owner.pid in self._admitted.values())


class Owner(NamedTuple):
    """Owner of a connection."""

    known: bool  # the system lists the connection
    pid: int | None  # None: a process of another user, which is hidden


UNKNOWN = Owner(False, None)


def describe(peer: str, port: int) -> str:
    """Describe the caller, for a warning."""
    pid = _owner(peer, port).pid if CHECKED else None
    if pid is None:
        return unquote(peer)
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"{unquote(peer)} (process {pid}: {command[:200]})"
    return f"{unquote(peer)} (process {pid})"


def _owner(peer: str, port: int) -> Owner:
    """Return the owner of the other end of a connection from `peer` to our `port`."""
    inode = _inode(peer, port)
    if inode is None:
        return UNKNOWN
    link = f"socket:[{inode}]"
    return Owner(True, next((pid for pid in _processes() if link in _files(pid)), None))


def _inode(peer: str, port: int) -> str | None:
    kind, _, place = unquote(peer).partition(":")
    host, _, number = place.rpartition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    address = ip_address(host.strip("[]").partition("%")[0])
    locals_ = {f"{_hex(form)}:{int(number):04X}" for form in _forms(address)}
    ours = f":{port:04X}"
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, _, _, _, _, _, _, inode, *_ = line.split()
                if local in locals_ and remote.endswith(ours):
                    return inode
    return None


def _forms(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """Yield the forms of an address: one of IPv4 may stand among those of IPv6, where a socket serves both."""
    yield address
    if isinstance(address, IPv4Address):
        yield IPv6Address(f"::ffff:{address}")
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped


def _hex(address: IPv4Address | IPv6Address) -> str:
    """Return the address in words of this machine's byte order, as in the tables."""
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words)


def _processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _files(pid: int) -> set[str]:
    """Return the open files of a process; none if it is another user's."""
    links = set()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                links.add(str(path.readlink()))
    return links


def _family(leader: int) -> set[int]:
    """Return the session of a leader, and its descendants: a player may be started by scripts."""
    parents, family = {}, {leader}
    for pid in _processes():
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            parents[pid] = int(fields[1])
            if int(fields[3]) == leader:
                family.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family

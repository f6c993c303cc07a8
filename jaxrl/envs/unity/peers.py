"""Who may speak at a player's port: one player, and where Linux tells whose a connection is, the one that was started.

Everybody on this machine can dial a port of loopback. Linux lists both ends of each connection, and a process's
sockets among its open files; so whoever calls is looked up once for each connection.
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
"""Whether this system tells whose a connection is. Where it does not, the first to speak is the player."""
_REMEMBERED = 1000  # connections that were refused


class Peers:
    """Those who call at `port` on loopback, unless `anywhere`: then it is the first who calls that is served.

    Attributes:
        process: that was started, the leader of a session; None: whoever comes first is the player (the Editor).
    """

    def __init__(self, port: int, *, anywhere: bool) -> None:
        self.process: int | None = None
        self._port = port
        self._looks = CHECKED and not anywhere
        self._admitted: dict[str, int | None] = {}  # connections, with their process where that is known
        self._refused: set[str] = set()
        self._lock = threading.Lock()  # a player may call twice at once

    def admits(self, peer: str) -> bool:
        """Whether this connection, in gRPC's words, is the player's. It stays so."""
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
    """Whose a connection is."""

    known: bool  # whether the system lists the connection
    pid: int | None  # None: of another user, who does not show it


UNKNOWN = Owner(False, None)


def describe(peer: str, port: int) -> str:
    """Who calls, for a warning."""
    pid = _owner(peer, port).pid if CHECKED else None
    if pid is None:
        return unquote(peer)
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"{unquote(peer)} (process {pid}: {command[:200]})"
    return f"{unquote(peer)} (process {pid})"


def _owner(peer: str, port: int) -> Owner:
    """Who holds the other end of a connection from `peer` to our `port`."""
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
    """An address of IPv4 may stand among those of IPv6, where a socket serves both."""
    yield address
    if isinstance(address, IPv4Address):
        yield IPv6Address(f"::ffff:{address}")
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped


def _hex(address: IPv4Address | IPv6Address) -> str:
    """Words in the order of this machine, as the tables have them."""
    words = struct.unpack(f"={len(address.packed) // 4}I", address.packed)
    return "".join(f"{word:08X}" for word in words)


def _processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _files(pid: int) -> set[str]:
    """What a process has open; nothing if it is another user's."""
    links = set()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                links.add(str(path.readlink()))
    return links


def _family(leader: int) -> set[int]:
    """The session that it leads, and whoever descends from that: a player may stand behind scripts."""
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

"""Finds addresses and ports for players, and checks that they are free."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress

from jaxrl.envs.interface import EnvironmentFailure

EDITOR_PORT = 5004
"""Port at which the Unity Editor looks for a trainer; it cannot use another one."""
_LOOPBACK, _LOOPBACK_6 = "127.0.0.1", "::1"


def addresses(listen: str | None) -> list[str]:
    """Return the addresses of a server. None: loopback, of IPv4 and, if there is one, of IPv6: players dial
    `localhost`, and a stranger at the other of the two would be taken for the trainer.
    """
    if listen is not None:
        return [listen]
    return [_LOOPBACK, _LOOPBACK_6] if _has_loopback_6() else [_LOOPBACK]


def target(address: str, port: int) -> str:
    """Return address and port in gRPC's form."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def port_problem(port: int, listen: str | None = None) -> str:
    """Return why no player can be served on `port`; empty: it is free.

    Loopback is tried for any `listen`: gRPC's bind to all interfaces may not collide with a listener there.

    Raises:
        EnvironmentFailure: `listen` is no address of this machine.
    """
    for address in dict.fromkeys([*addresses(None), *addresses(listen)]):
        problem = _bind(address, port)
        if problem is None:
            continue
        if problem.errno == errno.EADDRNOTAVAIL:
            raise EnvironmentFailure(
                f"env_settings.listen: got {address}, which is no address of this machine; expected one of its own, or "
                "0.0.0.0 or :: for all of them (--listen)"
            )
        return port_in_use(port)
    return ""


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


def port_in_use(port: int) -> str:
    """Return the text that the port is in use, and what to do."""
    held = f"port {port} is in use, or may not be used: another training run or an environment left over holds it. "
    if port == EDITOR_PORT:
        return f"{held}Close that: the Unity Editor looks for a trainer at this port alone"
    others = "choose other ports with --base-port (env_settings.base_port; worker n uses base port + n)"
    return f"{held}Close that, or {others}"


def _bind(address: str, port: int) -> OSError | None:
    """Return the error of binding there, or None. gRPC's own errors have one text for all causes."""
    six = ipaddress.ip_address(address).version == 6
    with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port just closed stays taken for a minute
        try:
            probe.bind((address, port))
        except OSError as error:
            return error
    return None


def _has_loopback_6() -> bool:
    with suppress(OSError):
        return socket.has_ipv6 and _bind(_LOOPBACK_6, 0) is None
    return False  # compiled with IPv6, on a machine without

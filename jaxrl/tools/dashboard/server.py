"""The web server of the live page: Python's own server, three files, and the data of runs as JSON.

Any client that reaches the port can read the runs, so it listens on this machine alone unless told otherwise, and then
answers only requests that name this machine: a foreign page whose address is made to point here gets nothing.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jaxrl.regular_files import read_regular
from jaxrl.tools.dashboard.results import Results
from jaxrl.tools.report.figures import COLORS
from jaxrl.tools.report.films import TYPES
from jaxrl.tools.report.page import source
from jaxrl.types import JaxrlError

_HERE = Path(__file__).parent
_HTML, _CSS, _JS, _JSON = "text/html", "text/css", "text/javascript", "application/json"
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
LARGEST = 2**28
"""Largest size of a film in bytes."""
_HOST = re.compile(r"(localhost|[0-9.]{7,15}|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,15}")
_MOST_FIELDS = 8
_REQUEST_SECONDS = 10.0  # a client that connects and sends nothing is dropped

log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """Serves `results` on `host`:`port`; port 0 takes a free one. Raises JaxrlError if the port cannot be used."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, results: Results, host: str, port: int) -> None:
        if not host.strip():
            raise JaxrlError(
                "--host: got nothing, which would be every address of this machine. Give 127.0.0.1 for "
                "this machine alone, or 0.0.0.0 where you mean every address."
            )
        self.results = results
        self.local = _is_loopback(host)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise JaxrlError(_unavailable(host, port, error)) from error
        except OverflowError:
            raise JaxrlError(f"--port {port}: expected a number from 0 to 65535") from None

    def server_bind(self) -> None:
        """Bind without asking for this machine's full name, which takes long where no name server answers."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def address(self) -> str:
        """Address to open in a browser."""
        host, port = self.server_address[:2]
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request: a browser may hang up in the middle of an answer."""
        log.debug("request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride] always one of ours
    timeout = _REQUEST_SECONDS
    server_version, sys_version = "jaxrl", ""

    def do_GET(self) -> None:
        """Answer from the list of known pages; nothing in a request becomes a path."""
        if self.server.local and not _names_this_machine(self.headers.get_all("Host", [])):
            self._error(HTTPStatus.FORBIDDEN, "this page is served to this machine alone, under its own name")
            return
        try:
            address = urlsplit(self.path)
            asked = {key: values[-1] for key, values in parse_qs(address.query, max_num_fields=_MOST_FIELDS).items()}
        except ValueError:
            self._error(HTTPStatus.BAD_REQUEST, "this is no address of a page")
            return
        if not _NUMBER.fullmatch(asked.get("known", "-1")):
            self._error(HTTPStatus.BAD_REQUEST, "known: expected a number")
            return
        if address.path in _FILES:
            kind, content = _FILES[address.path]
            self._answer(kind, content().encode())
        elif address.path in _ANSWERS:
            answer = _ANSWERS[address.path](self.server.results, asked)
            if answer is None:
                self._error(HTTPStatus.NOT_FOUND, f"no run is called {asked.get('run', '')!r}")
            else:
                self._answer(_JSON, json.dumps(answer, allow_nan=False).encode())
        elif address.path == "/film":
            self._film(asked.get("run", ""))
        else:
            self._error(HTTPStatus.NOT_FOUND, "there is no such page")

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request, visible with --debug alone: there is one every two seconds."""
        log.debug(format, *args)

    def _film(self, name: str) -> None:
        path = self.server.results.film(name)
        try:
            content = None if path is None else read_regular(path, LARGEST)
        except OSError:  # deleted at this moment
            content = None
        if path is None or content is None:
            self._error(HTTPStatus.NOT_FOUND, f"run {name!r} has no film")
        else:
            self._answer(TYPES[path.suffix], content)

    def _error(self, code: HTTPStatus, text: str) -> None:
        self._answer(_JSON, json.dumps({"error": text}).encode(), code)

    def _answer(self, kind: str, content: bytes, code: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind if kind.startswith(("image", "video")) else f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        self.wfile.write(content)


def _own(name: str) -> Callable[[], str]:
    return lambda: (_HERE / name).read_text(encoding="utf-8")


_FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "/": (_HTML, _own("page.html")),
    "/live.js": (_JS, _own("live.js")),
    "/live.css": (_CSS, _own("live.css")),
    "/chart.js": (_JS, lambda: source("chart.js")),
    "/style.css": (_CSS, lambda: source("style.css")),
}
_ANSWERS: dict[str, Callable[[Results, Mapping[str, str]], Any]] = {
    "/api/runs": lambda results, _: {"results": str(results.root), "colors": COLORS, "runs": results.table()},
    "/api/curves": lambda results, asked: results.curves(asked.get("run", ""), int(asked.get("known", "-1"))),
}


def _names_this_machine(hosts: Sequence[str]) -> bool:
    """Return whether a request names this machine, once: NAME or NAME:PORT and nothing else."""
    named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    return named is not None and _is_loopback(named[1].lower().strip("[]"))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _unavailable(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port}: taken on {host} by another program. Choose another one, or --port 0 for any free one."
    if error.errno == errno.EACCES:
        return f"--port {port}: not allowed to this user. Choose one above 1023, or --port 0 for any free one."
    return f"--host {host}: cannot listen there ({error.strerror or error}). Choose 127.0.0.1 for this machine alone."

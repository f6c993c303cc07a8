"""The command `jaxrl dashboard`: a real process, real requests, and its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.browser import NARROW, opened_browser, opened_page, overflow
from tests.tools.report.report_folders import write_events, write_run

COMMAND = [sys.executable, "-m", "jaxrl.cli", "dashboard"]
CHANGED = 9000  # milliseconds: some polls of a busy machine


@pytest.fixture
def served(tmp_path):
    """(results folder, address, process)"""
    results = tmp_path / "results"
    results.mkdir()
    process = subprocess.Popen([*COMMAND, str(results), "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield results, re.search(r"http://127\.0\.0\.1:\d+", line).group(), process
    finally:
        process.kill()
        process.communicate()


def get(address, path, **headers):
    request = urllib.request.Request(address + path, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers, answer.read()


def refused(address, path, **headers):
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(address, path, **headers)
    with caught.value as error:
        return error.code, json.loads(error.read())["error"]


def test_it_answers_while_runs_come_and_go_and_ends_with_ctrl_c(served):
    results, address, process = served
    assert json.loads(get(address, "/api/runs")[1])["runs"] == []
    run = write_run(results, "a b&c")
    (row,) = json.loads(get(address, "/api/runs")[1])["runs"]
    assert row["name"] == "a b&c" and row["behaviors"]["Walker"]["step"] == 2000
    curves = json.loads(get(address, "/api/curves?run=a%20b%26c")[1])
    assert curves["curves"][0]["mean"] == [0.0, 0.5]
    assert "curves" not in json.loads(get(address, f"/api/curves?run=a%20b%26c&known={curves['version']}")[1])
    (run / "videos").mkdir()
    (run / "videos" / "episode-000001.gif").write_bytes(b"GIF89a")
    headers, film = get(address, "/film?run=a%20b%26c")
    assert film == b"GIF89a" and headers["Content-Type"] == "image/gif"
    shutil.rmtree(run)
    assert json.loads(get(address, "/api/runs")[1])["runs"] == []
    shutil.rmtree(results)
    assert json.loads(get(address, "/api/runs")[1])["runs"] == []
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0 and process.stdout.read() == "ended\n"


def test_nothing_else_is_served(served):
    results, address, _ = served
    (results.parent / "secret.txt").write_text("secret")
    write_run(results, "a")
    get(address, "/api/runs")
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/a/configuration.yaml", "/api/", "//etc/passwd"):
        assert refused(address, path) == (404, "there is no such page")
    assert refused(address, "/api/curves?run=../a") == (404, "no run is called '../a'")
    assert refused(address, "/film?run=../results/a") == (404, "run '../results/a' has no film")
    assert refused(address, "/film") == (404, "run '' has no film")
    code, text = refused(address, "/api/runs", Host="somewhere.example")
    assert code == 403 and "this machine alone" in text
    headers, page = get(address, "/", Host="localhost:1234")
    assert b"<title>jaxrl</title>" in page and "default-src 'self'" in headers["Content-Security-Policy"]
    assert b"http" not in page


def raw(address: str, request: str) -> str:
    """The answer to a request that no browser would make."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as line:
        line.sendall(request.encode("latin-1"))
        with line.makefile("rb") as answer:
            return answer.readline().decode()


def test_odd_requests_are_refused_with_an_answer(served):
    _, address, _ = served
    port = address.rpartition(":")[2]
    for odd in ("evil.example@127.0.0.1", "[::1", "localhost/evil", "localhost?x", "localhost#x", "127.0.0.1:x", "[]",
                "localhost:123456", "127.0.0.1\r\nHost: evil.example", "", "127.1", "evil.example", "\xb2localhost",
                "9" * 5000):  # fmt: skip
        assert " 403 " in raw(address, f"GET / HTTP/1.1\r\nHost: {odd}\r\n\r\n"), odd
    assert " 403 " in raw(address, "GET / HTTP/1.0\r\n\r\n")
    for right in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", "127.8.9.1", f"[::1]:{port}"):
        assert " 200 " in raw(address, f"GET / HTTP/1.1\r\nHost: {right}\r\n\r\n"), right
    for odd in ("/api/curves?run=a&known=" + "9" * 5000, "/api/curves?run=a&known=x", "/api/curves?known=%C2%B2",
                "/api/runs?" + "a=1&" * 5000, "http://[::1/"):  # fmt: skip
        assert " 400 " in raw(address, f"GET {odd} HTTP/1.1\r\nHost: localhost\r\n\r\n"), odd
    assert " 404 " in raw(address, "GET /api/curves?run=a&known= HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        end = subprocess.run([*COMMAND, str(tmp_path), "--port", str(port)], capture_output=True, text=True, timeout=60)
    assert end.returncode == 1 and f"--port {port}: taken on 127.0.0.1" in end.stderr and "--port 0" in end.stderr
    assert len(end.stderr.splitlines()) == 1


def test_the_page_follows_a_run(served):
    results, address, _ = served
    with opened_browser() as browser, opened_page(browser, address) as page:
        page.get_by_text("No run yet").wait_for(timeout=CHANGED)
        run = write_run(results, "first")
        row = page.locator("#runs tbody tr")
        row.wait_for(timeout=CHANGED)
        assert "first" in row.inner_text() and "0.5 Group Cumulative Reward" in row.inner_text()
        curve = page.locator(".panel path.line").first
        curve.wait_for(timeout=CHANGED)
        before = curve.get_attribute("d")
        write_events(run / "Walker", {3000: 0.875})
        page.get_by_text("0.875 Group").wait_for(timeout=CHANGED)
        page.wait_for_function("before => document.querySelector('path.line').getAttribute('d') !== before", arg=before)
        page.locator(".panel svg").first.hover(position={"x": 330, "y": 80})
        assert "step 3,000" in page.locator(".tip").first.inner_text()
        write_run(results, "second", scores=(0.1, 0.2))
        page.get_by_label("curves of second").check(timeout=CHANGED)
        page.locator(".panel").first.locator("path.line").nth(1).wait_for(timeout=CHANGED)
        page.set_viewport_size({"width": NARROW, "height": 700})
        assert overflow(page) == 0
        shutil.rmtree(results / "first")
        row.nth(1).wait_for(state="detached", timeout=CHANGED)
        assert "second" in row.inner_text()

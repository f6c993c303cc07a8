"""`jaxrl push-to-hf` and `load-from-hf`, with the Hub's own client, against a small Hub on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import yaml

from jaxrl.tools.hub import model_card
from tests.tools.report.report_folders import write_run

pytest.importorskip("huggingface_hub")
ROOT = Path(__file__).parents[2]
REPO, COMMIT = "somebody/walker", "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """One repository in memory, and the requests that the client makes of it."""

    files: dict[str, bytes]
    messages: list[str]
    token = "hf_good"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlparse(self.path).path
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            self.answer({"url": f"http://{self.headers['Host']}/{REPO}", "name": REPO, "id": REPO})
        elif path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            self.answer({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]})
        elif path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "header":
                    self.messages.append(line["value"]["summary"])
            self.answer(
                {
                    "commitUrl": f"http://{self.headers['Host']}/{REPO}/commit/{COMMIT}",
                    "commitOid": COMMIT,
                    "success": True,
                }
            )
        else:
            self.answer({"type": "ok"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        place = path.partition(f"/resolve/{COMMIT}/")[2]
        if place in self.files:
            self.file(self.files[place])
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            self.answer([{"type": "file", "path": p, "size": len(x), "oid": oid(x)} for p, x in self.files.items()])
        elif path.startswith(f"/api/models/{REPO}"):
            self.answer({"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": place} for place in self.files]})
        else:
            self.answer({"error": "not found"}, 404)

    def file(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{oid(content)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def answer(self, content: Any, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub() -> Iterator[tuple[type[Hub], str]]:
    handler = type("OneHub", (Hub,), {"files": {}, "messages": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def jaxrl(folder: Path, endpoint: str, *words: str, token: str = Hub.token) -> tuple[int, str]:
    """A command in a process of its own: the client reads the endpoint when it is imported."""
    place = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), "HF_TOKEN": token}
    place |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    place |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    place["PYTHONPATH"] = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-m", "jaxrl.cli", *words]
    done = subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a film, and with what stays on this machine."""
    run = write_run(tmp_path / "results", "walks")
    (run / "videos").mkdir()
    (run / "videos" / "worker0-000050.gif").write_bytes(b"GIF89a")
    (run / "Walker.onnx").write_bytes(bytes(range(256)) * 40)
    for private in ("run.lock", "run_logs/manifest.json", "run_logs/Player-0.log", ".secret"):
        (run / private).write_text("mine")
    return run


def test_a_run_goes_up_with_its_card_and_comes_down_again(tmp_path: Path, hub: Any, run: Path) -> None:
    handler, endpoint = hub
    flags = ("--run-id=Walks well", f"--local-dir={run}", f"--repo-id={REPO}", "--commit-message=First push")
    code, said = jaxrl(tmp_path, endpoint, "push-to-hf", *flags)
    assert code == 0, said
    assert REPO in said and handler.messages == ["First push"]
    known = {"Walker.onnx", "configuration.yaml", "run_logs/timers.json", "videos/worker0-000050.gif"}
    known |= {path.relative_to(run).as_posix() for path in (run / "Walker").iterdir()}
    assert handler.files.keys() == known | {"README.md", "curves.png", "film.gif"}
    assert handler.files["curves.png"].startswith(b"\x89PNG") and handler.files["film.gif"] == b"GIF89a"
    card = handler.files["README.md"].decode()
    assert "# Walks well" in card and "![Curves](curves.png)" in card and "![Film](film.gif)" in card

    code, said = jaxrl(tmp_path, endpoint, "load-from-hf", f"--repo-id={REPO}", "--local-dir=results/again")
    again = tmp_path / "results" / "again"
    assert code == 0 and said.splitlines()[-1] == "Written to results/again.", said
    loaded = {path.relative_to(again).as_posix(): path.read_bytes() for path in again.rglob("*") if path.is_file()}
    assert loaded == handler.files
    code, said = jaxrl(tmp_path, endpoint, "load-from-hf", f"--repo-id={REPO}", "--local-dir=results/again")
    assert (code, said) == (1, "--local-dir results/again: is there already. Name a folder that is not, or remove this "
                               "one.\n")  # fmt: skip


def test_what_the_hub_refuses_is_one_sentence(tmp_path: Path, hub: Any, run: Path) -> None:
    handler, endpoint = hub
    words = ("push-to-hf", f"--local-dir={run}", f"--repo-id={REPO}")
    code, said = jaxrl(tmp_path, endpoint, *words, token="hf_bad")
    assert code == 1 and handler.files == {} and "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"{REPO}: ") and "`hf auth login` or HF_TOKEN" in said
    code, said = jaxrl(tmp_path, endpoint, "load-from-hf", "--repo-id=nobody/nothing", "--local-dir=new")
    assert code == 1 and said.startswith("nobody/nothing: ") and "check --repo-id" in said
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())
    code, said = jaxrl(tmp_path, endpoint, "push-to-hf", f"--local-dir={tmp_path}", f"--repo-id={REPO}")
    assert (code, said) == (1, f"{tmp_path}: is no results folder of a run, expected one with a configuration.yaml\n")


def test_the_card_says_what_was_trained_and_how(run: Path) -> None:
    card = model_card(run, REPO, "Walks", [])
    _, head, body = card.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["library_name"] == "jaxrl" and {"ml-agents", "poca", "ML-Agents-Walker"} <= set(about["tags"])
    assert "- `Walker`: poca\n" in body and f"jaxrl load-from-hf --repo-id={REPO} --local-dir=results/Walks" in body
    assert "![" not in body
    settings = yaml.safe_load(body.partition("```yaml\n")[2].partition("```")[0])
    assert settings == {"behaviors": yaml.safe_load((run / "configuration.yaml").read_text())["behaviors"]}

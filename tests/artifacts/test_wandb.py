"""Weights & Biases for real, offline: what lies in its files after a run and its continuation."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.artifacts.metrics.writers import RecordError, check_writers
from jaxrl.settings import RecordSettings

ROOT = Path(__file__).parents[2]
installed = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs the extra wandb")


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: W&B keeps threads, another process and hooks."""
    unset = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, timeout=110, cwd=ROOT, env={**unset, "WANDB_SILENT": "true", **environment},
    )  # fmt: skip


RUN = """
import logging, sys
from pathlib import Path
import numpy as np
from jaxrl.artifacts.metrics.writers import Place, check_writers, open_writers
from jaxrl.artifacts.metrics.statistics import CUMULATIVE_REWARD, StatsAggregator
from jaxrl.settings import RecordSettings
from jaxrl.types import Aggregation

logging.basicConfig(level=logging.INFO)
settings, folder = RecordSettings(wandb="walks"), Path(sys.argv[1])
check_writers(settings)
steps = [int(step) for step in sys.argv[2].split(",")]
place = Place(
    "first", "Walker", "seed_7", folder / "Walker", folder / "run_logs",
    steps[0] - 1, "1234abcd", {"debug": False}, set(),
)
writers = open_writers(settings, place)
for writer in writers:
    writer.hyperparameters({"trainer_type": "poca", "hyperparameters": {"beta": 0.25}}, steps[0])
for step in steps:
    stats = StatsAggregator()
    stats.extend(CUMULATIVE_REWARD, [float(step), 2.0 * step], Aggregation.HISTOGRAM)
    taken = stats.take()
    for writer in writers:
        writer.summaries(step, taken)
for writer in writers:
    writer.images(steps[-1], {"Custom/view": np.zeros((2, 3, 3), np.uint8)})
    writer.close()
"""


@installed
def test_a_run_and_its_continuation(tmp_path: Path) -> None:
    for steps in ("100,200", "150,300"):  # the second one from a checkpoint at step 149
        ended = python(RUN, str(tmp_path), steps, WANDB_MODE="offline")
        assert ended.returncode == 0 and "WARNING" not in ended.stderr, ended.stderr
    files = sorted(tmp_path.glob("run_logs/wandb/offline-run-*-1234abcd/run-1234abcd.wandb"))
    assert len(files) == 2
    for file, steps in zip(files, ([100, 200], [150, 300]), strict=True):
        found = list(records(file))
        run = next(record.run for record in found if record.WhichOneof("record_type") == "run")
        assert (run.run_id, run.project, run.run_group) == ("1234abcd", "walks", "first")
        assert run.display_name == "first/Walker/seed_7"
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        for record in found:
            if record.WhichOneof("record_type") == "config":
                config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        assert config["debug"] is False
        assert config["behavior"] == {"trainer_type": "poca", "hyperparameters": {"beta": 0.25}}
        metric = next(record.metric for record in found if record.WhichOneof("record_type") == "metric")
        assert (metric.glob_name, metric.step_metric) == ("*", "Step")
        points = [
            {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for record in found
            if record.WhichOneof("record_type") == "history"
        ]
        rewards = [(point["Step"], point["Environment/Cumulative Reward"]) for point in points[:2]]
        assert rewards == [(step, 1.5 * step) for step in steps]
        assert points[0]["Environment/Cumulative Reward_hist._type"] == "histogram"
        assert points[2]["Step"] == steps[-1] and points[2]["Custom/view.width"] == 3


def records(path: Path) -> Iterator[Any]:
    """The records of W&B's own file, framed as LevelDB's log: blocks of 32 KiB, [crc u32][size u16][kind u8][bytes]."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


CHECK = """
from jaxrl.artifacts.metrics.writers import RecordError, check_writers
from jaxrl.settings import RecordSettings
try:
    check_writers(RecordSettings(wandb="walks"))
except RecordError as error:
    print(error)
"""


@installed
def test_nobody_is_logged_in(tmp_path: Path) -> None:
    places = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path)}
    told = python(CHECK, **places).stdout
    assert told.startswith("record_settings.wandb: W&B has no API key: log in with `wandb login`") and "offline" in told
    assert python(CHECK, **places, WANDB_MODE="offline").stdout == ""


@pytest.mark.parametrize(("name", "service"), [("wandb", "Weights & Biases"), ("mlflow", "MLflow")])
def test_the_extra_is_missing(name: str, service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RecordError) as raised:
        check_writers(RecordSettings(**{name: "walks"}))
    assert str(raised.value) == (
        f"record_settings.{name}: {service} is not installed: pip install 'jaxrl[{name}]', or leave out --{name}"
    )

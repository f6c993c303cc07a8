"""MLflow for real, with a database in a file. It takes long to install: without it nothing here runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="needs the extra mlflow")
ROOT = Path(__file__).parents[2]

RUN = """
import sys
from pathlib import Path
from jaxrl.artifacts.metrics.writers import Place, check_writers, open_writers
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.settings import RecordSettings

folder, uri = Path(sys.argv[1]), sys.argv[2]
settings = RecordSettings(mlflow=uri)
check_writers(settings)
for seed in ("seed_7", "seed_8"):
    for begin in (0, 150):
        place = Place("first", "Walker", seed, folder, folder, begin, f"id-{seed}", {"debug": False}, set())
        writers = open_writers(settings, place)
        for writer in writers:
            writer.hyperparameters({"trainer_type": "poca", "hyperparameters": {"beta": 0.25}}, begin)
            for step in (begin + 50, begin + 100):
                one = Summary(value=float(step), mean=1.0, std=0.0, sum=1.0, count=1, histogram=None)
                odd = one._replace(value=float("nan"))
                writer.summaries(step, {"Environment/Cumulative Reward": one, "odd (tag)%": one, "lost": odd})
            writer.close()
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=uri)
experiment = client.get_experiment_by_name("jaxrl").experiment_id
for run in sorted(client.search_runs([experiment]), key=lambda run: run.info.run_name):
    history = client.get_metric_history(run.info.run_id, "Environment/Cumulative Reward")
    print(run.info.run_name, run.info.status, run.data.tags["seed"], sorted(run.data.metrics), run.data.params)
    print([(point.step, point.value) for point in sorted(history, key=lambda point: point.step)])
"""


@pytest.mark.slow
def test_a_run_of_two_seeds_and_its_continuation(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path), f"sqlite:///{tmp_path}/store.db"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    parameters = {"behavior.trainer_type": "poca", "behavior.hyperparameters.beta": "0.25", "debug": "False"}
    tags = ["Environment/Cumulative Reward", "odd _tag__"]
    points = [(50, 50.0), (100, 100.0), (200, 200.0), (250, 250.0)]
    expected = [
        line
        for seed in (7, 8)
        for line in (f"first/Walker/seed_{seed} FINISHED {seed} {tags} {parameters}", str(points))
    ]
    assert ended.stdout.splitlines() == expected


@pytest.mark.parametrize("uri", ["what://is/this", "sqlit:///store.db"])
def test_an_address_that_it_does_not_take(uri: str) -> None:
    code = (
        "import sys\nfrom jaxrl.artifacts.metrics.writers import check_writers\n"
        "from jaxrl.settings import RecordSettings\ncheck_writers(RecordSettings(mlflow=sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, uri], capture_output=True, text=True, timeout=110, cwd=ROOT)
    assert f"record_settings.mlflow: got '{uri}', expected an address that MLflow takes" in ended.stderr

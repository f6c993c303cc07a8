"""MLflow: one of its runs for each behavior and seed, in the experiment `jaxrl`. A resumed run is found by its tag."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.writers.background import ADVICE, BackgroundWriter
from jaxrl.artifacts.metrics.writers.interface import Place, RecordError, StatisticsWriter
from jaxrl.settings.records import USUAL_PROJECT, USUAL_STORE
from jaxrl.settings.section import flatten

IDENTITY = "jaxrl.identity"
"""Tag by which a run is found again."""
_FORBIDDEN = re.compile(r"[^\w\-. :/]")  # in the names of metrics and parameters
_ANSWERED_LATER = ("http", "https", "databricks", "sqlite", "postgresql", "mysql", "mssql")
_TALKATIVE = ("mlflow", "alembic", "urllib3.connectionpool")
"""Loggers that report every table of a new database, and every failed try of a network."""
_BATCH, _LONGEST = 100, 500  # parameters at once, characters of a value, that every version of MLflow takes


def check(target: str) -> None:
    """Raise RecordError if MLflow is not installed or takes no such address."""
    if importlib.util.find_spec("mlflow") is None:
        raise RecordError(
            "record_settings.mlflow: MLflow is not installed: pip install 'jaxrl[mlflow]', or leave out --mlflow"
        )
    if target == USUAL_STORE or urlsplit(target).scheme.partition("+")[0] in _ANSWERED_LATER:
        return
    from mlflow.exceptions import MlflowException

    try:
        _client(target).search_experiments(max_results=1)
    except MlflowException as error:
        reason = " ".join(str(error).split())
        raise RecordError(
            f"record_settings.mlflow: got {target!r}, expected an address that MLflow takes, such as "
            f"http://HOST:5000 or sqlite:///mlflow.db ({reason[:200]})"
        ) from error


def open_writer(place: Place) -> BackgroundWriter:
    """Open a run in the store `place.target`."""
    return BackgroundWriter("MLflow", lambda: MlflowWriter(place), ADVICE, place.told)


class MlflowWriter(StatisticsWriter):
    """Writer of a run in MLflow, new or continued."""

    def __init__(self, place: Place) -> None:
        from mlflow.entities import Metric, Param

        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._metric, self._parameter = Metric, Param
        self._client = _client(place.target)
        self._configuration = place.configuration
        experiment = self._client.get_experiment_by_name(USUAL_PROJECT)
        number = self._client.create_experiment(USUAL_PROJECT) if experiment is None else experiment.experiment_id
        earlier_runs = self._client.search_runs([number], f"tags.`{IDENTITY}` = '{place.identity}'", max_results=1)
        self._known = bool(earlier_runs)
        if earlier_runs:
            self._run = earlier_runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            tags = {IDENTITY: place.identity, "run_id": place.run_id, "behavior": place.behavior}
            tags |= {"seed": place.seed.removeprefix("seed_")} if place.seed else {}
            self._run = self._client.create_run(number, run_name=place.title, tags=tags).info.run_id

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        """Write parameters of the run. Those of a run that is continued stay: MLflow lets nobody change them."""
        if self._known:
            return
        flat = flatten({"behavior": settings, **self._configuration}).items()
        parameters = [self._parameter(_FORBIDDEN.sub("_", key), str(value)[:_LONGEST]) for key, value in flat]
        for begin in range(0, len(parameters), _BATCH):
            self._client.log_batch(self._run, params=parameters[begin : begin + _BATCH])

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        """Write a metric per tag, at the trainer step. A value that is not finite is left out."""
        now = int(1000 * time.time())
        values = ((tag, float(s.value)) for tag, s in summaries.items())
        metrics = [
            self._metric(_FORBIDDEN.sub("_", tag), value, now, step) for tag, value in values if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


def _client(target: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=None if target == USUAL_STORE else target)

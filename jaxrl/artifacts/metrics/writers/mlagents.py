"""Writers that plugins of ML-Agents bring (entry points `mlagents.stats_writer`), called as ML-Agents calls them.

Such an entry point is a function of the run's options that returns writers, which have `write_stats(category, values,
step)` and may have `add_property(category, type, value)` and `on_add_stat(category, key, value, aggregation)`. They are
made once for a run, whatever is installed; one that cannot be made is told in the log and left out. ML-Agents itself is
not needed: where it is not installed, modules of its names hold the classes that a writer needs.

Different: `on_add_stat` comes with the summary, before `write_stats`, value by value. Where only the moments of a
statistic are known (the compiled loop) `full_dist` holds its mean alone; mean, std, num and sum are right.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.artifacts.metrics.writers.background import ADVICE, BackgroundWriter
from jaxrl.artifacts.metrics.writers.interface import Place, StatisticsWriter
from jaxrl.own_code import told
from jaxrl.plugins import MLAGENTS_WRITERS, Plugin, PluginError, installed
from jaxrl.settings import RunSettings

MLAGENTS = "mlagents"
"""Package whose own writers are TensorBoard's and the console's, which jaxrl has already."""
_STATS = "mlagents.trainers.stats"
_MAPPINGS = ("behaviors", "reward_signals", "environment_parameters")
"""Sections whose keys are names."""
_log = logging.getLogger(__name__)


class StatsPropertyType(Enum):
    """Kind of a property."""

    HYPERPARAMETERS = "hyperparameters"
    SELF_PLAY = "selfplay"


class StatsSummary(NamedTuple):
    """A statistic since the last summary, with the names that ML-Agents gives its numbers."""

    full_dist: list[float]
    aggregation_method: Any  # mlagents_envs' StatsAggregationMethod
    mean: float
    std: float
    num: int
    sum: float
    aggregated_value: float


class StatsWriter(ABC):
    """Base class of the writers of plugins."""

    def on_add_stat(self, category: str, key: str, value: float, aggregation: Any = None) -> None:  # noqa: B027, optional
        """Take one value; called for each."""

    @abstractmethod
    def write_stats(self, category: str, values: dict[str, StatsSummary], step: int) -> None:
        """Write the summaries of a category by tag."""

    def add_property(self, category: str, property_type: Any, value: Any) -> None:  # noqa: B027, optional
        """Take the settings of a category."""


class RunOptions(SimpleNamespace):
    """Settings of the run under the names of ML-Agents; `behaviors` and its like are dictionaries."""

    def as_dict(self) -> dict[str, Any]:
        return self._plain


def stand_in() -> None:
    """Make importable what plugins need of the package `mlagents`, for the whole process, where it is not installed."""
    if MLAGENTS in sys.modules or importlib.util.find_spec(MLAGENTS) is not None:
        return
    from mlagents_envs.side_channel.stats_side_channel import StatsAggregationMethod

    stats = (StatsWriter, StatsSummary, StatsPropertyType, StatsAggregationMethod)
    contents = {MLAGENTS: (), f"{MLAGENTS}.trainers": (), _STATS: stats, f"{MLAGENTS}.trainers.settings": (RunOptions,)}
    for name, classes in contents.items():
        module = ModuleType(name, "Stands in for the module of ML-Agents, for writers of statistics.")
        module.__file__ = __file__  # Python names it where a plugin asks for more
        vars(module).update({each.__name__: each for each in classes}, __path__=[])
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def open_plugins(place: Place) -> list[PluginWriter]:
    """Open a writer for this place in each plugin that could be made for its run; none for a place without a run."""
    if place.run is None:
        return []
    if MLAGENTS_WRITERS not in place.run.kept:
        place.run.kept[MLAGENTS_WRITERS] = _of_run(place.run.settings, place.told)
    category = "/".join(part for part in (place.behavior, place.seed) if part)
    return [PluginWriter(background, category) for background in place.run.kept[MLAGENTS_WRITERS]]


class PluginWriter(StatisticsWriter):
    """Writers of one plugin, in its thread, for one behavior or seed: the category."""

    def __init__(self, background: BackgroundWriter, category: str) -> None:
        self._background, self._category = background, category

    def hyperparameters(self, settings: Mapping[str, Any], step: int) -> None:
        """Write the settings as a property."""
        self._background.put(lambda writers: writers.add_property(self._category, settings))

    def summaries(self, step: int, summaries: Mapping[str, Summary]) -> None:
        self._background.put(lambda writers: writers.write(self._category, step, summaries))

    def hang_up(self) -> None:
        """Accept no more calls from anywhere in the run."""
        self._background.hang_up()

    def close(self) -> None:
        """Wait until everything is written; may be called twice."""
        self._background.close()


class _Writers:
    """Writers that one plugin has made. One that fails does not keep the others from being called."""

    def __init__(self, writers: Sequence[Any]) -> None:
        self._writers = writers

    def add_property(self, category: str, settings: Mapping[str, Any]) -> None:
        kinds = getattr(sys.modules.get(_STATS), "StatsPropertyType", StatsPropertyType)
        self._each("add_property", [(category, kinds.HYPERPARAMETERS, dict(settings))])

    def write(self, category: str, step: int, summaries: Mapping[str, Summary]) -> None:
        values = {tag: _summary(summary) for tag, summary in summaries.items()}
        added = [(category, tag, x, s.aggregation_method) for tag, s in values.items() for x in s.full_dist]
        self._each("on_add_stat", added)
        self._each("write_stats", [(category, values, step)])

    def close(self) -> None:
        """Do nothing: ML-Agents' interface has no end."""

    def _each(self, method: str, calls: Sequence[tuple[Any, ...]]) -> None:
        first = None
        for writer in self._writers:
            function = getattr(writer, method, None)
            if function is None:
                continue
            try:
                for arguments in calls:
                    function(*arguments)
            except Exception as error:  # whatever somebody else's code does
                first = first or error
        if first is not None:
            raise first


def _of_run(settings: RunSettings, said: set[str]) -> list[BackgroundWriter]:
    made = []
    plugins = [plugin for plugin in installed(MLAGENTS_WRITERS) if plugin.package.lower() != MLAGENTS]
    if plugins:
        stand_in()
    for plugin in plugins:
        writers = _Writers(_made(plugin, settings))
        service = f"{plugin.name} of the package {plugin.source}"
        made.append(BackgroundWriter(service, lambda writers=writers: writers, ADVICE, said))
    return made


def _made(plugin: Plugin, settings: RunSettings) -> list[Any]:
    """Return the writers that the plugin makes for a run; none, and a line in the log, if it fails."""
    try:
        return list(plugin.load()(run_options(settings)))
    except PluginError as error:
        text = str(error)
    except Exception as error:  # whatever somebody else's code does
        text = f"{plugin.name} of the package {plugin.source} (entry point {plugin.group}) raised {told(error)}"
    _log.warning("%s. The run goes on without it.", text.rstrip("."))
    return []


def run_options(settings: RunSettings) -> RunOptions:
    """Return settings as plugins read them, such as `options.behaviors["Walker"].max_steps`.

    `options.checkpoint_settings.write_path` is the folder of the run.
    """
    plain = settings.model_dump(mode="json")
    options = settings.checkpoint_settings
    plain["checkpoint_settings"]["write_path"] = str(Path(options.results_dir, options.run_id))
    return RunOptions(**{key: _named(value, key) for key, value in plain.items()}, _plain=plain)


def _named(value: Any, key: str) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _named(entry, name) for name, entry in value.items()}
    return inner if key in _MAPPINGS else SimpleNamespace(**inner)


def _summary(summary: Summary) -> StatsSummary:
    from mlagents_envs.side_channel.stats_side_channel import StatsAggregationMethod

    values = summary.values if summary.histogram is None else summary.histogram
    return StatsSummary(
        full_dist=[float(value) for value in values] or [summary.value],
        aggregation_method=StatsAggregationMethod(summary.aggregation.value),
        mean=summary.mean,
        std=summary.std,
        num=summary.count,
        sum=summary.sum,
        aggregated_value=summary.value,
    )

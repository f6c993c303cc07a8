"""Values of every tag of a compiled run, read back from the event files of its seeds: sums of which each is known."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import LARGEST_LOG_RATIO
from jaxrl.artifacts.metrics.console import summary_line
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.metrics.statistics import (
    CUMULATIVE_REWARD,
    DECIDED,
    GROUP_CUMULATIVE_REWARD,
    Summary,
    over_seeds,
)
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.jax_envs import make_environment
from jaxrl.settings import load_run_settings
from jaxrl.training.compiled.lessons import SeedLessons
from jaxrl.training.compiled.recent_returns import counted, none_yet
from jaxrl.training.compiled.recorder import JittedRecorder
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.stacking import EpisodeFigures, Moments
from jaxrl.training.compiled.state import IterationLog
from jaxrl.training.compiled.statistics import SeedStatistics
from tests.event_files import read_events

NAME, SEEDS = "SimpleSpread", (7, 8)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def pair(*values: float) -> np.ndarray:
    """One number per seed."""
    return np.array(values, np.float64)


def chunk(updates: tuple[int, int] = (2, 0)) -> IterationLog:
    """Four agent episodes of two teams in the first seed; one lone agent, which earns nothing, in the second."""
    return IterationLog(
        updates=np.array(updates),  # pyright: ignore[reportArgumentType]
        metric_sums={  # pyright: ignore[reportArgumentType]
            "value_estimate/extrinsic": pair(3.0, 0.0),
            "learning_rate": pair(0.002, 0.0),
            "odd": pair(5.0, 0.0),
        },
        episodes=EpisodeFigures(
            reward=Moments(pair(4, 1), pair(3.0, 0.0), pair(4.0, 0.0)),
            length=Moments(pair(4, 1), pair(5.0, 9.0), pair(10.0, 0.0)),
            group_reward=Moments(pair(2, 0), pair(3.5, 0.0), pair(0.5, 0.0)),
            received=pair(14.0, 0.0),
            mates_reward=pair(6.0, 0.0),
            stats={"Environment/Slain": Moments(pair(2, 1), pair(0.5, 1.0), pair(0.5, 0.0))},
        ),
        fault=np.full((2, 4), -1),  # pyright: ignore[reportArgumentType]
    )


def values(folder: Path) -> dict[int, dict[str, float]]:
    """By step, but for times, the scalars of one seed's only event file."""
    (path,) = folder.glob("events.*")
    found: dict[int, dict[str, float]] = {}
    for event in read_events(path):
        for value in event.summary.value:
            if not value.tag.startswith(("Hyperparameters", "Time/")):
                found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


@pytest.mark.parametrize(("trainer_type", "mates"), [("poca", 6.0), ("ppo", 0.0)])
def test_values_of_two_seeds(tmp_path: Path, log: Any, trainer_type: str, mates: float) -> None:
    behavior = {"trainer_type": trainer_type, "reward_signals": {"extrinsic": {"strength": 3.0}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"behaviors": {NAME: behavior}}))
    overrides = {"checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "run"}}
    settings = load_run_settings(tmp_path / "config.yaml", overrides, HYPERPARAMETER_TYPES)
    subject = Subject(NAME, make_environment("jax:simple_spread").spec, settings.behaviors[NAME], SEEDS, 4)
    folder, silent = RunFolder(tmp_path, "run"), ProgressBar(Console(file=io.StringIO()))
    with JittedRecorder(settings, folder, subject, silent) as recorder:
        recorder.begin(0)
        recent = counted(none_yet(len(SEEDS)), chunk().episodes)
        recorder.add(chunk(), recent)
        recent = counted(recent, chunk().episodes)
        recorder.add(chunk(), recent)
        recorder.write_summary(subject.name, 1000, training=True)
        recorder.add(chunk(), counted(recent, chunk().episodes))
        recorder.write_summary(subject.name, 2000, training=True)
    first, second = (values(folder.behavior(NAME) / f"seed_{seed}") for seed in SEEDS)
    expected = {
        "Environment/Cumulative Reward": 3.0,
        "Environment/Episode Length": 5.0,
        "Environment/Group Cumulative Reward": 3.5,
        "Environment/Slain": 0.5,
        "Policy/Extrinsic Reward": 3.0 * (12.0 + 14.0 + mates) / 4,
        "Policy/Extrinsic Value Estimate": 1.5,
        "Policy/Learning Rate": 0.001,
        "Policy/Odd": 2.5,
    }
    finished = "Environment/Finished Episodes"
    assert first == {step: pytest.approx(expected | {finished: count}) for step, count in ((1000, 8.0), (2000, 4.0))}
    alone = {"Environment/Cumulative Reward": 0.0, "Environment/Episode Length": 9.0, "Environment/Slain": 1.0}
    alone |= {"Policy/Extrinsic Reward": 0.0}
    assert second == {1000: alone | {finished: 2.0}, 2000: alone | {finished: 1.0}}
    # Seeds count equally: (3 + 0) / 2, with sqrt(1) and 0 within them; teams earn in the first alone.
    (line, _) = [record.getMessage() for record in log.records if "Step: " in record.getMessage()]
    assert line.startswith(f"{NAME} (2 seeds). Step: 1000.")
    assert line.endswith("Mean Reward: 1.500. Mean Group Reward: 3.500. Std of Group Reward: 0.500. Training.")


def test_members_of_a_population_are_paid_with_their_own_strengths(tmp_path: Path) -> None:
    """Which change from one generation to the next; the tag knew that of the configuration, 3, alone."""
    written = {"trainer_type": "poca", "reward_signals": {"extrinsic": {"strength": 3.0}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"behaviors": {NAME: written}}))
    settings = load_run_settings(tmp_path / "config.yaml", {}, HYPERPARAMETER_TYPES)
    subject = Subject(NAME, make_environment("jax:simple_spread").spec, settings.behaviors[NAME], SEEDS, 4)
    for changing, expected in ((True, (1.0 + 2.0) / 2), (False, 3.0)):
        whose = subject._replace(changing=changing)
        statistics = SeedStatistics(whose, SeedLessons(None, [whose]))
        for strength in (1.0, 2.0):
            statistics.add(chunk(), none_yet(len(SEEDS)), {"reward_signals.extrinsic.strength": pair(strength, 9.0)})
        found = statistics.take()[0]["Policy/Extrinsic Reward"]
        assert (found.value, found.count) == (expected * (12.0 + 14.0 + 6.0) / 4, 8)


def test_a_policy_that_does_not_know_its_own_decisions_is_told_once(tmp_path: Path, log: Any) -> None:
    """Of the first update of a run, by the seed in which it is worst; later ones also learn from older decisions."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"behaviors": {NAME: {"trainer_type": "ppo"}}}))
    settings = load_run_settings(tmp_path / "config.yaml", {}, HYPERPARAMETER_TYPES)
    told = []
    for case, ratios in enumerate([(1e-6, 2e-6), (1e-6, 0.4)]):
        subject = Subject(NAME, make_environment("jax:simple_spread").spec, settings.behaviors[NAME], SEEDS, 4)
        silent = ProgressBar(Console(file=io.StringIO()))
        with JittedRecorder(settings, RunFolder(tmp_path, f"run{case}"), subject, silent) as recorder:
            recorder.begin(0)
            for updates, largest in ((0, 9.0), (1, ratios), (1, 9.0)):
                given = chunk((updates, updates))
                sums = {**given.metric_sums, LARGEST_LOG_RATIO: pair(*np.broadcast_to(largest, 2))}
                recorder.add(given._replace(metric_sums=sums), counted(none_yet(len(SEEDS)), given.episodes))
        told.append(log.text.count("Policy/Largest Log Ratio: 0.4, expected about 0"))
    assert told == [0, 1] and "Ratio: 9" not in log.text


def test_metrics_are_means_over_updates() -> None:
    """Of the sums 3, 0.002 and 5 over 2 updates; a seed without one has none."""
    told = chunk()
    assert told.metric("learning_rate")[0] == told.metrics["learning_rate"][0] == 0.001
    assert told.metrics["value_estimate/extrinsic"][0] == 1.5 and np.isnan(told.metrics["odd"][1])


def test_the_spread_between_seeds_stands_beside_that_within_them() -> None:
    """Seeds that end at 0.07 and 0.93, each ± 0.001, were told as 0.50 ± 0.001."""

    def of(mean: float) -> dict[str, Summary]:
        return {CUMULATIVE_REWARD: Summary(mean, mean=mean, std=0.001, sum=mean, count=1, histogram=None)}

    together = over_seeds([of(0.07), of(0.93)])
    assert together[CUMULATIVE_REWARD].between == pytest.approx(0.86 / 2**0.5)
    line = summary_line("B", 1, 0.0, together)
    assert "Mean Reward: 0.500. Std of Reward: 0.001 within seeds, 0.608 between seeds." in line
    teams = together | {GROUP_CUMULATIVE_REWARD: over_seeds([of(1.0), of(2.0)])[CUMULATIVE_REWARD]}
    line = summary_line("B", 1, 0.0, teams)
    assert "Mean Group Reward: 1.500. Std of Group Reward: 0.001 within seeds, 0.707 between seeds." in line


@pytest.mark.parametrize("decided", [0.0, 0.01])
def test_it_is_said_once_that_no_game_has_a_winner(tmp_path: Path, log: Any, decided: float) -> None:
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"behaviors": {NAME: {"trainer_type": "ppo", "self_play": {}}}})
    )
    overrides = {"checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "run"}}
    settings = load_run_settings(tmp_path / "config.yaml", overrides, HYPERPARAMETER_TYPES)
    subject = Subject(NAME, make_environment("jax:simple_spread").spec, settings.behaviors[NAME], SEEDS, 4)
    games = {DECIDED: Moments(pair(100, 100), pair(0.0, decided), pair(0.0, 0.0))}
    told = chunk()._replace(episodes=chunk().episodes._replace(stats=games))
    silent = ProgressBar(Console(file=io.StringIO()))
    with JittedRecorder(settings, RunFolder(tmp_path, "run"), subject, silent) as recorder:
        recorder.begin(0)
        for _ in range(2):
            recorder.add(told, counted(none_yet(len(SEEDS)), told.episodes))
    remarks = [line for line in log.messages if "had a winner" in line]
    assert [line.partition(" had")[0] for line in remarks] == (
        [] if decided else [f"{NAME}: none of the first 200 games"]
    )

"""Exact resume beside whatever else changes how a run collects: connectors, complete episodes, counting, windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import read
from jaxrl.settings import load_run_settings
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.open_episodes import OpenEpisodes
from jaxrl.training.host.run import train
from jaxrl.types import EnvMessage
from tests.toy_runs import configured, environment
from tests.trainer import ROOT
from tests.training.host.test_exact import BEHAVIOR, EQUAL, TWO, TeamToy, diff, run, stopped
from tests.training.host.test_odd_agents import Watching

pytestmark = [pytest.mark.usefixtures("runs", "traced_once"), pytest.mark.timeout(400)]
CONNECTORS = {
    "connectors": [{"type": "normalize"}, {"type": "normalize_rewards"}, {"type": "frame_stack", "frames": 2}],
    "network_settings": {"hidden_units": 4, "num_layers": 1},
}
WHOLE = {"batch_mode": "complete_episodes"}
FRAMES = {
    "count_by": "env_steps",
    "hyperparameters": {"batch_size": 16, "buffer_size": 12, "num_epoch": 1, "learning_rate_schedule": "constant"},
}
WINDOW = {"episode_window": 5}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(CONNECTORS | WHOLE | WINDOW, id="connectors, complete episodes, a window", marks=pytest.mark.slow),
        pytest.param(CONNECTORS | {"time_horizon": 3}, id="connectors", marks=pytest.mark.slow),
        pytest.param(WHOLE, id="complete episodes", marks=pytest.mark.slow),
        pytest.param(FRAMES, id="environment steps", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path: Path, capsys: Any, changes: dict[str, Any]) -> None:
    whole = run(tmp_path / "whole", changes=changes)
    assert len(checkpoints(whole / "Toy")) >= 2
    again = stopped(whole, tmp_path / "stopped", 1)
    assert diff(whole, again, capsys)[3] != EQUAL[3]
    run(tmp_path / "stopped", resume=True, changes=changes)
    assert diff(whole, again, capsys) == EQUAL


@pytest.mark.slow
def test_a_team_of_two_behaviors_goes_on_with_all_of_it(tmp_path: Path, capsys: Any) -> None:
    """Complete episodes, counted by steps of areas, with curiosity and lessons; the lesson is over before the stop."""
    ends = {"measure": "progress", "behavior": "Other", "threshold": 0.3, "min_lesson_length": 1}
    lessons = {
        "curriculum": [{"name": "one", "value": 0.1, "completion_criteria": ends}, {"name": "two", "value": 1.0}]
    }
    curious = {"reward_signals": {"extrinsic": {}, "curiosity": {"strength": 0.1}}}
    given: dict[str, Any] = {
        "changes": {"team": "both"} | WHOLE | FRAMES | curious,
        "parameters": {"unknown": lessons},
        "toy": replace(TWO, deaths=0.0),
        "make": TeamToy,
    }
    whole = run(tmp_path / "whole", **given)
    again = stopped(whole, tmp_path / "stopped", 1)
    assert len(checkpoints(whole / "Toy")) >= 2 and diff(whole, again, capsys)[3] != EQUAL[3]
    run(tmp_path / "stopped", resume=True, **given)
    assert diff(whole, again, capsys) == EQUAL
    assert read(RunFolder(whole.parent, "run").status)["unknown"]["lesson_num"] == 1


def cartpole(results: Path, *, resume: bool = False, **place: Any) -> Path:
    """configs/gymnasium/cartpole.yaml, shrunk, with two workers and all of the above; `place`: where workers run."""
    written = yaml.safe_load((ROOT / "configs" / "gymnasium" / "cartpole.yaml").read_text())
    behavior = written["behaviors"]["CartPole-v1"]
    behavior |= (
        BEHAVIOR | {"trainer_type": "ppo"} | CONNECTORS | WHOLE | {"checkpoint_interval": 150, "time_horizon": 9}
    )
    written["env_settings"] |= {"num_areas": 2, "num_envs": 2, "seed": 3} | (place or {"inline": True})
    written["checkpoint_settings"] = {"run_id": "run", "results_dir": str(results), "exact": True, "resume": resume}
    results.mkdir(exist_ok=True)
    (results / "run.yaml").write_text(yaml.safe_dump(written))
    train(load_run_settings(results / "run.yaml", {}, HYPERPARAMETER_TYPES))
    return results / "run"


@pytest.mark.slow
def test_a_resumed_run_of_gymnasium_equals_one_that_was_never_stopped(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("gymnasium")
    whole = cartpole(tmp_path / "whole")
    assert len(checkpoints(whole / "CartPole-v1")) >= 2
    again = stopped(whole, tmp_path / "stopped", 1)
    assert diff(whole, again, capsys)[3] != EQUAL[3]
    cartpole(tmp_path / "stopped", resume=True)
    assert diff(whole, again, capsys) == EQUAL


def test_m27_the_first_message_after_a_reset_in_the_middle_of_a_run_is_no_environment_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By worker, every message that the loop books is a step but the first one and the first after each checkpoint.

    An episode is of those between two resets alone: it is over at the reset, and ids of episodes are never used twice.
    """
    counted, first, resets = [], [], []
    count, begin_anew, watching = OpenEpisodes.count, HostLoop.begin_anew, Watching()

    def counts(episodes: OpenEpisodes, results: list[EnvMessage]) -> int:
        counted.append(count(episodes, results))
        first.append(len(counted) == 1 or resets[-1:] == [len(counted) - 1])
        return counted[-1]

    def begins(loop: HostLoop) -> None:
        resets.append(len(counted))
        begin_anew(loop)
        assert loop.behaviors["Toy"].actor.env_steps == 0
        following = loop.episodes.following
        assert following is not None and following.tracker.living() == []

    monkeypatch.setattr(OpenEpisodes, "count", counts)
    monkeypatch.setattr(HostLoop, "begin_anew", begins)
    exact = {"run_id": "two", "results_dir": str(tmp_path / "results"), "exact": True}
    toy = FRAMES | {"max_steps": 400, "checkpoint_interval": 150}
    settings = configured(tmp_path, changes={"checkpoint_settings": exact}, Toy=toy)
    with environment("Toy?team=0", workers=2) as started:
        train(settings, started=started, callbacks=[watching])
    assert len(resets) >= 2
    assert counted == [0 if begin else 2 for begin in first]
    broken = [episode for episode in watching.ended if episode.truncated]
    assert len(broken) == 4 * len(resets) and not any(episode.faulty for episode in watching.ended)
    ids = [episode.episode_id for episode in watching.ended]
    assert len(set(ids)) == len(ids)

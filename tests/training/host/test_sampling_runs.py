"""Whole runs that sample otherwise: episodes as a whole, environment steps, statistics of time, a loop turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_two_behaviors import summaries

import jaxrl
from jaxrl.training.host.run import train
from tests import trainer
from tests.toy_runs import SMALL, configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("areas", [1, 2])
def test_x2_a_loop_turn_by_turn_tells_what_ended_before_what_was_learned(tmp_path: Path, areas: int) -> None:
    """X2, X3, X19, M27: `iterate` is the sampler; the counters of environment and agent steps are exact.

    R3: an environment step is one of an area, as in the compiled loop: 10 of 2 areas are 5 messages, with 4 decisions.
    """
    game, options = {"max_steps": 200, "count_by": "env_steps"}, {"env_settings": {"num_areas": areas}}
    settings = configured(tmp_path, changes=options, Game=game | {"hyperparameters": FEW})
    with environment("Game?team=0") as started, jaxrl.host_loop(settings, started=started) as loop:
        turns = list(loop.iterate())
    learned = [turn.learned["Game"] for turn in turns if turn.learned]
    assert (len(turns) - 1) * areas == loop.env_steps, "the first message is that of the reset"
    assert max(update.held.agent_steps for update in learned) <= 4 * 10 / areas
    assert loop.behaviors["Game"].actor.keeps <= 1.5 * 4 * 10 / areas, "nor is there room for more"
    assert [update.held.env_steps for update in learned] == [10] * len(learned) and len(learned) >= 2
    assert loop.behaviors["Game"].step > 200 and any(episodes for turn in turns for _, _, episodes in turn.acted)
    assert "policy_loss" in learned[0].metrics


FEW = {**SMALL["hyperparameters"], "buffer_size": 10, "batch_size": 8}


def test_r2_r51_complete_episodes_in_a_run_with_and_without_threads(tmp_path: Path) -> None:
    with environment("Whole?team=0", "Apart?team=0") as started:
        whole = {"max_steps": 300, "batch_mode": "complete_episodes"}
        train(configured(tmp_path, Whole=whole, Apart=whole | {"threaded": True}), started=started)
    run = tmp_path / "results" / "two"
    for name in ("Whole", "Apart"):
        assert len(summaries(run / name, "Losses/Policy Loss")) >= 2 and (run / f"{name}.onnx").is_file()


def test_s5_x15_workers_measure_and_the_files_tell(tmp_path: Path, runs: Any) -> None:
    """A real player: what its worker waits, decodes and packs stands in timers.json; Time/... is written when asked."""
    changes = {"*.max_steps": 600, "env_settings.time_statistics": True}
    assert trainer.train(trainer.config(tmp_path, changes), tmp_path) == 0
    tree = json.loads((tmp_path / "run" / "run_logs" / "timers.json").read_text())
    turn = tree["children"]["TrainerController.start_learning"]["children"]["TrainerController.advance"]["children"]
    worker = turn["env_step"]["children"]["workers"]["children"]["worker_0"]
    step = worker["children"]["UnityEnvironment.step"]
    parts = step["children"]
    assert worker["is_parallel"] and step["count"] == worker["count"] > 10
    assert 0 < parts["decode"]["total"] < parts["communicator.exchange"]["total"] < step["total"]
    assert 0 < worker["children"]["worker_overhead"]["total"] < worker["total"]
    gauges = tree["gauges"]
    assert gauges["Time.EnvWait.mean_ms"]["value"] > 0 and gauges["Time.Worker0Exchange.smoothed_ms"]["value"] > 0
    assert gauges["Countdown.Buffer.AgentSteps"]["value"] > 256
    written = summaries(tmp_path / "run" / "Countdown", "Time/Act")
    assert [step for step, _ in written] == [300, 600] and all(value > 0 for _, value in written)
    assert summaries(tmp_path / "run" / "Countdown", "Time/Worker 0 Decode")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"*.batch_mode": "episodes"}, "batch_mode: got 'episodes', expected"),
        ({"*.count_by": "steps"}, "count_by: got 'steps', expected"),
        ({"*.max_episode_length": 0}, "max_episode_length: got 0, expected"),
        ({"*.postprocess": "no_such_module:f"}, "there is no module no_such_module"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], text: str
) -> None:
    assert trainer.train(trainer.config(tmp_path, changes), tmp_path) == 1
    assert text in capsys.readouterr().err
    assert not list(tmp_path.rglob("events*")) and not (tmp_path / "run" / "configuration.yaml").exists()

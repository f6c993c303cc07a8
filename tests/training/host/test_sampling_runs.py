"""Whole runs that sample otherwise: episodes as a whole, environment steps, statistics of time, a loop turn by turn."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_two_behaviors import summaries

import jaxrl
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.training.host import recorder
from jaxrl.training.host.run import train
from tests import trainer
from tests.toy_runs import SMALL, configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]


@pytest.mark.parametrize(("areas", "workers"), [(1, 1), (2, 2)])
def test_x2_a_loop_turn_by_turn_tells_what_ended_before_what_was_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, areas: int, workers: int
) -> None:
    """X2, X3, X19, M27: `iterate` is the sampler; the counters of environment and agent steps are exact.

    R3: an environment step is one of an area, as in the compiled loop: 12 of 2 areas in 2 workers are 3 turns.
    B11: learning rate 0 in two workers moves nothing. B19: in one worker, every update acts from the next turn on.
    R54, R59: in one worker agents often pause, sometimes all of them; limits are small enough to be passed.
    """
    monkeypatch.setattr(recorder, "IDLE_MESSAGES", 1)
    monkeypatch.setattr(recorder, "LEAST_LARGE", 5 if workers == 1 else 1000)
    monkeypatch.setattr(recorder, "TIMES_LARGE", 0)
    each, moves, options = areas * workers, workers == 1, {"env_settings": {"num_areas": areas}}
    size = -(-10 // each) * each
    few = FEW | {"buffer_size": size, "learning_rate": 1e-2 * moves, "learning_rate_schedule": "constant"}
    game = {"max_steps": 200, "count_by": "env_steps", "hyperparameters": few}
    turns, acted_by, paid = [], [], 0
    made = environment("Game?team=0", workers=workers, skips=0.6 * moves)
    with made as started, jaxrl.host_loop(configured(tmp_path, changes=options, Game=game), started=started) as loop:
        for turn in loop.iterate():
            behavior = loop.behaviors["Game"]
            turns.append(turn)
            acted_by.append(numbers(behavior.actor.policy.params))
            assert acted_by[-1] == numbers(behavior.state.policy.params), "the newest policy decides next"
            paid += 0 if moves else paid_for_its_action(behavior)
    behavior, learned = loop.behaviors["Game"], [turn.learned["Game"] for turn in turns if turn.learned]
    assert (len(turns) - 1) * each == loop.env_steps, "the first message is that of the reset"
    assert behavior.decisions == len(turns), "R40: one call of the policy for the agents of all workers"
    assert max(update.held.agent_steps for update in learned) <= 4 * size / areas
    assert behavior.actor.keeps <= 1.5 * 4 * size / areas, "nor is there room for more"
    assert [update.held.env_steps for update in learned] == [size] * len(learned) and len(learned) >= 2
    assert behavior.step > 200 and any(episodes for turn in turns for _, _, episodes in turn.acted)
    assert "policy_loss" in learned[0].metrics
    changed = [after != before for before, after in itertools.pairwise(acted_by)]
    assert changed == [bool(turn.learned) and moves for turn in turns[1:]]
    said = [record.message for record in caplog.records]
    assert sum("in which no agent asks" in line for line in said) == moves
    assert sum("agent steps wait for an update" in line for line in said) == moves
    assert moves or paid > 100


def numbers(params: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))


def paid_for_its_action(behavior: Any) -> int:
    """S31: what is stored beside an action is what the toy pays for it: 1, 1 for the target, less the distance."""
    rollout = rollout_of(behavior.actor.buffer)
    answered = np.asarray(rollout.acted) & ~np.asarray(rollout.waiting)
    answered[-1] = False
    answered &= np.asarray(rollout.reward) != 0.0  # nothing has come yet for the newest
    clock, target = np.moveaxis(np.asarray(rollout.obs[0])[..., :2], -1, 0)
    sent = np.clip(np.asarray(rollout.action.continuous)[..., 0], -3.0, 3.0) / 3.0
    expected = 1.0 + (np.asarray(rollout.action.discrete)[..., 0] == target) - np.abs(sent - clock)
    np.testing.assert_allclose(np.asarray(rollout.reward)[answered], expected[answered], rtol=1e-4, atol=1e-5)
    return int(answered.sum())


FEW = {**SMALL["hyperparameters"], "batch_size": 8}


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

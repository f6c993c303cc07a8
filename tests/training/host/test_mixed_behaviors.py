"""Several behaviors of one real player (gRPC), whose steps, episodes and summaries follow from its script by hand."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
import yaml
from rich.console import Console

import jaxrl
from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.host.behavior import make_behavior
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.run import train
from jaxrl.types import Aggregation, EnvironmentStat, EnvMessage
from tests import trainer
from tests.envs.countdown_player import SPEC
from tests.envs.mixed_player import MESSAGES
from tests.event_files import read_events

pytestmark = trainer.MARKS
TINY = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 8, "buffer_size": 16, "num_epoch": 1},
    "network_settings": {"hidden_units": 4, "num_layers": 1},
    "summary_freq": 20,
}
RETURN, LENGTH = "Environment/Cumulative Reward", "Environment/Episode Length"


class Shown(NamedTuple):
    """What the event file of a behavior holds, by step."""

    values: dict[str, dict[int, float]]  # by tag
    episodes: dict[int, int]  # how many the histogram of returns counts


def shown(run: Path, name: str) -> Shown:
    (path,) = (run / name).glob("events*")
    values: dict[str, dict[int, float]] = {}
    episodes = {}
    for event in read_events(path):
        for value in event.summary.value:
            if value.tag == f"{RETURN}_hist":
                episodes[event.step] = int(value.histo.num)
            elif value.HasField("simple_value"):
                values.setdefault(value.tag, {})[event.step] = value.simple_value
    return Shown(values, episodes)


def run_of(folder: Path, cast: str, max_steps: dict[str, int]) -> Path:
    """A whole run of those that `mixed_player` names; its folder."""
    player = trainer.player(folder, "mixed_player.py", f"--cast {cast}")
    written: dict[str, Any] = {
        "behaviors": {name: TINY | {"max_steps": steps} for name, steps in max_steps.items()},
        "env_settings": {"env_path": str(player), "seed": 1, "base_port": trainer.free_ports(2)},
        "checkpoint_settings": {"run_id": "mixed", "results_dir": str(folder / "results")},
    }
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(written))
    train(load_run_settings(path, {}, HYPERPARAMETER_TYPES))
    return folder / "results" / "mixed"


def last_step(run: Path, name: str) -> int:
    (path,) = (path for path in (run / name).glob(f"{name}-*") if path.is_dir())
    return int(path.name.rpartition("-")[2])


def lines_of(log: pytest.LogCaptureFixture, name: str) -> list[tuple[int, str]]:
    """Step and last word of each summary line of a behavior."""
    lines = [message for message in log.messages if message.startswith(f"{name}. Step: ")]
    return [(int(line.split(". ")[1].removeprefix("Step: ")), line.split(". ")[-1]) for line in lines]


def test_statistics_of_an_environment_belong_to_all_that_it_has_shown(tmp_path: Path) -> None:
    settings = RunSettings(behaviors={name: jaxrl.make_settings("ppo") for name in "ABC"})
    recorder = HostRecorder(settings, RunFolder(tmp_path, "run"), ProgressBar(Console(file=io.StringIO())))
    algorithm = ALGORITHMS["ppo"](SPEC, settings.behaviors["A"])
    programs = compile_programs(algorithm, 4)
    with recorder:
        for name, behavior in settings.behaviors.items():
            recorder.open(make_behavior(name, SPEC, behavior, algorithm, programs, jax.random.key(0), training=True))
        kept = recorder._statistics

        def told(worker: int, steps: tuple[str, ...], new: tuple[str, ...] = ()) -> list[str]:
            arrived: dict[str, Any] = dict.fromkeys(steps)
            stats = (EnvironmentStat("Light", 1.0, Aggregation.AVERAGE),)
            recorder.environment(EnvMessage(worker, arrived, dict.fromkeys(new, SPEC), stats, 0.0))
            return [name for name, statistics in kept.items() if "Light" in statistics.take()[0]]

        assert told(0, ("A?team=0", "A?team=1"), ("A?team=0", "A?team=1")) == ["A"]
        assert told(0, ("B?team=0",), ("B?team=0",)) == ["A", "B"]
        assert told(2, (), ("C?team=0",)) == ["C"], "announced before any agent of it is seen"
        assert told(0, ()) == ["A", "B"] and told(1, ("B?team=0",)) == ["B"]


def test_b18_b23_p22_one_is_done_while_two_teams_that_take_turns_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fast has two decisions a message, the two teams of Chess 8 in 8 messages: 80 are passed with message 82.

    Fast is done with 26 messages of them, and goes on to be counted and shown: also with step 50, its last. A summary
    has the episodes of its message: message 10 brings Fast's step 20, when those of messages 5 and 10 have ended.
    Chess has step 8k with message 8k, and then k times 8 and i - 1 with message 8k + i: 20 with 21, 60 with 61.
    """
    with caplog.at_level(logging.INFO, "jaxrl"):
        run = run_of(tmp_path, "fast chess", {"Fast": 50, "Chess": 80})
    fast, chess = shown(run, "Fast"), shown(run, "Chess")
    assert (last_step(run, "Fast"), last_step(run, "Chess")) == (2 * 82, 80 + 1)

    labels = sorted([*range(20, 161, 20), 50])
    assert fast.episodes == {label: 2 if label in (50, 60) else 4 for label in labels}
    assert fast.values[RETURN] == dict.fromkeys(labels, 5.0) == fast.values["Policy/Extrinsic Reward"]
    assert fast.values[LENGTH] == dict.fromkeys(labels, 4.0)
    assert fast.values[MESSAGES] == {20: 11.0, 50: 5.0, 60: 5.0} | dict.fromkeys([40, *labels[4:]], 10.0)
    assert list(fast.values["Losses/Policy Loss"]) == [20, 40], (
        "updates have more than 16 decisions: with steps 18 and 36"
    )
    assert list(fast.values["Policy/Entropy"]) == labels == list(fast.values["Policy/Extrinsic Value Estimate"])
    assert lines_of(caplog, "Fast") == [(label, "Training." if label <= 50 else "Not Training.") for label in labels]

    assert chess.episodes == {20: 4, 40: 6, 60: 4, 80: 6}, "of both teams, in one statistic"
    assert chess.values[RETURN] == dict.fromkeys((20, 40, 60, 80), 0.0), "one wins, one loses"
    assert chess.values[LENGTH] == dict.fromkeys((20, 40, 60, 80), 3.0)
    assert lines_of(caplog, "Chess") == [(label, "Training.") for label in (20, 40, 60, 80)]
    (told,) = [message for message in caplog.messages if "teams of one behavior" in message]
    assert told.startswith("Chess: Chess?team=0 and Chess?team=1 are teams of one behavior without self_play")
    connected = [message for message in caplog.messages if message.startswith("Connected new")]
    ids = ("Fast?team=0", "Chess?team=0", "Chess?team=1")
    assert connected == [f"Connected new brain: {behavior_id}" for behavior_id in ids], "each once, as its agents show"
    assert all((run / f"{name}.onnx").is_file() for name in ("Fast", "Chess"))


@pytest.mark.slow
def test_s30_four_of_different_specs_and_paces_and_one_that_comes_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Slow finishes a decision with every second message and so needs 122 of them for 61, when all others are done.

    Late decides first in message 10: 112 of its decisions are finished then.
    """
    with caplog.at_level(logging.INFO, "jaxrl"):
        run = run_of(tmp_path, "fast slow chess late", {"Fast": 50, "Slow": 60, "Chess": 60, "Late": 60})
    names = ("Fast", "Slow", "Chess", "Late")
    assert [last_step(run, name) for name in names] == [2 * 122, 61, 120 + 1, 112]
    slow, late = shown(run, "Slow"), shown(run, "Late")
    assert slow.episodes == {20: 6, 40: 7, 60: 6}  # ended with messages 6 to 36, 42 to 78, 84 to 114
    assert slow.values[RETURN] == dict.fromkeys((20, 40, 60), 6.0)
    assert slow.values[LENGTH] == dict.fromkeys((20, 40, 60), 2.0)
    assert late.episodes == {20: 3, 40: 4, 60: 4, 80: 4, 100: 4}
    assert late.values[RETURN] == dict.fromkeys((20, 40, 60, 80, 100), 5.0)
    # Slow has no agent in every other message, and 20 more decisions with message 40 than with the reset's.
    assert slow.values[MESSAGES] == {20: 41.0, 40: 40.0, 60: 40.0}
    assert [word for _, word in lines_of(caplog, "Late")] == ["Training."] * 3 + ["Not Training."] * 2
    assert list(shown(run, "Fast").episodes) == list(range(20, 241, 20))

"""Values of every tag, read back from event files: episodes of which each reward is known."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from rich.console import Console

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.rollout.booking.episodes import NO_EPISODES
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.settings import load_run_settings
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.run import train
from jaxrl.training.signal_rewards import EpisodeSums
from jaxrl.types import Aggregation, EnvironmentStat, EnvMessage
from tests import trainer
from tests.envs.countdown_player import MEMBERS
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.event_files import read_events
from tests.helpers import decision_steps, make_spec, message, terminal_steps
from tests.toy_runs import configured, environment

NAME, SPEC = "Push", make_spec((1,), branches=(2,))
SUMMARY, LAST = 100, 400


class Scripted:
    """A behavior whose step and episodes the test decides."""

    decisions, updates, state, stopped = 0, 0, None, False
    name, spec, team = NAME, SPEC, ()

    def __init__(self, settings: Any, estimates: Any, *, training: bool) -> None:
        self.settings, self.training, self.step = settings, training, 0
        self.main, self.exploiters = None, ()
        self.estimates = estimates or dict
        self.learner = SimpleNamespace(earned=EpisodeSums())
        self.algorithm = ALGORITHMS[settings.trainer_type](SPEC, settings)

    @property
    def moment(self) -> tuple[int]:
        return (self.step,)


class Opened(NamedTuple):
    recorder: HostRecorder
    behavior: Any
    folder: Path

    def advance(self, step: int, episodes: Sequence[Any] = ()) -> None:
        before, self.behavior.step = self.behavior.step, step
        self.recorder.acted(self.behavior, before, episodes)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Any]:
    """Opens recorders with one behavior."""

    def begin(trainer_type: str = "poca", strength: float = 1.0, estimates: Any = None, **options: Any) -> Opened:
        behavior = {
            "trainer_type": trainer_type, "summary_freq": SUMMARY, "max_steps": LAST, "checkpoint_interval": 10**6,
            "reward_signals": {"extrinsic": {"strength": strength}},
            "hyperparameters": {"team_capacity": 2} if trainer_type in ("mappo", "coma") else {},
        }  # fmt: skip
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"behaviors": {NAME: behavior}}))
        overrides = {"checkpoint_settings": {"results_dir": str(tmp_path), "run_id": "run", **options}}
        settings = load_run_settings(path, overrides, HYPERPARAMETER_TYPES)
        folder = RunFolder(tmp_path, "run")
        recorder = HostRecorder(settings, folder, ProgressBar(Console(file=io.StringIO())))
        scripted = Scripted(settings.behaviors[NAME], estimates, training=not settings.checkpoint_settings.inference)
        recorder.open(scripted)  # pyright: ignore[reportArgumentType]
        return Opened(recorder, scripted, folder.behavior(NAME))

    yield begin


def values(folder: Path) -> dict[int, dict[str, float]]:
    """By step, but for times, the scalars of a behavior's only event file."""
    (path,) = folder.glob("events.*")
    found: dict[int, dict[str, float]] = {}
    for event in read_events(path):
        for value in event.summary.value:
            if not value.tag.startswith(("Hyperparameters", "Time/")) and not value.tag.endswith("_hist"):
                found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


def episode(*, team_rows: bool = True, group: float = 1.0) -> list[Any]:
    """Two mates; the first ends early. Own rewards 1, 2 | 4, 8 | 16, group rewards 10 each | 20 for the second | 5.

    The latter times `group`.
    """
    slots = Slots(SPEC, team_rows=team_rows, rows=1, members=1)
    both, one, two = ({"agents": a, "groups": [7] * len(a)} for a in ([1, 2], [1], [2]))
    messages: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = (
        ({}, both),
        ({}, {**both, "reward": [1.0, 2.0], "group_reward": [10.0 * group, 10.0 * group]}),
        ({**one, "reward": [4.0]}, {**two, "reward": [8.0], "group_reward": [20.0 * group]}),
        ({**two, "reward": [16.0], "group_reward": [5.0 * group]}, {}),
    )
    told = []
    for ended, deciding in messages:
        steps = message(SPEC, terminal_steps(SPEC, **ended), decision_steps(SPEC, **deciding))
        told += slots.ingest({Source(0, f"{NAME}?team=0"): steps}).episodes
    return told


OWN, GROUP, MATES = np.array([5.0, 26.0]), np.array([10.0, 35.0]), np.array([10.0, 5.0])


@pytest.mark.parametrize("trainer_type", ["ppo", "mappo", "poca", "coma"])
def test_values_of_episodes(opened: Any, log: Any, trainer_type: str) -> None:
    """The extrinsic reward is what the signal has paid: strength 3, and the mates' rewards where it counts them.

    P23: that PPO is paid together is said once, though it is seen twice.
    """
    run = opened(trainer_type, strength=3.0)
    with run.recorder:
        for step in (50, 60):
            run.advance(step, episode(team_rows=trainer_type != "ppo"))
        run.advance(120)
    told = [record.getMessage() for record in log.records if "group rewards" in record.getMessage()]
    assert len(told) == (trainer_type == "ppo")
    assert all(line.startswith("Push: the environment sends group rewards, but trainer_type ppo") for line in told)
    mates = MATES if trainer_type in ("poca", "coma") else 0.0
    assert values(run.folder) == {
        100: pytest.approx({
            "Environment/Cumulative Reward": OWN.mean(),
            "Environment/Group Cumulative Reward": 35.0,  # of the one that was alive when the team was over
            "Environment/Episode Length": (1 + 2) / 2,
            "Environment/Finished Episodes": 4.0,
            "Policy/Extrinsic Reward": (3.0 * (OWN + GROUP + mates)).mean(),
        })
    }  # fmt: skip


def test_rewards_for_no_decision_are_told_apart(opened: Any, log: Any) -> None:
    """A game of 9 for one and -9 for the other, paid after its end: mean return 4.5, and -4.5 that no decision earned.

    Of a summary in which nobody ends, the next one tells; an agent that never asked counts with its reward alone.
    """
    over = NO_EPISODES._replace(returns=[9.0, 0.0], lengths=[4, 4], group_rewards=[0.0] * 2, mates_returns=[0.0] * 2)
    run = opened("ppo")
    with run.recorder:
        run.advance(50, [over])
        run.advance(120)
        run.advance(220, [NO_EPISODES._replace(undecided=[-2.0])])
        run.advance(320, [over._replace(undecided=[0.0, -7.0], team_returns=[1.0], team_undecided=[0.5])])
        run.advance(400, [over])
    names = ("Cumulative Reward", "Reward without Decision", "Group Reward without Decision")
    found = {step: [of.get(f"Environment/{name}") for name in names] for step, of in values(run.folder).items()}
    assert found == {100: [4.5, None, None], 300: [4.5, -4.5, 0.5], 400: [4.5, 0.0, None]}
    assert log.text.count("Push: rewards arrive for which no decision was made") == 1


def test_values_of_updates_are_means_since_the_last_summary(opened: Any) -> None:
    run = opened()
    names = {
        "policy_loss": "Losses/Policy Loss", "value_loss": "Losses/Value Loss", "baseline_loss": "Losses/Baseline Loss",
        "entropy": "Policy/Entropy", "learning_rate": "Policy/Learning Rate", "epsilon": "Policy/Epsilon",
        "beta": "Policy/Beta", "value_estimate/extrinsic": "Policy/Extrinsic Value Estimate",
        "baseline_estimate/extrinsic": "Policy/Extrinsic Baseline Estimate",
    }  # fmt: skip
    with run.recorder:
        run.advance(10)
        for k in (1.0, 3.0):
            run.recorder.updated(run.behavior, {name: k * (i + 1) for i, name in enumerate(names)})
        run.advance(120)
        run.recorder.updated(run.behavior, {"value_estimate": 7.0, "something_new": 8.0})
        run.advance(220)
    none_over = {"Environment/Finished Episodes": 0.0}
    assert values(run.folder) == {
        100: none_over | {tag: 2.0 * (i + 1) for i, tag in enumerate(names.values())},
        200: none_over | {"Policy/Extrinsic Value Estimate": 7.0, "Policy/Something New": 8.0},
    }


def test_estimates_stand_where_nothing_was_learnt(opened: Any) -> None:
    asked: list[int] = []

    def estimates() -> dict[str, float]:
        asked.append(run.behavior.step)
        return {"entropy": 0.5, "value_estimate/extrinsic": float(len(asked))}

    run = opened(estimates=estimates, inference=True)
    with run.recorder:
        run.advance(90)
        run.advance(120)
        run.recorder.updated(run.behavior, {"entropy": 0.25})
        run.advance(220)
        run.advance(320)
    assert asked == [120, 320]
    tags = ("Policy/Entropy", "Policy/Extrinsic Value Estimate")
    assert {step: [found.get(tag) for tag in tags] for step, found in values(run.folder).items()} == {
        100: [0.5, 1.0], 200: [0.25, None], 300: [0.5, 2.0],
    }  # fmt: skip


def test_a_behavior_that_is_done_is_summarised_on(opened: Any, log: Any) -> None:
    """Another one still trains: its scores go on, as "Not Training"."""
    run = opened()
    with run.recorder:
        run.advance(399)
        run.advance(450, episode())
        run.advance(520)
        run.advance(610, episode())
        run.advance(700)
    steps = {step: found.get("Environment/Cumulative Reward") for step, found in values(run.folder).items()}
    assert steps == {400: OWN.mean(), 600: OWN.mean()}  # none of steps 500 and 700 has a value
    lines = [line for line in log.text.splitlines() if "Step: " in line]
    assert [line.endswith("Not Training.") for line in lines] == [False, True, True, True]
    assert "Step: 400." in lines[0] and "Step: 700." in lines[3]


def test_a_behavior_that_was_stopped_is_summarised_on_too(opened: Any, log: Any) -> None:
    """It has not passed its max_steps, and does not train."""
    run = opened()
    with run.recorder:
        run.advance(50)
        run.advance(120)
        run.behavior.stopped = True
        run.advance(220)
    lines = [line for line in log.text.splitlines() if "Step: " in line]
    assert [line.endswith("Not Training.") for line in lines] == [False, True]


def shown(worker: int, *behavior_ids: str) -> EnvMessage:
    return EnvMessage(worker=worker, steps={}, new_specs=dict.fromkeys(behavior_ids, SPEC), stats=(), seconds=0.0)


def test_teams_of_one_behavior_are_named_once(opened: Any, log: Any) -> None:
    run = opened()
    with run.recorder:
        run.recorder.environment(shown(0, "Push?team=0", "Goal?team=1"))
        run.recorder.environment(shown(1, "Push?team=0", "Goal?team=1"))
        assert "without self_play" not in log.text
        for worker in (0, 1):
            run.recorder.environment(shown(worker, "Push?team=1"))
        run.recorder.environment(shown(0, "Push?team=2"))
    (line,) = [record.getMessage() for record in log.records if "without self_play" in record.getMessage()]
    assert line.startswith("Push: Push?team=0 and Push?team=1 are teams of one behavior without self_play")
    assert "give each a behavior name of its own" in line


STRENGTH, BONUS, FREQUENCY, MAX_STEPS = 3.0, 0.5, 300, 1200


def countdown(areas: int = 4) -> dict[int, dict[str, float]]:
    """What a run of Countdown shows by its rules: by summary, the means of the episodes that ended since the last.

    Of each area's three members the first ends with step 2, the others with step 4. A summary has the episodes of the
    message that reaches it. Its value is exact: all areas keep step.
    """
    pay = 1.0 + BONUS
    first = (2 * pay, 20.0, 4 * pay, 1.0)  # own, group, mates', length
    rest = (4 * pay, 40.0, 6 * pay, 3.0)
    found: dict[int, dict[str, float]] = {}
    ended: list[tuple[float, ...]] = []
    step, clock = 0, 0
    while step <= MAX_STEPS:
        clock = clock % 4 + 1
        new = areas * (MEMBERS if clock <= 2 else MEMBERS - 1)
        ended += [first] * areas * (clock == 2) + [rest] * 2 * areas * (clock == 4)
        label = step - step % FREQUENCY + FREQUENCY
        if step and step + new >= label:
            own, group, mates, length = np.array(ended).T
            found[label] = {
                "Environment/Cumulative Reward": own.mean(),
                "Environment/Group Cumulative Reward": 40.0,
                "Environment/Episode Length": length.mean(),
                "Policy/Extrinsic Reward": STRENGTH * (own + group + mates).mean(),
            }
            ended = []
        step += new
    return found


@pytest.mark.usefixtures("runs")
@pytest.mark.timeout(400)
def test_values_of_a_real_run(tmp_path: Path) -> None:
    changes = {
        "*.reward_signals": {"extrinsic": {"strength": STRENGTH}}, "environment_parameters": {"bonus": BONUS},
        "*.max_steps": MAX_STEPS, "*.summary_freq": FREQUENCY,
    }  # fmt: skip
    assert trainer.train(trainer.config(tmp_path, changes), tmp_path) == 0
    found = values(tmp_path / "run" / trainer.BEHAVIOR)
    expected = countdown()
    assert found.keys() == expected.keys()
    for step, tags in expected.items():
        assert {tag: found[step][tag] for tag in tags} == pytest.approx(tags), step
        constant = {"Policy/Learning Rate": 0.001, "Policy/Epsilon": 0.2, "Policy/Beta": 0.005}
        assert {tag: found[step][tag] for tag in constant} == pytest.approx(constant)
        assert found[step]["Policy/Entropy"] > 0


class Telling(ToyEnv):
    """Sends with each message a statistic that is called as one of the trainer's."""

    def _result(self, ended: Any) -> EnvMessage:
        stat = EnvironmentStat("Environment/Cumulative Reward", 1000.0, Aggregation.AVERAGE)
        return super()._result(ended)._replace(stats=(stat, stat._replace(name="Environment/Goals")))


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("every", "steps"), [(10, [10, 20, 30, 40, 50]), (1000, [50])])
def test_each_episode_is_in_a_summary_whatever_its_interval(
    tmp_path: Path, log: Any, every: int, steps: list[int]
) -> None:
    """Five episodes of 10 decisions: the first summary was empty, the last episode in none; 1000 wrote none at all.

    The scene's own statistic of the same name was mixed into the return, which is at most 1 a decision.
    """
    settings = {"trainer_type": "ppo", "summary_freq": every, "max_steps": 50}
    toy = ToySettings(areas=1, agents_per_team=1, teams=False, episode_length=10)
    with environment(make=lambda worker: Telling(worker, toy)) as started:
        train(configured(tmp_path, Toy=settings), started=started)
    found = values(tmp_path / "results" / "two" / "Toy")
    assert {step: of["Environment/Episode Length"] for step, of in found.items()} == dict.fromkeys(steps, 9.0)
    assert {of["Environment/Cumulative Reward"] <= 10.0 for of in found.values()} == {True}
    assert {of["Scene/Environment/Cumulative Reward"] for of in found.values()} == {1000.0}
    assert {of["Environment/Goals"] for of in found.values()} == {1000.0}
    assert log.text.count("sends a statistic named 'Environment/Cumulative Reward'") == 1
    assert ("summary_freq is 1000 and max_steps 50: there is one summary" in log.text) == (every > 50)


def test_teams_that_are_paid_individually_are_judged_by_that(opened: Any, log: Any) -> None:
    """MA-POCA without group rewards showed a mean of 0.000 everywhere; the tag stays in the files, as in ML-Agents'.

    Once a team is paid, teams that were paid nothing before count in their mean: 100 and one of 5.
    """
    run = opened()
    alone, paid = [episode(group=0.0)] * 100, [episode()]
    with run.recorder:
        statistics = run.recorder._statistics[NAME]
        run.advance(50, [record for records in alone for record in records])
        run.advance(SUMMARY)
        assert statistics.mean_reward() == 15.5
        assert statistics.result_line(NAME) == f"{NAME}: mean reward 15.500 over the last 100 episodes."
        run.advance(150, [record for records in [*alone, *paid] for record in records])
        run.advance(2 * SUMMARY)
        assert statistics.mean_reward() == pytest.approx(0.35)
    lines = [record.getMessage() for record in log.records if "Step: " in record.getMessage()]
    assert "Mean Reward: 15.500. Std of Reward: 10.500. Training." in lines[0]
    assert (
        f"Mean Reward: 15.500. Mean Group Reward: {35 / 101:.3f}. Std of Group Reward: {35 / 101 * 10:.3f}. Training."
        in lines[1]
    )
    assert values(run.folder)[SUMMARY]["Environment/Group Cumulative Reward"] == 0.0


def test_p27_an_update_clears_the_returns_behind_a_checkpoints_reward(opened: Any) -> None:
    """5 and 26 before the update, 5, 26, 5, 26 after it; a checkpoint after another update knows of none."""
    run = opened()
    with run.recorder:
        run.advance(50, episode())
        statistics = run.recorder._statistics[NAME]
        assert statistics.checkpoint_reward() == 15.5
        run.recorder.updated(run.behavior, {})  # what was collected was only kept: no update
        assert statistics.checkpoint_reward() == 15.5
        run.recorder.updated(run.behavior, {"policy_loss": 0.5})
        assert statistics.checkpoint_reward() is None
        run.advance(60, [*episode(), *episode()][:3])
        assert statistics.checkpoint_reward() == pytest.approx(np.mean([5.0, 26.0, 5.0][:3]))
        assert statistics.mean_reward() is not None, "what is shown lately is not cleared"


def test_a_policy_that_does_not_know_its_own_decisions_is_told_once(opened: Any, log: Any) -> None:
    """In the first update all are its own; later ones also learn from what was open during an update."""
    run, told = opened(), []
    with run.recorder:
        run.advance(10)
        for updates, largest in ((1, 1e-6), (2, 0.4), (1, 0.4), (1, 0.5)):
            run.behavior.updates = updates
            run.recorder.updated(run.behavior, {"largest_log_ratio": largest})
            told.append(log.text.count("Policy/Largest Log Ratio: 0.4, expected about 0"))
    assert told == [0, 0, 1, 1] and "Ratio: 0.5" not in log.text

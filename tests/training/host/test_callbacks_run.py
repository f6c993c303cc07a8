"""Callbacks through the whole host loop: their order, what they write, and what becomes of one that raises."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import AgentRecord, Callbacks, Episode, Trajectory
from jaxrl.callbacks import CallbackError
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.following.followed import Outcome
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.run import train
from jaxrl.training.host.updates import Updates
from jaxrl.types import JaxrlError
from tests.event_files import read_events
from tests.toy_runs import configured, environment
from tests.trainer import config
from tests.trainer import train as run_command

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]
LENGTH = 5
"""Decisions of an episode of the toy, each paid 1 and a bit."""


class Recording(Callbacks):
    """Notes every call; gives each episode a number of its own, a histogram and a picture."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []  # what, and of which episode or policy
        self.ended: list[Episode] = []
        self.lengths: list[int] = []
        self.pieces: list[tuple[AgentRecord, Trajectory, Mapping[AgentRecord, Trajectory]]] = []
        self.metrics: Mapping[str, float] = {}
        self.updated_at: list[int] = []
        self.last: list[float] = []

    def note(self, what: str, episode: Episode) -> None:
        self.calls.append((what, episode.episode_id))

    def on_run_start(self, run: Any) -> None:
        self.calls.append(("run", ",".join(run.policy_names)))

    def on_episode_created(self, episode: Episode) -> None:
        episode.user_data["number"] = len([what for what, _ in self.calls if what == "created"])
        self.note("created", episode)

    def on_episode_start(self, episode: Episode) -> None:
        assert [agent.policy for agent in episode.agents] == ["Toy", "Toy"] and episode.length == 0
        self.note("start", episode)

    def on_episode_step(self, episode: Episode) -> None:
        assert (episode.length > 0 and not episode.is_done(episode.agents[0].agent_id)) or episode.over
        self.note("step", episode)
        self.last += [episode.agents[0].last_reward] if len(self.ended) == 0 else []

    def on_trajectory_complete(
        self, episode: Episode, agent: AgentRecord, trajectory: Trajectory, mates: Mapping[AgentRecord, Trajectory]
    ) -> None:
        self.note("trajectory", episode)
        self.pieces.append((agent, trajectory, mates))

    def on_faulty_episode(self, episode: Episode, error: Exception) -> None:
        self.note("faulty", episode)

    def on_episode_end(self, episode: Episode) -> None:
        self.note("end", episode)
        self.ended.append(episode)
        number = episode.user_data["number"]
        episode.custom_metrics["number"] = float(number)
        episode.hist_data["numbers"] = [number, number + 1.0]
        episode.media["picture"] = np.full((2, 3, 3), number, np.uint8)

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        self.calls.append(("updated", policy))
        self.metrics = metrics
        self.updated_at.append(step)

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        self.calls.append((f"saved {step}", policy))


def values(folder: Path) -> dict[int, dict[str, Any]]:
    """By step, everything with a tag of episodes."""
    (path,) = folder.glob("events*")
    found: dict[int, dict[str, Any]] = {}
    for event in read_events(path):
        for value in event.summary.value:
            if value.tag.startswith(("Custom/", "Episode/")):
                shown = value.histo.num if value.HasField("histo") else value.simple_value
                found.setdefault(event.step, {})[value.tag] = value.image if value.HasField("image") else shown
    return found


def noting(patch: pytest.MonkeyPatch, calls: list[tuple[str, str]]) -> None:
    """Notes also when statistics are told of episodes, and when samples are used up."""
    followed, use_up = HostRecorder.followed, Updates.use_up

    def telling(recorder: HostRecorder, episodes: Any) -> None:
        calls.append(("statistics", ""))
        followed(recorder, episodes)

    def using(updates: Updates, behavior: Any) -> None:
        calls.append(("samples", ""))
        use_up(updates, behavior)

    patch.setattr(HostRecorder, "followed", telling)
    patch.setattr(Updates, "use_up", using)


def test_r13_r17_m19_x13_order_of_the_callbacks_and_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One area, a team of two, 5 decisions an episode, pieces of 3 decisions; also X8 X9 X10 R57 B7.

    Within a message: step, trajectories, end of the old episode; created, start of the new one. A summary at 100 agent
    steps is made of the episodes that have ended: the tenth ends with the decisions up to 100, so that numbers 0 to 9
    are in the first one. The window holds 4 of them: 6, 7, 8, 9.

    X3 M18: updates come after more than 69 decisions: with the messages that end episodes 6 (70) and 13 (140).
    """
    recording = Recording()
    noting(monkeypatch, recording.calls)
    size = {"hyperparameters": {"batch_size": 16, "buffer_size": 69, "num_epoch": 1}}
    settings = configured(tmp_path, Toy={"max_steps": 150, "episode_window": 4, "time_horizon": 3, **size})
    with environment("Toy?team=0", areas=1) as started:
        train(settings, started=started, callbacks=[recording])
    of = {"run", "updated", "saved 152", "statistics", "samples"}
    assert recording.calls[0] == ("run", "Toy") and recording.calls[-1] == ("saved 152", "Toy")
    assert [c for c in recording.calls if c[0] == "updated"] == [("updated", "Toy")] * 2 and recording.metrics
    names = [what for what, _ in recording.calls]
    first = names.index("samples")
    assert names[first - 4 : first + 2] == ["end", "created", "start", "statistics", "samples", "updated"]
    told = [call for call in recording.calls if call[0] not in of]
    ids = list(dict.fromkeys(name for _, name in told))
    one = ["created", "start", *["step"] * 3, *["trajectory"] * 2, "step", "step", *["trajectory"] * 2, "end"]
    assert [what for what, _ in told][: 3 * len(one)] == 3 * one, "3 episodes, one after the other"
    assert [name for _, name in told][: 3 * len(one)] == [name for name in ids[:3] for _ in one]
    assert {e.length for e in recording.ended} == {LENGTH} and {len(e.agents) for e in recording.ended} == {2}
    agent, cut, mates = recording.pieces[0]
    assert (cut.outcome, len(cut.reward), len(mates)) == (Outcome.CUT, 3, 1)
    (mate,) = mates
    assert mate is recording.pieces[1][0] and agent in recording.pieces[1][2]
    rest = recording.pieces[2]
    assert rest[0] is agent and rest[1].outcome is Outcome.TERMINATED
    np.testing.assert_array_equal(cut.last_obs[0], rest[1].obs[0][0])
    assert {(a.agent_id, a.behavior_id) for a in (agent, mate)} == {(2, "Toy?team=0"), (3, "Toy?team=0")}, "A30"
    # R61: which decision, of which environment, of which of its agents.
    assert (cut.time_step.tolist(), rest[1].time_step.tolist()) == ([0, 1, 2], [3, 4])
    assert [(t.worker, t.agent_index) for _, t, _ in recording.pieces[:2]] == [(0, 0), (0, 1)]
    assert recording.updated_at == [70, 140]
    assert recording.last == [*cut.reward.tolist(), *rest[1].reward.tolist()]
    np.testing.assert_array_equal(agent.last_obs[0], rest[1].last_obs[0])
    np.testing.assert_array_equal(agent.last_action.discrete, rest[1].action.discrete[-1])
    episode = recording.ended[0]
    assert (episode.agent_steps, episode.agent(agent.agent_id), agent.index) == (2 * LENGTH, agent, 0)
    assert episode.policy_for(agent.agent_id) == "Toy" and episode.is_done(agent.agent_id) and agent.is_done
    assert cut.reward.sum() + rest[1].reward.sum() == pytest.approx(agent.own_return)
    shown = values(tmp_path / "results" / "two" / "Toy")[100]
    totals = [episode.total_return for episode in recording.ended[6:10]]
    assert shown["Custom/number"] == 7.5 and shown["Custom/number Min"] == 6.0 and shown["Custom/number Max"] == 9.0
    assert shown["Custom/numbers"] == 8.0 and shown["Custom/numbers_hist"] == 8
    assert shown["Episode/Return"] == pytest.approx(np.mean(totals), rel=1e-6)
    assert shown["Episode/Return Min"] == pytest.approx(min(totals), rel=1e-6)
    assert shown["Episode/Return Max"] == pytest.approx(max(totals), rel=1e-6)
    assert shown["Episode/Return_hist"] == 4 and shown["Episode/Agent Return_hist"] == 8
    assert shown["Episode/Length"] == shown["Episode/Length Max"] == LENGTH
    assert (shown["Custom/picture"].height, shown["Custom/picture"].width) == (2, 3)


class Steering(Callbacks):
    """Saves at the third step of episodes and stops the run at the ninth, as older callbacks are written: no step."""

    def __init__(self) -> None:
        self.count, self.updates, self.saved = 0, 0, []

    def on_run_start(self, run: Any) -> None:
        self.run = run

    def on_episode_step(self, episode: Episode) -> None:
        self.count += 1
        if self.count == 3:
            self.run.save()
        if self.count == 9:
            assert (self.run.step(), self.run.step("Toy"), self.run.max_steps()) == (16, 16, 200)
            with pytest.raises(JaxrlError, match="got behavior 'Nobody', expected one of Toy"):
                self.run.step("Nobody")
            self.run.stop()

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        self.updates += 1

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        self.saved.append(step)


class Changing(Callbacks):
    def on_trajectory_complete(self, episode: Episode, agent: Any, trajectory: Trajectory, mates: Any) -> None:
        trajectory.reward[:] = 0.0


def test_callbacks_save_and_stop_a_run_and_change_no_trajectory(tmp_path: Path) -> None:
    """One area, a team of two: what step() tells is what was decided before the message, of which 2 are booked then."""
    steering = Steering()
    few = {"hyperparameters": {"batch_size": 8, "buffer_size": 11, "num_epoch": 1}}
    settings = configured(tmp_path, Toy={"max_steps": 200, **few})
    with environment("Toy?team=0", areas=1) as started:
        train(settings, started=started, callbacks=[steering])
    assert (steering.saved, steering.count, steering.updates) == ([6, 18], 9, 1)
    run = tmp_path / "results" / "two"
    assert (run / "Toy.onnx").is_file(), "saved as at max_steps"
    told = json.loads((run / "run_logs" / "training_status.json").read_text())["Toy"]["checkpoints"]
    # P27: the one episode ended with decision 10, before the update with 12.
    assert [(entry["steps"], entry["reward"]) for entry in told] == [(6, None), (18, None)]
    with (
        environment("Toy?team=0", areas=1) as started,
        pytest.raises(CallbackError, match=r"read-only.*A trajectory is a copy: .* set `postprocess`"),
    ):
        train(configured(tmp_path, run_id="changed", Toy={"max_steps": 200}), started=started, callbacks=[Changing()])


class Raising(Callbacks):
    def on_episode_end(self, episode: Episode) -> None:
        raise KeyError("no such thing")


def test_a_callback_that_raises_ends_the_run_which_is_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        environment("Toy?team=0") as started,
        caplog.at_level(logging.ERROR, logger="jaxrl"),
        pytest.raises(CallbackError, match=r"test_callbacks_run:Raising\.on_episode_end raised KeyError: 'no such th"),
    ):
        train(configured(tmp_path, Toy={"max_steps": 200}), started=started, callbacks=[Raising()])
    told = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1 and "Raising.on_episode_end" in told[0].getMessage()
    assert (tmp_path / "results" / "two" / "Toy.onnx").is_file(), "saved first"


@pytest.mark.parametrize("in_order", [False, True], ids=["fault", "closed in order"])
def test_a_lost_worker_ends_its_episodes_and_their_numbers_count_for_nothing(tmp_path: Path, in_order: bool) -> None:
    """R10 X11: what the loop does when a worker is replaced, told by hand after 12 calls; then on as incarnation 0.

    Faulty, unless the worker was closed in order: then they are merely truncated.
    """
    recording, seen = Recording(), []

    class Losing(Callbacks):
        def on_episode_step(self, episode: Episode) -> None:
            seen.append(episode)

    advance = HostLoop.advance

    def losing(loop: HostLoop, results: Any) -> bool:
        if len(seen) == 12:
            loop.episodes.lose(Loss(0, 0, "it is gone", in_order))
            seen.append([what for what, _ in recording.calls[-4:]])
        return advance(loop, results)

    with pytest.MonkeyPatch.context() as patch, environment("Toy?team=0", areas=2) as started:
        patch.setattr(HostLoop, "advance", losing)
        toy = {"max_steps": 120, "episode_window": 100}
        train(configured(tmp_path, Toy=toy), started=started, callbacks=[recording, Losing()])
    assert seen[12] == (["step", "step", "end", "end"] if in_order else ["faulty", "end", "faulty", "end"])
    faulty = [episode for episode in recording.ended if episode.faulty]
    assert [str(episode.error) for episode in faulty] == ([] if in_order else ["it is gone"] * 2)
    broken = [episode for episode in recording.ended if episode.truncated]
    assert len(broken) == 2 and all(episode.over for episode in broken)
    shown = values(tmp_path / "results" / "two" / "Toy")[100]
    counted = [episode.length for episode in recording.ended if not episode.truncated][
        : int(shown["Episode/Return_hist"])
    ]
    assert {episode.length for episode in broken} == {1} and set(counted) == {LENGTH, 3}, "3: what came after the break"
    assert shown["Episode/Length"] == pytest.approx(np.mean(counted))


def test_what_cannot_be_imported_ends_the_command_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(config(tmp_path), tmp_path / "results", "--callbacks", "nowhere_at_all:Mine") == 1
    assert "callbacks: nowhere_at_all:Mine: there is no module nowhere_at_all" in "".join(capsys.readouterr())
    assert not (tmp_path / "results").exists()

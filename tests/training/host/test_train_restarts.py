"""Workers that fail in the middle of a run: the others lose nothing, the books add up, and runs repeat bit for bit."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl import Callbacks, Episode
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.learner import Learner
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.run import train
from jaxrl.training.interrupt import Interrupt
from tests.envs.scripted_faults import Script, ScriptedEnv
from tests.envs.toy_env import ToySettings
from tests.event_files import read_events

pytestmark = [pytest.mark.usefixtures("runs", "traced_once"), pytest.mark.timeout(300)]
TOY = ToySettings(areas=1, living_reward=1.0, deaths=0.05, skips=0.1)
RESTART_TAGS = {"Environment/Worker Restarts", "Environment/Faulty Episodes"}
FOREVER = RestartLimits(lifetime=-1, rate=-1)
SMALL = {
    "trainer_type": "poca",
    "hyperparameters": {
        "batch_size": 16, "buffer_size": 64, "num_epoch": 1, "learning_rate": 0.01, "learning_rate_schedule": "constant"
    },
    "network_settings": {"hidden_units": 4, "num_layers": 1},
    "summary_freq": 100,
    "checkpoint_interval": 100_000,
    "max_steps": 400,
}  # fmt: skip


@contextlib.contextmanager
def environments(
    script: Script, workers: int, *, inline: bool = True, limits: RestartLimits = FOREVER
) -> Iterator[tuple[Interrupt, EnvPool]]:
    factory = partial(ScriptedEnv, script, TOY)
    with Interrupt() as interrupt, EnvPool(factory, workers, inline=inline, wait=False, limits=limits) as pool:
        yield interrupt, pool


def configured(folder: Path, workers: int, run_id: str = "run", **options: Any) -> RunSettings:
    written = {
        "behaviors": {"Toy": SMALL},
        "env_settings": {"seed": 3, "num_envs": workers, "env_path": sys.executable} | options,
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(folder / "results")},
    }
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


def faults(workers: int) -> Script:
    """Every worker fails once, in a step of its own; worker 0 twice, the second time in its reset."""
    return {(worker, 0): (20 + 7 * worker, "raise") for worker in range(workers)} | {(0, 1): (0, "raise")}


def values(folder: Path, run_id: str) -> list[tuple[str, float]]:
    """Tags and values of all events of a run."""
    (path,) = (folder / "results" / run_id / "Toy").glob("events*")
    return [(v.tag, v.simple_value) for event in read_events(path) for v in event.summary.value]


class Books:
    """What a run collected, trained on and kept, counted beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.collected = self.trained = self.dropped = 0
        self.behaviors: dict[str, Behavior] = {}
        act, lose, learn, run = ActingPolicy.act, ActingPolicy.lose, Learner.learn, HostLoop.run

        def acts(actor: ActingPolicy, messages: Any, *more: Any) -> Any:
            self.collected += sum(len(steps.deciding.agent_id) for steps in messages.values())
            return act(actor, messages, *more)

        def loses(actor: ActingPolicy, loss: Any) -> int:
            lost = lose(actor, loss)
            self.dropped += lost
            return lost

        def learns(learner: Learner, actor: ActingPolicy) -> Any:
            self.trained += self.waiting(actor)
            return learn(learner, actor)

        def runs(loop: HostLoop) -> None:
            self.behaviors = loop.behaviors
            run(loop)

        monkeypatch.setattr(ActingPolicy, "act", acts)
        monkeypatch.setattr(ActingPolicy, "lose", loses)
        monkeypatch.setattr(Learner, "learn", learns)
        monkeypatch.setattr(HostLoop, "run", runs)

    @staticmethod
    def waiting(actor: ActingPolicy) -> int:
        """Decisions in the buffer whose outcome is known."""
        assert actor.buffer is not None
        return int(rollout_of(actor.buffer).acted.sum())

    def state(self) -> list[np.ndarray]:
        """All that the run ends with."""
        leaves = jax.tree.leaves(self.behaviors["Toy"].state)
        return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in leaves]


def is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_m17_s22_one_seed_one_result_also_with_restarts(tmp_path, monkeypatch, workers):
    """Two lockstep runs with the same scripted faults end with equal parameters, bit for bit."""
    ends = []
    for run_id in ("first", "again"):
        books = Books(monkeypatch)
        with environments(faults(workers), workers) as started:
            train(configured(tmp_path, workers, run_id), started=started)
        ends.append((books.state(), books.collected, books.dropped))
    (one, *counts), (other, *again) = ends
    assert counts == again and counts[1] > 0
    assert [a.tobytes() for a in one] == [b.tobytes() for b in other]
    if workers > 1:
        return
    monkeypatch.undo()
    with environments({}, workers) as started:
        books = Books(monkeypatch)
        train(configured(tmp_path, workers, "healthy"), started=started)
    assert [a.tobytes() for a in one] != [b.tobytes() for b in books.state()], "the comparison can fail"
    assert books.dropped == 0 and not RESTART_TAGS & {tag for tag, _ in values(tmp_path, "healthy")}


def test_x11_r10_decisions_collected_are_those_trained_on_and_those_the_log_says_were_dropped(
    tmp_path, monkeypatch, caplog
):
    books = Books(monkeypatch)
    with environments(faults(4), 4) as started, caplog.at_level(logging.WARNING, "jaxrl"):
        train(configured(tmp_path, 4), started=started)
    actor = books.behaviors["Toy"].actor
    open_decisions = int((actor.buffer.open_at >= 0).sum())  # pyright: ignore
    line = re.compile(r"(\d+) faulty episodes of worker (\d) .* their (\d+) open")
    logged = [line.search(record.getMessage()) for record in caplog.records]
    told = [(int(m[2]), int(m[1]), int(m[3])) for m in logged if m]
    assert sorted(worker for worker, _, _ in told) == [0, 0, 1, 2, 3]
    assert all(episodes == decisions for _, episodes, decisions in told)
    assert sum(decisions for _, _, decisions in told) == books.dropped >= 4
    assert books.collected == books.trained + books.waiting(actor) + open_decisions + books.dropped
    assert books.behaviors["Toy"].step == books.trained + books.waiting(actor)
    sums = {name: sum(value for tag, value in values(tmp_path, "run") if tag == name) for name in RESTART_TAGS}
    assert sums == {"Environment/Worker Restarts": 5.0, "Environment/Faulty Episodes": float(books.dropped)}


def test_async_a_killed_worker_comes_back_and_the_run_ends_as_it_should(tmp_path, monkeypatch):
    books = Books(monkeypatch)
    with environments({(1, 0): (5, "kill")}, 2, inline=False) as started:
        train(configured(tmp_path, 2, mode="async"), started=started)
    behavior = books.behaviors["Toy"]
    assert behavior.step > 400
    open_decisions = int((behavior.actor.buffer.open_at >= 0).sum())  # pyright: ignore
    assert books.collected == books.trained + books.waiting(behavior.actor) + open_decisions + books.dropped


class Noting(Callbacks):
    """Every call about an episode, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Episode]] = []

    def on_episode_created(self, episode: Episode) -> None:
        self.calls.append(("created", episode))

    def on_episode_start(self, episode: Episode) -> None:
        self.calls.append(("start", episode))

    def on_episode_step(self, episode: Episode) -> None:
        self.calls.append(("step", episode))

    def on_faulty_episode(self, episode: Episode, error: Exception) -> None:
        assert episode.error is error and episode.over and episode.truncated
        self.calls.append(("faulty", episode))

    def on_episode_end(self, episode: Episode) -> None:
        self.calls.append(("end", episode))


def test_x13_x11_callbacks_of_a_worker_that_is_killed(tmp_path):
    """Call 8 of worker 1 kills its process: after 7 steps its second episode has 2 of 5, and ends as faulty there.

    Its next process begins another; nothing of worker 0 is faulty, and each episode's calls are in order.
    """
    noting = Noting()
    with environments({(1, 0): (8, "kill")}, 2, inline=False) as started:
        train(configured(tmp_path, 2), started=started, callbacks=[noting])
    found: dict[Episode, list[str]] = {}
    for what, episode in noting.calls:
        found.setdefault(episode, []).append(what)
    (faulty,) = (episode for episode in found if episode.faulty)
    assert (faulty.worker, faulty.incarnation) == (1, 0) and "SIGKILL" in str(faulty.error)
    assert found.pop(faulty) == ["created", "start", *["step"] * faulty.length, "faulty", "end"]
    assert faulty.length < 5 and sum(e.length for e in [*found, faulty] if (e.worker, e.incarnation) == (1, 0)) <= 7
    for calls in found.values():
        steps = calls.count("step")
        assert calls in (["created", "start", *["step"] * steps, "end"], ["created", "start", *["step"] * steps])
    at = noting.calls.index(("end", faulty))
    assert noting.calls[at - 1] == ("faulty", faulty)
    mine = [(what, episode) for what, episode in noting.calls if episode.worker == 1]
    after = mine[mine.index(("end", faulty)) + 1 :]
    assert [what for what, _ in after[:3]] == ["created", "start", "step"]
    assert {episode.incarnation for _, episode in after} == {1}


def test_m25_beyond_the_limits_the_run_saves_explains_and_fails(tmp_path):
    limits = RestartLimits(lifetime=10, rate=1, period=60.0)
    script = {(1, 0): (20, "raise"), (1, 1): (20, "raise")}
    words = r"worker 1 is not started again: it has had 1 within the last 60"
    with environments(script, 2, limits=limits) as started, pytest.raises(EnvironmentFailure, match=words):
        train(configured(tmp_path, 2), started=started)
    assert (tmp_path / "results" / "run" / "Toy.onnx").is_file()

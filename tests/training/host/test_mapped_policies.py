"""Policies beside those of the behaviors: mapped, frozen, added and removed while a run goes on, without samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import AgentRecord, Callbacks, Episode, Follows
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.callbacks import CallbackError
from jaxrl.training.host.policies import Policies
from jaxrl.training.host.run import train
from jaxrl.types import PolicyError
from tests.toy_runs import configured, environment

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]
TOY = {"max_steps": 150, "time_horizon": 8}


class Watching(Callbacks):
    """Keeps what it is shown of the run and the newest weights of each policy that is updated."""

    run: Any = None

    def on_run_start(self, run: Any) -> None:
        self.run = run


def weights(run: Policies, name: str) -> list[np.ndarray]:
    named = run._named()[name]
    return [np.array(leaf) for leaf in jax.tree.leaves(named.actor.policy)]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


def learned(folder: Path, run_id: str, callbacks: Any = None, mapping: Any = None, **toy: Any) -> list[np.ndarray]:
    """Weights at the end of a run."""
    watching = Watching()
    kept: list[list[np.ndarray]] = []

    class Keeping(Callbacks):
        def on_checkpoint_saved(self, policy: str, step: int) -> None:
            kept.append(weights(watching.run, "Toy"))

    every = [watching, Keeping(), *(callbacks or [])]
    with environment("Toy?team=0", deaths=0.1, skips=0.1, workers=2, **toy) as started:
        train(configured(folder, run_id, Toy=TOY), started=started, callbacks=every, policy_mapping=mapping)
    return kept[-1]


@pytest.mark.slow
def test_m16_a_mapping_that_names_the_behavior_changes_no_bit_and_neither_do_callbacks(tmp_path: Path) -> None:
    """What the loop splits, routes and puts together is learned from as if there were no mapping."""
    plain = learned(tmp_path, "plain")
    mapped = learned(tmp_path, "mapped", mapping=lambda agent, episode, worker: agent.behavior)
    assert same(plain, mapped)


class Half(Watching):
    """Odd agents follow a frozen copy until update 2, when it is removed; who then asks follows `late`."""

    def __init__(self, late: str | None = None) -> None:
        self.late, self.updates, self.removed = late, 0, False
        self.asked: list[tuple[int, str]] = []
        self.first: list[np.ndarray] = []
        self.changed: list[tuple[str, str]] = []
        self.living: Episode | None = None

    def on_run_start(self, run: Any) -> None:
        super().on_run_start(run)
        run.add_policy("Old", like="Toy")
        self.first = weights(run, "Old")

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str | None:
        assert agent in episode.agents and worker == episode.worker
        self.asked.append((agent.agent_id, episode.episode_id))
        return None if agent.agent_id % 2 == 0 else self.late if self.removed else "Old"

    def on_episode_step(self, episode: Episode) -> None:
        self.living = episode

    def on_policy_updated(self, policy: str, metrics: Mapping[str, float], step: int) -> None:
        assert policy == "Toy"
        assert self.removed or same(weights(self.run, "Old"), self.first), "it does not learn"
        assert not same(weights(self.run, "Toy"), self.first)
        self.updates += 1
        if self.updates == 2:
            assert self.living is not None
            before = [agent.policy for agent in self.living.agents]
            self.removed = True
            self.run.remove_policy("Old")
            self.changed = list(zip(before, [agent.policy for agent in self.living.agents], strict=True))

    def on_episode_end(self, episode: Episode) -> None:
        episode.custom_metrics["frozen"] = float(sum(agent.policy == "Old" for agent in episode.agents))


def test_r20_r41_frozen_policies_and_agents_of_a_removed_one_are_mapped_again(tmp_path: Path) -> None:
    """Agents are asked once; those that follow the policy when it is removed, one more time, in mid-air."""
    half = Half()
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, Toy=TOY), started=started, callbacks=[half])
    times = {agent: [a for a, _ in half.asked].count(agent) for agent in {agent for agent, _ in half.asked}}
    again = {agent for agent, count in times.items() if count > 1}
    assert half.updates >= 2 and again and all(agent % 2 for agent in again) and max(times.values()) == 2
    assert set(half.changed) <= {("Old", "Toy"), ("Toy", "Toy")} and ("Old", "Toy") in half.changed
    assert half.run.policy_names == ["Toy"]


def test_r20_an_unknown_policy_is_named_with_those_that_exist(tmp_path: Path) -> None:
    with (
        environment("Toy?team=0") as started,
        pytest.raises(PolicyError, match=r"agent of Toy.team=0 is mapped to 'Nobody', which is none .* \(Toy\)"),
    ):
        train(configured(tmp_path, Toy=TOY), started=started, policy_mapping=lambda *_: "Nobody")


def test_r20_an_answer_that_is_no_policy_is_named(tmp_path: Path) -> None:
    with environment("Toy?team=0") as started, pytest.raises(CallbackError, match=r"got 3, expected the name of a pol"):
        train(configured(tmp_path, Toy=TOY), started=started, policy_mapping=lambda *_: 3)


class Counting(Watching):
    """Decisions of finished episodes by policy, and trainer steps at the end."""

    def __init__(self) -> None:
        self.decisions: dict[str, int] = {}
        self.steps: dict[str, int] = {}

    def on_episode_end(self, episode: Episode) -> None:
        for agent in episode.agents:
            self.decisions[agent.policy] = self.decisions.get(agent.policy, 0) + agent.decisions

    def on_checkpoint_saved(self, policy: str, step: int) -> None:
        self.steps[policy] = step


def test_a_policy_that_the_configuration_lists_learns_from_the_agents_that_are_mapped_to_it(tmp_path: Path) -> None:
    """Both count what their own agents decided: 5 decisions an agent and episode, and a few are under way.

    A third one, to which nobody is mapped, does not keep the run from its end.
    """
    counting, asked = Counting(), Counter()
    settings = configured(tmp_path, Toy=TOY, Other=TOY)

    def mapping(agent: AgentRecord, episode: Episode, worker: int) -> str:
        asked[agent.agent_id] += 1
        if "Idle" not in counting.run.policy_names:
            counting.run.add_policy("Idle", like="Toy", trains=True)
        return "Other" if agent.agent_id % 2 else "Toy"

    with environment("Toy?team=0") as started:
        train(settings, started=started, callbacks=[counting], policy_mapping=mapping)
    run = tmp_path / "results" / "two"
    assert (run / "Other.onnx").is_file() and (run / "Toy.onnx").is_file()
    for name in ("Toy", "Other"):
        assert 150 < counting.steps[name] < 160 and counting.steps[name] - 10 <= counting.decisions[name]
        assert counting.decisions[name] <= counting.steps[name]
    assert len(asked) > 50 and set(asked.values()) == {1}, "R20: once for a life, though each decides five times"


def test_r45_agents_without_samples_do_not_count(tmp_path: Path) -> None:
    """Every second agent leaves none: after as many decisions the trainer step is half as high."""
    counting = Counting()
    with environment("Toy?team=0") as started:
        train(
            configured(tmp_path, Toy=TOY),
            started=started,
            callbacks=[counting],
            policy_mapping=lambda agent, episode, worker: Follows("Toy", samples=agent.agent_id % 2 == 0),
        )
    assert counting.steps["Toy"] == pytest.approx(counting.decisions["Toy"] / 2, abs=10)


class Adding(Watching):
    """Adds policies in every way when the run starts, and again what cannot be."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.errors: list[str] = []
        self.names: list[str] = []
        self.asked = 0

    def on_run_start(self, run: Any) -> None:
        super().on_run_start(run)
        run.add_policy("Copy", like="Toy", weights="Toy")
        run.add_policy("Loaded", like="Toy", weights=self.checkpoint)
        run.add_policy("Second", like="Toy", weights="Loaded", trains=True)
        assert same(weights(run, "Copy"), weights(run, "Toy"))
        assert same(weights(run, "Second"), weights(run, "Loaded"))
        assert not same(weights(run, "Loaded"), weights(run, "Toy"))
        self.names = run.policy_names
        for wrong in (
            lambda: run.add_policy("Copy", like="Toy"),
            lambda: run.add_policy("More", like="Nobody"),
            lambda: run.add_policy("More", like="Toy", weights="nowhere/at/all"),
            lambda: run.remove_policy("Toy"),
        ):
            with pytest.raises(PolicyError) as caught:
                wrong()
            self.errors.append(str(caught.value))

    def policy_mapping(self, agent: AgentRecord, episode: Episode, worker: int) -> str:
        self.asked += 1
        return ("Toy", "Second", "Loaded")[self.asked % 3]


def test_policies_are_added_from_weights_of_others_and_of_checkpoints(tmp_path: Path) -> None:
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, "before", Toy=TOY), started=started)
    checkpoint = checkpoints(tmp_path / "results" / "before" / "Toy")[-1].path
    adding = Adding(checkpoint)
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, "after", Toy=TOY), started=started, callbacks=[adding])
    assert sorted(adding.names) == ["Copy", "Loaded", "Second", "Toy"]
    assert checkpoints(tmp_path / "results" / "after" / "Second"), "it trains: it has checkpoints of its own"
    assert not (tmp_path / "results" / "after" / "Loaded").exists()
    texts = [
        "a policy Copy already",
        "'Nobody' is no behavior; there are",
        "nowhere/at/all' is nei",
        "'Toy' is no",
    ]
    assert all(text in error for text, error in zip(texts, adding.errors, strict=True)), adding.errors

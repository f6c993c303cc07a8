"""A behavior is named by its agents' name and spaces: the same in every copy, worker, evaluation and resumed run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from games import relay_env
from gymnasium import spaces
from pettingzoo import ParallelEnv

import jaxrl
from jaxrl.envs.behavior_names import BehaviorNames
from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.pettingzoo import simulator
from jaxrl.envs.pettingzoo.area import PettingZooArea
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings
from jaxrl.training.host.run import train
from jaxrl.types import Action, EnvMessage, Identity
from tests.artifacts.test_csv_file import rows
from tests.toy_runs import configured, environment

LOW = {"walker_0": 0.0, "walker_1": 5.0}
"""The lower bound of the action of an agent; the upper one is 4 above."""


class Walkers(ParallelEnv):
    """Two walkers of equal shapes and different bounds, in any order; `who` there is changes with each episode."""

    metadata: Any = {"name": "walkers", "render_modes": []}  # noqa: RUF012

    def __init__(self, *who: Sequence[str], announced: Sequence[str] = ()) -> None:
        self.episodes = list(who)
        self.given: list[dict[str, float]] = []
        if announced:
            self.possible_agents = list(announced)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1, (1,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(LOW[agent], LOW[agent] + 4, (1,))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes.append(self.episodes.pop(0))
        self.agents = list(self.episodes[-1])
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        self.given.append({agent: float(action[0]) for agent, action in actions.items()})
        agents, self.agents = self.agents, []
        obs = {agent: np.zeros(1, np.float32) for agent in agents}
        return obs, dict.fromkeys(agents, 0.0), dict.fromkeys(agents, True), dict.fromkeys(agents, False), {}


BOTH, TURNED, FIRST, SECOND = ("walker_0", "walker_1"), ("walker_1", "walker_0"), ("walker_0",), ("walker_1",)
SETS = {
    "order": [(BOTH,), (TURNED,), (TURNED,), (BOTH,)],
    "order of episodes": [(BOTH, TURNED), (TURNED, BOTH)],
    "who is there": [(SECOND, BOTH), (BOTH,), (FIRST, SECOND)],
    "only one each": [(SECOND,), (FIRST,)],
}


def worker_of(*games: Walkers) -> Any:
    """A function worker → environment: each has one of these games."""
    return lambda worker: ForeignEnvironment(
        worker=worker,
        name="pettingzoo:walkers",
        make_area=lambda _: PettingZooArea(games[worker]),
        areas=1,
        seed=worker,
    )


def test_a_copy_s_own_spaces_count_not_those_of_another_agent_of_that_name() -> None:
    """Two copies whose walker_0 have other bounds, and a third one like the first."""

    class Higher(Walkers):
        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Box(7, 8, (1,))

    games = [Higher(FIRST), Walkers(FIRST), Higher(FIRST)]
    env = relay_env(*games)
    message = env.reset()
    assert {name: part.deciding.group_id.tolist() for name, part in message.steps.items()} == {
        "walker": [2],
        "walker-2": [1, 3],
    }
    env.step(chosen(message, {"walker": 1.0, "walker-2": -1.0}))
    assert [game.given for game in games] == [[{"walker_0": 7.0}], [{"walker_0": 4.0}], [{"walker_0": 7.0}]]


def test_bounds_that_texts_and_numpy_s_tolerance_do_not_tell_apart_are_others() -> None:
    class Fine(Walkers):
        def action_space(self, agent: str) -> spaces.Space:
            inner = [0.5, 0.5 + 1e-6][int(agent[-1])]
            return spaces.Box(np.zeros(3, np.float32), np.array([1, inner, 1], np.float32))

    assert sorted(relay_env(Fine(BOTH)).reset().new_specs) == ["walker", "walker-2"]


def test_names_of_an_earlier_session_are_kept_and_changed_spaces_go_on_with_a_warning(caplog: Any) -> None:
    low, high, other = (Identity("walker", spaces) for spaces in ("a", "b", "c"))
    names = BehaviorNames({"walker": high, "walker-2": low})
    names.add([low])
    names.add([high])
    assert (names[low], names[high]) == ("walker-2", "walker") and not caplog.records
    names = BehaviorNames({"walker": high, "walker-2": low})
    names.add([low, other])
    assert (names[low], names[other]) == ("walker-2", "walker")
    assert "walker: its spaces have changed since the run was saved, from b to c" in caplog.text
    names.add([high])
    assert names[high] == "walker-3"


@pytest.mark.usefixtures("runs")
def test_a_resumed_run_and_its_evaluation_have_the_names_of_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    """walker_1 is `walker-2`, also where it comes alone and walker_0 only later."""
    options: dict[str, Any] = {"trainer_type": "ppo", "max_steps": 96}
    options |= {"evaluation": {"interval": 32, "episodes": 2, "max_length": 4}}

    def make_pool(settings: RunSettings, seed: int, names: BehaviorNames) -> EnvPool:
        return EnvPool(worker_of(Walkers(SECOND)), 1, inline=True, wait=False, names=names)

    def train_with(*games: Walkers, **checkpoints: Any) -> dict[str, Any]:
        folders = {"run_id": "two", "results_dir": str(tmp_path / "results"), **checkpoints}
        changes = {"checkpoint_settings": folders, "env_settings": {"env_path": "gymnasium:CartPole-v1"}}
        longer = options | {"max_steps": 96 + 96 * bool(checkpoints)}
        settings = configured(tmp_path, changes=changes, **{"walker": options, "walker-2": longer})
        with environment(workers=len(games), make=worker_of(*games)) as started:
            train(settings, started=started)
        return json.loads((tmp_path / "results" / "two" / "run_logs" / "training_status.json").read_text())

    monkeypatch.setattr("jaxrl.training.host.evaluation.evaluation_pool", make_pool)
    status = train_with(Walkers(BOTH), Walkers(TURNED))
    first = {name: status[name]["final_checkpoint"]["steps"] for name in ("walker", "walker-2")}
    assert status["walker"]["identity"]["spaces"].startswith("Box(0.0, 1.0, (1,), float32) → Box(0.0, 4.0, (1,)")
    tables = {name: rows(tmp_path / "results" / "two" / name / "metrics.csv") for name in first}
    evaluated = {name: any(tag == "Evaluation/Episode Length" for _, tag, _ in tables[name]) for name in first}
    assert evaluated == {"walker": False, "walker-2": True}
    status = train_with(Walkers(SECOND), resume=True)
    assert status["walker-2"]["final_checkpoint"]["steps"] > first["walker-2"]
    assert status["walker"]["final_checkpoint"]["steps"] == first["walker"]


def chosen(message: EnvMessage, choices: dict[str, float]) -> dict[str, Action]:
    """By behavior its number for everybody who asks."""
    counts = {name: len(part.deciding.agent_id) for name, part in message.steps.items()}
    return {
        name: Action(np.full((count, 1), choices.get(name, 9.0), np.float32), np.zeros((count, 0), np.int32))
        for name, count in counts.items()
    }


@pytest.mark.parametrize("announced", [(), BOTH, TURNED], ids=["announced by nobody", "announced", "announced turned"])
@pytest.mark.parametrize("which", SETS)
def test_one_name_stands_for_one_kind_of_agents_in_all_workers(which: str, announced: Sequence[str]) -> None:
    """Who is sent -1 gets the lower bound: 0 where walker_0 is meant, 5 where walker_1 is, in every worker."""
    games = [Walkers(*episodes, announced=announced) for episodes in SETS[which]]
    with EnvPool(worker_of(*games), len(games), inline=True) as pool:
        pool.reset()
        for _ in range(4):
            for message in pool.recv(len(games)):
                pool.send(message.worker, chosen(message, {"walker": -1.0, "walker-2": 1.0}))
    assert {(agent, value) for game in games for step in game.given for agent, value in step.items()} == {
        ("walker_0", 0.0),
        ("walker_1", 9.0),
    }


class Meadow(Walkers):
    """Each episode shuffles the walkers; who acts as its lower bound plus 1 or 3 is paid the most, 0."""

    def __init__(self) -> None:
        super().__init__(BOTH)
        self.random = np.random.default_rng()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.random = self.random if seed is None else np.random.default_rng(seed)
        self.episodes = [tuple(self.random.permutation(BOTH))]
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> Any:
        obs, _, *flags = super().step(actions)
        best = {"walker_0": 1.0, "walker_1": 8.0}
        return obs, {agent: -abs(float(action[0]) - best[agent]) for agent, action in actions.items()}, *flags


@pytest.mark.usefixtures("runs")
def test_training_evaluation_continuation_and_a_loaded_policy_mean_the_same_agents(tmp_path: Path) -> None:
    """Four workers in other orders learn what each walker does best; a loop of one's own earns what evaluation told."""
    env = {"env_path": f"pettingzoo:{__name__}:Meadow", "num_envs": 4, "num_areas": 4}
    ppo = {"batch_size": 64, "buffer_size": 256, "learning_rate": 0.003, "learning_rate_schedule": "constant"}
    options = {"trainer_type": "ppo", "hyperparameters": ppo, "network_settings": {"normalize": False}}
    options |= {"evaluation": {"interval": 256, "episodes": 4, "max_length": 4}, "summary_freq": 256}

    def train_until(step: int, rate: float, **checkpoints: Any) -> dict[str, float]:
        folders = {"run_id": "meadow", "results_dir": str(tmp_path / "results"), **checkpoints}
        own: Any = options | {"max_steps": step, "hyperparameters": ppo | {"learning_rate": rate}}
        changes = {"checkpoint_settings": folders, "env_settings": env}
        settings = configured(tmp_path, changes=changes, **{"walker": own, "walker-2": own})
        with environment(workers=4, make=simulator.make_factory(f"{__name__}:Meadow", settings, "")) as started:
            train(settings, started=started)
        tables = {name: rows(tmp_path / "results" / "meadow" / name / "metrics.csv") for name in ("walker", "walker-2")}
        tag = "Evaluation/Cumulative Reward"
        return {name: [float(row[2]) for row in table if row[1] == tag][-1] for name, table in tables.items()}

    train_until(1536, 0.003)
    told = train_until(1792, 0.0, resume=True)
    assert min(told.values()) > -0.6  # of at most 3 from the middle, 2
    game = Meadow()
    obs, _ = game.reset(seed=5)
    names = {"walker_0": "walker", "walker_1": "walker-2"}
    load = partial(jaxrl.load, tmp_path / "results" / "meadow", game, deterministic=True)
    rewards = game.step({agent: load(behavior=name).act(obs[agent]) for agent, name in names.items()})[1]
    for agent, name in names.items():
        assert rewards[agent] == pytest.approx(told[name], abs=1e-5)

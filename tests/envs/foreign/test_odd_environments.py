"""Odd environments of others: `check-env` names what is odd, and what works trains and evaluates to the right value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.foreign.environment import area_seeds
from jaxrl.settings import RunSettings
from jaxrl.tools.check_host import check_host
from jaxrl.training.host.run import train
from tests.artifacts.test_csv_file import rows
from tests.envs.foreign import odd_environments
from tests.envs.foreign.odd_environments import CASES, MODULE, NOTES, Case
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.toy_runs import configured

AREAS, SEED, EPISODES, LONGEST = 2, 11, 4, 20
REPEATS = [name for name, case in CASES.items() if case.odd != "unseeded" and case.order != "worker"]
REWARD, TEAM = "Environment/Cumulative Reward", "Environment/Group Cumulative Reward"
EVALUATED, EVALUATED_TEAM = "Evaluation/Cumulative Reward", "Evaluation/Group Cumulative Reward"
WORKING = [name for name, case in CASES.items() if not case.problem and case.odd != "grows"]
QUICK = {
    ("tuple", 1),
    ("mask deep in a dict", 4),
    ("other bounds, shuffled by episode", 4),
    ("paid in another turn", 4),
    ("a shard for each worker", 4),
    ("spaces on request", 1),
}
"""Cases that are trained in every run of the tests, with so many workers."""


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry() -> Iterator[None]:
    """Programs run a few hundred times on little."""
    with quick_compilation():
        yield


@pytest.mark.parametrize("name", CASES)
def test_check_env_names_what_is_odd(name: str) -> None:
    case = CASES[name]
    result = check_host(case.address, [f"case='{name}'", *case.arguments], steps=24, inline=True)
    texts, others = (result.problems, result.remarks)[:: 1 if case.problem else -1]
    assert not others
    assert len(texts) == bool(case.check) and all(case.check in text for text in texts)
    assert result.episodes or case.problem or case.odd == "endless"


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=[] if (name, workers) in QUICK else pytest.mark.slow)
        for name in WORKING
        for workers in (1, 4)
    ],
)
def test_it_trains_and_evaluates_to_the_right_value(name: str, workers: int, tmp_path: Path) -> None:
    """Three oracles: what the games noted themselves, a loop of one's own with the same seeds, and the best return."""
    NOTES.clear()
    case, settings = CASES[name], settings_for(tmp_path, name, workers)
    train(settings)
    first = min((number for number, *_ in NOTES), default=0)  # the games of the training, then that of the evaluation
    notes = [(agent, value) for number, agent, value in NOTES if number < first + workers * AREAS]
    lives = played(name, {behavior: load(tmp_path, name, behavior) for behavior in settings.behaviors})
    for behavior in settings.behaviors:
        curves = told(tmp_path, behavior)
        trained = [value for agent, value in notes if case.behavior(agent) == behavior]
        count = int(curves.get("Environment/Finished Episodes", 0))
        assert 0.5 * len(trained) <= count <= len(trained)  # a behavior of many agents ends its training long before
        if case.odd != "endless":
            assert curves[TEAM if case.shares else REWARD] == pytest.approx(np.mean(trained[:count]), abs=1e-5)
        mine = [life for life in lives if case.behavior(life.agent) == behavior]
        tolerance = 1e-5 if name in REPEATS else 0.3
        assert curves[EVALUATED_TEAM if case.shares else EVALUATED] == pytest.approx(
            np.mean([life.earned for life in mine]), abs=tolerance
        )
        length = "Evaluation/Episode Length"
        assert curves[length] == pytest.approx(np.mean([life.decisions - 1 for life in mine]))
        assert case.odd == "zero sum" or fraction(case, mine) > (0.55 if case.continuous else 0.7)  # from 0.5, or less


@pytest.mark.slow
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", ["two kinds and images", "a shard for each worker"])
def test_processes_train_to_the_same_curves(name: str, tmp_path: Path) -> None:
    curves = []
    for inline in (True, False):
        settings = settings_for(tmp_path / str(inline), name, 4, inline=inline)
        train(settings)
        by_behavior = {behavior: told(tmp_path / str(inline), behavior) for behavior in settings.behaviors}
        curves.append({(who, tag): of[tag] for who, of in by_behavior.items() for tag in of if "Sec" not in tag})
    assert curves[0] == curves[1]


def settings_for(folder: Path, name: str, workers: int, *, inline: bool = True) -> RunSettings:
    """A few hundred steps, with one summary and one evaluation at their end."""
    case = CASES[name]
    steps = 1024 if case.continuous or case.pays else 512
    folder.mkdir(exist_ok=True)
    hyperparameters = {"batch_size": 32, "buffer_size": 128, "num_epoch": 3, "learning_rate": 0.01}
    if case.continuous:  # which is learned more slowly
        hyperparameters |= {"buffer_size": 64, "learning_rate": 0.03, "epsilon": 0.6}
    options = {
        "trainer_type": case.trainer,
        "hyperparameters": hyperparameters
        | {"learning_rate": 0.03 if case.continuous else 0.01, "learning_rate_schedule": "constant"},
        "network_settings": {
            **{"normalize": True, "hidden_units": 16, "num_layers": 1},
            "vis_encode_type": "match3" if case.odd == "small" else "simple",
        },
        "evaluation": {"interval": steps, "episodes": EPISODES, "max_length": LONGEST, "seed": SEED},
        **dict.fromkeys(("max_steps", "summary_freq", "checkpoint_interval"), steps),
    }
    environment = {"env_path": case.address, "env_args": [f"case='{name}'", *case.arguments], "inline": inline}
    environment |= {"num_envs": workers, "num_areas": AREAS, "seed": 3}
    behaviors = dict.fromkeys(sorted({case.behavior(agent) for agent in case.agents}), options)
    return configured(folder, run_id="odd", changes={"env_settings": environment}, **behaviors)


def told(folder: Path, behavior: str) -> dict[str, float]:
    """Return the last value of each curve of a behavior."""
    return {tag: float(value) for _, tag, value in rows(folder / "results" / "odd" / behavior / "metrics.csv")}


def made(name: str) -> Any:
    """Return one copy of a case, as somebody would make it."""
    kind = CASES[name].kind
    if kind == "gymnasium":
        return gymnasium.make(f"{MODULE}:Odd-v0", case=name, disable_env_checker=True)
    return odd_environments.Shared({"case": name}) if kind == "rllib" else getattr(odd_environments, kind)(name)


def load(folder: Path, name: str, behavior: str) -> Any:
    env = made(name)
    if CASES[name].kind in ("parallel_env", "env"):
        env.reset()  # one that announces nobody tells who is there
    return jaxrl.load(folder / "results" / "odd", env, behavior=behavior, deterministic=True)


class Life(NamedTuple):
    """One life of an agent in a loop of one's own."""

    agent: Any
    earned: float
    decisions: int


class Loop:
    """What agents decide and earn until they end; `lives` are those that have ended."""

    def __init__(self, case: Case, policies: Mapping[str, Any]) -> None:
        self.case, self.policies = case, policies
        self.lives: list[Life] = []
        self._open: dict[Any, Life] = {}

    def act(self, agent: Any, obs: Any, info: Mapping[str, Any] | None) -> Any:
        life = self._open.get(agent, Life(agent, 0.0, 0))
        self._open[agent] = life._replace(decisions=life.decisions + 1)
        return self.policies[self.case.behavior(agent)].act(obs, (info or {}).get("action_mask"))

    def pay(self, rewards: Mapping[Any, Any]) -> None:
        for agent, life in self._open.items():
            self._open[agent] = life._replace(earned=life.earned + float(np.sum(rewards.get(agent, 0.0))))

    def end(self, agents: Any) -> None:
        self.lives += [self._open.pop(agent) for agent in list(agents) if agent in self._open]

    def end_all(self) -> None:
        self.end(self._open)


def played(name: str, policies: Mapping[str, Any]) -> list[Life]:
    """Play the games that the evaluation plays: the same seeds, as many of each copy."""
    loop = Loop(CASES[name], policies)
    play = {"gymnasium": play_single, "parallel_env": play_parallel, "env": play_turns, "rllib": play_rllib}
    for seed in area_seeds(SEED, AREAS):
        env = made(name)
        for game in range(EPISODES // AREAS):
            play[CASES[name].kind](env, loop, None if game else seed)
            loop.end_all()
            if loop.case.odd == "endless":
                break
    return loop.lives


def play_single(env: Any, loop: Loop, seed: int | None) -> None:
    obs, info = env.reset(seed=seed)
    over, steps = False, 0
    while not over and steps < LONGEST:
        obs, reward, terminated, truncated, info = env.step(loop.act("agent", obs, info))
        loop.pay({"agent": reward})
        over, steps = bool(terminated or truncated), steps + 1


def play_parallel(env: Any, loop: Loop, seed: int | None) -> None:
    obs, infos = env.reset(seed=seed)
    dead: set[Any] = set()
    while set(env.agents) - dead:
        asked = [agent for agent in env.agents if agent in obs and agent not in dead]
        obs, rewards, terminated, truncated, infos = env.step(
            {agent: loop.act(agent, obs[agent], infos.get(agent)) for agent in asked}
        )
        loop.pay(rewards)
        dead = {agent for of in (terminated, truncated) for agent, flag in of.items() if flag}
        loop.end({*dead, *(agent for agent in asked if agent not in env.agents)})


def play_turns(env: Any, loop: Loop, seed: int | None) -> None:
    env.reset(seed=seed)
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, info = env.last()
        loop.pay({agent: reward})
        over = terminated or truncated
        if over:
            loop.end([agent])
        env.step(None if over else loop.act(agent, obs, info))


def play_rllib(env: Any, loop: Loop, seed: int | None) -> None:
    obs, infos = env.reset(seed=seed)
    over, dead = False, set[Any]()
    while not over:
        actions = {agent: loop.act(agent, obs[agent], infos.get(agent)) for agent in obs if agent not in dead}
        obs, rewards, terminated, truncated, infos = env.step(actions)
        loop.pay(rewards)
        dead = {agent for of in (terminated, truncated) for agent, flag in of.items() if flag}
        loop.end(dead)
        over = terminated["__all__"] or truncated.get("__all__", False)


def fraction(case: Case, lives: list[Life]) -> float:
    """Return what actions have earned of the most that they can: 1 for each decision."""
    return sum(life.earned - case.paid(life.agent) for life in lives) / sum(life.decisions for life in lives)

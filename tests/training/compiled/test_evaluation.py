"""Evaluation episodes of the compiled loop: by hand, without a trace in the training, and what a run does with them."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.algorithms.connected import deterministic
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.store import read_info
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.metrics.statistics import FINISHED_EPISODES
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamView, advance_areas, start_areas, team_step
from jaxrl.settings import EvaluationSettings, RunSettings, load_run_settings
from jaxrl.settings.records import CUT
from jaxrl.training.compiled.run import train
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.first_look import FirstLook
from tests.artifacts.test_csv_file import rows
from tests.helpers import make_spec, settings_of
from tests.jax_envs.toy_jax_env import NAME, ToySettings, make_toy, quick_compilation, quick_jit
from tests.training.compiled.alone import evaluate

OPTIONS = EvaluationSettings(interval=100, episodes=6, seed=5)
FIGURES = ("reward", "length", "group_reward")
REWARD, GROUP, LENGTH = (
    f"Evaluation/{name}" for name in ("Cumulative Reward", "Group Cumulative Reward", "Episode Length")
)
TINY = {
    "hyperparameters": {
        "batch_size": 16,
        "buffer_size": 64,
        "num_epoch": 1,
        "learning_rate": 0.003,
        "learning_rate_schedule": "constant",
    },
    "network_settings": {"hidden_units": 8, "num_layers": 1},
}


def by_hand(env: JaxEnv, settings: Any, policy: Any, options: EvaluationSettings) -> dict[str, list[float]]:
    """Returns and lengths of one seed's agents and teams, area by area with plain sums."""
    act = quick_jit(ALGORITHMS[settings.trainer_type](env.spec, settings).act)
    begin, noise = jax.random.split(jax.random.key(options.seed))
    parameters = {name: jnp.full(options.episodes, value, jnp.float32) for name, value in env.parameters.items()}
    areas, view = start_areas(env, begin, options.episodes, parameters)
    advance = quick_jit(partial(advance_areas, env))
    lead = (options.episodes, env.members)
    own, length, team = np.zeros(lead), np.zeros(lead), np.zeros(options.episodes)
    over, found = np.zeros(options.episodes, bool), {"own": [], "length": [], "team": []}
    while not over.all():
        decision = act(policy, view.obs, view.action_mask, (), noise)
        areas, result = advance(areas, TeamActions(*decision.sent), parameters)
        step, alive, counts = result.step, np.asarray(view.alive), ~over[:, None]
        own += np.where(alive, step.reward, 0.0)
        team += np.asarray(step.group_reward).max(-1)
        ended = np.asarray(step.terminated | step.truncated) & counts
        found["own"] += own[ended].tolist()
        found["length"] += length[ended].tolist()
        length += alive
        found["team"] += team[np.asarray(step.over) & ~over].tolist()
        over |= np.asarray(step.over)
        view = result.view
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "toy"), [("ppo", ToySettings(die=True)), ("poca", ToySettings(truncates=True))])
def test_the_figures_are_those_of_plain_sums(trainer: str, toy: ToySettings) -> None:
    env = make_toy(toy._replace(members=3))
    settings = settings_of(trainer, {**TINY, "network_settings": {**TINY["network_settings"], "deterministic": True}})
    algorithm = ALGORITHMS[trainer](env.spec, settings)
    train = jax.vmap(algorithm.init)(jax.random.split(jax.random.key(1), 2))
    parameters = {"red": jnp.full(2, 0.5, jnp.float32)}
    program = quick_jit(partial(evaluate, env, deterministic(env.spec, settings), OPTIONS))
    figures, cut = jax.device_get(program(train.policy, parameters))
    assert not cut.any()
    for seed in range(2):
        found = by_hand(env, settings, jax.tree.map(lambda x, seed=seed: x[seed], train.policy), OPTIONS)
        kinds = {"own": figures.reward, "length": figures.length, "team": figures.group_reward}
        for name, moments in kinds.items():
            assert moments.count[seed] == len(found[name]) > 0
            np.testing.assert_allclose(moments.total[seed], sum(found[name]), rtol=1e-5)
        assert figures.group_reward.count[seed] == OPTIONS.episodes and figures.reward.count[seed] == 18


def uneven() -> JaxEnv:
    """Episodes of one decision that earn nothing, and of 20: 0.05 for each decision of both members, 1 for the team.

    Member 1 ends with decision 5, after which member 0 goes on alone.
    """
    spec = make_spec((1,), branches=(2,))

    def view(clock: Any, over: Any) -> TeamView:
        alive = (jnp.arange(2) == 0) | (clock < 5)
        return TeamView((jnp.zeros((2, 1)),), jnp.ones((2, 2), bool), alive & ~over)

    def reset(key: Any, _: Any) -> Any:
        return (jnp.int32(0), jax.random.bernoulli(key)), view(jnp.int32(0), jnp.bool_(False))

    def step(_: Any, state: Any, actions: Any) -> Any:
        (clock, long), alive = state, view(state[0], jnp.bool_(False)).alive
        over = clock + 1 >= jnp.where(long, 20, 1)
        ended = alive & (over | ((jnp.arange(2) == 1) & (clock + 1 == 5)))
        return (clock + 1, long), team_step(
            view(clock + 1, over),
            reward=alive * long * 0.05,
            group_reward=alive * long * 1.0,
            terminated=ended,
            over=over,
            figures={},
        )

    return JaxEnv(NAME, spec, 2, {}, reset, step)


def test_episodes_that_are_not_over_in_time_count_with_what_they_have_earned() -> None:
    """Of k long episodes 10 decisions are played: member 0 has 0.5 and 10 decisions, member 1 has ended with 0.25."""
    env, settings = uneven(), settings_of("ppo", TINY)
    policy = jax.vmap(ALGORITHMS["ppo"](env.spec, settings).init)(jax.random.split(jax.random.key(1), 2)).policy
    options = EvaluationSettings(interval=1, episodes=16, max_length=10)
    found = jax.device_get(quick_jit(partial(evaluate, env, deterministic(env.spec, settings), options))(policy, {}))
    (long, same), episodes = found.cut, found.episodes
    assert 0 < long == same < 16
    for seed in range(2):
        totals = {name: (getattr(episodes, name).count[seed], getattr(episodes, name).total[seed]) for name in FIGURES}
        assert totals == {
            "reward": (32, pytest.approx(long * (0.5 + 0.25))),
            "length": (32, pytest.approx(long * (9 + 4))),
            "group_reward": (16, pytest.approx(long * 10.0)),
        }


def test_training_does_not_notice_an_evaluation() -> None:
    env, settings = make_toy(ToySettings(die=True)), settings_of("ppo", TINY)
    with quick_compilation():
        trainer = make_jitted_trainer(env, ALGORITHMS["ppo"](env.spec, settings), settings, areas=4, seeds=2)
    program, ends = quick_jit(partial(evaluate, env, deterministic(env.spec, settings), OPTIONS)), []
    for wanted in (False, True):
        state, found = trainer.init((3, 4)), []
        for _ in range(3):
            state, _ = trainer.run(state, 1)
            found += [jax.device_get(program(state.train.policy, state.parameters))] * wanted
        ends.append(to_arrays(state))
        if found:  # the same episodes: what differs was learned
            assert (found[0].episodes.reward.count == found[2].episodes.reward.count).all()
    assert ends[0].keys() == ends[1].keys()
    assert [name for name in ends[0] if ends[0][name].tobytes() != ends[1][name].tobytes()] == []


def run_settings(folder: Path, run_id: str, **behavior: Any) -> RunSettings:
    written = {
        "behaviors": {
            NAME: {
                "trainer_type": "ppo", **TINY, "max_steps": 5000, "summary_freq": 400, "checkpoint_interval": 2000,
                **behavior,
            }
        },
        "env_settings": {"env_path": "tests.jax_envs.toy_jax_env:make_toy", "num_areas": 4, "seed": 1, "seeds": 2},
        "checkpoint_settings": {"run_id": run_id, "results_dir": str(folder / "results")},
    }  # fmt: skip
    path = folder / f"{run_id}.yaml"
    path.write_text(yaml.safe_dump(written))
    return load_run_settings(path, {}, HYPERPARAMETER_TYPES)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def test_a_run_evaluates_keeps_its_best_and_stops(tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it has decided and ended is told to the look after the first minute."""
    looked: list[tuple[str, int, int]] = []
    monkeypatch.setattr(FirstLook, "acted", lambda self, *told: looked.append(told))
    ours = {"evaluation": {"interval": 500, "episodes": 20}, "keep_best": REWARD, "stop": {REWARD: 0.9}}
    with quick_compilation():
        train(run_settings(tmp_path, "run", **ours))
    run = tmp_path / "results" / "run"
    tables = {seed: rows(run / NAME / f"seed_{seed}" / "metrics.csv") for seed in (1, 2)}
    curves = {
        seed: {int(step): float(value) for step, tag, value in table if tag == REWARD} for seed, table in tables.items()
    }
    finished = sum(float(v) for of in tables.values() for _, tag, v in of if tag == FINISHED_EPISODES)
    assert {name for name, _, _ in looked} == {NAME}
    assert sum(decisions for _, decisions, _ in looked) == checkpoints(run / NAME)[-1].step
    assert 0 < finished <= sum(episodes for _, _, episodes in looked) <= finished + 200
    steps = list(curves[1])
    assert steps[0] == 500 and all(step % 500 == 0 for step in steps) and list(curves[2]) == steps
    assert {tag for _, tag, _ in tables[1] if tag.startswith("Evaluation/")} == {REWARD, GROUP, LENGTH, CUT}
    # it ends once each seed has reached it, not before and not later
    reached = [min(step for step, value in curve.items() if value >= 0.9) for curve in curves.values()]
    last = checkpoints(run / NAME)[-1].step
    assert max(reached) == steps[-1] and steps[-1] <= last < steps[-1] + 100 < 5000
    assert "Evaluation/Cumulative Reward has been at least 0.9 (stop) in every seed" in log.text
    # the best moment is the first one with the highest value of any seed
    best = json.loads((run / "run_logs" / "training_status.json").read_text())[NAME]["best_checkpoint"]
    highest = max(value for curve in curves.values() for value in curve.values())
    assert best["value"] == highest and best["statistic"] == REWARD
    at = min(step for step in steps if max(curve[step] for curve in curves.values()) == highest)
    assert at <= best["steps"] < at + 100 and curves[best["seed"]][at] == highest
    info = read_info(run / NAME / f"{NAME}-best")
    assert info.step == best["steps"] and info.leaves["train/step"]["shape"] == []
    assert (info.settings["seeds"], info.settings["first_seed"]) == (1, best["seed"])  # whose it is
    assert (run / NAME / f"{NAME}-best.onnx").is_file() and best["file_path"].endswith(f"{NAME}-best.onnx")
    assert f"{NAME}-best" not in (run / NAME / "checkpoint").read_text()  # nobody resumes from it


@pytest.mark.slow
def test_the_rest_of_a_run_is_what_it_is_without_evaluations(tmp_path: Path) -> None:
    tables, policies = [], []
    for run_id, ours in (("with", {"evaluation": {"interval": 300}, "keep_best": REWARD}), ("without", {})):
        with quick_compilation():
            train(run_settings(tmp_path, run_id, max_steps=2000, **ours))
        run = tmp_path / "results" / run_id
        found = rows(run / NAME / "seed_2" / "metrics.csv")
        tables.append([row for row in found if not row[1].startswith(("Evaluation/", "Time/"))])
        policies.append((run / f"{NAME}.onnx").read_bytes())
    assert policies[0] == policies[1]
    assert [row[:2] for row in tables[0]] == [row[:2] for row in tables[1]] and len(tables[0]) > 50
    values = [[float(row[2]) for row in table] for table in tables]
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-6)  # chunks of other lengths are added up in other orders


@pytest.mark.slow
def test_a_best_checkpoint_can_be_started_from(tmp_path: Path, log: Any) -> None:
    with quick_compilation():
        train(run_settings(tmp_path, "run", max_steps=900, keep_best="Environment/Cumulative Reward"))
        path = tmp_path / "results" / "run" / NAME / f"{NAME}-best"
        train(run_settings(tmp_path, "next", max_steps=1, init_path=str(path)))
    assert f"initialized from {path}" in log.text


def test_episodes_follow_from_the_seed_of_the_evaluation() -> None:
    """One policy: the same episodes for one seed, others for another one."""
    env, settings = make_toy(ToySettings(die=True)), settings_of("ppo", TINY)
    policy = jax.vmap(ALGORITHMS["ppo"](env.spec, settings).init)(jax.random.split(jax.random.key(1), 1)).policy
    parameters, totals = {"red": jnp.full(1, 0.5, jnp.float32)}, []
    for seed in (5, 6):
        options = OPTIONS.model_copy(update={"seed": seed})
        program = quick_jit(partial(evaluate, env, deterministic(env.spec, settings), options))
        first, second = (jax.device_get(program(policy, parameters)).episodes.length for _ in range(2))
        assert first.total == second.total and first.count == second.count
        totals.append(float(first.total[0]))
    assert totals[0] != totals[1]

"""Bad input to a compiled run: one clear error each, exit code 1, and nothing is written."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import yaml

from jaxrl.algorithms import ALGORITHMS
from jaxrl.cli import main
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.contract import JaxEnvError, check_jax_env
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.training.compiled.checks import faults
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.state import IterationLog
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.compiled.updates import METRIC, PARAMETERS, fault_of
from jaxrl.training.errors import DivergedError
from tests.helpers import ppo_settings
from tests.jax_envs.toy_jax_env import NAME, ToySettings, make_toy, quick_compilation

CONFIG = {
    "behaviors": {
        NAME: {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 16, "buffer_size": 64, "num_epoch": 1},
            "network_settings": {"hidden_units": 8, "num_layers": 1},
        }
    },
    "env_settings": {"env_path": "jax:toy", "num_areas": 3, "seed": 5},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own; what the command line changes in this process is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXRL_CACHE_DIR", str(tmp_path.parent / "cache"))
    monkeypatch.setattr("jaxrl.cli.device.enable_compilation_cache", lambda: None)
    monkeypatch.setitem(ENVIRONMENTS, "toy", make_toy)
    logger = logging.getLogger("jaxrl")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def train(changes: dict[str, Any], *flags: str) -> int:
    """`jaxrl train` with keys of the configuration changed, joined by dots."""
    settings = yaml.safe_load(yaml.safe_dump(CONFIG))
    for key, value in changes.items():
        *path, last = key.split(".")
        section = settings
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    Path("config.yaml").write_text(yaml.safe_dump(settings))
    return main(["train", "config.yaml", *flags])


BAD_INPUT = [
    ({}, ["--env", "jax:dungeon_escpe"], ["jax:dungeon_escpe", "did you mean dungeon_escape?", "soccer_twos"]),
    ({}, ["--env", "jax:"], ["jax:", "no such environment", "basic"]),
    ({}, ["--env", "jax:basic"], ["Basic", NAME]),
    ({}, ["--num-envs", "2"], ["env_settings.num_envs: got 2, expected 1", "jax:toy", "num_areas"]),
    ({"env_settings.env_args": ["-x"]}, [], ["env_settings.env_args: got '-x', expected key=value"]),
    ({}, ["--inline"], ["env_settings.inline: got true", "jax:toy"]),
    ({}, ["--mode", "async"], ["env_settings.mode: got async", "jax:toy"]),
    ({}, ["--inference"], ["checkpoint_settings.inference", "jaxrl watch"]),
    ({}, ["--env", "player:dungeon_escape", "--seeds", "3"], ["env_settings.seeds: got 3, expected 1", "jax:NAME"]),
    ({}, ["--resume"], ["results/ppo", "--resume has nothing to continue"]),
    ({"environment_parameters.rde": 1.0}, [], ["environment_parameters.rde", "did you mean red?", NAME]),
]


@pytest.mark.parametrize(("changes", "flags", "words"), BAD_INPUT, ids=[" ".join([*b[0], *b[1]]) for b in BAD_INPUT])
def test_one_error_and_nothing_written(
    changes: dict[str, Any], flags: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(changes, *flags) == 1
    error = capsys.readouterr().err
    assert [word for word in words if word not in error] == [], error
    assert len(error.strip().splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["config.yaml"]


def wrong(**changes: Any) -> JaxEnv:
    """The toy with other functions."""
    return make_toy()._replace(**changes)


def small_mask(key: Any, parameters: Any) -> Any:
    state, view = make_toy().reset(key, parameters)
    return state, view._replace(action_mask=view.action_mask[:, :1])


def whole_reward(key: Any, state: Any, actions: Any) -> Any:
    state, step = make_toy().step(key, state, actions)
    return state, step._replace(reward=step.reward.astype(int))


def no_view(key: Any, state: Any, actions: Any) -> Any:
    state, step = make_toy().step(key, state, actions)
    return state, step._replace(view=step.view.obs)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (make_toy(ToySettings(breaks="jit")), ["step cannot be compiled", "lax.cond"]),
        (make_toy(ToySettings(breaks="shape")), ["the state after a step.alive is bool[3], asked for is bool[2]"]),
        (wrong(reset=small_mask), ["the view that reset returns.action_mask is bool[2, 1], asked for is bool[2, 2]"]),
        (wrong(step=whole_reward), ["what step returns.reward is int32[2], asked for is float32[2]"]),
        (wrong(step=no_view), ["what step returns has structure", "asked for"]),
        (wrong(reset=lambda key, parameters: 1), ["reset returns"]),
    ],
    ids=["jit", "shape", "mask", "dtype", "structure", "no pair"],
)
def test_environments_that_break_their_contract(env: JaxEnv, words: list[str]) -> None:
    """Found by tracing alone; the command line prints the text of a JaxrlError and exits with 1."""
    with pytest.raises(JaxEnvError) as error:
        check_jax_env(env)
    assert [word for word in [NAME, *words] if word not in str(error.value)] == [], error.value


def test_broken_environment_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ENVIRONMENTS, "toy", lambda: make_toy(ToySettings(breaks="jit")))
    assert train({}) == 1
    error = capsys.readouterr().err
    assert f"{NAME}: step cannot be compiled" in error and len(error.strip().splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["config.yaml"]


@pytest.fixture(scope="module")
def logs() -> dict[str, IterationLog]:
    """Of two iterations each: of a good run; with NaN seen in seed 1, area 2, decision 3, and after the last one."""
    env, settings = make_toy(ToySettings(length=100)), ppo_settings(
        hyperparameters__buffer_size=30, network_settings__hidden_units=8, network_settings__num_layers=1
    )  # fmt: skip
    algorithm = ALGORITHMS["ppo"](env.spec, settings)
    with quick_compilation():
        trainer = make_jitted_trainer(env, algorithm, settings, areas=3, seeds=2)
    assert trainer.steps == 5

    def run(nan_at: int | None) -> IterationLog:
        state = trainer.init([5, 6])
        clock = np.full((2, 3), 1000, np.int32)
        if nan_at is not None:
            clock[1, 2] = nan_at
        areas = state.play.areas._replace(state=state.play.areas.state._replace(nan_at=clock))
        return jax.device_get(trainer.run(state.replace(play=state.play._replace(areas=areas)), 2)[1])

    return {"good": run(None), "within": run(8), "after": run(10)}


SUBJECT = Subject(NAME, make_toy().spec, ppo_settings(), (5, 6), 3)


def test_good_numbers_pass(logs: dict[str, IterationLog]) -> None:
    assert faults(SUBJECT, logs["good"]) == {}


@pytest.mark.parametrize(("log", "step"), [("within", 3), ("after", 5)])
def test_nan_of_an_environment_names_seed_area_and_step(logs: dict[str, IterationLog], log: str, step: int) -> None:
    """Also when it is what the last decision of a chunk bootstraps from: the learner is not blamed for it."""
    words = f"{NAME}: the environment gave an observation .* seed 6, area 2, decision {step} of iteration 1"
    found = faults(SUBJECT, logs[log])
    assert list(found) == [1] and isinstance(found[1], JaxEnvError) and re.match(words, str(found[1]))


@pytest.mark.parametrize("log", ["within", "after"])
def test_a_sick_iteration_tells_nothing_and_the_other_seed_tells_all(logs: dict[str, IterationLog], log: str) -> None:
    """Of two iterations the second is sick: one update is left of seed 6, and no number that is not finite."""
    assert logs[log].updates.tolist() == [2, 1] and logs["good"].updates.tolist() == [2, 2]
    for told, good in zip(
        jax.tree.leaves(logs[log]._replace(fault=())), jax.tree.leaves(logs["good"]._replace(fault=())), strict=True
    ):
        assert np.isfinite(told).all()
        if np.ndim(told):
            assert told[0] == good[0]


def test_numbers_of_the_learner_name_seed_and_figure(logs: dict[str, IterationLog]) -> None:
    names = sorted(logs["good"].metrics)
    fault = np.array([[-1, -1, -1, -1], [4, names.index("value_loss"), 0, METRIC]])
    (index, error), *none = faults(SUBJECT, logs["good"]._replace(fault=fault)).items()
    assert (index, none) == (1, []) and isinstance(error, DivergedError)
    assert str(error).startswith(f"{NAME}, seed 6: value_loss is nan in iteration 4") and "learning_rate" in str(error)
    fault[1] = [4, 0, 0, PARAMETERS]
    error = faults(SUBJECT, logs["good"]._replace(fault=fault))[1]
    assert str(error).startswith(f"{NAME}, seed 6: its parameters are not finite in iteration 4")


class Learned(NamedTuple):
    policy: np.ndarray
    critic: np.ndarray


GOOD = Learned(np.zeros(3, np.float32), np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("metrics", "learned", "due", "expected"),
    [
        ({"a": 1.0, "b": 2.0}, GOOD, True, [-1, -1, -1]),
        ({"b": np.inf, "a": 1.0}, GOOD, True, [1, 1, METRIC]),
        ({"b": -np.inf, "a": np.nan}, GOOD, True, [0, 0, METRIC]),
        ({"a": 1.0, "b": 2.0}, GOOD._replace(critic=np.array([1, np.nan], np.float32)), True, [0, 0, PARAMETERS]),
        ({"a": np.nan, "b": 2.0}, GOOD, False, [-1, -1, -1]),  # nobody takes what was learned
    ],
)
def test_what_of_an_update_is_not_finite(metrics: Any, learned: Any, due: bool, expected: list[int]) -> None:
    numbers = {name: np.float32(value) for name, value in metrics.items()}
    nothing, seen = np.full(3, -1, np.int32), np.array([3, 2, 1], np.int32)
    assert fault_of(nothing, np.bool_(due), numbers, learned).tolist() == expected
    assert fault_of(seen, np.bool_(due), numbers, learned).tolist() == [3, 2, 1]  # the environment's come first


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch_mode": "complete_episodes"}, "batch_mode: got complete_episodes, expected fragments"),
        ({"max_episode_length": 5}, "max_episode_length: got 5, expected null in a compiled run"),
    ],
)
def test_what_only_the_host_loop_samples_is_refused(
    changes: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train({f"behaviors.{NAME}.{key}": value for key, value in changes.items()}) == 1
    assert text in (error := capsys.readouterr().err) and "player:NAME" in error
    assert not Path("results").exists()

"""Population based training: who learns from whom, and that nothing else of a member changes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.files import ArtifactError
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.settings.sweep import Space, space
from jaxrl.training.compiled.play import Play
from jaxrl.training.compiled.population import (
    DRAWN_ANEW,
    PopulationLoop,
    _append,
    first_generation,
    next_generation,
    train_population,
)
from jaxrl.training.compiled.recent_returns import RecentReturns, Tally, none_yet
from jaxrl.training.compiled.state import JittedState, Report, SceneState
from jaxrl.training.interrupt import Interrupt
from tests.jax_envs.toy_jax_env import NAME

RATE = "hyperparameters.learning_rate"
SPACES = {RATE: Space(1e-5, 1e-1, log=True)}


def test_the_worst_quarter_learns_from_the_best():
    scores = np.array([3.0, 1.0, 8.0, np.nan, 5.0, 7.0, 2.0, 4.0])
    before = np.float32([1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4])
    factors, anew, draws = [], 0, 200
    for seed in range(draws):
        found = next_generation(scores, {RATE: before}, SPACES, np.random.default_rng(seed))
        changed = np.flatnonzero(found.parents != np.arange(8))
        assert changed.tolist() == [1, 3] and set(found.parents[changed]) <= {2, 5}  # worst: NaN and 1; best: 8 and 7
        rest = [0, 2, 4, 5, 6, 7]
        np.testing.assert_array_equal(found.values[RATE][rest], before[rest])
        for member in (1, 3):
            factor = found.values[RATE][member] / before[found.parents[member]]
            if np.isclose(factor, 0.8) or np.isclose(factor, 1.25):
                factors.append(round(float(factor), 2))
            else:
                anew += 1
                assert 1e-5 <= found.values[RATE][member] <= 1e-1
    assert abs(anew / (2 * draws) - DRAWN_ANEW) < 0.08  # 3.7 standard deviations
    assert 0.4 < factors.count(0.8) / len(factors) < 0.6


@pytest.mark.parametrize("names", [(NAME,), ("Lamp", "Dial")])
def test_a_copy_does_not_remember_what_the_loser_knew(names: tuple[str, ...]):
    """Areas stay where they are: what stands in their memory are the loser's numbers, which the copy cannot read.

    It has the best one's recent returns, and its rate times 0.8 or 1.25; the others keep theirs. Of several
    behaviors all learners of a member go together; what it is worth is the mean over them.
    """
    rows = np.arange(1.0, 5.0, dtype=np.float32)
    none, parts, members, reports = jnp.zeros(4), {}, [], {}
    rate, tally = 1 / 16, Tally(jnp.asarray(rows), jnp.asarray(rows) * 2, jnp.asarray(rows) * 3, jnp.asarray(rows) * 4)
    for i, name in enumerate(names):
        train = TrainState(policy=rows + 10 * i, critic=(), optimizer=(), own={}, signals={}, step=rows, key=rows)
        carry = {"actor": jnp.broadcast_to(rows[:, None, None, None], (4, 2, 3, 5))}
        parts[name] = JittedState(
            train=train, store=(), fresh=none, play=Play((), rows, (), carry, open=()), parameters={},
            values={RATE: none + rate},
            key=none, iteration=none, frozen=none > 0, recent=RecentReturns(tally, tally),
        )  # fmt: skip
        scores = np.array([[3.0, 1.0, 8.0, 2.0], [0.0, 1.0, 1.0, 9.0]][i])  # the mean's best is the third or the fourth
        statistics = SimpleNamespace(recent_reward=lambda scores=scores: scores, frozen=np.zeros(4, bool))
        recorder = SimpleNamespace(statistics=statistics)
        members.append(SimpleNamespace(recorder=recorder, name=name))
        reports[name] = Report(none, np.zeros(4, bool), none, {RATE: np.full(4, rate)}, none_yet(4), ())
    loop = SimpleNamespace(
        members=SimpleNamespace(parts=members), spaces=SPACES, targets={RATE: [(name, RATE) for name in names]}, seed=0,
        _tell=lambda *_: None, trainer=SimpleNamespace(place=lambda state: state),
    )  # fmt: skip
    state = SceneState(areas=(), parts=parts, parameters={})  # pyright: ignore[reportArgumentType]
    after = PopulationLoop.evolved(loop, state, reports, 10)  # pyright: ignore[reportArgumentType]
    best = 3 if len(names) == 1 else 4
    for i, name in enumerate(names):
        part = after.parts[name]
        assert part.train.policy.tolist() == [of + 10 * i for of in (1, best, 3, 4)]
        assert part.train.key.tolist() == part.play.view.tolist() == rows.tolist()
        assert np.asarray(part.play.carry["actor"])[:, 0, 0, 0].tolist() == [1, 0, 3, 4]
        first, changed, *others = part.values[RATE].tolist()
        assert [first, *others] == [rate] * 3 and changed in (np.float32(0.8 * rate), 1.25 * rate)
        assert changed == after.parts[names[0]].values[RATE][1]
        inherited = [[1.0, best, 3.0, 4.0], [2.0, 2 * best, 6.0, 8.0], [3.0, 3 * best, 9.0, 12.0]]
        assert [[*x] for of in part.recent for x in of[:3]] == inherited * 2


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX")
def test_the_table_goes_on_and_one_of_a_stranger_is_one_sentence(tmp_path: Path):
    path = tmp_path / "population.csv"
    rows = [{"step": step, "member": 3, "score": 0.5} for step in (10, 20, 20)]
    for row in rows:
        _append(path, [row])
    assert path.read_bytes() == b"step,member,score\r\n10,3,0.5\r\n20,3,0.5\r\n"
    for content in (b"step,member,score\nten,3,0.5\n", b"\xff\n\xff\n", b"a\n1\n", None):
        path.unlink()
        os.mkfifo(path) if content is None else path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"population\.csv: cannot be read \("):
            _append(path, rows[:1])


def test_values_stay_in_their_space():
    spaces = {"a": Space(0.9, 1.0), "b": Space(choices=(0.5, 0.9, 0.99))}
    values = {"a": np.float32([0.95, 1.0]), "b": np.float32([0.5, 0.9])}
    for seed in range(50):
        found = next_generation(np.array([0.0, 1.0]), values, spaces, np.random.default_rng(seed))
        assert found.parents.tolist() == [1, 1] and 0.9 <= found.values["a"][0] <= 1.0
        assert min(abs(found.values["b"][0] - choice) for choice in (0.5, 0.9, 0.99)) < 1e-6


def test_nobody_learns_from_a_member_without_a_score():
    scores, values = np.array([np.nan, 1.0, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan]), {RATE: np.full(8, 1e-3)}
    for seed in range(20):
        found = next_generation(scores, values, SPACES, np.random.default_rng(seed))
        changed = np.flatnonzero(found.parents != np.arange(8))
        assert set(found.parents[changed]) == {1}


def test_whole_numbers_stay_whole():
    spaces, values = {"a": Space(1, 40, whole=True)}, {"a": np.float32([7, 7, 7, 7])}
    drawn = first_generation(spaces, 100, np.random.default_rng(0))["a"]
    assert all(value.is_integer() and 1 <= value <= 40 for value in drawn) and len(set(drawn)) > 20
    found = [next_generation(np.arange(4.0), values, spaces, np.random.default_rng(seed)) for seed in range(40)]
    changed = {float(of.values["a"][0]) for of in found}
    assert {6.0, 9.0} <= changed and all(value.is_integer() for value in changed)  # 5.6 and 8.75
    with pytest.raises(SettingsError, match=r"--search a=1e-3:1e-2:int: expected .* :int \(both whole\)"):
        space("a=1e-3:1e-2:int")


def test_parameters_of_the_environment_are_refused(tmp_path: Path):
    path, env = tmp_path / "config.yaml", "tests.jax_envs.toy_jax_env:make_toy"
    path.write_text(
        f"behaviors: {{{NAME}: {{trainer_type: ppo}}}}\nenv_settings: {{env_path: {env}, seed: 1, seeds: 4}}"
    )
    spaces = {"environment_parameters.red": Space(0.0, 1.0)}
    with pytest.raises(SettingsError, match=r"--search environment_parameters\.red: members of a population differ in"):
        train_population(load_run_settings(path, {}, HYPERPARAMETER_TYPES), spaces, 0, Console(), Interrupt())


def test_the_first_values_are_spread_over_the_space():
    drawn = first_generation(SPACES, 400, np.random.default_rng(0))[RATE]
    logs = np.log10(drawn)
    assert logs.min() > -5 and logs.max() < -1 and abs(logs.mean() + 3) < 0.2

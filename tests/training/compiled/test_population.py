"""Population based training: who learns from whom, and that nothing else of a member changes."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.files import ArtifactError
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.settings.sweep import Space, space
from jaxrl.training.compiled.loop import JittedLoop
from jaxrl.training.compiled.play import Play
from jaxrl.training.compiled.population import (
    DRAWN_ANEW,
    Generation,
    PopulationLoop,
    _append,
    _changed,
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
    behaviors all learners of a member go together; what it is worth is the mean over them. The loser here had been left
    behind: its copy learns again, and tells so. Each generation draws anew.
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
            key=none, iteration=none, frozen=rows == 2.0, recent=RecentReturns(tally, tally),
        )  # fmt: skip
        scores = np.array([[3.0, 1.0, 8.0, 2.0], [0.0, 1.0, 1.0, 9.0]][i])  # the mean's best is the third or the fourth
        statistics = SimpleNamespace(recent_reward=lambda scores=scores: scores, frozen=rows == 2.0)
        recorder = SimpleNamespace(statistics=statistics)
        members.append(SimpleNamespace(recorder=recorder, name=name))
        reports[name] = Report(none, rows == 2.0, none, {RATE: np.full(4, rate)}, none_yet(4), ())
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
        assert not np.asarray(part.frozen).any() and not members[i].recorder.statistics.frozen.any()
    later = [PopulationLoop.evolved(loop, state, reports, step) for step in (10, 20, 30, 40)]  # pyright: ignore[reportArgumentType]
    rates = [float(of.parts[names[0]].values[RATE][1]) for of in later]
    assert rates[0] == float(after.parts[names[0]].values[RATE][1]) and len(set(rates)) > 1


def loop_of(step: int, every: int, largest: int = 1) -> Any:
    """A loop of members at this trainer step, which knows nothing else."""
    loop = object.__new__(PopulationLoop)
    loop.every, loop.members = every, SimpleNamespace(step=step, over=False, parts=[SimpleNamespace(largest=largest)])
    return loop


def test_a_generation_comes_with_the_step_at_which_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 100 steps, looked at every 30: none at 90, one at 120, none for members that are done."""
    loop, labels = loop_of(60, 100), []

    def look(self: Any, state: Any, _reports: Any) -> Any:
        self.members.step += 30
        return state

    monkeypatch.setattr(JittedLoop, "look", look)
    loop.evolved = lambda state, _reports, label: labels.append(label) or state
    for over, expected in ((False, []), (False, [100]), (False, [100]), (True, [100])):
        loop.members.over = over
        assert loop.look("state", {}) == "state" and labels == expected
    loop.members.step, loop.members.over = 190, True
    assert loop.look("state", {}) == "state" and labels == [100]


def test_so_many_iterations_pass_that_the_next_generation_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 60 of 100, iterations of at most 10: 4 reach it, whatever the loop itself would let pass."""
    monkeypatch.setattr(JittedLoop, "room", lambda _self: 1000)
    assert [loop_of(step, 100, 10).room() for step in (0, 60, 99, 100, 160)] == [10, 4, 1, 10, 4]


def test_who_learned_from_whom_is_written_by_the_numbers_of_the_seeds_and_once(tmp_path: Path) -> None:
    """A run that is resumed at an earlier step writes what follows anew."""
    loop = object.__new__(PopulationLoop)
    recorder = SimpleNamespace(subject=SimpleNamespace(seeds=(5, 6, 7, 8)), folder=SimpleNamespace(path=tmp_path))
    loop.members = SimpleNamespace(recorder=recorder)  # pyright: ignore[reportAttributeAccessIssue]
    found = Generation(np.array([0, 2, 2, 3]), {RATE: np.float32([0.5, 0.25, 0.125, 1.0])})
    for step in (10, 20, 30, 20):
        loop._tell(step, np.array([3.0, 1.0, 8.0, 2.0]), found)
    rows = list(csv.DictReader((tmp_path / "population.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["10"] * 4 + ["20"] * 4
    assert [(row["member"], row["parent"]) for row in rows[:4]] == [("5", "5"), ("6", "7"), ("7", "7"), ("8", "8")]
    assert [float(row["score"]) for row in rows[4:]] == [3.0, 1.0, 8.0, 2.0]
    assert [float(row[RATE]) for row in rows[4:]] == [0.5, 0.25, 0.125, 1.0]


def test_of_choices_the_next_or_the_one_before_is_taken() -> None:
    """In the order of their size, however they are written."""
    choices = Space(choices=(0.99, 0.5, 0.9))
    for value, expected in ((0.9, {0.5, 0.99}), (0.99, {0.9, 0.99}), (0.5, {0.5, 0.9})):
        assert {_changed(value, choices, np.random.default_rng(seed)) for seed in range(20)} == expected


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


@pytest.mark.parametrize(
    ("scores", "learning"),
    [([1.0] * 8, 0), ([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1), ([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0], 2)],
)
def test_nobody_learns_from_a_member_that_is_no_better(scores: list[float], learning: int):
    """Of equal members those with the lower numbers would lose what they know and their settings."""
    before = np.arange(8.0, dtype=np.float32) + 1.0
    for seed in range(5):
        found = next_generation(np.array(scores), {RATE: before}, SPACES, np.random.default_rng(seed))
        changed = found.parents != np.arange(8)
        assert changed.sum() == learning and not changed[learning:].any()
        np.testing.assert_array_equal(found.values[RATE][~changed], before[~changed])


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

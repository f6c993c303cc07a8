"""Checkpoints and replays that a run goes on from, of small arrays made by hand: which of them, and what is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.interface import PolicyState, TrainState
from jaxrl.algorithms.policy_gradient import CLONING
from jaxrl.artifacts.checkpoint import replay
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.loop import LESSONS, MOMENT
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.status import TrainingStatus
from jaxrl.training import saver
from jaxrl.training.compiled.play import Play
from jaxrl.training.compiled.recent_returns import none_yet
from jaxrl.training.compiled.saver import Subject, contents, resumed
from jaxrl.training.compiled.state import JittedState
from jaxrl.training.host.exact import moment_of_run
from tests.helpers import make_spec, settings_of

SPEC = make_spec((2,), branches=(2,))
RATE = "hyperparameters.learning_rate"


def moment(number: int) -> dict[str, list[int]]:
    """Step and decisions of both behaviors then."""
    return {"A": [100 * number, number], "B": [50 * number, number]}


def saved(run: Path, name: str, number: int, stored: Any = None) -> Path:
    """Write the checkpoint of a behavior at a moment; and what it had stored, if anything."""
    settings = {MOMENT: moment(number), LESSONS: [{"parameters": {"size": {"lesson_num": number}}}]}
    path = checkpoint.save(run / name, moment(number)[name][0], {"x": np.full(2, number)}, settings=settings)
    if stored is not None:
        assert replay.stage(run / name, {"rows": jnp.full((5, 3), stored)}).install(path) is None
    return path


def test_an_exact_run_goes_on_from_the_newest_moment_that_all_have(tmp_path: Path) -> None:
    """Killed between the saves of the third: A has it and B has not."""
    run = tmp_path / "run"
    for number in (1, 2):
        for name in ("A", "B"):
            saved(run, name, number)
    saved(run, "A", 3)
    found = moment_of_run(RunFolder(tmp_path, "run"))
    assert found.steps == {"A": 200, "B": 100}
    assert {name: path.name for name, path in found.paths.items()} == {"A": "A-200", "B": "B-100"}
    assert found.lessons == {"parameters": {"size": {"lesson_num": 2}}}


def test_an_exact_run_goes_on_from_a_moment_whose_replays_are_there(tmp_path: Path) -> None:
    """Killed between B's checkpoint and its replay, which is still that of the moment before, as A's is kept."""
    run = tmp_path / "run"
    saved(run, "A", 1, stored=0.25)
    saved(run, "B", 1, stored=0.5)
    saved(run, "A", 2, stored=0.75)
    saved(run, "B", 2)
    assert moment_of_run(RunFolder(tmp_path, "run")).steps == {"A": 100, "B": 50}


@pytest.mark.parametrize("piece", [1 << 26, 24, 4])
def test_a_replay_is_that_of_its_checkpoint_to_the_last_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """In pieces of all rows, of two of five, and of single numbers; the one before is kept beside several behaviors."""
    monkeypatch.setattr(replay, "PIECE_BYTES", piece)
    run, stores = tmp_path / "run", []
    saved(run, "B", 1)
    for number in (1, 2):
        rows = jnp.arange(15, dtype=jnp.float32).reshape(5, 3) + 100 * number
        stores.append({"rows": rows, "count": jnp.uint32(number)})
        path = saved(run, "A", number)
        assert replay.stage(run / "A", stores[-1]).install(path) is None
    for number, store in enumerate(stores, 1):
        template = jax.tree.map(jnp.zeros_like, store)
        path = run / "A" / f"A-{100 * number}"
        found = replay.restore(run / "A", template, path, spec=SPEC, settings={})
        jax.tree.map(np.testing.assert_array_equal, found, store)


def learner(number: float) -> TrainState:
    """A learner all of whose numbers are this one."""
    x = jnp.full(2, number)
    return TrainState(
        policy=PolicyState(params={"actor": x}, normalizer=({"mean": x},)),
        critic={"value": x},
        optimizer={"moments": x},
        own={"max_team": x, CLONING: {"rate": x}},
        signals={"rnd": {"params": x}},
        step=jnp.int32(number),
        key=jax.random.key(int(number)),
    )


def test_another_run_begins_with_what_was_learned_and_with_nothing_else(tmp_path: Path) -> None:
    """Not with the optimizer, the step, draws, or the rate of cloning, which has faded."""
    settings = settings_of("ppo", {})
    described = saver.settings_of(settings)
    path = checkpoint.save(tmp_path / "run" / "A", 7, {"train": learner(7)}, spec=SPEC, settings=described)
    fresh = learner(1)
    found, origin = saver.with_weights_of(path, fresh, SPEC, settings)
    assert origin == str(path)
    taken = found.policy.params["actor"], found.policy.normalizer[0]["mean"], found.critic["value"]
    taken += found.signals["rnd"]["params"], found.own["max_team"]
    assert [x.tolist() for x in taken] == [[7.0, 7.0]] * 5
    assert found.own[CLONING]["rate"].tolist() == found.optimizer["moments"].tolist() == [1.0, 1.0]
    assert int(found.step) == 1
    np.testing.assert_array_equal(jax.random.key_data(found.key), jax.random.key_data(fresh.key))


def side_by_side(number: float, frozen: list[bool]) -> JittedState:
    """Two seeds, all of whose numbers are this one."""
    x = jnp.full(2, number)
    key = jax.random.split(jax.random.key(int(number)))
    return JittedState(
        train=learner(number).replace(step=jnp.full(2, int(number)), key=key),
        store=(), fresh=x, play=Play((), x, (), (), open=()), parameters={"size": x}, values={RATE: x}, key=key,
        iteration=jnp.full(2, int(number), jnp.uint32), frozen=jnp.array(frozen), recent=none_yet(2),
    )  # fmt: skip


@pytest.mark.parametrize("frozen", [[False, True], [False, False]])
def test_a_compiled_run_goes_on_with_its_seeds_and_with_the_parameters_of_its_settings(
    tmp_path: Path, frozen: list[bool]
) -> None:
    """A seed that was left behind stays so, and settings that have changed meanwhile are not those of the file."""
    subject = Subject("A", SPEC, settings_of("ppo", {}), (5, 6), 4, changing=True)
    held = contents(side_by_side(7, frozen), changing=True)
    path = checkpoint.save(tmp_path / "run" / "A", 7, held, spec=SPEC, settings=subject.described())
    found = resumed(path, subject, side_by_side(1, [False, False]))
    assert found.frozen.tolist() == frozen
    assert found.values[RATE].tolist() == found.play.view.tolist() == found.train.critic["value"].tolist() == [7.0, 7.0]
    assert found.iteration.tolist() == found.train.step.tolist() == [7, 7]
    assert found.parameters["size"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("behaviors", "kept"), [(("A", "B"), ["A-200", "A-300"]), (("A",), ["A-300"])])
def test_of_an_exact_run_the_moment_before_stays_until_all_behaviors_have_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviors: tuple[str, ...], kept: list[str]
) -> None:
    """Though one checkpoint is to be kept: a run that is killed between two saves goes on from it."""
    monkeypatch.setattr(saver, "_exported", lambda _, beside, __: (beside, []))
    folder = RunFolder(tmp_path, "run")
    status = TrainingStatus(folder.status)
    folder.status.parent.mkdir(parents=True)
    for number in (1, 2, 3):
        snapshot = saver.Snapshot(
            name="A",
            step=100 * number,
            contents={"x": np.full(2, number)},
            policy=learner(number).policy,
            learned=(),
            spec=SPEC,
            settings=settings_of("ppo", {"keep_checkpoints": 1}),
            described={MOMENT: {name: moment(number)[name] for name in behaviors}},
            samples=((), np.zeros(0)),
        )
        saver.save_checkpoint(snapshot, folder, status, None)
    assert [item.path.name for item in checkpoints(folder.behavior("A"))] == kept

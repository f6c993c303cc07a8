"""A notebook's state on disk: it goes on bit for bit, what does not fit is named, and `jaxrl.load` finds the policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import CheckpointError, checkpoints
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.run_folder import RunFolderError
from jaxrl.training.compiled import trainer_checkpoint
from jaxrl.training.compiled.saver import Subject, contents, resumed
from tests.helpers import ppo_settings
from tests.jax_envs.toy_jax_env import NAME, make_toy, quick_compilation
from tests.training.compiled.alone import fresh_states

ENV = make_toy()
SIZES: dict[str, Any] = {
    "hyperparameters__batch_size": 16,
    "hyperparameters__buffer_size": 64,
    "network_settings__num_layers": 1,
    "network_settings__normalize": True,
    "reward_signals__rnd__network_settings": {"hidden_units": 4, "num_layers": 1},
    "reward_signals__rnd__normalize_rewards": True,  # so that there are statistics, and sums of open episodes
}


@pytest.fixture(scope="module")
def trainers() -> Callable[..., jaxrl.JittedTrainer]:
    made: dict[Any, jaxrl.JittedTrainer] = {}

    def make(seeds: int = 2) -> jaxrl.JittedTrainer:
        settings = ppo_settings(**SIZES, network_settings__hidden_units=4)
        if seeds not in made:
            with quick_compilation():
                algorithm = jaxrl.make_algorithm(ENV.spec, settings)
                made[seeds] = jaxrl.make_jitted_trainer(ENV, algorithm, settings, areas=3, seeds=seeds)
        return made[seeds]

    return make


@pytest.mark.parametrize("seeds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_restored_state_goes_on_bit_for_bit(
    tmp_path: Path, trainers: Callable[..., jaxrl.JittedTrainer], seeds: int
) -> None:
    trainer = trainers(seeds)
    state, _ = trainer.run(trainer.init(range(seeds)), 2)
    (name,) = state.parameters
    state = state.replace(parameters={name: state.parameters[name] + 0.25})  # which follow from no settings
    path = trainer.save(state, tmp_path / "mine")
    assert path.parent == tmp_path / "mine" / NAME and path.is_dir()
    whole, log = trainer.run(state, 3)
    again, log_again = trainer.run(trainer.restore(tmp_path / "mine"), 3)
    one, other = to_arrays(whole), to_arrays(again)
    assert one.keys() == other.keys() and one["parameters/" + name].shape == (seeds,)
    assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]
    assert {"paid/rnd", "train/signals/rnd/paid/m2"} <= one.keys() and one["paid/rnd"].any()
    np.testing.assert_array_equal(log.reward, log_again.reward)
    found, found_again = (x.episodes.stats["Policy/Rnd Reward"].total for x in (log, log_again))
    np.testing.assert_array_equal(found, found_again)
    policy = jaxrl.load(tmp_path / "mine", seed=seeds - 1)
    mine = jax.tree.map(lambda x: x[seeds - 1], trainer.restore(path).train.policy.params)
    for given, loaded in zip(jax.tree.leaves(mine), jax.tree.leaves(policy.state.params), strict=True):
        np.testing.assert_array_equal(given, loaded)


def uncompiled(areas: int = 3, units: int = 4) -> Callable[[Path], Any]:
    """`restore` of a trainer for two seeds that need not run."""
    settings = ppo_settings(**SIZES, network_settings__hidden_units=units)
    begin = partial(fresh_states, ENV, jaxrl.make_algorithm(ENV.spec, settings), settings, areas, 4)
    shapes = jax.eval_shape(begin, jax.ShapeDtypeStruct((2,), np.uint32))
    subject = Subject(NAME, ENV.spec, settings, (0, 1), areas)
    return partial(trainer_checkpoint.restore, subject, shapes, lambda numbers: shapes, lambda state: state)


def test_what_does_not_fit_is_named(tmp_path: Path, trainers: Callable[..., jaxrl.JittedTrainer]) -> None:
    trainer = trainers()
    trainer.save(trainer.init((0, 1)), tmp_path / "mine")
    for other, words in (
        (trainers(seeds=1).restore, "seeds: 2 in the checkpoint, 1 now"),
        (uncompiled(areas=2), "num_areas: 3 in the checkpoint, 2 now"),
        (uncompiled(units=5), r"network_settings\.hidden_units: 4 in the checkpoint, 5 now"),
    ):
        with pytest.raises(CheckpointError, match=rf"does not fit this trainer \({words}\): make the trainer") as error:
            other(tmp_path / "mine")
        assert len(str(error.value)) < 300
    with pytest.raises(CheckpointError, match=r"the state has 2 seed\(s\), this trainer 1"):
        trainers(seeds=1).save(trainer.init((0, 1)), tmp_path / "other")
    with pytest.raises(RunFolderError, match=f"holds no checkpoint of {NAME}"):
        trainer.restore(tmp_path / "nothing")


def test_a_run_is_resumed_with_another_number_of_areas(
    tmp_path: Path, trainers: Callable[..., jaxrl.JittedTrainer]
) -> None:
    """What was learned is kept, and what has areas begins anew; other changes are named in one sentence."""
    settings, numbers = ppo_settings(**SIZES, network_settings__hidden_units=4), np.array([0, 1], np.uint32)
    state = trainers().run(trainers().init((0, 1)), 1)[0]
    of_three = Subject(NAME, ENV.spec, settings, (0, 1), 3)
    path = checkpoint.save(tmp_path / NAME, 5, contents(state), spec=ENV.spec, settings=of_three.described())
    algorithm = jaxrl.make_algorithm(ENV.spec, settings)
    fresh = fresh_states(ENV, algorithm, settings, 2, 4, numbers)  # pyright: ignore[reportArgumentType]
    found = to_arrays(resumed(path, of_three._replace(areas=2), fresh))
    saved, begun = to_arrays(state), to_arrays(fresh)
    anew = {name for name in found if name.startswith(("play/", "paid/"))}
    assert begun.keys() == found.keys() and anew
    for name, array in found.items():
        if name in anew or name.startswith(("train/", "key", "iteration")):
            np.testing.assert_array_equal(array, (begun if name in anew else saved)[name])
    other = settings.model_copy(update={"trainer_type": "sac"})
    with pytest.raises(
        CheckpointError, match=r"fit this run. Changed: trainer_type: ppo in the checkpoint, sac now; num"
    ):
        resumed(path, of_three._replace(areas=2, settings=other), fresh.replace(train=fresh.play))


def test_a_damaged_one_gives_way_to_the_one_before(
    tmp_path: Path, trainers: Callable[..., jaxrl.JittedTrainer], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainers()
    state = trainer.init((0, 1))
    steps = []
    for _ in range(3):
        state, _ = trainer.run(state, 1)
        newest = trainer.save(state, tmp_path / "mine", keep=2)
        steps.append(int(state.train.step.min()))
    assert [found.step for found in checkpoints(tmp_path / "mine" / NAME)] == steps[1:]
    next(path for path in (newest / "arrays").rglob("*") if path.is_file() and path.stat().st_size).write_bytes(b"")
    assert int(trainer.restore(tmp_path / "mine").train.step.min()) == steps[1]
    assert "damaged" in caplog.text
    with pytest.raises(CheckpointError, match="damaged"):
        trainer.restore(newest)


def test_the_checkpoint_of_a_run_is_restored_too(tmp_path: Path, trainers: Callable[..., jaxrl.JittedTrainer]) -> None:
    """It holds no environment parameters, and of one seed the learner has no axis: as `jaxrl train` saves it."""
    trainer = trainers(1)
    state, _ = trainer.run(trainer.init([7]), 1)
    settings = ppo_settings(**SIZES, network_settings__hidden_units=4)
    described = Subject(NAME, ENV.spec, settings, (7,), 3).described()
    run = tmp_path / "run" / NAME
    checkpoint.save(run, 5, contents(state), spec=ENV.spec, settings=described)
    restored = trainer.restore(tmp_path / "run")
    assert np.isnan(restored.recent.reward.mean()).all()  # nor the returns of late
    one, other = to_arrays(state.replace(recent=())), to_arrays(restored.replace(recent=()))
    assert one.keys() == other.keys()
    assert not [name for name in one if one[name].tobytes() != other[name].tobytes()]


REFUSED = [
    ({"init_path": "other"}, "init_path: got other, expected null: load a state with JittedTrainer.restore"),
    ({"episode_window": 5}, "episode_window: got 5, expected null"),
    ({"batch_mode": "complete_episodes"}, "batch_mode: got complete_episodes, expected fragments"),
    ({"max_episode_length": 5}, "max_episode_length: got 5, expected null"),
]


@pytest.mark.parametrize(("written", "words"), REFUSED, ids=[next(iter(written)) for written, _ in REFUSED])
def test_a_trainer_refuses_what_it_would_ignore(written: dict[str, Any], words: str) -> None:
    algorithm = jaxrl.make_ppo(ENV.spec, ppo_settings())
    with pytest.raises(jaxrl.JaxrlError, match=words):
        jaxrl.make_jitted_trainer(ENV, algorithm, jaxrl.make_settings("ppo", **written))


@pytest.mark.parametrize("make", ["make_mappo", "make_coma"])
def test_so_do_the_functions_that_make_algorithms(make: str) -> None:
    keys = "posthumous_credit, share_policy, team_capacity"
    with pytest.raises(jaxrl.JaxrlError, match=f"{make}: hyperparameters: those of ppo lack {keys}"):
        getattr(jaxrl, make)(ENV.spec, jaxrl.make_settings("ppo"))


def test_too_much_memory_is_refused_before_it_is_taken(
    trainers: Callable[..., jaxrl.JittedTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainers()
    monkeypatch.setattr("jaxrl.training.compiled.checks.free_bytes", lambda devices: 1000)
    with pytest.raises(jaxrl.JaxrlError, match=r"2 seed\(s\) of 3 areas need .* GiB .* are free: lower num_areas"):
        trainer.init((0, 1))

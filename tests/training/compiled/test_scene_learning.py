"""Several behaviors in one compiled program: each learns what it would alone, on its own clock, and fails alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Counts
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings import CheckpointSettings, RunSettings
from jaxrl.training.compiled.plan import SceneTrainer
from jaxrl.training.compiled.planning import agents_at_start, pieces
from jaxrl.training.compiled.saver import Subject, contents, restored
from jaxrl.training.compiled.state import IterationLog, SceneState, step_of
from jaxrl.training.compiled.trainer import make_jitted_trainer, make_scene_trainer
from jaxrl.training.compiled.updates import met_somebody
from tests.helpers import settings_of
from tests.jax_envs.probe_scene import LENGTH, PARTS, make_half, make_probe_scene, make_rare_dial
from tests.jax_envs.toy_jax_env import quick_compilation

pytestmark = pytest.mark.timeout(500)
AREAS, SEEDS = 8, (4, 5)
RATE = {"learning_rate": 0.02, "learning_rate_schedule": "constant", "batch_size": 32, "num_epoch": 2}
SMALL = {"network_settings": {"hidden_units": 8, "num_layers": 1}, "max_steps": 1_000_000}
SETTINGS = {
    "Lamp": settings_of("poca", {**SMALL, "hyperparameters": {**RATE, "buffer_size": 128}}),
    "Dial": settings_of("ppo", {**SMALL, "hyperparameters": {**RATE, "buffer_size": 64}}),
}
ALGORITHM = {name: ALGORITHMS[of.trainer_type](PARTS[name].spec, of) for name, of in SETTINGS.items()}


@pytest.fixture(scope="module")
def trainer() -> SceneTrainer:
    """Lamp learns every 8 decisions of each area, Dial, which is there in every second episode alone, every 16."""
    with quick_compilation():
        return make_scene_trainer(make_rare_dial(), ALGORITHM, SETTINGS, areas=AREAS, seeds=len(SEEDS))


def after(trainer: SceneTrainer, count: int) -> tuple[SceneState, dict[str, IterationLog]]:
    return trainer.run(trainer.init(SEEDS), count)


def differing(first: Any, second: Any) -> list[str]:
    one, other = to_arrays(first), to_arrays(second)
    assert one.keys() == other.keys()
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


@pytest.mark.slow
def test_b23_a_behavior_learns_bit_for_bit_what_it_learns_alone(trainer: SceneTrainer) -> None:
    assert trainer.steps == 8 and trainer.every == {"Lamp": 1, "Dial": 2}
    with quick_compilation():
        alone = make_jitted_trainer(make_half("Lamp"), ALGORITHM["Lamp"], SETTINGS["Lamp"], areas=AREAS, seeds=2)
    assert alone.steps == trainer.steps
    state, logs = after(trainer, 6)
    single, log = alone.run(alone.init(SEEDS), 6)
    assert differing(state.parts["Lamp"].train, single.train) == []
    assert differing(logs["Lamp"].episodes, log.episodes) == [] and differing(logs["Lamp"].metrics, log.metrics) == []
    assert logs["Lamp"].updates.tolist() == [6, 6] and logs["Dial"].updates.tolist() == [3, 3]


def test_both_reach_what_is_known_and_the_absent_count_for_nothing(trainer: SceneTrainer) -> None:
    state, logs = after(trainer, 60)
    steps = {name: np.asarray(part.train.step) for name, part in state.parts.items()}
    decisions = 60 * trainer.steps * AREAS
    assert steps["Lamp"].tolist() == [2 * decisions] * 2
    assert ((0.4 * decisions < steps["Dial"]) & (steps["Dial"] < 0.6 * decisions)).all()
    episodes = np.asarray(logs["Dial"].episodes.reward.count)
    assert (episodes == steps["Dial"] / LENGTH).all() and (logs["Dial"].episodes.length.total == 3 * episodes).all()
    state, logs = trainer.run(state, 20)
    assert (logs["Lamp"].reward > 0.9).all() and (logs["Dial"].reward > 0.8).all()


def test_b18_u43_one_that_is_done_acts_and_tells_but_learns_no_more(trainer: SceneTrainer) -> None:
    state, _ = after(trainer, 2)
    before = jax.tree.map(np.array, (state.parts["Lamp"].train.policy, state.parts["Lamp"].train.optimizer))
    dial = jax.tree.map(np.array, state.parts["Dial"].train.policy)
    parts = dict(state.parts)
    parts["Lamp"] = parts["Lamp"].replace(last_step=jnp.full(2, -1))
    step = np.asarray(state.parts["Lamp"].train.step).tolist()
    state, logs = trainer.run(trainer.place(state.replace(parts=parts)), 4)
    lamp = state.parts["Lamp"].train
    assert differing(before, (lamp.policy, lamp.optimizer)) == [] and logs["Lamp"].updates.tolist() == [0, 0]
    assert differing(dial, state.parts["Dial"].train.policy) != [] and logs["Dial"].updates.tolist() == [2, 2]
    assert lamp.step.tolist() == [before + 4 * 2 * trainer.steps * AREAS for before in step]
    assert (logs["Lamp"].episodes.reward.count == 4 * 2 * trainer.steps * AREAS / LENGTH).all()


def test_numbers_that_are_not_finite_leave_one_behavior_of_one_seed_behind(trainer: SceneTrainer) -> None:
    state = trainer.init(SEEDS)
    parts = dict(state.parts)
    view = parts["Dial"].play.view
    broken = view._replace(obs=(view.obs[0].at[0].set(jnp.nan),), alive=jnp.ones_like(view.alive))
    parts["Dial"] = parts["Dial"].replace(play=parts["Dial"].play._replace(view=broken))
    state, logs = trainer.run(trainer.place(state.replace(parts=parts)), 4)
    assert state.parts["Dial"].frozen.tolist() == [True, False] and not state.parts["Lamp"].frozen.any()
    assert logs["Dial"].fault.tolist() == [[1, 0, 0, 0], [-1] * 4]  # told with the rollout, at the second iteration
    assert logs["Dial"].updates.tolist() == [0, 2] and logs["Lamp"].updates.tolist() == [4, 4]


def test_a_state_from_the_disk_goes_on_bit_for_bit(trainer: SceneTrainer, tmp_path: Path) -> None:
    """Also where a rollout is half complete: Dial has learned once in three iterations."""
    folder, scene = RunFolder(tmp_path, "kept"), make_rare_dial()
    subjects = [Subject(part.name, part.spec, SETTINGS[part.name], SEEDS, AREAS) for part in scene.parts]
    state, logs = after(trainer, 3)
    assert logs["Dial"].updates.tolist() == [1, 1]
    for of in subjects:
        held, place = contents(state.of(of.name)), folder.behavior(of.name)
        checkpoint.save(place, step_of(state.parts[of.name]), held, spec=of.spec, settings=of.described())
    resumed = RunSettings(checkpoint_settings=CheckpointSettings(run_id="kept", resume=True))
    kept = trainer.place(restored(resumed, folder, subjects, trainer.init(SEEDS)))
    names = differing(trainer.run(kept, 3)[0], after(trainer, 6)[0])
    assert [name for name in names if "/recent/" not in name] == []  # what seeds are worth begins anew in a resumed run


def test_seeds_of_one_device_may_stand_at_different_places_of_a_rollout() -> None:
    """As points of a sweep do that ended at different moments and are resumed: all stood where the first one did, so
    that what others had met was overwritten, or learned from twice and out of order."""
    newest, one = dict.fromkeys(PARTS, 4), jax.devices()[:1]
    with quick_compilation():
        trainer = make_scene_trainer(
            make_rare_dial(), ALGORITHM, SETTINGS, areas=AREAS, seeds=2, newest=newest, devices=one
        )
    ahead, _ = after(trainer, 1)
    second, _ = trainer.run(trainer.put(trainer.init(SEEDS), trainer.take(ahead, 1, 1), 1), 4)
    wanted = (after(trainer, 4)[0], 0), (after(trainer, 5)[0], 1)
    for state, seed in wanted:
        assert differing(trainer.take(second, seed, 1), trainer.take(state, seed, 1)) == []
    _, logs = trainer.run(second, 1)
    assert logs["Dial"].updates.tolist() == [0, 1]
    assert (logs["Dial"].episodes.reward.count > 0).tolist() == [False, True], "told with its own rollout"


def test_broken_off_episodes_are_not_learned_from_where_a_rollout_is_half_complete(trainer: SceneTrainer) -> None:
    """Of 8 decisions the last two are of episodes that begin anew; Dial learns after 16 alone."""
    state = trainer.init(SEEDS)
    ahead = {name: {**of, "clock": of["clock"] + 2} for name, of in state.areas.state.items() if name in PARTS}
    state = state.replace(areas=state.areas._replace(state={**state.areas.state, **ahead}))
    state, _ = trainer.run(trainer.place(state), 1)
    before = np.asarray(state.parts["Dial"].store.steps.alive)
    assert before[:, 6:8].any((1, 2, 3)).all()
    state = trainer.begin_anew(state, np.array([True, False]))
    after = np.asarray(state.parts["Dial"].store.steps.alive)
    assert not after[0, 6:8].any() and (after[0, :6] == before[0, :6]).all() and (after[1] == before[1]).all()
    assert (np.asarray(state.areas.state["Lamp"]["clock"]) == [[0] * AREAS, [2] * AREAS]).all()
    assert (np.asarray(state.parts["Lamp"].play.sums.length) == np.array([0, 2])[:, None, None]).all()
    state, logs = trainer.run(state, 1)
    learned = np.asarray(state.parts["Dial"].store.steps.alive).sum((1, 2, 3))
    assert state.parts["Dial"].train.step.tolist() == learned.tolist() and logs["Dial"].updates.tolist() == [1, 1]
    assert (logs["Dial"].fault == -1).all()


@pytest.mark.slow
def test_one_behavior_of_a_scene_learns_with_other_settings_in_each_seed() -> None:
    """The same seed three times: Lamp's rate differs in the third alone, and nothing of Dial."""
    values = {"Lamp": {"hyperparameters.learning_rate": (0.02, 0.02, 0.002)}}
    with quick_compilation():
        made = make_scene_trainer(make_probe_scene(), ALGORITHM, SETTINGS, areas=AREAS, seeds=3, values=values)
    state, logs = made.run(made.init((4, 4, 4)), 2)
    assert (np.asarray(logs["Lamp"].updates) == 2).all() and (np.asarray(logs["Dial"].updates) > 0).all()
    weights = {name: np.asarray(jax.tree.leaves(part.train.policy.params)[-1]) for name, part in state.parts.items()}
    assert (weights["Lamp"][0] == weights["Lamp"][1]).all() and (weights["Lamp"][0] != weights["Lamp"][2]).any()
    assert (weights["Dial"] == weights["Dial"][:1]).all()


@pytest.mark.parametrize(
    ("lengths", "steps", "every"),
    [
        ({"a": 100, "b": 100}, 100, {"a": 1, "b": 1}),
        ({"a": 16, "b": 32}, 16, {"a": 1, "b": 2}),
        ({"a": 100, "b": 150}, 50, {"a": 2, "b": 3}),
        ({"a": 90, "b": 100}, 13, {"a": 7, "b": 8}),
        ({"a": 1, "b": 1000}, 1, {"a": 1, "b": 1000}),
    ],
)
def test_rollouts_are_whole_numbers_of_pieces(lengths: dict[str, int], steps: int, every: dict[str, int]) -> None:
    assert pieces(lengths) == (steps, every)


def test_agents_are_counted_over_many_beginnings() -> None:
    found = agents_at_start(make_rare_dial(), {"luck": 0.5})
    assert found["Lamp"] == 2.0 and 0.4 < found["Dial"] < 0.6
    assert agents_at_start(make_probe_scene(), {"luck": (0.5, 0.6)}) == {"Lamp": 2.0, "Dial": 1.0}


def test_a_rollout_without_anybody_is_not_learned_from() -> None:
    due = met_somebody(ALGORITHM["Dial"]).storage.can_sample
    assert not bool(due((), Counts(fresh=jnp.int32(0), total=jnp.int32(9)))) and bool(due((), Counts(jnp.int32(1), 9)))

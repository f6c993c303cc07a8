"""`jaxrl imitate`: a policy of demonstrations alone, with what every run has, and what is refused beforehand."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import jaxrl
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import PolicyState, TrainState
from jaxrl.algorithms.policy_gradient import CLONING
from jaxrl.artifacts.checkpoint import store
from jaxrl.cli import main
from jaxrl.demonstrations import Pair, decisions, write
from jaxrl.learning.cloning import Cloning
from jaxrl.settings import load_run_settings
from jaxrl.training.host.imitation import _held_out, _held_out_of, _normalised, _prepared, _shown, _turn, imitate
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

SPEC = BehaviorSpec((ObservationSpec("where", (2,)),), ActionSpec(1, (3,)))
UNITY = Path(__file__).parents[2] / "demonstrations" / "recordings"
WALK = {
    name: BehaviorSpec((ObservationSpec("where", (2,)),), action)
    for name, action in (("walk_discrete", ActionSpec(0, (3,))), ("walk_continuous", ActionSpec(1, ())))
}
BEHAVIOR = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 32, "buffer_size": 64, "learning_rate": 0.01},
    "network_settings": {"hidden_units": 16, "num_layers": 1, "normalize": True},
    "max_steps": 20000,
    "summary_freq": 4000,
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty episodes of five decisions. What is done follows from what is seen, see `done_at`."""
    path, draws = tmp_path_factory.mktemp("demo") / "shown.demo", np.random.default_rng(0)

    def pairs() -> Any:
        for _ in range(20):
            for time in range(6):
                seen = draws.uniform(10.0, 20.0, 2).astype(np.float32)
                number, choice = done_at(seen)
                yield Pair([seen], done=True) if time == 5 else Pair([seen], [number], [choice])

    write(path, "Mover", SPEC, pairs())
    return str(path)


def done_at(seen: np.ndarray) -> tuple[float, int]:
    return float(seen[0] - 15.0) / 10.0, 0 if seen[1] < 15.0 else 2


def settings_of_run(
    folder: Path, run_id: str, behavior: dict[str, Any] | None = None, name: str = "Mover", **options: Any
) -> Any:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"behaviors": {name: {**BEHAVIOR, **(behavior or {})}}}))
    given = {"run_id": run_id, "results_dir": str(folder / "results"), **options}
    return load_run_settings(path, {"checkpoint_settings": given, "env_settings": {"seed": 4}}, HYPERPARAMETER_TYPES)


def learned(settings: Any, demo: str) -> jaxrl.Policy:
    with Interrupt() as interrupt:
        imitate(settings, demo, interrupt)
    options = settings.checkpoint_settings
    return jaxrl.load(Path(options.results_dir, options.run_id), deterministic=True)


def check_policy(policy: jaxrl.Policy, near: float = 0.1) -> None:
    """On what was not demonstrated: as `done_at` says, about, away from where it changes."""
    seen = np.random.default_rng(1).uniform(11.0, 19.0, (200, 2)).astype(np.float32)
    seen = seen[np.abs(seen[:, 1] - 15.0) > 0.5]
    does = policy.act(seen)
    numbers, choices = zip(*map(done_at, seen), strict=True)
    np.testing.assert_allclose(does.continuous[:, 0], numbers, atol=near)
    assert does.discrete[:, 0].tolist() == list(choices)


def mean_of(policy: jaxrl.Policy) -> np.ndarray:
    state = policy.state.normalizer[0]
    assert state is not None
    return np.asarray(state.mean)


def test_the_policy_does_as_was_shown_and_the_folder_is_that_of_a_run(tmp_path, demo):
    policy = learned(settings_of_run(tmp_path, "whole"), demo)
    check_policy(policy)
    folder = tmp_path / "results" / "whole"
    held = jaxrl.read_metrics(folder).curves["Mover"]["Losses/Held Out Loss"]
    (curve,) = held.values()
    assert len(curve.value) == 5 and 2 * curve.value[-1] < curve.value[0]
    assert (folder / "Mover.onnx").is_file()
    written = yaml.safe_load((folder / "configuration.yaml").read_text())["behaviors"]["Mover"]
    assert written["behavioral_cloning"]["demo_path"] == demo
    mean = mean_of(policy)
    seen = decisions(demo, SPEC).obs[0]
    assert np.abs(mean - seen.mean(0)).max() < 0.5, (mean, seen.mean(0))  # of what is not held out
    half = {"max_steps": 8000}  # then it goes on, and is the same bit for bit
    learned(settings_of_run(tmp_path, "halves", half), demo)
    again = learned(settings_of_run(tmp_path, "halves", resume=True), demo)
    assert again.step == policy.step
    jax.tree.map(np.testing.assert_array_equal, again.state.params, policy.state.params)


def test_it_ends_where_cloning_has_faded_out_and_another_run_goes_on(tmp_path, demo, caplog):
    caplog.set_level(logging.INFO, "jaxrl")
    cloning = {"demo_path": "not there", "steps": 3000, "batch_size": 16}
    policy = learned(settings_of_run(tmp_path, "faded", {"behavioral_cloning": cloning}), demo)
    assert 3000 <= policy.step < 4000
    (last,) = [text for text in caplog.messages if text.startswith(f"Mover: at the end, step {policy.step}. Loss")]
    assert re.fullmatch(r".* from \d\.\d{4}, of held out episodes \d\.\d{4}\.", last)
    assert "no episode was completed" not in caplog.text, "none was played"
    begun = learned(settings_of_run(tmp_path, "second", {"max_steps": 1}, initialize_from="faded"), demo)
    np.testing.assert_array_equal(mean_of(policy), mean_of(begun))
    assert begun.step == 3 * (18 * 5 // 32) * 32, "a turn: the rate begins anew"
    before, after = (np.asarray(x.state.params["params"]["heads"]["logits"]["bias"]) for x in (policy, begun))
    assert (before != after).any()
    assert store.read_info(tmp_path / "results" / "second" / "Mover" / f"Mover-{begun.step}").step == begun.step


@pytest.mark.parametrize("name", ["walk_discrete", "walk_continuous"])
def test_a_clone_of_unitys_recording_decides_right_in_every_state(tmp_path, name):
    """The goal is the sign of the second number. Paired as ML-Agents pairs it, it goes left wherever it begins."""
    path = str(UNITY / f"{name}.demo")
    states = np.unique(decisions(path, WALK[name]).obs[0], axis=0)
    assert len(states) == 8
    policy = learned(settings_of_run(tmp_path, "walk", {"max_steps": 12000}, name="Walk"), path)
    action = policy.act(states)
    if name == "walk_discrete":
        assert (action.discrete[:, 0] - 1 == states[:, 1]).all()
    else:
        np.testing.assert_allclose(action.continuous[:, 0], 0.8 * states[:, 1], atol=0.1)


def test_a_clone_of_what_was_recorded_is_one_step_late(tmp_path):
    """By the key, as ML-Agents: the first decision of an episode is the zeros of its first record, which is left."""
    cloning = {"demo_path": "not there", "demo_actions": "as_recorded"}
    settings = settings_of_run(tmp_path, "walk", {"max_steps": 12000, "behavioral_cloning": cloning}, name="Walk")
    action = learned(settings, str(UNITY / "walk_discrete.demo")).act(np.array([[0.0, 1.0], [0.5, 1.0]], np.float32))
    assert action.discrete[:, 0].tolist() == [0, 2]


def test_what_is_held_out_is_not_learned_from_and_its_loss_counts_each_decision_once(tmp_path, demo, monkeypatch):
    """Episodes of five in sequences of three: the second of each is filled up. Without noise, in pieces of one."""
    network = {
        **BEHAVIOR["network_settings"],
        "memory": {"sequence_length": 3, "memory_size": 4},
        "deterministic": True,
    }
    settings = settings_of_run(tmp_path, "study", {"network_settings": network})
    study = _prepared("Mover", _shown(settings.behaviors["Mover"], demo), 4)
    learned, held = (set(of.places[of.places >= 0].tolist()) for of in (study.learned, study.held))
    assert len(held) == 10 and not learned & held and learned | held == set(range(100))
    state = _normalised(study.behavior.state, study.learned)
    rows = decisions(demo, SPEC).obs[0][sorted(learned)].astype(np.float64)
    np.testing.assert_allclose(state.policy.normalizer[0].mean, rows.sum(0) / 91, rtol=1e-5)  # 0 counts as one row
    study.behavior.learner.state = state
    loss = jax.jit(study.cloning.loss)
    together = _held_out(study, loss)["held_out_loss"]
    every = study.held_at(np.arange(4))
    given = state.policy.params, state.policy.normalizer, every, np.zeros((4, 3, 1), np.float32)
    assert together == pytest.approx(float(loss(*given)), rel=1e-6)
    monkeypatch.setattr("jaxrl.training.host.imitation.TOGETHER", 3)
    assert _held_out(study, loss)["held_out_loss"] == pytest.approx(together, rel=1e-5)


def test_each_turn_draws_anew():
    """The key that is used is no other turn's, and not the one that is kept."""
    used = []

    def learn(kept, params, states, step, key):
        used.append(key)
        return kept, params, jnp.zeros(())

    cloning = Cloning(dict, lambda *_: jnp.zeros(()), learn, lambda: None, lambda: jnp.zeros(()), 1)
    policy = PolicyState(params=(), normalizer=())
    state = TrainState(
        policy=policy, critic=(), optimizer=(), own={CLONING: {}}, signals={}, step=jnp.int32(0), key=jax.random.key(0)
    )
    keys = [state.key]
    for step in (5, 10):
        state, told = _turn(cloning, state, jnp.int32(step))
        keys.append(state.key)
        assert int(state.step) == step and set(told) == {"pretraining_loss", "learning_rate"}
    assert len({tuple(jax.random.key_data(key).tolist()) for key in (*keys, *used)}) == 5


@pytest.mark.slow
def test_sac_with_memory(tmp_path, demo):
    network = {**BEHAVIOR["network_settings"], "memory": {"sequence_length": 4, "memory_size": 8}}
    changes = {"trainer_type": "sac", "network_settings": network, "max_steps": 60000}
    policy = learned(settings_of_run(tmp_path, "sac", {**changes, "hyperparameters": {"learning_rate": 0.01}}), demo)
    check_policy(policy, 0.2)


def test_whole_episodes_are_held_out(demo):
    found = decisions(demo, SPEC)
    held = _held_out_of(found, 3)
    assert held.sum() == 2 * 5 and found.done[held].sum() == 2
    assert (held.reshape(20, 5).sum(1) % 5 == 0).all()
    assert not np.array_equal(held, _held_out_of(found, 4))


def test_a_resumed_run_holds_out_what_it_held_out(tmp_path, demo, monkeypatch, runs):
    """The seed chooses; without one of its own, the run's."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "configuration.yaml").write_text("env_settings: {seed: 12345}")
    seen: list[Any] = []
    monkeypatch.setattr("jaxrl.training.host.imitation.imitate", lambda settings, *_: seen.append(settings))
    for flags in ([], ["--seed", "3"]):
        line = ["imitate", "--demo", demo, "--results-dir", str(tmp_path), "--run-id", "x", "--resume", *flags]
        assert main(line) == 0
    assert [settings.env_settings.seed for settings in seen] == [12345, 3]


@pytest.mark.parametrize("written", [None, {"behaviors": {"Mover": {"behavioral_cloning": {"strength": 0.5}}}}])
def test_a_section_of_cloning_needs_no_path_beside_the_flag(tmp_path, demo, monkeypatch, runs, written):
    seen: list[Any] = []
    monkeypatch.setattr("jaxrl.training.host.imitation.imitate", lambda settings, *_: seen.append(settings))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(written))
    config = [] if written is None else ["--config", str(tmp_path / "config.yaml")]
    assert main(["imitate", *config, "--demo", demo, "--run-id", "x", "--set", "behavioral_cloning.steps=7"]) == 0
    (settings,) = seen
    section = (settings.default_settings if written is None else settings.behaviors["Mover"]).behavioral_cloning
    assert (section.demo_path, section.steps, section.strength) == (demo, 7, 1.0 if written is None else 0.5)


@pytest.mark.parametrize(
    ("behavior", "flags", "words"),
    [
        ({}, ["--demo", "nowhere.demo"], "nowhere.demo: there is no such file or folder"),
        ({}, ["--inference"], "checkpoint_settings.inference: got true, expected false: imitation plays no environ"),
        ({}, ["--initialize-from", "gone"], "--initialize-from gone: "),
        ({"learning_rate": 0.0}, [], "behavioral_cloning.strength: times learning_rate is 0: nothing would be learned"),
        ({"name": "Other"}, [], "Mover"),
        ({"connectors": [{"type": "flatten"}]}, [], "behaviors.Mover.connectors: "),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path, demo, capsys, runs, behavior, flags, words):
    changes = dict(behavior)
    name, rate = changes.pop("name", "Mover"), changes.pop("learning_rate", 0.01)
    changes["hyperparameters"] = {**BEHAVIOR["hyperparameters"], "learning_rate": rate}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"behaviors": {name: {**BEHAVIOR, **changes}}}))
    line = ["imitate", "--config", str(config), "--results-dir", str(tmp_path / "results"), "--run-id", "x"]
    assert main([*line, *(flags if "--demo" in flags else ["--demo", demo, *flags])]) == 1
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]

"""What --set and --search say, and which settings can be numbers of one program."""

from __future__ import annotations

import pytest

from jaxrl.algorithms import HYPERPARAMETER_TYPES, make_settings
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.settings.sweep import Space, grid, overrides_of, space
from jaxrl.settings.traced import by_seed, variable, with_values


def test_every_combination_the_last_key_fastest():
    points = grid(["hyperparameters.learning_rate=1e-3,3e-4", "network_settings.normalize=true,false"])
    assert [point.name for point in points] == [
        "learning_rate=1e-3_normalize=True",
        "learning_rate=1e-3_normalize=False",
        "learning_rate=3e-4_normalize=True",
        "learning_rate=3e-4_normalize=False",
    ]
    assert points[1].values == {"hyperparameters.learning_rate": 1e-3, "network_settings.normalize": False}


def test_what_is_one_for_all_points_names_none_of_them():
    points = grid(["max_steps=3e4", "hyperparameters.beta=1e-3,0.01", "trainer_type=ppo"])
    assert [point.name for point in points] == ["beta=1e-3", "beta=0.01"]
    same = {"max_steps": 3e4, "trainer_type": "ppo"}
    assert [point.values for point in points] == [{**same, "hyperparameters.beta": beta} for beta in (1e-3, 0.01)]


def test_keys_that_end_alike_are_written_out():
    (point,) = grid(["a.gamma=0.9", "b.gamma=0.8"])
    assert point.name == "a.gamma=0.9_b.gamma=0.8"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["beta"], "--set beta: expected KEY=VALUE"),
        (["=1"], "expected KEY=VALUE"),
        (["a.b=[1"], "cannot be read as YAML"),
        (["a.b=1,2", "a.b=3"], "--set a.b: is given twice"),
        (["a.b=1,1"], "1 is given twice"),
        (["a.b=1e-3,0.001"], "0.001 is given twice"),
        (["behaviors.Basic.hyperparameters.beta=1,2"], "without behaviors.NAME and holds for every behavior: hyperp"),
        (["env_settings.seed=1,2"], "env_settings.seed: is one for all points"),
        (["checkpoint_settings.run_id=a,b"], "is one for all points"),
    ],
)
def test_what_is_no_point_is_refused(texts, words):
    with pytest.raises(SettingsError, match=words):
        grid(texts)


def test_values_reach_every_behavior_and_the_run(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("default_settings: {trainer_type: ppo}\nbehaviors: {A: {trainer_type: poca}, B: {}}\n")
    values = {"hyperparameters.beta": "2e-3", "environment_parameters.wind": 3.0, "env_settings.num_areas": 4}
    settings = load_run_settings(path, overrides_of(values), HYPERPARAMETER_TYPES)
    every = [settings.default_settings, *settings.behaviors.values()]
    assert [behavior.hyperparameters.beta for behavior in every if behavior] == [2e-3, 2e-3, 2e-3]
    assert settings.env_settings.num_areas == 4 and settings.environment_parameters is not None
    assert [b.trainer_type for b in settings.behaviors.values()] == ["poca", "ppo"]
    with pytest.raises(
        SettingsError, match=r"behaviors.A.hyperparameters.betta: .* beta\? \(given on the command line"
    ):
        load_run_settings(path, overrides_of({"hyperparameters.betta": 1}), HYPERPARAMETER_TYPES)


def test_spaces():
    assert space("a.b=1e-5:1e-2:log") == ("a.b", Space(1e-5, 1e-2, log=True))
    assert space("a.b=16:64:int") == ("a.b", Space(16.0, 64.0, whole=True))
    assert space("a.b=0.9,0.99") == ("a.b", Space(choices=(0.9, 0.99)))
    assert space("a.b=1e-3,3E+2,e3")[1].choices == (1e-3, 300.0, "e3")
    for text in ("a.b=2:1", "a.b=0:1:log", "a.b=1:2:often", "a.b=x:2", "a.b=1:inf"):
        with pytest.raises(SettingsError, match="expected KEY=LOW:HIGH"):
            space(text)
    with pytest.raises(SettingsError, match="is one for all points"):
        space("env_settings.seed=1:9")


def test_numbers_that_a_program_takes():
    settings = make_settings("poca", reward_signals={"extrinsic": {"gamma": 0.9, "strength": 2.0}})
    found = variable(settings)
    assert found == {
        "hyperparameters.learning_rate": 3e-4,
        "hyperparameters.beta": 5e-3,
        "hyperparameters.epsilon": 0.2,
        "hyperparameters.lambd": 0.95,
        "reward_signals.extrinsic.gamma": 0.9,
        "reward_signals.extrinsic.strength": 2.0,
    }
    other = with_values(settings, {"hyperparameters.beta": 1.0, "reward_signals.extrinsic.gamma": 0.5})
    assert variable(other) == {**found, "hyperparameters.beta": 1.0, "reward_signals.extrinsic.gamma": 0.5}
    assert variable(settings) == found
    assert by_seed([found, variable(other)], 2) == {
        "hyperparameters.beta": (5e-3, 5e-3, 1.0, 1.0),
        "reward_signals.extrinsic.gamma": (0.9, 0.9, 0.5, 0.5),
    }

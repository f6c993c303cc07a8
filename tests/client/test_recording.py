"""`jaxrl record`: what stands in the file is what the scene showed, was given and paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import make_algorithm, make_settings
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.cli import main
from jaxrl.client.recording import _Recording, record
from jaxrl.demonstrations import decisions, read
from jaxrl.envs.workers.handles import EnvFactory
from jaxrl.jax_envs.served import launcher
from jaxrl.settings import RunSettings
from jaxrl.training.host.saver import Saved
from jaxrl.training.player import Players
from jaxrl.types import ActionSpec, BehaviorSpec, JaxrlError, ObservationSpec
from tests.envs.foreign.games import Stairs
from tests.envs.uneven_env import UNEVEN, Uneven

NAME = "JaxrlUpstairs-v0"
SPEC = BehaviorSpec((ObservationSpec("obs", (2,)),), ActionSpec(0, (3,)))
TAKEN = 2  # action 7 of `Stairs`


@pytest.fixture(autouse=True)
def of_the_session(runs: None) -> None:
    """The command turns the compilation cache on: that of the test session."""


@pytest.fixture
def stairs():
    made: list[Stairs] = []

    def make(**arguments: Any) -> Stairs:
        made.append(Stairs(**arguments))
        return made[-1]

    gymnasium.register(NAME, entry_point=make)
    yield made
    del gymnasium.registry[NAME]


@pytest.fixture
def run(tmp_path) -> Path:
    """A run whose policy always takes the same action."""
    settings = make_settings("ppo", network_settings={"hidden_units": 4, "num_layers": 1})
    train = make_algorithm(SPEC, settings).init(jax.random.key(0))
    logits = train.policy.params["params"]["heads"]["logits"]
    logits["bias"] = jnp.full_like(logits["bias"], -50.0).at[TAKEN].set(50.0)
    saved = Saved(train=train, step=np.int64(700), decisions=np.int64(0))
    checkpoint.save(tmp_path / "run" / NAME, 700, saved, spec=SPEC, settings=settings.model_dump(mode="json"))
    return tmp_path / "run"


def test_what_is_recorded_is_what_the_scene_gave(tmp_path, run, stairs, capsys):
    out = tmp_path / "new" / "stairs.demo"
    line = ["record", str(run), "--env", f"gymnasium:{NAME}", "--out", str(out), "--episodes", "3"]
    assert main(line) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{NAME}, {NAME}-700: 3 episodes of 7 decisions, mean return 4.000"
    assert told[1] == "3.000 6.000 3.000" and told[2] == str(out)
    found = read(out)  # episodes 0 and 2 end with step 2, episode 1 is cut off with step 3; step n pays n
    seen = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1]]
    assert found.obs[0].tolist() == seen
    decided = decisions(str(out), SPEC)
    assert decided.reward.tolist() == [1, 2, 1, 2, 3, 1, 2]
    assert decided.action.discrete[:, 0].tolist() == [TAKEN] * 7
    assert stairs[0].given[:7] == [7] * 7 and stairs[0].closed
    assert decided.done.tolist() == [False, True, False, False, True, False, True]
    assert decided.interrupted.tolist() == [False] * 4 + [True, False, False]
    assert found.behavior == NAME
    before = out.read_bytes()
    assert main(line) == 1
    assert capsys.readouterr().err == f"{out} is there already: --force writes another in its place\n"
    assert out.read_bytes() == before and main([*line, "--force"]) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"out": "stairs.npz"}, "stairs.npz: a demonstration is a .demo file"),
        ({"behavior": "Cat"}, f"the behaviors {NAME}, and Cat is none of them"),
        ({"steps": 2}, "an episode has not ended after 2 decisions"),
        ({"env": "gymnax:x"}, "gymnax:x: is only played in a training"),
        ({"episodes": 0}, "episodes = 0"),
    ],
)
def test_what_cannot_be_recorded(tmp_path, run, stairs, changes, words):
    given = {"env": f"gymnasium:{NAME}", "out": "stairs.demo", "episodes": 3, **changes}
    out = tmp_path / given.pop("out")
    with pytest.raises(JaxrlError, match=words):
        record(run, given.pop("env"), out, **given)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(("episodes", "long"), [(16, 8), (5, 2), (40, 20)])
def test_every_area_is_recorded_however_short_its_episodes_are(tmp_path, episodes, long):
    """The first 16 to end were of one decision. An episode is written when no other can take its turn any more."""
    env = Uneven(0, UNEVEN)
    recording = _Recording(env, Players(None, 0, deterministic=False), {}, steps=100)
    found = recording.write(tmp_path / "uneven.demo", None, episodes)
    assert (sorted(found.lengths), sum(found.returns)) == ([1] * (episodes - long) + [20] * long, pytest.approx(long))
    assert decisions(str(tmp_path / "uneven.demo"), env.spec).done.sum() == episodes


def test_an_episode_that_does_not_begin_is_an_error(tmp_path):
    class Empty(Uneven):
        def _begin(self, area: Any) -> None:
            super()._begin(area)
            area.members = area.members[: area.episode == 1]

    recording = _Recording(Empty(0, UNEVEN), Players(None, 0, deterministic=False), {}, steps=30)
    with pytest.raises(JaxrlError, match="no other episode has begun in 30 steps"):
        recording.write(tmp_path / "uneven.demo", None, 17)
    assert not list(tmp_path.iterdir())


def test_arguments_of_the_run_reach_an_environment_that_is_served(tmp_path, run, monkeypatch):
    (run / "configuration.yaml").write_text("behaviors: {}\nenv_settings: {env_args: [x=3]}\n")

    def make_factory(name: str, settings: RunSettings, logs: str) -> EnvFactory:
        raise JaxrlError(f"{name} {settings.env_settings.env_args}")

    monkeypatch.setattr(launcher, "make_factory", make_factory)
    with pytest.raises(JaxrlError, match=r"own.py:make \('x=3',\)"):
        record(run, "own.py:make", tmp_path / "a.demo")


@pytest.mark.slow
def test_a_policy_of_the_zoo_in_an_environment_in_jax(tmp_path):
    found = record("zoo:basic", "jax:basic", tmp_path / "basic.demo", episodes=4)
    assert found.lengths == [7] * 4 and found.returns == pytest.approx([0.93] * 4)
    written = read(tmp_path / "basic.demo")
    assert written.reward[~written.terminal].sum() == pytest.approx(4 * 0.93)

"""`jaxrl watch` of Gymnasium's and PettingZoo's environments: what is played, filmed and refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from onnx import TensorProto, helper
from PIL import Image

from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.tools.watch import foreign
from jaxrl.tools.watch.film import watch
from jaxrl.training.player import Player
from jaxrl.types import (
    Action,
    ActionSpec,
    BehaviorMessage,
    BehaviorSpec,
    DecisionSteps,
    JaxrlError,
    ObservationSpec,
    TerminalSteps,
)
from tests.envs.foreign.games import Relay, Stairs

sys.path.insert(0, str(Path(__file__).parents[2] / "artifacts"))

from handmade_models import good


@pytest.fixture
def stairs():
    """Gymnasium's id of `Stairs`: episodes of 2 and 3 steps in turns, step n pays n, pictures of 15 x 20."""
    gymnasium.register("JaxrlStairs-v0", entry_point=lambda **arguments: Stairs(**arguments))
    yield "gymnasium:JaxrlStairs-v0"
    del gymnasium.registry["JaxrlStairs-v0"]


def test_episodes_are_filmed_with_their_ends_and_rewards(tmp_path, stairs):
    out = tmp_path / "film.gif"
    summary = watch(stairs, run=None, out=out, episodes=2, steps=50)
    assert summary.behavior == "JaxrlStairs-v0" and summary.policy == "random actions"
    assert summary.steps == 5 and summary.finished
    assert summary.returns == ((1.0 + 2.0,), (1.0 + 2.0 + 3.0,))
    with Image.open(out) as film:
        assert film.n_frames == (1 + 2) + (1 + 3)
        assert film.size == (480, 360 + 28)  # small pictures grow, a bar below holds the caption
        durations = []
        for place in range(film.n_frames):
            film.seek(place)
            durations.append(film.info["duration"])
    assert durations == [100, 100, 1500, 100, 100, 100, 1500]  # 10 a second, as the environment asks for
    summary = watch(stairs, run=None, out=out, steps=1)
    assert summary.steps == 1 and not summary.finished and summary.returns == ((1.0,),)


def test_a_bare_model_plays(tmp_path, stairs, monkeypatch):
    """It takes the last of three actions, which the environment calls 7."""
    given, step = [], Stairs.step
    monkeypatch.setattr(Stairs, "step", lambda self, action: given.append(int(action)) or step(self, action))
    constants = {"version_number": [3], "memory_size": [0], "discrete_action_output_shape": [3], "last": [0, 0, 1]}
    model = good(
        tmp_path / "m.onnx",
        inputs={"obs_0": [2], "action_masks": [3]},
        nodes=[
            helper.make_node("Mul", ["action_masks", "last/value"], ["wanted"]),
            helper.make_node("ArgMax", ["wanted"], ["index"], axis=1, keepdims=1),
            helper.make_node("Cast", ["index"], ["choice"], to=TensorProto.FLOAT),
        ],
        constants=constants,
        copies={"discrete_actions": "choice", "deterministic_discrete_actions": "choice"},
    )
    summary = watch(stairs, run=None, models=[model], out=tmp_path / "a.png", episodes=1)
    assert summary.policy == "m.onnx" and summary.returns == ((3.0,),) and given == [7, 7]


def test_of_a_long_film_every_second_picture_is_kept_and_every_end(tmp_path, stairs, monkeypatch):
    monkeypatch.setattr(foreign, "FRAMES", 5)
    watch(stairs, run=None, out=tmp_path / "film.gif", episodes=3, steps=50)
    with Image.open(tmp_path / "film.gif") as film:
        durations = []
        for place in range(film.n_frames):
            film.seek(place)
            durations.append(film.info["duration"])
    # steps 0, 2 (the end); 0, 2, 3 (the end); 0, 2 (the end)
    assert durations == [200, 1500, 200, 200, 1500, 200, 1500]


def test_several_behaviors_are_counted_apart(tmp_path, monkeypatch):
    class Drawn(Relay):
        metadata = {"render_modes": ["rgb_array"], "name": "relay"}  # noqa: RUF012

        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__()
            self.render_mode = render_mode

        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(3 if agent == "runner_2" else 2)  # another behavior of this name

        def step(self, actions: Any) -> Any:
            obs, rewards, *others = super().step(actions)
            return obs, {agent: np.array([reward]) for agent, reward in rewards.items()}, *others

        def render(self) -> Any:
            return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(sys.modules[__name__], "parallel_env", Drawn, raising=False)
    summary = watch(f"pettingzoo:{__name__}", run=None, out=tmp_path / "a.png", steps=4)
    assert summary.behavior == "runner, runner-2, guard"
    assert summary.returns == ((1 + 1 + 2 + 2 + 2 + 4, 4 * 3, 4 * 10),)
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (None, "its render gives None in place of a picture.*render_mode rgb_array"),
        (np.zeros((4, 4), np.uint8), r"render gave uint8 \(4, 4\), expected a picture"),
    ],
)
def test_what_renders_no_picture_is_refused(tmp_path, monkeypatch, picture, words):
    gymnasium.register("JaxrlBlind-v0", entry_point=lambda **given: Stairs(picture=picture, **given))
    try:
        with pytest.raises(EnvironmentFailure, match=words):
            watch("gymnasium:JaxrlBlind-v0", run=None, out=tmp_path / "a.gif")
    finally:
        del gymnasium.registry["JaxrlBlind-v0"]
    assert not (tmp_path / "a.gif").exists()


def test_an_environment_that_fails_ends_the_film_with_its_reason(tmp_path, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("JaxrlBroken-v0", lambda **given: Stairs("raises", **given))
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    with pytest.raises(EnvironmentFailure, match="area 0: step raised ValueError: out of stairs"):
        watch(f"gymnasium:{spec.id}", run=None, out=tmp_path / "a.gif")


def test_what_cannot_be_watched_is_answered_with_what_to_do(tmp_path):
    out = tmp_path / "a.gif"
    with pytest.raises(JaxrlError, match="Nothing to watch: name an environment"):
        watch(None, run=None, out=out)
    with pytest.raises(JaxrlError, match=r"configuration\.yaml: not there.*name it before --run"):
        watch(None, run=tmp_path / "gone", out=out)
    with pytest.raises(JaxrlError) as caught:
        watch("Builds/My Game.x86_64", run=tmp_path / "results" / "mine", out=out)
    assert f"jaxrl train {tmp_path}/results/mine/configuration.yaml --env='Builds/My Game.x86_64'" in str(caught.value)
    assert f"--run-id=mine --results-dir={tmp_path}/results --resume --inference" in str(caught.value)
    with pytest.raises(JaxrlError, match=r"player:basik: no such environment, did you mean player:basic\?"):
        watch("player:basik", run=None, out=out)
    with pytest.raises(ArgumentsError, match="jax:basic: takes no argument a, it takes none"):
        watch("jax:basic", run=None, out=out, env_args=["a=1"])
    with pytest.raises(JaxrlError, match="jaxmarl:x: the environments of jaxmarl have no picture here"):
        watch("jaxmarl:x", run=None, out=out)
    (tmp_path / "editor").mkdir()
    (tmp_path / "editor" / "configuration.yaml").write_text("behaviors: {}\n")
    with pytest.raises(JaxrlError, match="the Unity Editor draws in a window of its own"):
        watch(None, run=tmp_path / "editor", out=out)


SPEC = BehaviorSpec((ObservationSpec("x", (1,)),), ActionSpec(continuous_size=1, discrete_branches=()))


def asking(*agents: int) -> DecisionSteps:
    n = len(agents)
    ids, ones = np.array(agents, np.int64), np.ones(n, np.float32)
    obs = (np.array(agents, np.float32)[:, None],)
    return DecisionSteps(ids, ids * 0, ones, ones * 0, np.ones((n, 0), bool), obs)


def ended(*agents: int) -> TerminalSteps:
    n = len(agents)
    ids, sevens = np.array(agents, np.int64), np.full(n, 7.0, np.float32)
    return TerminalSteps(ids, ids * 0, sevens, sevens * 0, np.zeros(n, bool), (np.zeros((n, 1), np.float32),))


def test_the_folder_of_a_sweep_is_answered_with_its_runs(tmp_path):
    for number in range(10):
        configuration = tmp_path / "wide" / f"point_{number}" / "configuration.yaml"
        configuration.parent.mkdir(parents=True)
        configuration.write_text("behaviors: {}\n")
    with pytest.raises(JaxrlError) as caught:
        watch(None, run=tmp_path / "wide", out=tmp_path / "a.gif")
    runs = ", ".join(f"point_{number}" for number in range(8))
    assert str(caught.value) == (
        f"{tmp_path}/wide: is the folder of a sweep or of several runs, and no run itself; name one of them, such as "
        f"--run {tmp_path}/wide/point_0 (there are: {runs} and 2 more)"
    )


def test_agents_keep_their_memory_while_others_come_and_go():
    def count(policy, memory, moment, key):
        """Action: how often this agent has decided, with its own observation after the point; memory [rows]."""
        turns = jnp.where(moment.begin, 0.0, memory["turns"]) + moment.view.alive
        paid = memory["paid"] + jnp.sum(jnp.where(moment.decided, moment.reward[:, 0], 0.0))  # no axis of rows
        action = (turns + moment.view.obs[0][:, 0] / 100)[:, None]
        return Action(action, jnp.zeros((len(turns), 0), jnp.int32)), {"turns": turns, "paid": paid}

    player = Player(SPEC, count, None, lambda n: {"turns": jnp.zeros(n), "paid": jnp.zeros(())}, jax.random.key(0))

    def act(ends, asks):
        action = player.act(BehaviorMessage(ended(*ends), asking(*asks)))
        return np.asarray(action.continuous[:, 0], np.float64).round(3).tolist()

    assert act((), (5, 3)) == [1.05, 1.03]
    assert act((), (3,)) == [2.03]
    assert act((), (5, 3, 8, 9, 10)) == [2.05, 3.03, 1.08, 1.09, 1.1]  # more rows; nothing is forgotten
    assert act((3, 8), (12, 5)) == [1.12, 3.05]  # 12 sits where somebody has left, and begins anew
    assert float(player._memory["paid"]) == 0 + 1 + 2 + (7 + 7 + 1)
    assert act((12,), (12, 5)) == [1.12, 4.05]  # begins anew under its id, and what it is paid with its end counts
    assert float(player._memory["paid"]) == 18 + 7 + 1

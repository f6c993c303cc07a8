"""`jaxrl.load(run, env)`: shown what environments of others give, it answers what the training would have sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.algorithms.interface import TrainState
from jaxrl.envs.foreign.behaviors import Agent, AgentKind, identity_of
from jaxrl.envs.foreign.environment import ForeignEnvironment
from jaxrl.envs.foreign.observations import ObservationError
from jaxrl.envs.gymnasium.area import GymnasiumArea
from jaxrl.types import Action
from tests.client.test_policy import SMALL, learner, save
from tests.helpers import ppo_settings
from tests.jax_envs.toy_jax_env import quick_compilation


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry() -> Iterator[None]:
    """Programs run once."""
    with quick_compilation():
        yield


class Odd(gymnasium.Env):
    """Sees a picture with its channels last and two numbers, turns a wheel and pulls a lever; one of three is stuck."""

    observation_space: Any = spaces.Dict(
        {
            "eye": spaces.Box(0, 255, (36, 40, 3), np.uint8),
            "room": spaces.Discrete(3, start=4),
            "inner": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-9, 9, (2,), np.float64)]),
        }
    )
    action_space: Any = spaces.Dict({"wheel": spaces.Box(5, 9, (2,)), "lever": spaces.Discrete(3, start=5)})

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.see(), self.told()

    def step(self, action: Any) -> Any:
        self.given.append(action)
        return self.see(), 0.0, False, False, self.told()

    def see(self) -> Any:
        self.seen.append(self.observation_space.sample())
        return self.seen[-1]

    def told(self) -> dict[str, Any]:
        mask = np.ones(3, np.int8)
        mask[int(self.seen[-1]["room"]) - 4] = 0
        return {"action_mask": mask}


def scaled(state: TrainState, by: float = 3.0) -> TrainState:
    """A learner whose answers vary with what it sees."""
    params = jax.tree.map(lambda x: x * by, state.policy.params)
    return state.replace(policy=state.policy.replace(params=params))


def run_of(folder: Path, kind: AgentKind, **changed: Any) -> Path:
    """A run with a checkpoint of a behavior."""
    settings = ppo_settings(**SMALL, **changed)
    return save(folder, kind.name, kind.spec, settings, scaled(learner(kind.spec, settings)))


def test_it_answers_what_the_training_sends(tmp_path: Path) -> None:
    """The host's own environment is the oracle: both are shown the same and must be given the same."""
    trained_in, env = Odd(), Odd()
    run = run_of(tmp_path / "run", AgentKind("Odd", Odd.observation_space, Odd.action_space))
    host = ForeignEnvironment(
        worker=0, name="odd", make_area=lambda _: GymnasiumArea(trained_in, "Odd"), areas=1, seed=1
    )
    inner, policy = jaxrl.load(run, deterministic=True), jaxrl.load(run, env, deterministic=True)
    message = host.reset()
    for _ in range(5):
        asking = message.steps["Odd"].deciding
        action = inner.act(asking.obs, asking.action_mask)
        message = host.step({"Odd": Action(np.asarray(action.continuous), np.asarray(action.discrete))})
    for obs, sent in zip(trained_in.seen, trained_in.given, strict=False):
        mask = np.arange(3) != int(obs["room"]) - 4
        action = policy.act(obs, mask)
        assert env.action_space.contains(action)
        assert action["lever"] == sent["lever"] and mask[action["lever"] - 5]
        np.testing.assert_allclose(action["wheel"], sent["wheel"], rtol=1e-5)
    assert len({float(sent["wheel"][0]) for sent in trained_in.given}) == 5


def test_a_box_with_bounds_as_the_documents_show_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The middle of 5 to 9 is 7; without the environment it is the 0 of the training, of which one is warned."""
    env: Any = SimpleNamespace(observation_space=spaces.Box(0, 1, (2,)), action_space=spaces.Box(5, 9, (1,)))
    kind = AgentKind("Wheel", env.observation_space, env.action_space)
    settings = ppo_settings(**SMALL)
    run = save(tmp_path / "run", "Wheel", kind.spec, settings, scaled(learner(kind.spec, settings), 0.0))
    assert jaxrl.load(run, env, deterministic=True).act(np.array([0.2, 0.9])).tolist() == [7.0]
    assert jaxrl.load(run, deterministic=True).act(np.array([0.2, 0.9])).continuous.tolist() == [0.0]
    assert not caplog.text  # of an earlier version, which did not note the spaces
    note(run, "Wheel", Agent("Wheel", env.observation_space, env.action_space))
    jaxrl.load(run)
    assert "Wheel was trained with the spaces Box(0.0, 1.0, (2,), float32) → Box(5.0, 9.0, (1,)" in caplog.text


def note(run: Path, name: str, agent: Agent) -> None:
    """Write who a behavior is into the run's status, as its training does."""
    path = run / "run_logs" / "training_status.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {name: {"identity": identity_of(agent)._asdict()}}))


def test_a_vector_environment_has_batches(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", AgentKind("Odd", Odd.observation_space, Odd.action_space))
    many = gymnasium.vector.SyncVectorEnv([Odd, Odd, Odd])
    obs, infos = many.reset(seed=3)
    alone, policy = jaxrl.load(run, Odd(), deterministic=True), jaxrl.load(run, many, deterministic=True)
    actions = policy.act(obs, infos["action_mask"])
    assert many.action_space.contains(actions)
    odd: Any = many.envs
    for i, one in enumerate(odd):
        expected = alone.act(one.unwrapped.seen[0], infos["action_mask"][i])
        assert actions["lever"][i] == expected["lever"]
        np.testing.assert_allclose(actions["wheel"][i], expected["wheel"], rtol=1e-5)
    many.step(actions)


def test_agents_of_several_behaviors_are_found_by_their_spaces(tmp_path: Path) -> None:
    """The run calls the agents with the higher bounds `walker`, whatever the environment shows first."""
    low, high = spaces.Box(0, 4, (1,)), spaces.Box(5, 9, (1,))
    shown = spaces.Box(0, 1, (1,))
    run = tmp_path / "run"
    for name, space in (("walker", high), ("walker-2", low)):
        run_of(run, AgentKind(name, shown, space))
        note(run, name, Agent("walker", shown, space))
    env: Any = SimpleNamespace(
        observation_spaces={0: shown, 1: shown}, action_spaces={"walker_0": low, "walker_1": high}
    )
    env.observation_spaces = dict.fromkeys(("walker_0", "walker_1"), shown)
    for name, lowest in (("walker", 5.0), ("walker-2", 0.0)):
        policy = jaxrl.load(run, env, behavior=name, deterministic=True)
        assert policy.policy.behavior == name and policy.write([-1.0], []).tolist() == [lowest]
    with pytest.raises(jaxrl.PolicyError, match="has the behaviors walker-2, walker, and none is named"):
        jaxrl.load(run, env)
    with pytest.raises(jaxrl.PolicyError, match="env: got a object, expected a JaxEnv or JaxScene, an environment of"):
        jaxrl.load(run, object())  # type: ignore[arg-type]


def test_a_policy_that_remembers_says_so_and_gives_its_memory(tmp_path: Path) -> None:
    kind = AgentKind("Any", spaces.Discrete(4, start=1), spaces.Box(-2, 2, (1,)))
    memory = {"memory_size": 6, "sequence_length": 4}
    run = run_of(tmp_path / "run", kind, network_settings__memory=memory)
    env: Any = SimpleNamespace(observation_space=spaces.Discrete(4, start=1), action_space=spaces.Box(-2, 2, (1,)))
    policy, inner = (jaxrl.load(run, *given, deterministic=True) for given in ((env,), ()))
    with pytest.raises(jaxrl.PolicyError, match="act: this policy remembers what it saw: call decide"):
        policy.act(2)
    first, expected = policy.decide(2), inner.act(np.eye(4, dtype=np.float32)[1])
    second, then = policy.decide(4, memory=first.memory), inner.act(np.eye(4)[3], memory=expected.memory)
    np.testing.assert_allclose(second.action, 2 * np.asarray(then.continuous), rtol=1e-5)
    assert not np.allclose(second.action, policy.decide(4).action)
    with pytest.raises(ObservationError, match=r"sensor 'observation': got 5, expected from \[1\] to \[4\]"):
        policy.decide(5)


def test_an_address_is_made_with_the_arguments_of_the_run(tmp_path: Path) -> None:
    """A Pendulum takes torques from -2 to 2."""
    env = gymnasium.make("Pendulum-v1")
    run = run_of(tmp_path / "run", AgentKind("Pendulum-v1", env.observation_space, env.action_space))
    (run / "configuration.yaml").write_text("env_settings: {env_path: 'gymnasium:Pendulum-v1', env_args: [g=9.8]}")
    policy = jaxrl.load(run, "gymnasium:Pendulum-v1")
    assert policy.write([1.0], []).tolist() == [2.0]
    obs, _ = env.reset(seed=0)
    assert env.action_space.contains(policy.act(obs, key=1))


def test_a_scale_of_the_run_counts_for_its_policies(tmp_path: Path) -> None:
    """A Box from 5 on, which the run was told to end at 5 + 4: its middle is 7."""
    env: Any = SimpleNamespace(observation_space=spaces.Box(0, 1, (2,)), action_space=spaces.Box(5, np.inf, (1,)))
    run = run_of(tmp_path / "run", AgentKind("Wheel", env.observation_space, spaces.Box(5, 9, (1,))))
    (run / "configuration.yaml").write_text("env_settings: {env_path: 'gymnasium:W-v0', env_args: [action_scale=4]}")
    assert jaxrl.load(run, env).write([0.0], []).tolist() == [7.0]

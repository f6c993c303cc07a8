"""Teams of several behaviors in the compiled loop: the rows of one behavior with all members, and a lock that opens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.algorithms.interface import Decision, PolicyState, TrainState, acting
from jaxrl.algorithms.team import make_team
from jaxrl.connectors import chain as chains
from jaxrl.connectors import make_chain
from jaxrl.connectors.chain import ChainState
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamView
from jaxrl.jax_envs.lock import LENGTH, LockSettings, make_lock, make_lock_and_key
from jaxrl.jax_envs.scene import BehaviorPart, BehaviorStep, JaxScene, SceneStep, scene_of
from jaxrl.settings import EvaluationSettings, SettingsError, behavior_settings_for, load_run_settings
from jaxrl.training.compiled import iteration
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.evaluation import evaluate
from jaxrl.training.compiled.iteration import iterate_several
from jaxrl.training.compiled.planning import plan_of
from jaxrl.training.compiled.play import Play, remembered, start_play
from jaxrl.training.compiled.stacking import figures, stack, stack_team, teams_over
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.trainer import make_scene_trainer
from jaxrl.types import Action
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation, quick_jit

CONFIGS = Path(__file__).parents[3] / "configs" / "poca"
T, E = 16, 3
SMALL = {"network_settings__hidden_units": 8, "network_settings__num_layers": 1}
KINDS = {"Front": slice(0, 1), "Rest": slice(1, 3)}
TOY = make_toy(ToySettings(members=3, truncates=True, die=True, spawn=True, pause=True))


def in_two(env: JaxEnv) -> JaxScene:
    """The same environment, whose members are of two behaviors."""
    parts = tuple(BehaviorPart(name, env.spec, of.stop - of.start, truncates=True) for name, of in KINDS.items())

    def cut(x, of: slice):
        return jax.tree.map(lambda array: array[of], x)

    def reset(key, parameters):
        state, view = env.reset(key, parameters)
        return state, {name: cut(view, of) for name, of in KINDS.items()}

    def step(key, state, actions):
        together = TeamActions(*(jnp.concatenate([actions[name][i] for name in KINDS]) for i in range(2)))
        state, done = env.step(key, state, together)
        came = {name: BehaviorStep(*cut(tuple(done[:5]), of)) for name, of in KINDS.items()}
        return state, SceneStep(came, done.over, done.stats)

    return JaxScene("Toy", parts, env.parameters, reset, step)


def steady(made):
    """The algorithm that names the colour by the clock: no noise, so that it acts alike in one behavior and in two."""

    def act(policy, obs, action_mask, carry, key):
        named = (jnp.round(7 * obs[0][..., 1] + obs[0][..., 2]).astype(jnp.int32) % 2)[..., None]
        action = Action(jnp.zeros((*named.shape[:-1], 0)), named)
        after = made.act(policy, obs, action_mask, carry, key).carry
        return Decision(action, action, {"log_prob": -1.0 - jnp.zeros(named.shape)}, after)

    return made._replace(act=act, noise=None)


def with_parts(policy, like):
    """The policy of a kind that has of one critic what `like` names, flax parameters."""
    own = {name: policy.critic["params"][name] for name in like["params"]}
    return policy.replace(critic={"params": own})


def test_a_team_of_two_behaviors_has_the_rows_of_one_behavior_with_all_members() -> None:
    """Members die, come late, pause, take each other's rows and are cut off; mates are paid for themselves.

    Actors and the critic remember: what they do of each state, bit for bit but for the order of sums.
    """
    settings = settings_of("poca", {**SMALL, "network_settings__memory": {"memory_size": 4, "sequence_length": 4}})
    made = ALGORITHMS["poca"](TOY.spec, settings)
    lock = make_team("lock", dict.fromkeys(KINDS, made), dict.fromkeys(KINDS, settings))

    def played(scene, teams):
        algorithms = {part.name: steady(lock.kinds.get(part.name, made)) for part in scene.parts}
        policy, shared = acting(made, made.init(jax.random.key(0))), dict.fromkeys(teams, lock.critic_step)
        own = {name: with_parts(policy, of.init(jax.random.key(0)).critic) for name, of in lock.kinds.items()}
        keys = {name: jax.random.split(jax.random.key(1), (T, 1)) for name in algorithms}
        values = {name: jnp.full(1, value, jnp.float32) for name, value in scene.parameters.items()}
        policies = {name: jax.tree.map(lambda x: x[None], own.get(name, policy)) for name in keys}
        begun = start_play(scene, algorithms, jax.random.split(jax.random.key(2), 1), E, values)
        (_, plays), steps = collect(scene, algorithms, policies, begun, keys, values, teams=teams, shared=shared)
        return {name: jax.tree.map(lambda x: x[:, 0], of) for name, of in steps.items()}, {
            name: jax.tree.map(lambda x: x[0], (play.view, remembered(play))) for name, play in plays.items()
        }

    @quick_jit
    def both():
        one, last = played(scene_of(TOY), ())
        whole = stack(TOY, one["Toy"], *last["Toy"], team_rows=True, time_horizon=4)
        scene = in_two(TOY)
        steps, last = played(scene, [tuple(KINDS)])
        views, memories = ({name: of[i] for name, of in last.items()} for i in range(2))
        sizes = {part.name: part for part in scene.parts}
        over = teams_over(sizes, steps)
        told = {name: figures(sizes[name], of, over) for name, of in steps.items()}
        return whole, figures(TOY, one["Toy"]), stack_team(sizes, steps, views, memories, time_horizon=4), told

    whole, expected, rollouts, told = both()
    assert np.asarray(whole.left).any() and np.asarray(whole.waiting).any() and np.asarray(whole.truncated).any()
    for name, of in KINDS.items():
        mine = jax.tree.map(lambda x, of=of: x[:, :, of], whole)
        for field in whole._fields:
            arrays = (jax.tree.leaves(getattr(of, field)) for of in (rollouts[name], mine))
            pairs = zip(*arrays, strict=True)
            for ours, theirs in pairs:
                np.testing.assert_allclose(ours, theirs, atol=1e-6, err_msg=f"{name} {field}")
        for ours, theirs in zip(told[name].group_reward, expected.group_reward, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    lone = told["Front"].mates_reward + told["Rest"].mates_reward
    np.testing.assert_allclose(lone, expected.mates_reward, rtol=1e-6)


def test_an_evaluation_tells_a_seer_who_left_what_its_team_got() -> None:
    """A seer that sets the dial to the code and a runner that pulls what the dial says: 1 in every episode, of both."""
    scene, options = make_lock(), EvaluationSettings(interval=1, episodes=3)

    def knows(spec):
        def act(policy, obs, action_mask, carry, key):
            named = jnp.argmax(obs[0][..., :4], -1).astype(jnp.int32)[..., None]
            action = Action(jnp.zeros((*named.shape[:-1], 0)), named)
            return Decision(action, action, {"log_prob": jnp.zeros(named.shape)}, ())

        return ALGORITHMS["poca"](spec, lock_settings())._replace(act=act, noise=None)

    algorithms = {part.name: knows(part.spec) for part in scene.parts}
    policies = {name: jnp.zeros(1) for name in algorithms}  # nobody reads them

    @quick_jit
    def played(leaves):
        given, teams = (policies, {"seer_leaves": leaves}), [list(algorithms)]
        of = [evaluate(scene, algorithms, options, name, *given, teams).episodes for name in algorithms]
        return [(found.group_reward.mean, found.group_reward.count) for found in of]

    for leaves in (0.0, 1.0):
        assert [[float(x[0]) for x in of] for of in played(jnp.full(1, leaves))] == [[1.0, 3.0], [1.0, 3.0]]


def lock_settings(**more):
    sizes = {"hyperparameters__buffer_size": 64, "hyperparameters__batch_size": 32}
    return settings_of("poca", {**SMALL, **sizes, "team": "lock", **more})


def trainer_of(scene, settings, *, areas, seeds):
    algorithms = {part.name: ALGORITHMS["poca"](part.spec, settings[part.name]) for part in scene.parts}
    leaves = [int(seed >= seeds // 2) for seed in range(seeds)]
    return make_scene_trainer(scene, algorithms, settings, areas=areas, seeds=seeds, parameters={"seer_leaves": leaves})


def test_an_iteration_of_a_team_of_three_gives_back_what_it_was_given() -> None:
    """Traced, not compiled: each behavior keeps its own part of the critic, and all learn in one iteration."""
    scene = make_lock_and_key()
    curious = {"reward_signals": {"extrinsic": {}, "curiosity": {"network_settings": {"hidden_units": 4}}}}
    settings = {part.name: lock_settings(count_by="env_steps", **curious) for part in scene.parts}
    algorithms = {part.name: ALGORITHMS["poca"](part.spec, settings[part.name]) for part in scene.parts}
    assert plan_of(scene, algorithms, settings, areas=4, seeds=2).steps == 16  # 64 of 4 areas
    settings = {name: of.model_copy(update={"count_by": "agent_steps"}) for name, of in settings.items()}
    plan = plan_of(scene, algorithms, settings, areas=4, seeds=2)
    assert plan.steps == 6 and list(plan.teams["lock"].kinds) == ["Seer", "Runner", "Carrier"]  # 64 of 4 x 3 members
    before = jax.eval_shape(partial(start, plan), jax.ShapeDtypeStruct((2,), np.uint32))
    after, logs = jax.eval_shape(partial(iterate_several, plan), before, jax.ShapeDtypeStruct((), np.int32))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
    for name, part in after.parts.items():
        assert ("attention" in part.train.critic["params"]) == (name == "Seer")
        assert {"policy_loss", "baseline_loss", "value_estimate/extrinsic", "value_estimate/curiosity"} <= set(
            logs[name].metric_sums
        )


def test_statistics_of_connectors_go_on_as_long_as_somebody_of_the_team_learns(monkeypatch) -> None:
    """Two seeds in which the first behavior has passed its last step, and the second one too or not yet."""
    chain = make_chain(TOY.spec, settings_of("poca", {"connectors": [{"type": "normalize"}]}).connectors)
    assert chain is not None
    learner: Any = SimpleNamespace(algorithm=SimpleNamespace(connectors=chain), alone=False, every=1)
    moved = jax.tree.map(lambda x: jnp.stack([x + 1.0] * 2), chain.shared)
    lead = (2, E, TOY.members)
    view = TeamView((jnp.ones((*lead, 4)),), jnp.ones((*lead, 2), bool), jnp.ones(lead, bool))
    begun: Any = SimpleNamespace(length=jnp.zeros(lead, jnp.int32))
    play = Play((), view, begun, (), (), ChainState(chains.start(chain, (), lead).slots, moved))
    policy = PolicyState((), (), jax.tree.map(lambda x: jnp.stack([x] * 2), chain.shared))

    def at(*steps: int) -> Any:
        return SimpleNamespace(train=TrainState(policy, *[()] * 4, jnp.array(steps), ()), last_step=jnp.array([10, 10]))

    monkeypatch.setattr(iteration, "learned", lambda learners, team, states, met, steps: met)
    states = {"Front": at(11, 11), "Rest": at(11, 10)}
    met: Any = iteration._after(dict.fromkeys(KINDS, learner), None, 1, states, dict.fromkeys(KINDS, play), {})
    for name in KINDS:
        assert met[name].train.policy.connectors[0]["0"].count.tolist() == [0.0, 1.0], name


@pytest.mark.slow
def test_a_team_learns_in_one_program_and_the_seer_who_is_gone_with_it() -> None:
    scene = make_lock()
    with quick_compilation():
        trainer = trainer_of(scene, {part.name: lock_settings() for part in scene.parts}, areas=4, seeds=2)
        before = trainer.init([3, 4])
        first = jax.device_get({name: part.train for name, part in before.parts.items()})
        state, logs = trainer.run(before, 3)
    assert trainer.steps == 8 and set(trainer.every.values()) == {1}  # 64 decisions of 4 areas of 2 members
    decisions = 3 * 8 * 4
    for name, log in logs.items():
        assert log.updates.tolist() == [3, 3] and (log.fault == -1).all()
        pair = first[name].critic, state.parts[name].train.critic
        moved = jax.tree.map(lambda x, y: bool((x != np.asarray(y)).any()), *pair)
        assert all(jax.tree.leaves(moved)), (name, moved)
        assert log.episodes.group_reward.count.tolist() == [decisions / LENGTH] * 2
        np.testing.assert_array_equal(log.episodes.group_reward.total, logs["Runner"].episodes.group_reward.total)
    assert "attention" in first["Seer"].critic["params"] and "attention" not in first["Runner"].critic["params"]
    steps = {name: np.asarray(part.train.step).tolist() for name, part in state.parts.items()}
    assert steps == {"Seer": [decisions, decisions * 2 // 3], "Runner": [decisions] * 2}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("config", "iterations"), [("lock", 80), ("lock_and_key", 200)])
def test_the_lock_opens_also_when_the_seer_is_gone_before_the_group_is_paid(config: str, iterations: int) -> None:
    """Three seeds of each variant, at least 0.95 over the last fifth. A seer without credit: 1/4."""
    run = load_run_settings(CONFIGS / f"{config}.yaml", {}, HYPERPARAMETER_TYPES)
    scene = make_lock() if config == "lock" else make_lock_and_key()
    settings = {part.name: behavior_settings_for(run, part.name) for part in scene.parts}
    trainer = trainer_of(scene, settings, areas=run.env_settings.num_areas, seeds=6)
    state, _ = trainer.run(trainer.init(range(6)), 4 * iterations // 5)
    _, logs = trainer.run(state, iterations // 5)
    for name, log in logs.items():
        assert (log.group_reward >= 0.95).all(), (name, log.group_reward)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_lock_whose_code_is_seen_once_is_opened_by_a_team_that_remembers_alone() -> None:
    """Three seeds, at least 0.95 over the last fifth; without memory a quarter."""
    run = load_run_settings(CONFIGS / "lock_glance.yaml", {}, HYPERPARAMETER_TYPES)
    scene, reached = make_lock(LockSettings(glance=True)), []
    remembering = behavior_settings_for(run, "Seer")
    forgetful = remembering.network_settings.model_copy(update={"memory": None})
    for settings in (remembering, remembering.model_copy(update={"network_settings": forgetful})):
        of_each = {part.name: settings for part in scene.parts}
        algorithms = {part.name: ALGORITHMS["poca"](part.spec, settings) for part in scene.parts}
        trainer = make_scene_trainer(scene, algorithms, of_each, areas=run.env_settings.num_areas, seeds=3)
        state, _ = trainer.run(trainer.init(range(3)), 96)
        reached.append(trainer.run(state, 24)[1]["Runner"].group_reward)
    assert (reached[0] >= 0.95).all() and (reached[1] < 0.35).all(), reached


@pytest.mark.parametrize(
    ("changed", "more", "text"),
    [
        (
            {"Runner": {"time_horizon": 8}},
            {},
            r"behaviors.Runner.time_horizon: got 8, expected 64 as behaviors.Seer has it",
        ),
        ({"Runner": {"team": "other"}}, {}, r"behaviors.Seer.team: got lock, which no other behavior of Lock has"),
        ({}, {"Seer": {"hyperparameters.beta": (0.1, 0.2)}}, r"Seer.hyperparameters.beta: seeds of one program cannot"),
        (
            {"Seer": {"network_settings__memory": {"sequence_length": 8}}},
            {},
            r"behaviors.Runner.network_settings.memory.sequence_length: got None, expected 8 as behaviors.Seer has it",
        ),
    ],
)
def test_what_cannot_be_one_team_is_refused(changed, more, text) -> None:
    scene = make_lock()
    settings = {part.name: lock_settings(**changed.get(part.name, {})) for part in scene.parts}
    algorithms = {part.name: ALGORITHMS["poca"](part.spec, settings[part.name]) for part in scene.parts}
    with pytest.raises(SettingsError, match=text):
        plan_of(scene, algorithms, settings, areas=2, seeds=2, values=more)

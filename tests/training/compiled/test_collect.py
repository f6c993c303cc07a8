"""The noise of a rollout: drawn for all decisions at once it is what each decision would draw. And whoever pauses."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl import make_environment, make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Decision, PolicyState
from jaxrl.client.episodes import play_episodes
from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamStep, TeamView, team_step
from jaxrl.jax_envs.scene import scene_of
from jaxrl.tools.watch.film import Role, play
from jaxrl.training.acting import memory_before, trained_actions
from jaxrl.training.compiled.checks import statistics_of
from jaxrl.types import Action
from tests.helpers import make_spec
from tests.jax_envs.toy_jax_env import make_toy
from tests.training.compiled.alone import collect, start_play


def test_noise_drawn_at_once_is_that_of_the_single_decisions() -> None:
    env = make_environment("jax:simple_spread")
    settings = make_settings("ppo", network_settings={"hidden_units": 4, "num_layers": 1, "normalize": False})
    algorithm = ALGORITHMS["ppo"](env.spec, settings)
    assert algorithm.noise is not None
    keys = jax.random.split(jax.random.key(1), 2)
    policy = jax.vmap(algorithm.init)(keys).policy
    parameters = {name: jnp.full(2, value) for name, value in env.parameters.items()}
    play = start_play(env, algorithm, keys, 3, parameters)
    of_steps = jax.random.split(jax.random.key(2), (5, 2))
    both = [
        jax.jit(partial(collect, env, given))(policy, play, of_steps, parameters)[1].action.discrete
        for given in (algorithm, algorithm._replace(noise=None))
    ]
    assert len(np.unique(both[0])) > 1
    np.testing.assert_array_equal(*both)


def in_turns() -> JaxEnv:
    """Two members who decide in turns, six decisions in all; each earns the number that it does."""
    spec = make_spec((1,), continuous=1)

    def view(time: Any) -> TeamView:
        obs = (jnp.full((2, 1), time, jnp.float32),)
        return TeamView(obs, jnp.ones((2, 0), bool), time % 2 == jnp.arange(2))

    def step(key: Any, time: Any, actions: TeamActions) -> tuple[Any, TeamStep]:
        alive, over, nobody = time % 2 == jnp.arange(2), time == 5, jnp.zeros(2, bool)
        own = jnp.where(alive, actions.continuous[:, 0], 0.0)
        return time + 1, TeamStep(view(time + 1), own, jnp.zeros(2), nobody | over, nobody, over, {})

    return JaxEnv("Turns", spec, 2, {}, lambda *_: (jnp.int32(0), view(jnp.int32(0))), step)


def test_who_pauses_remembers_in_training_as_in_a_rollout() -> None:
    """Each does the number of its decisions so far, 0 + 1 + 2. Not 0, forgotten; nor 0 + 2 + 4, while it paused."""
    env = in_turns()

    def act(_policy: Any, obs: Any, mask: Any, carry: Any, _key: Any) -> Decision:
        action = Action(carry["n"], jnp.zeros((*mask.shape[:-1], 0), jnp.int32))
        return Decision(action, action, {"log_prob": jnp.zeros((*mask.shape[:-1], 1))}, {"n": carry["n"] + 1.0})

    made = ALGORITHMS["ppo"](env.spec, make_settings("ppo"))._replace(act=act, noise=None, memories=(("n", (1,)),))
    policy = PolicyState(params=jnp.zeros(1), normalizer=())
    memory = memory_before(made, policy, 2)
    acts, name = {env.name: trained_actions(made)}, env.name
    given = {name: policy}, {name: memory}, jax.random.key(0), {}, jnp.int32(20)
    sums = play_episodes(scene_of(env), name, acts, 1, *given)
    assert sums.finished.all() and sums.returns.tolist() == [[3.0, 3.0]]
    roles = {name: Role(acts[name], policy, memory)}
    game = play(env, roles, jax.random.key(0), {}, steps=12)
    assert game.reward[name].sum(1).tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0] * 2
    begun = start_play(env, made, jax.random.split(jax.random.key(1), 1), 1, {})
    _, steps = collect(env, made, policy, begun, jax.random.split(jax.random.key(2), (12, 1)), {})
    assert steps.sums.reward[5].tolist() == [[[3.0, 3.0]]]
    assert jnp.where(steps.alive, steps.action.continuous[..., 0], 0).sum((1, 2, 3)).tolist() == [0, 0, 1, 1, 2, 2] * 2


def test_what_is_paid_in_a_pause_counts_in_a_rollout_as_in_training() -> None:
    """In turns each does what it sees, what its last decision earned, and is paid that and 1; who pauses is paid 10."""

    def view(clock: Array) -> TeamView:
        alive = (jnp.arange(2) == clock % 2) & (clock < 6)
        return TeamView((jnp.zeros((2, 1)),), jnp.ones((2, 0), bool), alive)

    def step(_key: Array, clock: Array, actions: TeamActions) -> tuple[Array, TeamStep]:
        paid = jnp.where(jnp.arange(2) == clock % 2, actions.continuous[:, 0] + 1.0, 10.0)
        after = team_step(view(clock + 1), reward=paid, terminated=clock == 5, figures={})
        return clock + 1, after

    spec = make_spec((1,), continuous=1)
    env = JaxEnv("Paid", spec, 2, {}, lambda *_: (jnp.int32(0), view(jnp.int32(0))), step)

    def act(_policy: Any, obs: Any, mask: Any, carry: Any, _key: Any) -> Decision:
        action = Action(obs[1], jnp.zeros((*mask.shape[:-1], 0), jnp.int32))
        return Decision(action, action, {"log_prob": jnp.zeros((*mask.shape[:-1], 1))}, carry)

    settings = make_settings("ppo", connectors=[{"type": "previous_reward"}])
    made = ALGORITHMS["ppo"](spec, settings)._replace(act=act, noise=None)
    policy = PolicyState(params=jnp.zeros(1), normalizer=(), connectors=made.init(jax.random.key(0)).policy.connectors)
    given = {env.name: policy}, {env.name: memory_before(made, policy, 2)}, jax.random.key(0), {}, jnp.int32(20)
    sums = play_episodes(scene_of(env), env.name, {env.name: trained_actions(made)}, 1, *given)
    expected = [1 + 10 + 12 + 10 + 23 + 10, 1 + 10 + 12 + 10 + 23]  # 12: 1 and the 11 that it sees
    assert sums.returns.tolist() == [expected]
    begun = start_play(env, made, jax.random.split(jax.random.key(1), 1), 1, {})
    several = jax.tree.map(lambda x: x[None], policy)
    _, steps = collect(env, made, several, begun, jax.random.split(jax.random.key(2), (6, 1)), {})
    assert steps.sums.reward[5].tolist() == [[expected]]


def test_figures_of_the_environment_are_under_no_tag_of_the_trainers() -> None:
    """It replaced the mean return of agents."""
    toy = make_toy()

    def step(key: Any, state: Any, actions: Any) -> Any:
        after, done = toy.step(key, state, actions)
        return after, done._replace(stats={"Environment/Cumulative Reward": jnp.float32(1000), **done.stats})

    env = toy._replace(step=step)
    algorithm, keys = ALGORITHMS["ppo"](env.spec, make_settings("ppo")), jax.random.split(jax.random.key(0), (3, 1))

    def played() -> Any:
        policy = jax.vmap(algorithm.init)(keys[0]).policy
        begun = start_play(env, algorithm, keys[1], 2, {"red": jnp.full(1, 0.5)})
        return collect(env, algorithm, policy, begun, keys[2:], {"red": jnp.full(1, 0.5)})[1].stats

    tags = {"Scene/Environment/Cumulative Reward", "Environment/Clock"}
    assert jax.eval_shape(played).keys() == tags == statistics_of(env).keys()

"""The seams carry an algorithm with a replay: it keeps, begins late and learns the optimum in both loops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from replay_algorithm import QNetwork, ReplaySettings, Ring, add, empty, make_replay
from team_rollouts import quick_jit, random_rollout

from jaxrl.rollout.booking.slots import Source
from jaxrl.rollout.buffer import trajectory
from jaxrl.training.compiled.plan import JittedTrainer
from jaxrl.training.compiled.state import IterationLog, JittedState
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.decide import ActorPrograms, decide
from jaxrl.training.host.learner import LearnerPrograms, keep, learn
from jaxrl.training.host.paged_buffer import MOST, capacity
from jaxrl.types import BehaviorMessage
from tests.helpers import decision_steps, make_spec, message, ppo_settings, terminal_steps
from tests.jax_envs.toy_jax_env import ToySettings, make_toy, quick_compilation
from tests.probe_envs import DISCRETE, Played, ProbeEnv

SETTINGS = ReplaySettings()
LOOP = ppo_settings()  # of the loops alone: max_steps and time_horizon
SOURCE = Source(0, "Probe?team=0")


class NamedSign:
    """1 for the branch that names the sign of the first number, which turns with every step; episodes of two steps."""

    spec = DISCRETE

    def __init__(self, *, truncated: bool) -> None:
        self.truncated = truncated

    def begin(self, n, rng):
        return np.stack([rng.choice([-1.0, 1.0], n), np.zeros(n)], axis=-1)

    def play(self, obs, clock, action):
        right = action.discrete[:, 0] == (obs[:, 0] > 0)
        over = clock == 1
        later = np.zeros(len(obs)) if self.truncated else clock + 1.0  # terminated: the time left counts
        return Played(right * 1.0, np.stack([-obs[:, 0], later], axis=-1), over, over & self.truncated)


@cache
def programs():
    """Compiled once for all behaviors here."""
    algorithm = make_replay(DISCRETE, SETTINGS)
    algorithm = algorithm._replace(init=quick_jit(algorithm.init))
    return algorithm, Programs(
        ActorPrograms(
            decide=quick_jit(partial(decide, algorithm, LOOP.time_horizon), donate_argnums=1),
            turn=quick_jit(trajectory.turn),
        ),
        LearnerPrograms(
            learn=quick_jit(partial(learn, algorithm), donate_argnums=(0, 1, 2)),
            keep=quick_jit(keep, static_argnums=0, donate_argnums=(2, 3)),
        ),
    )


def behavior() -> Behavior:
    algorithm, made = programs()
    return make_behavior("Probe", DISCRETE, LOOP, algorithm, made, jax.random.key(0), training=True)


def played(learner: Behavior, env: ProbeEnv) -> Iterator[dict[str, float]]:
    """What each call of `learn` gives."""
    steps = env.first()
    while True:
        actions, _ = learner.act({SOURCE: steps})
        steps = env.step(actions[SOURCE])
        if learner.due():
            yield learner.learn()


def q_of(params: Any, obs: list[tuple[float, ...]], hidden: int = SETTINGS.hidden) -> np.ndarray:
    """Q [N, 2] of some observations."""
    return np.asarray(QNetwork(2, hidden).apply(params, (np.array(obs, np.float32),), 1))


def assert_keeps(ring: Ring, wanted: list[tuple]) -> None:
    """The ring holds exactly these transitions (obs, action, reward, discount, next obs or None), at their places."""
    size = ring.kept.action.shape[0]
    assert int(ring.count) == len(wanted)
    for number in range(max(len(wanted) - size, 0), len(wanted)):
        here = jax.tree.map(lambda x, place=number % size: np.asarray(x[place]), ring.kept)
        obs, action, reward, discount, after = wanted[number]
        np.testing.assert_array_equal(here.obs[0], np.float32(obs))
        assert here.action == action
        assert (here.reward, here.discount) == pytest.approx((reward, discount))
        if after is not None:
            np.testing.assert_array_equal(here.next_obs[0], np.float32(after))


@pytest.mark.parametrize("size", [7, 64])
def test_a_rollout_becomes_transitions(size: int) -> None:
    """Against a search by hand, in rollouts with waiting, absent and ended members; a ring of 7 overflows at once."""
    spec = make_spec((3,), branches=(2,))
    ring, wanted = empty(spec, size), []
    for seed in range(2):
        rollout = random_rollout(seed, t=6, b=2, a=1, spec=spec)
        ring = quick_jit(partial(add, 0.8))(ring, rollout)
        for t, b in zip(*np.nonzero(rollout.acted[..., 0]), strict=True):
            after = next(s for s in range(t + 1, 6) if not rollout.waiting[s, b, 0])
            over = rollout.terminated[t, b, 0] or rollout.left[t, b, 0]
            paid, obs = rollout.reward[t, b, 0] + rollout.group_reward[t, b, 0], rollout.obs[0][:, b, 0]
            seen = obs[after] if rollout.present[after, b, 0] and not over else np.zeros(3)
            wanted.append((obs[t], rollout.action.discrete[t, b, 0, 0], paid, 0.0 if over else 0.8, seen))
    assert 7 < len(wanted) < 64
    assert_keeps(ring, wanted)


def test_waiting_states_are_passed_through() -> None:
    spec = make_spec((3,), branches=(2,))
    rollout = random_rollout(0, t=4, b=1, a=1, spec=spec)
    rows = np.array([[[1]], [[0]], [[0]], [[0]]], bool)  # acts, waits, waits, is seen for the last time
    nobody = np.zeros_like(rows)
    everywhere = np.ones_like(rows)
    waits = rows[[1, 0, 0, 1]]
    rollout = rollout._replace(acted=rows, waiting=waits, terminated=nobody, left=nobody, present=everywhere)
    kept = quick_jit(partial(add, 0.8))(empty(spec, 8), rollout).kept
    np.testing.assert_array_equal(kept.next_obs[0][0], rollout.obs[0][3, 0, 0])


def test_host_loop_keeps_what_was_collected_and_begins_late() -> None:
    """One agent tells what it sees and earns; 400 decisions are more than the buffer of an actor may ever hold."""
    assert MOST * capacity(SETTINGS.per_update, 1, 1) < SETTINGS.initial
    learner, spec, wanted, agent, number = behavior(), DISCRETE, [], 0, 0

    def say(steps: BehaviorMessage) -> int:
        actions, _ = learner.act({SOURCE: steps})
        return int(actions[SOURCE].discrete[0, 0])

    before = jax.tree.map(np.array, learner.state.policy)
    chosen = say(message(spec, None, decision_steps(spec, [agent], obs=[[[0.0, 0.0]]])))
    while learner.updates == 0:
        seen, number = (float(number), float(agent)), number + 1
        after, ends = (float(number), float(agent)), number % 5 == 0
        truncated = ends and agent % 2 == 0
        goes_on = truncated or not ends
        wanted.append((seen, chosen, 0.5 + number, SETTINGS.gamma if goes_on else 0.0, after if goes_on else None))
        ended = None
        if ends:
            ended = terminal_steps(spec, [agent], reward=[0.5 + number], truncated=[truncated], obs=[[after]])
            agent += 1
        reward = [0.0 if ends else 0.5 + number]
        asking = decision_steps(spec, [agent], reward=reward, obs=[[[float(number), float(agent)]]])
        chosen = say(message(spec, ended, asking))
        if not learner.due():
            continue
        found = learner.learn()
        assert bool(found) == (learner.updates == 1) == (learner.step >= SETTINGS.initial)
        assert int(learner.state.step) == learner.step == len(wanted)
        if learner.updates == 0:
            jax.tree.map(np.testing.assert_array_equal, learner.state.policy, before)
    assert_keeps(learner.learner.store, wanted)
    period = SETTINGS.per_update + 1  # an actor gives away what it has when there is more than was asked for
    assert learner.step == -(-SETTINGS.initial // period) * period


@pytest.mark.parametrize("truncated", [False, True])
def test_host_loop_learns_the_optimum(truncated: bool) -> None:
    """Two steps of 1 each: Q = (1 + γ, γ) and (1, 0). Cut off instead, they go on for ever: 1 / (1 - γ) and γ of it."""
    learner = behavior()
    for _, found in zip(range(200), played(learner, ProbeEnv(NamedSign(truncated=truncated))), strict=False):
        assert np.isfinite(list(found.values())).all()
    g, (first, second) = SETTINGS.gamma, ((1.0, 0.0), (-1.0, 1.0))
    q = q_of(learner.state.policy.params, [first, (-1.0, 0.0) if truncated else second])
    right, wrong = (1 / (1 - g), g / (1 - g)) if truncated else (1 + g, g)
    np.testing.assert_allclose(q[0], [wrong, right], atol=0.15)
    np.testing.assert_allclose(q[1], [right, wrong] if truncated else [1.0, 0.0], atol=0.15)
    target = q_of(learner.state.own["target"], [first])
    np.testing.assert_allclose(target[0], q[0], atol=0.2)
    assert not np.array_equal(target[0], q[0]), "it lags behind"


# In the compiled loop: 16 decisions an iteration, all by agents that live, so that every count is known.
TOY, AREAS, NUMBERS = ToySettings(members=1, truncates=True), 4, (5, 9)
COMPILED = SETTINGS._replace(ring=256, initial=40, per_update=16, minibatches=16, gamma=0.5, temperature=1.0)


@cache
def trainer() -> JittedTrainer:
    env = make_toy(TOY)
    with quick_compilation():
        made = make_jitted_trainer(env, make_replay(env.spec, COMPILED), LOOP, areas=AREAS, seeds=2)
    assert made.steps * AREAS == COMPILED.per_update
    return made


def ran(numbers: tuple[int, ...], *counts: int) -> tuple[list[JittedState], list[IterationLog]]:
    """States and logs after chunks of iterations, as numpy; the first state is the fresh one."""
    with quick_compilation():
        state = trainer().init(numbers)
    states, logs = [host_copy(state)], []
    for count in counts:
        state, log = trainer().run(state, count)
        states.append(host_copy(state))
        logs.append(jax.tree.map(np.array, log))
    return states, logs


def host_copy(state: JittedState) -> JittedState:
    keys = jax.random.key_data
    return jax.tree.map(
        lambda x: np.array(keys(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x), state
    )


def equal(first: Any, second: Any) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def test_compiled_loop_begins_late_and_counts_meanwhile() -> None:
    states, logs = ran(NUMBERS, 1, 1, 1)
    counted = [(state.train.step.tolist(), state.store.count.tolist(), state.fresh.tolist()) for state in states]
    assert counted == [([0, 0],) * 3, ([16, 16],) * 3, ([32, 32],) * 3, ([48, 48], [48, 48], [0, 0])]
    assert [log.updates.tolist() for log in logs] == [[0, 0], [0, 0], [1, 1]]
    losses = [log.metrics["value_loss"] for log in logs]
    assert np.isnan(losses[1]).all() and (losses[2] > 0).all()
    learned = [state.train.replace(step=0) for state in states]
    assert equal(learned[0], learned[2])
    assert not np.array_equal(learned[3].key, learned[2].key)
    assert not equal(learned[3].policy.params, learned[2].policy.params)


def test_compiled_loop_keeps_what_was_collected() -> None:
    """The lamp pays 1 / n + 1 for its colour. What follows is the same episode a step later, its end included."""
    (_, state), _ = ran(NUMBERS, 2)
    for seed in range(2):
        kept = jax.tree.map(lambda x, seed=seed: x[seed, :32], state.store.kept)
        (obs,), (after,) = kept.obs, kept.next_obs
        right = kept.action == (obs[:, 0] > 0)
        paid = 1 / (TOY.length - (obs[:, 3] < 0.5)) + 1
        np.testing.assert_allclose(kept.reward, np.where(right, paid, 0.0), rtol=1e-6)
        np.testing.assert_allclose(after[:, 1], obs[:, 1] + 1 / TOY.length, rtol=1e-6)
        np.testing.assert_array_equal(after[:, 3], obs[:, 3])
        assert (kept.discount == 0.5).all()
        clocks = [np.float32(t % n / TOY.length) for t in range(8) for n in lengths(obs)]
        np.testing.assert_allclose(obs[:, 1], clocks, rtol=1e-6)
        assert 0 < right.sum() < 32 and (after[:, 1] > 0.75).any(), "some episodes have ended"
        assert not any(x[seed, 32:].any() for x in jax.tree.leaves(state.store.kept))


def lengths(obs: np.ndarray) -> list[int]:
    """Of the first episode in each area, whose second is not over within 8 decisions."""
    return [TOY.length - int(luck < 0.5) for luck in obs[:AREAS, 3]]


def test_compiled_loop_keeps_seeds_apart() -> None:
    """What a seed has kept and learned depends on its number alone."""
    (_, one), _ = ran(NUMBERS, 5)
    (_, other), _ = ran(NUMBERS[::-1], 5)
    turned = jax.tree.map(lambda x: x[::-1], (other.train, other.store))
    assert equal((one.train, one.store), turned)
    for part in one.store.kept.obs[0], one.store.kept.action, *jax.tree.leaves(one.train.own):
        assert not np.array_equal(part[0], part[1])


def test_compiled_loop_learns_the_optimum() -> None:
    (_, state), (log,) = ran(NUMBERS, 80)
    assert log.updates.tolist() == [78, 78] and state.store.count.tolist() == [80 * 16] * 2
    for seed in range(2):
        params = jax.tree.map(lambda x, seed=seed: x[seed], state.train.policy.params)
        q = q_of(params, [(colour, 0.4, 0.0, 0.7) for colour in (-1.0, 1.0)])
        assert q.argmax(-1).tolist() == [0, 1]
        # An episode that is cut off goes on for ever: 1.2 / (1 - γ) = 2.4, and 1.2 less for the wrong colour.
        np.testing.assert_allclose(q, [[2.4, 1.2], [1.2, 2.4]], atol=0.35)


def test_a_compiled_run_holds_its_replay_once() -> None:
    """Added to in place, and no copy of it beside it: 2^16 transitions more in the plan are 2^16 transitions more."""
    env, planned, held = make_toy(TOY), [], []
    for size in (1 << 10, 1 << 16):
        settings = COMPILED._replace(ring=size)
        with quick_compilation():
            planned.append(make_jitted_trainer(env, make_replay(env.spec, settings), LOOP, areas=AREAS).bytes)
        held.append(sum(x.nbytes for x in jax.tree.leaves(empty(env.spec, size))))
    assert planned[1] - planned[0] < 1.05 * (held[1] - held[0])

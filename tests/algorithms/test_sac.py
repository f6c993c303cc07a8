"""SAC: how often it learns, what it learns, and what reaches nobody. Its numbers are compared in `tests/parity`."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from team_rollouts import quick_jit, random_rollout

from jaxrl.algorithms import make_settings, off_policy, sac, sac_parts
from jaxrl.algorithms.interface import Counts, store_rollout
from jaxrl.algorithms.parts import applied
from jaxrl.learning import replay
from jaxrl.networks import actions, squashed
from jaxrl.networks.actions import ActionDistribution
from jaxrl.networks.models import ValueNetwork
from jaxrl.rewards.signals import bind_off_policy
from jaxrl.settings import SettingsError
from jaxrl.training.memory import check_store
from jaxrl.types import ActionSpec
from tests.helpers import make_spec

SPEC = make_spec((3,), continuous=1, branches=(2,))
SMALL = {"hidden_units": 8, "num_layers": 1}


def settings_of(**hyperparameters):
    given = {"batch_size": 8, "buffer_size": 64, "buffer_init_steps": 0, **hyperparameters}
    return make_settings("sac", hyperparameters=given, network_settings=SMALL)


def made(spec=SPEC, **hyperparameters):
    algorithm = sac.make_sac(spec, settings_of(**hyperparameters))
    return algorithm, quick_jit(algorithm.init)(jax.random.key(0)), algorithm.storage.init()


def rollout_of(seed: int):
    return random_rollout(seed, t=6, b=2, a=1, spec=SPEC)._replace(extras={})


def counts(total: int) -> Counts:
    return Counts(fresh=total, total=total)


def test_as_many_updates_as_decisions_pay_for() -> None:
    """One update for 2.5 decisions after the first 10: what is left over is not lost."""
    algorithm, state, store = made(steps_per_update=2.5, buffer_init_steps=10)
    learn = quick_jit(algorithm.learn)
    put = quick_jit(partial(store_rollout, algorithm))
    for seed in range(6):
        state, store = put(state, store, rollout_of(seed))
        if algorithm.storage.can_sample(store, counts(int(state.step))):
            state, _ = learn(state, store)
    steps, updates = int(state.step), int(state.optimizer["policy"].count)
    assert steps > 30
    assert updates == int((steps - 10) / 2.5)
    assert float(state.own["owed"]) == pytest.approx((steps - 10) / 2.5 - updates, abs=1e-4)


def test_a_turn_makes_the_updates_that_are_owed_and_tells_their_means() -> None:
    """An update adds its minibatch, a number that its key has drawn; with less than one update owed nothing moves."""

    def update(learner, drawn, _key):
        return learner + drawn, {"loss": drawn}

    keys = jax.random.split(jax.random.key(0), 3)
    draws = [float(jax.random.uniform(jax.random.split(key)[0])) for key in keys]
    for owed, made in ((3.25, 3), (0.75, 0)):
        last = {"loss": jnp.float32(7.0)}
        after, left, told = off_policy.turn(
            update, jnp.float32(1.0), jnp.float32(owed), last, jax.random.uniform, lambda number: keys[number]
        )
        assert float(after) == pytest.approx(1.0 + sum(draws[:made])) and float(left) == pytest.approx(owed - made)
        assert float(told["loss"]) == pytest.approx(np.mean(draws) if made else 7.0)


def test_statistics_and_signals_follow_what_was_decided_on_alone() -> None:
    """Not what members see while they wait; a decision counts once, for the policy's normaliser and for RND's."""
    network = {**SMALL, "normalize": True}
    settings = make_settings(
        "sac", network_settings=network, reward_signals={"extrinsic": {}, "rnd": {"network_settings": network}}
    )
    algorithm, rollout = sac.make_sac(SPEC, settings), random_rollout(0, t=6, b=4, a=2, spec=SPEC)
    state = quick_jit(algorithm.watch)(quick_jit(algorithm.init)(jax.random.key(0)), rollout)
    seen = rollout.obs[0][rollout.acted]
    assert len(seen) < rollout.present.sum()
    for statistics in (state.policy.normalizer[0], state.signals["rnd"]["normalizer"][0]):
        assert int(statistics.count) == 1 + len(seen)
        np.testing.assert_allclose(statistics.mean, seen.sum(0) / (1 + len(seen)), rtol=1e-5)


def test_runs_of_one_program_may_differ_in_what_pays_for_an_update() -> None:
    """Traced, as in a sweep; how much is collected is known before."""
    algorithm, state, store = made(steps_per_update=100.0)
    assert algorithm.collect_size == 100 and algorithm.with_traced_settings is not None
    again = algorithm.with_traced_settings
    learn = lambda paying: again({"hyperparameters.steps_per_update": paying}).learn(state, store)  # noqa: E731
    after, _ = jax.eval_shape(learn, jax.ShapeDtypeStruct((), np.float32))
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_learning_begins_when_both_counts_are_reached_and_an_update_is_paid_for() -> None:
    """A turn without an update told zeros, which lowered the means of the first summary."""
    algorithm, state, empty = made(batch_size=8, buffer_init_steps=20, steps_per_update=2.5)
    put = quick_jit(partial(store_rollout, algorithm))
    _, full = put(state, put(state, empty, rollout_of(0))[1], rollout_of(1))
    ready = algorithm.storage.can_sample
    assert [bool(ready(full, Counts(0, total))) for total in (20, 22, 23)] == [False, False, True]
    # A run that is resumed with nothing in store waits for a minibatch, whatever it has seen before.
    assert [bool(ready(empty, Counts(fresh, 10_000))) for fresh in (0, 7, 8)] == [False, False, True]


def test_squashed_log_probabilities_are_those_of_the_density() -> None:
    """Against the change of variables in float64: log N(u) - log(1 - tanh² u)."""
    rng = np.random.default_rng(0)
    mean, log_sigma, normal = (rng.normal(size=(50, 2)).astype(np.float32) for _ in range(3))
    dist = ActionDistribution(jnp.asarray(mean), jnp.asarray(log_sigma * 0.3), jnp.zeros((50, 0)))
    action, log_prob = squashed.drawn(dist, jnp.asarray(normal))
    sigma = np.exp(np.float64(log_sigma * 0.3))
    u = np.float64(mean) + sigma * normal
    wanted = -0.5 * np.square(normal) - np.log(sigma) - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
    np.testing.assert_allclose(action, np.tanh(u), atol=1e-5)
    np.testing.assert_allclose(log_prob, wanted, atol=2e-3, rtol=1e-4)


def test_what_is_sampled_has_the_distribution_that_it_says() -> None:
    spec = ActionSpec(1, (3,))
    rows = 20000
    mean, log_sigma = np.full((rows, 1), 0.5, np.float32), np.full((rows, 1), -0.5, np.float32)
    dist = ActionDistribution(
        jnp.asarray(mean), jnp.asarray(log_sigma), jnp.tile(jnp.log(jnp.array([0.2, 0.3, 0.5])), (rows, 1))
    )
    mask = jnp.tile(jnp.array([True, False, True]), (rows, 1))
    drawn = squashed.sample(jax.random.key(0), dist, mask, spec)
    u = np.arctanh(np.float64(drawn.continuous[:, 0]))
    assert (u.mean(), u.std()) == pytest.approx((0.5, np.exp(-0.5)), abs=0.02)
    assert np.bincount(drawn.discrete[:, 0], minlength=3) / rows == pytest.approx([2 / 7, 0, 5 / 7], abs=0.02)
    assert float(squashed.mode(dist, mask, spec).continuous[0, 0]) == pytest.approx(np.tanh(0.5))
    entropy = actions.entropy(dist, mask, spec)
    assert entropy.shape == (rows,)


def test_masked_rows_change_nothing_whatever_they_hold() -> None:
    """NaN in a row that is not valid: the losses of the others and all gradients are the same, bit for bit."""
    settings = settings_of()
    parts, signals = sac_parts.parts_of(SPEC, settings), bind_off_policy(SPEC, settings)
    algorithm, state, store = made()
    put = quick_jit(partial(store_rollout, algorithm))
    for seed in range(3):
        _, store = put(state, store, rollout_of(seed))
    batch = quick_jit(algorithm.storage.sample)(store, jax.random.key(1))
    valid = jnp.arange(8) < 5

    update = quick_jit(partial(sac.one_update, parts, signals))

    def after(batch):
        return update(state, batch, jax.random.key(2))

    clean = after(batch._replace(valid=valid))
    spoiled = batch._replace(
        valid=valid, reward=jnp.where(valid, batch.reward, 7.0), discount=jnp.where(valid, batch.discount, 3.0)
    )
    other = after(spoiled)
    for x, y in zip(jax.tree.leaves(clean[1]), jax.tree.leaves(other[1]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_a_branch_of_one_choice_leaves_its_temperature_alone() -> None:
    """Nothing is chosen there: rounding of its entropy, which can only be 0, drove it up without end, and V with it."""
    algorithm, state, store = made(make_spec((3,), branches=(2, 1)), steps_per_update=0.5)
    rollout = random_rollout(0, t=6, b=2, a=1, spec=make_spec((3,), branches=(2, 1)))._replace(extras={})
    state, store = quick_jit(partial(store_rollout, algorithm))(state, store, rollout)
    state, _ = quick_jit(algorithm.learn)(state, store)
    chosen, given = np.asarray(state.own["log_alpha"]["discrete"])
    assert chosen != 0.0 == given and int(state.optimizer["policy"].count) > 8


def test_target_entropies_follow_the_mask_of_each_state() -> None:
    """0.2 ln of the choices that are allowed; with one, or none, there is none. ML-Agents': of all choices."""
    spec = make_spec((3,), branches=(3, 2))
    mask = jnp.array([[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 1, 0, 0]], bool)
    three, two = 0.2 * np.log(3.0), 0.2 * np.log(2.0)
    parts = sac_parts.parts_of(spec, settings_of())
    targets = sac_parts.target_entropies(mask, parts)
    np.testing.assert_allclose(targets, [[three, two], [two, 0.0], [0.0, 0.0]], rtol=1e-6)
    as_there = sac_parts.parts_of(spec, settings_of(original_losses=True))
    np.testing.assert_allclose(sac_parts.target_entropies(mask, as_there), [[three, two]] * 3, rtol=1e-6)


def test_temperatures_stay_where_most_states_allow_one_choice() -> None:
    """With the entropy that all choices ask for, and no policy has there, they grow at every one of the updates."""
    spec = make_spec((3,), branches=(2,))
    rollout = random_rollout(0, t=6, b=2, a=1, spec=spec)._replace(extras={})
    forced = jnp.arange(6).reshape(6, 1, 1, 1) > 0
    mask = jnp.where(forced, jnp.array([True, False]), True)
    rollout = rollout._replace(
        action_mask=jnp.broadcast_to(mask, rollout.action_mask.shape),
        action=rollout.action._replace(discrete=jnp.where(forced, 0, rollout.action.discrete)),
    )
    temperatures = []
    for original in (False, True):
        algorithm, state, store = made(spec, steps_per_update=0.05, learning_rate=0.02, original_losses=original)
        state, store = quick_jit(partial(store_rollout, algorithm))(state, store, rollout)
        state, _ = quick_jit(algorithm.learn)(state, store)
        temperatures.append(float(jnp.exp(state.own["log_alpha"]["discrete"][0])))
    assert temperatures[0] < 1.0 and temperatures[1] > 3.0, temperatures


def test_interrupted_episodes_are_worth_as_much_as_endless_ones_and_ended_ones_are_not() -> None:
    """γ V̄ of the last observation is in the target of one that was cut off; of one that ended, nothing."""
    settings = settings_of()
    parts = sac_parts.parts_of(SPEC, settings)
    algorithm, state, store = made()
    _, store = quick_jit(partial(store_rollout, algorithm))(state, store, rollout_of(0))
    batch = quick_jit(algorithm.storage.sample)(store, jax.random.key(1))
    normal, losses, step = jnp.zeros((8, 1)), [], quick_jit(partial(sac.step, parts))
    q_of, value_of = quick_jit(applied(parts.q)), quick_jit(applied(parts.value))
    for ended in (0.0, 1.0):
        one = batch._replace(discount=jnp.full(8, 1.0 - ended), seen=jnp.ones(8, bool))
        _, told = step(state, one, one.reward[:, None], normal)
        q = q_of(state.critic["q1"], one.obs, one.action.continuous)[:, 0]
        taken = np.take_along_axis(np.asarray(q), np.asarray(one.action.discrete), axis=1)[:, 0]
        follows = np.asarray(value_of(state.critic["target"], one.next_obs))[:, 0]
        target = np.asarray(one.reward) + (1.0 - ended) * 0.99 * follows
        losses.append((float(told["q1_loss"]), 0.5 * np.mean(np.square(target - taken))))
    for ours, wanted in losses:
        assert ours == pytest.approx(wanted, rel=1e-5)
    assert losses[0][0] != pytest.approx(losses[1][0], rel=1e-3)


def test_streams_that_last_go_on_where_an_episode_ends_and_none_from_a_state_that_nobody_saw() -> None:
    """Rows ended or cut off, with and without a last observation, for a signal that ends and one that lasts.

    What follows is γ V̄(s') where s' was seen: for the first unless the episode ended. Where it was not seen it is 0 for
    the first, and γ V̄ of the state before for the one that lasts.
    """
    streams = {"extrinsic": {"gamma": 0.9}, "curiosity": {"gamma": 0.5, "network_settings": SMALL}}
    given = {"batch_size": 8, "buffer_size": 64}
    settings = make_settings("sac", hyperparameters=given, network_settings=SMALL, reward_signals=streams)
    parts, algorithm = sac_parts.parts_of(SPEC, settings), sac.make_sac(SPEC, settings)
    state, store = quick_jit(algorithm.init)(jax.random.key(0)), algorithm.storage.init()
    _, store = quick_jit(partial(store_rollout, algorithm))(state, store, rollout_of(0))
    batch = quick_jit(algorithm.storage.sample)(store, jax.random.key(1))
    discount, seen = np.tile([0.0, 0.0, 1.0, 1.0], 2), np.tile([True, False], 4)
    batch = batch._replace(discount=jnp.asarray(discount, jnp.float32), seen=jnp.asarray(seen))
    rewards = jnp.stack([batch.reward, jnp.ones(8)], axis=-1)
    _, told = quick_jit(partial(sac.step, parts, lasting=("curiosity",)))(state, batch, rewards, jnp.zeros((8, 1)))
    q = np.asarray(applied(parts.q)(state.critic["q1"], batch.obs, batch.action.continuous))  # [8, 2, choices]
    chosen = np.broadcast_to(np.asarray(batch.action.discrete)[:, None], (8, 2, 1))
    before, later = (np.asarray(applied(parts.value)(state.critic["target"], x)) for x in (batch.obs, batch.next_obs))
    ends = 0.9 * discount * seen * later[:, 0]
    lasts = 0.5 * np.where(seen, later[:, 1], before[:, 1])
    target = np.asarray(rewards) + np.stack([ends, lasts], axis=-1)
    taken = np.take_along_axis(q, chosen, axis=2)[..., 0]
    assert float(told["q1_loss"]) == pytest.approx(0.5 * np.mean(np.square(target - taken)), rel=1e-5)


def test_each_update_of_a_turn_has_a_minibatch_and_noise_of_its_own() -> None:
    """Keys of two updates, by what they are for: four, all different, and others in another turn."""

    def update(kept, drawn, noise):
        keys, number = kept
        both = jnp.stack([drawn, jax.random.key_data(noise)])
        return (keys.at[number].set(both), number + 1), {"told": jnp.ones(())}

    def keys_of(seed: int) -> set[bytes]:
        kept = jnp.zeros((2, 2, 2), jnp.uint32), jnp.int32(0)
        key_of = partial(jax.random.fold_in, jax.random.key(seed))
        (keys, _), owed, _ = off_policy.turn(
            update, kept, jnp.float32(2.5), {"told": jnp.zeros(())}, jax.random.key_data, key_of
        )
        assert float(owed) == 0.5
        return {key.tobytes() for key in np.asarray(keys).reshape(4, 2)}

    assert len(keys_of(0)) == 4 and len(keys_of(0) | keys_of(1)) == 8


@pytest.mark.parametrize(
    ("keys", "sign"),
    [
        ({}, (0.0, 0.0)),
        ({"backup_entropy": True}, (1.0, 1.0)),
        ({"original_losses": True}, (-1.0, 1.0)),
        ({"original_losses": True, "backup_entropy": False}, (0.0, 0.0)),
    ],
    ids=["by default", "backed up", "ML-Agents", "ML-Agents without"],
)
def test_what_a_state_is_worth_counts_entropy_as_its_key_says(keys, sign) -> None:
    """V → min Q of what the policy does, less each temperature (1) times log π(a|s) and Σ p log p, with these signs."""
    parts = sac_parts.parts_of(SPEC, settings_of(**keys))
    algorithm, state, store = made(**keys)
    _, store = quick_jit(partial(store_rollout, algorithm))(state, store, rollout_of(0))
    batch, normal = quick_jit(algorithm.storage.sample)(store, jax.random.key(1)), jnp.full((8, 1), 0.5)
    _, told = quick_jit(partial(sac.step, parts))(state, batch, batch.reward[:, None], normal)
    dist = applied(parts.actor)(state.policy.params, batch.obs)
    action, log_prob = squashed.drawn(dist, normal)
    (p,) = (np.asarray(x) for x in actions.probabilities(dist, batch.action_mask, SPEC.action))
    qs = [np.asarray(applied(parts.q)(state.critic[name], batch.obs, action))[:, 0] for name in ("q1", "q2")]
    worth = np.minimum(*((p * q).sum(-1) for q in qs))
    worth -= sign[0] * np.asarray(log_prob)[:, 0] + sign[1] * (p * np.log(p + actions.EPSILON)).sum(-1)
    value = np.asarray(applied(parts.value)(state.critic["value"], batch.obs))[:, 0]
    assert float(told["value_loss"]) == pytest.approx(0.5 * np.mean(np.square(value - worth)), rel=1e-4)


def test_entropy_is_backed_up_where_actions_are_of_one_kind() -> None:
    for spec in (make_spec((3,), continuous=2), make_spec((3,), branches=(2, 2))):
        assert sac_parts.backs_up_entropy(sac_parts.parts_of(spec, settings_of()))
        assert not sac_parts.backs_up_entropy(sac_parts.parts_of(spec, settings_of(backup_entropy=False)))
    assert not sac_parts.backs_up_entropy(sac_parts.parts_of(SPEC, settings_of()))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batch_size": 128, "buffer_size": 64}, "got 128, expected at most hyperparameters.buffer_size, which is 64"),
        ({"buffer_init_steps": 500_000}, "got 500000, expected less than max_steps"),
        ({"steps_per_update": 0.0}, "steps_per_update: got 0.0, expected a value greater than 0"),
        (
            {"steps_per_update": 400_001, "buffer_init_steps": 100_000},
            "steps_per_update: got 400001, .* 400000: nothing",
        ),
        ({"beta": 0.1}, "beta: unknown key, it belongs to trainer_type: poca, ppo, mappo, coma"),
        ({"shared_critic": True}, "shared_critic: unknown key, it belongs to trainer_type: ppo"),
    ],
)
def test_bad_settings_are_refused_by_name(given, told) -> None:
    with pytest.raises(SettingsError, match=told):
        settings_of(**given)


def test_states_of_the_burn_in_carry_memory_and_count_in_no_loss() -> None:
    """Two sequences of 6 with burn_in 4; in the second an episode begins with its third state.

    So states 4 and 5 of the first, and 2 to 5 of the second count, in every loss.
    """
    memory = {"sequence_length": 6, "memory_size": 4}
    given = {"batch_size": 12, "buffer_size": 64, "burn_in": 4}
    with pytest.raises(SettingsError, match=r"burn_in: got 6, expected less than .*sequence_length, which is 6:"):
        make_settings("sac", hyperparameters=given | {"burn_in": 6}, network_settings=SMALL | {"memory": memory})
    settings = make_settings("sac", hyperparameters=given, network_settings=SMALL | {"memory": memory})
    parts, algorithm = sac_parts.parts_of(SPEC, settings), sac.make_sac(SPEC, settings)
    state = quick_jit(algorithm.init)(jax.random.key(0))
    rng = np.random.default_rng(0)
    batch = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype) if x.dtype == jnp.float32 else x,
        quick_jit(algorithm.storage.sample)(algorithm.storage.init(), jax.random.key(1)),
    )
    begin = jnp.zeros((2, 6), bool).at[1, 2].set(True)
    first = (jnp.arange(6) == 0)[None, :, None]
    batch = batch._replace(
        begin=begin,
        valid=jnp.ones((2, 6), bool),
        seen=jnp.ones((2, 6), bool),
        action_mask=jnp.ones_like(batch.action_mask),
        carry={name: jnp.where(first, x, 0) for name, x in batch.carry.items()},
    )
    counts = np.array([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]], bool)
    np.testing.assert_array_equal(replay.behind(begin, 4), counts)
    step = quick_jit(partial(sac.step, parts))

    def after(rewards, obs=batch.obs):
        told = step(state, batch._replace(obs=obs), rewards[..., None], jnp.zeros((2, 6, 1)))[1]
        return np.array([float(told[name]) for name in ("q1_loss", "q2_loss", "value_loss", "policy_loss")])

    losses = after(batch.reward)
    np.testing.assert_array_equal(after(jnp.where(counts, batch.reward, 1e6)), losses)
    assert all(after(batch.reward.at[i].add(1.0))[0] != losses[0] for i in zip(*np.nonzero(counts), strict=True))
    other = after(batch.reward, (batch.obs[0].at[0, 3].add(1.0),))  # does not count, but what follows remembers it
    assert (other != losses).all()
    sequences = quick_jit(partial(sac.memories_along, parts))(state, batch, batch.obs)
    begun = batch.carry["critic"][:, :1]
    once = quick_jit(applied(parts.value, ValueNetwork.step))(state.critic["value"], (batch.obs[0][:, :1],), begun)[1]
    np.testing.assert_allclose(sequences.target.stored[:, :1], once, rtol=1e-5)  # V remembers one state more
    q = quick_jit(applied(parts.q))(state.critic["q1"], batch.obs, batch.action.continuous, sequences.q)
    value_of = quick_jit(applied(parts.value))
    follows = value_of(state.critic["target"], batch.next_obs, sequences.target)[..., 0]
    taken = np.take_along_axis(np.asarray(q)[..., 0, :], np.asarray(batch.action.discrete), axis=-1)[..., 0]
    target = np.asarray(batch.reward + 0.99 * batch.discount * follows)
    assert losses[0] == pytest.approx(0.5 * np.square(target - taken)[counts].mean(), rel=1e-4)


def test_sequences_longer_than_the_replay_are_refused() -> None:
    """512 decisions of a sequence in a replay of 256: they must fit into a minibatch, and that into the replay."""
    with pytest.raises(SettingsError) as caught:
        make_settings(
            "sac",
            hyperparameters={"batch_size": 512, "buffer_size": 256},
            network_settings={"memory": {"sequence_length": 512}},
        )
    assert "hyperparameters.batch_size: got 512, expected at most hyperparameters.buffer_size" in str(caught.value)


def test_a_replay_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch) -> None:
    """1,000 decisions of [3] numbers, one continuous and one discrete action with 2 choices.

    At 24 bytes of observations, twice 4 of their places, 2 of masks, 8 of the action, 8 of reward and discount, 1: 51.
    """
    settings = settings_of(buffer_size=1000)
    algorithm, needed = sac.make_sac(SPEC, settings), 51 * 1000 + 12
    monkeypatch.setattr("jaxrl.training.memory.free_bytes", lambda devices: 2 * needed)
    check_store("Ball", algorithm, settings, seeds=2)
    monkeypatch.setattr("jaxrl.training.memory.free_bytes", lambda devices: 2 * needed - 1)
    with pytest.raises(SettingsError, match=r"behaviors.Ball.hyperparameters.buffer_size: got 1000.* at most 899 fit"):
        check_store("Ball", algorithm, settings, seeds=2)


def test_what_signals_lose_is_told_at_their_own_pace() -> None:
    """RND learns from every twentieth decision: what it lost is told, and told again until it has learned once more.

    No two updates have the same minibatch, of the policy or of RND.
    """
    given = {"batch_size": 8, "buffer_size": 64, "buffer_init_steps": 0, "reward_signal_steps_per_update": 20.0}
    signals = {"extrinsic": {}, "rnd": {"network_settings": SMALL}}
    settings = make_settings("sac", hyperparameters=given, network_settings=SMALL, reward_signals=signals)
    algorithm, parts, drawn = sac.make_sac(SPEC, settings), sac_parts.parts_of(SPEC, settings), []

    def sample(store, key):
        jax.debug.callback(lambda data: drawn.append(tuple(data.tolist())), jax.random.key_data(key))
        return algorithm.storage.sample(store, key)

    parts = parts._replace(storage=parts.storage._replace(sample=sample))
    state, store = quick_jit(algorithm.init)(jax.random.key(0)), algorithm.storage.init()
    learn = quick_jit(partial(sac.learn, parts, bind_off_policy(SPEC, settings)))
    put = quick_jit(partial(store_rollout, algorithm))
    steps, told = [], []
    for seed in range(12):
        state, store = put(state, store, rollout_of(seed))
        if algorithm.storage.can_sample(store, counts(int(state.step))):
            state, metrics = learn(state, store)
            steps.append(int(state.signals["rnd"]["optimizer"].count))
            told.append(float(metrics["loss/rnd"]))
    assert steps[-1] == int(state.step) // 20 > 2
    assert [loss > 0.0 for loss in told] == [count > 0 for count in steps]
    jax.effects_barrier()
    assert len(drawn) == len(set(drawn)) == steps[-1] + int(state.optimizer["policy"].count)
    same = [now == before for before, now in itertools.pairwise(told)]
    assert same == [now == before for before, now in itertools.pairwise(steps)]

"""Returns by hand for every way in which a decision can end, and the update around a loss of our own."""

from __future__ import annotations

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from team_rollouts import SMALL, SPEC, assert_close, fresh, quick_jit, random_rollout, returns_of, steps_of

from jaxrl.algorithms import ALGORITHMS, policy_gradient, preparing, updating
from jaxrl.algorithms.interface import Algorithm, TrainState, nothing_remembered
from jaxrl.algorithms.parts import Batch
from jaxrl.networks import actions
from jaxrl.networks.memory import part
from jaxrl.rewards.signals import bind
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import BehaviorSettings
from jaxrl.types import Action
from tests.helpers import poca_settings, ppo_settings, settings_of

HALVES = {"reward_signals__extrinsic__gamma": 0.5, "hyperparameters__lambd": 0.5}


def story(
    kinds: str, reward: list[float], group_reward: list[float] | None = None, mates: list[float] | None = None
) -> Rollout:
    """One agent in one row; `mates` is what its mates earned while each decision was open. A letter per state:
    c(ontinues), t(erminated), i(nterrupted), l(eft), h(orizon reached), w(aiting), f(inal or kept: present without
    acting), - (absent)."""

    def flag(letters: str) -> np.ndarray:
        return np.array([kind in letters for kind in kinds])[:, None, None]

    def numbers(x: list[float]) -> np.ndarray:
        return np.array(x, np.float32).reshape(column)

    column = (len(kinds), 1, 1)
    return Rollout(
        obs=(),
        carry=(),
        action_mask=np.zeros(column, bool),
        action=Action(continuous=np.zeros(column, np.float32), discrete=np.zeros(column, np.int32)),
        extras={"log_prob": np.zeros((*column, 1), np.float32)},
        begin=flag("ctilh") & (np.arange(len(kinds)) == 0)[:, None, None],
        present=~flag("-"),
        acted=flag("ctilh"),
        waiting=flag("w"),
        reward=numbers(reward),
        mates_reward=numbers(mates or [0.0] * len(kinds)),
        group_reward=numbers(group_reward or [0.0] * len(kinds)),
        terminated=flag("t"),
        truncated=flag("i"),
        left=flag("l"),
        cut=flag("h"),
    )


def together(*stories: Rollout) -> Rollout:
    """Stories of the members of one team."""
    return jax.tree.map(lambda *x: np.concatenate(x, axis=2), *stories)


def returns(rollout: Rollout, value: list[float], *, cooperative: bool = False, **overrides) -> list:
    """γ = λ = ½; one value per state for the whole team. [T] for one member, [A][T] for several."""
    v = np.broadcast_to(np.array(value, np.float32).reshape(-1, 1, 1, 1), (*rollout.acted.shape, 1))
    settings = ppo_settings(**HALVES | overrides)
    found = quick_jit(partial(returns_of, settings, cooperative))(rollout, v)
    columns = np.asarray(found)[:, 0, :, 0].T.tolist()
    return columns[0] if len(columns) == 1 else columns


def test_kept_state_of_a_living_row_bootstraps() -> None:
    last = 2 + 0.5 * 40  # nothing but V is known of the kept state
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * last)
    assert returns(story("ccf", [1, 2, 99]), [10, 20, 40]) == [first, last, 0.0]
    assert (first, last) == (11.5, 22.0)


def test_terminated_has_nothing_after_it() -> None:
    """The state after it belongs to the next team."""
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * 2)
    assert returns(story("ctcf", [1, 2, 4, 0]), [10, 20, 1000, 40]) == [first, 2.0, 4 + 0.5 * 40, 0.0]
    assert first == 6.5


def test_truncated_bootstraps_from_the_final_state() -> None:
    """V of the final state is 40; the team after it has nothing to do with it."""
    last = 2 + 0.5 * 40
    first = 1 + 0.5 * (0.5 * 20 + 0.5 * last)
    assert returns(story("cifcf", [1, 2, 0, 4, 0]), [10, 20, 40, 1000, 8]) == [first, last, 0.0, 4 + 0.5 * 8, 0.0]


def test_left_bootstraps_from_the_next_state_of_the_team_alone() -> None:
    """Also when the slot has a new owner there, whose return is its own."""
    assert returns(story("l--", [1, 0, 0]), [10, 20, 40]) == [1 + 0.5 * 20, 0.0, 0.0]
    assert returns(story("ltf", [1, 2, 0]), [10, 20, 40]) == [1 + 0.5 * 20, 2.0, 0.0]
    assert returns(story("lwf", [1, 0, 0]), [10, 20, 40])[0] == 1 + 0.5 * 40  # was still there, silent, in state 1


def test_horizon_restarts_the_return_from_the_value() -> None:
    assert returns(story("hct", [1, 2, 4]), [10, 20, 40]) == [
        1 + 0.5 * 20,
        2 + 0.5 * (0.5 * 40 + 0.5 * 4),
        4.0,
    ]


def test_waiting_states_are_passed_through() -> None:
    """States 1 and 2 belong to mates only: V of 3 follows state 0."""
    last = 2 + 0.5 * 80
    first = 1 + 0.5 * (0.5 * 40 + 0.5 * last)
    assert returns(story("cwwcf", [1, 0, 0, 2, 0]), [10, 1000, 2000, 40, 80]) == [first, 0.0, 0.0, last, 0.0]


def test_m11_members_share_the_value_and_in_poca_the_rewards_that_arrive_while_they_wait() -> None:
    """State 0: both act. State 1: the first alone acts again, rewards 1 and 4; the second waits, its 2 comes last.

    So the mates' rewards are 0 and then 2 for the first, and 1 + 4 for the one decision of the second. Until issue 7
    those who acted in one state shared their rewards, whenever they arrived: 1 + 2 for both in state 0.
    """
    team = together(
        story("ctf", [1, 4, 0], [8, 8, 0], mates=[0, 2, 0]), story("twf", [2, 0, 0], [8, 0, 0], mates=[5, 0, 0])
    )
    value = [10, 20, 40]
    assert returns(team, value, cooperative=True) == [
        [1 + 8 + 0.5 * (0.5 * 20 + 0.5 * (4 + 2 + 8)), 4 + 2 + 8, 0.0],
        [2 + 5 + 8, 0.0, 0.0],
    ]
    assert returns(team, value) == [[1 + 8 + 0.5 * (0.5 * 20 + 0.5 * 12), 12, 0.0], [2 + 8, 0.0, 0.0]]


@pytest.mark.parametrize("cooperative", [True, False], ids=["poca", "mappo"])
def test_who_ended_is_credited_with_what_its_team_earned_by_it(cooperative: bool) -> None:
    """The first leaves with -0.5 of the group, its mate has +8 in the same state and 4 later: 8 counts, 4 does not."""
    team = together(story("l--", [1, 0, 0], [-0.5, 0, 0]), story("ctf", [0, 0, 0], [8, 4, 0]))
    assert returns(team, [10, 20, 40], cooperative=cooperative) == [
        [1 + 8 + 0.5 * 20, 0.0, 0.0],
        [8 + 0.5 * (0.5 * 20 + 0.5 * 4), 4.0, 0.0],
    ]


def test_strength_scales_the_reward_and_not_the_value() -> None:
    found = returns(story("cf", [1, 0]), [10, 20], reward_signals__extrinsic__strength=3.0)
    assert found[0] == 3 * 1 + 0.5 * 20


def test_alone_a_poca_agent_has_the_return_of_ppo() -> None:
    """A = 1: there are no mates whose rewards could count."""
    rollout = random_rollout(3, a=1)
    value = np.random.default_rng(0).normal(size=(*rollout.acted.shape, 1)).astype(np.float32)
    settings = ppo_settings(**HALVES), poca_settings(**HALVES)
    ppo, poca = (
        quick_jit(partial(returns_of, s, c))(rollout, value) for s, c in zip(settings, (False, True), strict=True)
    )
    np.testing.assert_array_equal(ppo, poca)


def plain_batch(acted: np.ndarray) -> Batch:
    n, a = acted.shape
    nothing = np.zeros((n, a, 1), np.float32)
    return Batch(
        obs=(nothing,),
        action_mask=np.ones((n, a, 0), bool),
        action=Action(continuous=nothing, discrete=np.zeros((n, a, 0), np.int32)),
        log_prob=nothing,
        present=acted,
        acted=acted,
        advantage=np.zeros((n, a), np.float32),
        returns=nothing,
        baseline=nothing,
    )


@pytest.mark.parametrize(
    ("acting", "steps"),
    [((24, 24), 3 * 4), ((23, 23), 3 * 3), ((3, 3), 3 * 1), ((24, 0), 3 * 2), ((23, 0), 3 * 1), ((24, 12), 3 * 4)],
)
def test_update_takes_states_of_batch_size_members_that_acted_per_step(acting: tuple[int, int], steps: int) -> None:
    """batch_size 12 and A = 2: 6 states of whole teams, 12 where one member of two is dead; of 9 in 6 states 6 again.

    A loss with slope 1 moves Adam by the learning rate each step.
    """
    settings = poca_settings(
        hyperparameters__batch_size=12, hyperparameters__learning_rate=0.1, hyperparameters__num_epoch=3
    )

    params = {"actor": {"w": jnp.ones(())}, "critic": {"v": jnp.ones(())}}
    parts = steps_of("poca", settings).parts._replace(
        init=lambda key: (params, key),
        actor=lambda params, *_: params["w"],
        estimates=lambda params, *_: (params["critic"]["v"], None),
        loss=lambda dist, value, *_: (dist - value, {}),
        own={},
    )
    state = policy_gradient.init_state(parts, bind(SPEC, settings), jax.random.key(0))
    batch = plain_batch(np.arange(24)[:, None] < np.array(acting))
    after, metrics = quick_jit(partial(updating.update, parts))(state, batch)
    assert float(after.policy.params["w"]) == pytest.approx(1 - 0.1 * steps, abs=1e-4)
    assert float(after.critic["v"]) == pytest.approx(1 + 0.1 * steps, abs=1e-4)
    assert int(after.optimizer.count) == steps
    assert {name: float(x) for name, x in metrics.items()} == pytest.approx(
        {"learning_rate": 0.1, "epsilon": 0.2, "beta": 5e-3}
    )
    assert not np.array_equal(jax.random.key_data(after.key), jax.random.key_data(state.key))


@pytest.mark.parametrize("trainer", ["ppo", pytest.param("poca", marks=pytest.mark.slow)])
def test_coefficients_follow_their_schedules_without_compiling_again(trainer: str) -> None:
    """At step 250 of 1000: minimum + ¾ (initial − minimum), minima 1e-10, 0.1, 1e-5. A constant one stays."""
    overrides = SMALL | {"max_steps": 1000, "hyperparameters__beta_schedule": "constant"}
    settings = settings_of(trainer, overrides)
    steps = steps_of(trainer, settings)
    state = quick_jit(ALGORITHMS[trainer](SPEC, settings).init)(jax.random.key(0))
    rollout = random_rollout(0, a=1 if trainer == "ppo" else 3)
    state, batch, _ = quick_jit(steps.prepare)(state, rollout)
    chex.clear_trace_counter()  # it goes by place in this file, which both trainers share

    @quick_jit
    @chex.assert_max_traces(n=1)
    def update(state, batch):
        return steps.update(state, batch)

    for step, fraction in [(0, 1.0), (250, 0.75), (1000, 0.0), (5000, 0.0)]:
        state, metrics = update(state.replace(step=jnp.int32(step)), batch)
        assert float(metrics["learning_rate"]) == pytest.approx(1e-10 + fraction * (3e-4 - 1e-10))
        assert float(metrics["epsilon"]) == pytest.approx(0.1 + fraction * 0.1)
        assert float(metrics["beta"]) == pytest.approx(5e-3)


def test_m27_observe_normalises_by_trained_decisions_alone() -> None:
    rollout = random_rollout(1)
    settings = poca_settings(**SMALL)
    before = quick_jit(ALGORITHMS["poca"](SPEC, settings).init)(jax.random.key(0))
    observe = quick_jit(partial(preparing.observe, steps_of("poca", settings).parts))
    state, moved = observe(before, rollout)
    seen = rollout.obs[0][rollout.acted]
    mean = state.policy.normalizer[0]
    assert float(mean.count) == 1 + len(seen)
    np.testing.assert_allclose(mean.mean, seen.sum(0) / (1 + len(seen)), rtol=1e-5)
    spoilt = tuple(np.where(rollout.acted[..., None], o, np.float32(np.nan)) for o in rollout.obs)
    again, same = observe(before, rollout._replace(obs=spoilt))
    assert_close((again.policy, same.extras), (state.policy, moved.extras))


def acted_rollout(trainer: str, settings: BehaviorSettings, *, older: float = 0.0) -> tuple[TrainState, Rollout]:
    """A learner, and a rollout of its own decisions far from mean 0; `older`: of a policy that had so much more."""
    algorithm = ALGORITHMS[trainer](SPEC, settings)
    state, rollout = fresh(algorithm), random_rollout(8, a=1 if trainer == "ppo" else 3)
    rollout = rollout._replace(obs=tuple(np.where(rollout.present[..., None], o + 3, 0) for o in rollout.obs))
    act, key = quick_jit(algorithm.act), jax.random.key(3)
    if not algorithm.memories:
        decision = act(state.policy, rollout.obs, rollout.action_mask, (), key)
        action, noted, carry = decision.action, decision.extras["log_prob"], ()
    else:
        action, noted, carry = remembering(algorithm, act, state, rollout, key)
    log_prob = np.where(rollout.acted[..., None], noted + np.float32(older), 0)
    return state, rollout._replace(action=action, extras={"log_prob": log_prob}, carry=carry)


def remembering(algorithm: Algorithm, act: Any, state: TrainState, rollout: Rollout, key: Any) -> tuple[Any, ...]:
    """Actions, their log-probabilities and the memory before each state, one state after the other."""
    carry, found = nothing_remembered(algorithm, rollout.acted.shape[1:]), []
    moves = rollout.present & ~rollout.waiting
    for t, begin in enumerate(rollout.begin):
        carry = {name: np.where(np.expand_dims(begin, tuple(range(2, x.ndim))), 0, x) for name, x in carry.items()}
        decision = act(state.policy, tuple(o[t] for o in rollout.obs), rollout.action_mask[t], carry, key)
        found.append((decision.action, decision.extras["log_prob"], carry))
        carry = {**carry, "actor": np.where(moves[t][..., None], decision.carry["actor"], carry["actor"])}
    return jax.tree.map(lambda *x: np.stack(x), *found)


def ratios(trainer: str, settings: BehaviorSettings, state: TrainState, batch: Batch) -> np.ndarray:
    """π_new / π_old per action column of what is trained on, as the loss of the first minibatch sees them."""

    @quick_jit
    def all_of_them(params, batch):
        dist = steps_of(trainer, settings).parts.actor(params, batch.obs, part(batch.memory, "actor"))
        return jnp.exp(actions.log_prob(dist, batch.action, batch.action_mask, SPEC.action) - batch.log_prob)

    return np.asarray(all_of_them(state.policy.params, batch))[np.asarray(batch.acted)]


CAPACITY = {"hyperparameters__team_capacity": 3}
ONE_BODY = {"hyperparameters__shared_critic": True}
EVERY = pytest.mark.parametrize(
    ("trainer", "more"),
    [("ppo", {}), ("ppo", ONE_BODY), ("poca", {}), ("coma", CAPACITY), ("mappo", CAPACITY)],
    ids=["ppo", "ppo with one body", "poca", "coma", "mappo"],
)


def memory_of(kind: str) -> dict[str, Any]:
    return {"network_settings__memory": {"memory_size": 4, "sequence_length": 3, "memory_type": kind}}


@pytest.mark.parametrize(
    ("trainer", "kind"),
    [
        ("ppo", "gru"),
        ("poca", "lstm"),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in (("mappo", "lstm"), ("coma", "gru"))),
    ],
)
def test_ratios_are_one_before_the_first_step_along_sequences_too(trainer: str, kind: str) -> None:
    """Memory is made of what is seen: of the sequences that are trained on, not of what was stored."""
    settings = settings_of(trainer, SMALL | memory_of(kind) | ({} if trainer in ("ppo", "poca") else CAPACITY))
    state, rollout = acted_rollout(trainer, settings)
    prepare = quick_jit(steps_of(trainer, settings).prepare)
    after, batch, _ = prepare(state, rollout)
    assert batch.acted.shape[1] == 3 and batch.acted.sum() == rollout.acted.sum()
    np.testing.assert_allclose(ratios(trainer, settings, after, batch), 1.0, atol=2e-5)
    older = rollout._replace(extras={"log_prob": rollout.extras["log_prob"] + np.float32(0.3)})
    _, batch, _ = prepare(state, older)
    np.testing.assert_allclose(ratios(trainer, settings, after, batch), np.exp(-0.3), atol=1e-4)


@EVERY
def test_ratios_are_one_before_the_first_step_although_the_normaliser_moved(trainer: str, more: dict) -> None:
    """As they were, the log-probabilities belong to what the policy saw, not to what it is trained on (defect D6)."""
    settings = settings_of(trainer, SMALL | more)
    state, rollout = acted_rollout(trainer, settings)
    after, batch, _ = quick_jit(steps_of(trainer, settings).prepare)(state, rollout)
    np.testing.assert_allclose(ratios(trainer, settings, after, batch), 1.0, atol=1e-4)
    as_they_were = batch._replace(log_prob=rollout.extras["log_prob"].reshape(batch.log_prob.shape))
    assert np.abs(ratios(trainer, settings, after, as_they_were) - 1).max() > 0.05


def test_decisions_of_an_older_policy_keep_their_ratio_to_the_new_one() -> None:
    """It gave every column 0.3 more than the policy of today, which therefore has exp(-0.3) of it, seen anew or not."""
    settings = poca_settings(**SMALL)
    state, rollout = acted_rollout("poca", settings, older=0.3)
    after, batch, _ = quick_jit(steps_of("poca", settings).prepare)(state, rollout)
    np.testing.assert_allclose(ratios("poca", settings, after, batch), np.exp(-0.3), atol=1e-4)


@EVERY
def test_without_a_normaliser_the_rollout_stays_as_it_is(trainer: str, more: dict) -> None:
    settings = settings_of(trainer, SMALL | more | {"network_settings__normalize": False})
    state, rollout = fresh(ALGORITHMS[trainer](SPEC, settings)), random_rollout(2, a=1 if trainer == "ppo" else 3)
    _, same = preparing.observe(steps_of(trainer, settings).parts, state, rollout)
    assert same is rollout


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_acting_is_reproducible_and_deterministic_on_demand(trainer: str) -> None:
    make = partial(ALGORITHMS[trainer], SPEC)
    algorithm = make(settings_of(trainer, SMALL))
    state = quick_jit(algorithm.init)(jax.random.key(0))
    obs, mask = random_rollout(0, t=1).obs, random_rollout(0, t=1).action_mask
    act = quick_jit(algorithm.act)
    with jax.debug_key_reuse(True):
        acts = [act(state.policy, obs, mask, (), jax.random.key(seed)) for seed in (1, 1, 2)]
    assert_close(acts[0], acts[1], 0.0)
    assert (acts[0].action.continuous != acts[2].action.continuous).any()
    settled = make(settings_of(trainer, SMALL | {"network_settings__deterministic": True}))
    modes = [quick_jit(settled.act)(state.policy, obs, mask, (), jax.random.key(seed)) for seed in (1, 2)]
    assert_close(modes[0], modes[1], 0.0)


@pytest.mark.parametrize("trainer", ["ppo", pytest.param("mappo", marks=pytest.mark.slow), "poca", "coma"])
def test_what_masks_leave_out_reaches_no_parameter(trainer: str) -> None:
    """NaN, -999 and True in every masked cell of a rollout: what an update makes of it is equal, bit for bit."""
    capacity = {"hyperparameters__team_capacity": 3} if trainer in ("mappo", "coma") else {}
    memory = {"network_settings__memory": {"memory_size": 4, "sequence_length": 4}}
    algorithm = ALGORITHMS[trainer](SPEC, settings_of(trainer, SMALL | memory | capacity))
    rollout = with_memory(random_rollout(9), algorithm.memories)
    if not algorithm.team_rows:  # alone in its row
        rollout = jax.tree.map(lambda x: x[:, :, :1], rollout)._replace(mates_reward=rollout.mates_reward[:, :, :1] * 0)
    learn, state = quick_jit(algorithm.learn), fresh(algorithm)

    def learned(rollout: Rollout):
        after, metrics = learn(state, rollout)
        return after.policy, after.critic, after.optimizer, metrics

    clean, dirty = learned(rollout), learned(spoilt(rollout))
    assert_close(clean, dirty, 0.0)
    assert any(
        (x != y).any() for x, y in zip(*map(jax.tree.leaves, (state.policy.params, clean[0].params)), strict=True)
    )


def with_memory(rollout: Rollout, memories: tuple[tuple[str, tuple[int, ...]], ...]) -> Rollout:
    """With what members remember, drawn at random."""
    rng, lead = np.random.default_rng(0), rollout.acted.shape
    return rollout._replace(carry={name: rng.normal(size=(*lead, *shape)).astype("f") for name, shape in memories})


def spoilt(rollout: Rollout) -> Rollout:
    """Rubbish in all that is of members that are absent, or of decisions that are not trained on."""

    def spoil(x: np.ndarray, valid: np.ndarray) -> np.ndarray:
        rubbish = {"f": np.nan, "i": -999, "b": True}[x.dtype.kind]
        return np.where(valid.reshape(valid.shape + (1,) * (x.ndim - 3)), x, np.asarray(rubbish, x.dtype))

    there, told = partial(jax.tree.map, partial(spoil, valid=rollout.present)), partial(spoil, valid=rollout.acted)
    shown = {name: there(getattr(rollout, name)) for name in ("obs", "action", "carry", "begin")}
    ends = ("terminated", "truncated", "left", "cut")
    paid = {name: told(getattr(rollout, name)) for name in ("reward", "mates_reward", "group_reward", *ends)}
    extras = {name: told(x) for name, x in rollout.extras.items()}
    return rollout._replace(**shown, **paid, extras=extras, action_mask=told(rollout.action_mask))

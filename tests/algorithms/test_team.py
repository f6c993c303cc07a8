"""A team of several behaviors: with equal specs the numbers of one behavior; order, absence and credit across kinds."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from team_rollouts import SMALL, assert_close, fresh, members, pad_members, params_of, quick_jit, random_rollout

from jaxrl.algorithms import ALGORITHMS, coma, mappo, poca, policy_gradient, ppo, team, updating
from jaxrl.algorithms.interface import Decision, acting
from jaxrl.algorithms.parts import Seen
from jaxrl.algorithms.updating import Kind
from jaxrl.learning import minibatches
from jaxrl.networks.normalizer import NormalizerState
from jaxrl.rewards.signals import bind
from jaxrl.rollout.rollout import masked
from jaxrl.settings import SettingsError
from tests.helpers import make_spec, poca_settings, settings_of

SETTINGS = poca_settings(**SMALL)
PARTS = {"mappo": mappo, "coma": coma}
SPEC, SEER = make_spec((3,), continuous=1, branches=(2,)), make_spec((4,), branches=(3,))
FIRST, OTHERS = slice(0, 1), slice(1, 3)
SHARED = ("attention", "body", "values", "memory")
MEMORY = {"network_settings__memory": {"memory_size": 4, "sequence_length": 3}}


def cut(rollout, of: slice):
    """The members of one kind."""
    return members(rollout, lambda x: x[:, :, of])


def mixed(seed: int):
    """Rows of one member that sees and does something else than the two others; flags as in `random_rollout`."""
    whole = random_rollout(seed, spec=SPEC)
    own = random_rollout(seed + 100, a=1, spec=SEER)
    flags = {name: getattr(cut(whole, FIRST), name) for name in whole._fields if name not in own_fields()}
    return {"Seer": masked(own._replace(**flags)), "Runner": cut(whole, OTHERS)}


def own_fields() -> tuple[str, ...]:
    return ("obs", "carry", "action_mask", "action", "extras", "between")


def remembering(rollout, seed: int, both: bool = True):
    """With memories before each state, of actor and critic, and episodes that begin inside of rows."""
    rng, lead = np.random.default_rng(seed), rollout.present.shape

    def numbers(*axes: int) -> np.ndarray:
        return rng.normal(size=(*lead, *axes, 4)).astype(np.float32)

    carry = {"actor": numbers(), "critic": numbers(2) if both else numbers()}
    return rollout._replace(carry=carry, begin=rollout.acted & (rng.random(lead) < 0.4))


@cache
def mixed_team():
    """The team of `mixed`, a state of each kind that says something, and its update compiled."""
    specs = {"Seer": SEER, "Runner": SPEC}
    algorithms = {name: poca.make_poca(spec, SETTINGS) for name, spec in specs.items()}
    together = team.make_team("lock", algorithms, dict.fromkeys(specs, SETTINGS))
    states = {name: fresh(kind, seed) for seed, (name, kind) in enumerate(together.kinds.items())}
    return together, states, quick_jit(together.learn)


def tied(state):
    """States of two kinds with the numbers of one behavior: the second keeps what reads its own members."""
    own = {name: x for name, x in state.critic["params"].items() if name not in SHARED}
    second = state.replace(critic={"params": own})
    return {name: of.replace(optimizer=optimizer(of)) for name, of in {"First": state, "Second": second}.items()}


def optimizer(state):
    return updating.ADAM.init(params_of(state))


def tied_gradient(gradients):
    """Of the numbers that both kinds have in common: the sum of what comes from each."""
    one, two = gradients["First"], gradients["Second"]
    own = two["critic"]["params"]
    critic = {
        name: jax.tree.map(jnp.add, x, own[name]) if name in own else x for name, x in one["critic"]["params"].items()
    }
    return {"actor": jax.tree.map(jnp.add, one["actor"], two["actor"]), "critic": {"params": critic}}


@pytest.mark.parametrize("more", [{}, pytest.param(MEMORY, marks=pytest.mark.slow)], ids=["", "memory"])
def test_equal_specs_with_tied_parameters_learn_what_one_behavior_learns(more) -> None:
    """A whole update: normaliser apart, which each kind has for itself. 1e-6 and not bits: sums in another order."""
    plain = poca_settings(**SMALL | {"network_settings__normalize": False} | more)
    algorithm = poca.make_poca(SPEC, plain)
    kinds = dict.fromkeys(("First", "Second"), Kind(algorithm.parts, bind(SPEC, plain)))
    state, rollout = fresh(algorithm), random_rollout(3, t=6, b=8, spec=SPEC)
    rollout = remembering(rollout, 3) if more else rollout
    expected, _ = quick_jit(algorithm.learn)(state, rollout)

    @quick_jit
    def learn(state, rollout):
        rollout = masked(rollout)
        rollouts = {"First": cut(rollout, FIRST), "Second": cut(rollout, OTHERS)}
        states, batches, _ = team.prepare(kinds, tied(state), rollouts)
        now = updating.coefficients(plain, state.step)
        key = jax.random.split(state.key)[0]
        own = {name: of.own for name, of in states.items()}

        def gradient(carry, chunk):
            def total(params):
                found = team.losses_of(kinds, params, chunk, {name: now._replace(own=own[name]) for name in kinds})
                return updating.over_all({name: loss for name, (loss, _) in found.items()}, chunk)

            both = {name: params_of(of) for name, of in tied(put(state, carry[0])).items()}
            return tied_gradient(jax.grad(total)(both)), {}

        def apply(carry, found):
            change, moments = updating.ADAM.update(found, carry[1], learning_rate=now.learning_rate)
            return optax.apply_updates(carry[0], change), moments

        (params, _), _ = minibatches.run(
            gradient,
            apply,
            (params_of(state), optimizer(state)),
            batches,
            jnp.concatenate([of.acted.reshape(len(of.acted), -1) for of in batches.values()], -1),
            key,
            size=plain.hyperparameters.batch_size,
            epochs=plain.hyperparameters.num_epoch,
        )
        return params

    params = learn(state, rollout)
    assert_close(learned(params), learned(params_of(expected)), 1e-6)
    before = params_of(state)
    assert all(
        (np.asarray(x) != y).any() for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(before), strict=True)
    )


def learned(params):
    """Without the bias of attention's keys: softmax does not see it, and Adam makes steps of what rounding leaves."""
    critic = params["critic"]["params"]
    qkv = critic["attention"]["qkv"]
    bias = np.asarray(qkv["bias"])
    third = len(bias) // 3
    rest = np.concatenate([bias[:third], bias[2 * third :]])
    attention = {**critic["attention"], "qkv": {**qkv, "bias": rest}}
    return {"actor": params["actor"], "critic": {**critic, "attention": attention}}


def test_order_within_a_kind_and_what_absent_cells_hold_do_not_matter() -> None:
    """NaN where nobody is: bit for bit. Another order of the runners: but for the order of sums."""
    _, states, learn = mixed_team()
    rollouts = mixed(6)
    after, metrics = learn(states, rollouts)
    spoiled, _ = learn(states, {name: poisoned(of) for name, of in rollouts.items()})
    for name, state in after.items():
        for x, y in zip(jax.tree.leaves(params_of(state)), jax.tree.leaves(params_of(spoiled[name])), strict=True):
            np.testing.assert_array_equal(x, y)
        moved = jax.tree.map(lambda x, y: bool((np.asarray(x) != y).any()), params_of(state), params_of(states[name]))
        assert all(jax.tree.leaves(moved)), moved
    other, told = learn(states, {**rollouts, "Runner": members(rollouts["Runner"], lambda x: x[:, :, ::-1])})
    assert_close(learned(params_of(other["Seer"])), learned(params_of(after["Seer"])), 5e-6)
    assert_close(params_of(other["Runner"]), params_of(after["Runner"]), 5e-6)
    assert_close(told, metrics, 2e-5)
    assert set(metrics["Seer"]) == set(metrics["Runner"]) >= {"policy_loss", "value_loss", "entropy", "learning_rate"}


def poisoned(rollout):
    """NaN in everything of members that are not there."""

    def spoil(x):
        if x.dtype != np.float32:
            return x
        return np.where(rollout.present.reshape(rollout.present.shape + (1,) * (x.ndim - 3)), x, np.float32(np.nan))

    return members(rollout, spoil)


@pytest.mark.parametrize("form", ["value", "return"])
def test_who_ended_is_credited_with_what_a_mate_of_another_kind_is_paid(form: str) -> None:
    """By hand, two states: the seer ends with the first, for which the runner is paid 2; the runner wins 1, and ends.

    Runner: R_1 = 1; R_0 = 2 + 0.99 ((1 - 0.95) V_1 + 0.95 R_1), V_1 of the runner alone.
    Seer:   R_0 = 2 + 0.99 V_1, or as the runner's with `posthumous_credit: return`.
    """
    settings = poca_settings(**SMALL, hyperparameters__posthumous_credit=form)
    algorithms = {"Seer": poca.make_poca(SEER, settings), "Runner": poca.make_poca(SPEC, settings)}
    _, states, _ = mixed_team()
    kinds = {name: Kind(of.parts, bind(of.parts.spec, settings)) for name, of in algorithms.items()}
    lead = (3, 1, 1)
    flags = {name: np.zeros(lead, bool) for name in ("begin", "waiting", "terminated", "truncated", "left", "cut")}
    none = {name: np.zeros(lead, np.float32) for name in ("reward", "mates_reward", "group_reward")}
    seer, runner = (random_rollout(7, t=3, b=1, a=1, spec=spec)._replace(**flags, **none) for spec in (SEER, SPEC))

    def at(*times, dtype=bool, value=True):
        x = np.zeros(lead, dtype)
        x[list(times)] = value
        return x

    seer = seer._replace(present=at(0), acted=at(0), left=at(0))
    paid = at(0, dtype=np.float32, value=2.0) + at(1, dtype=np.float32, value=1.0)
    runner = runner._replace(present=at(0, 1), acted=at(0, 1), terminated=at(1), group_reward=paid)

    @quick_jit
    def looked_at(states, rollouts):
        rollouts = {name: rollouts[name] for name in kinds}
        states, batches, _ = team.prepare(kinds, states, rollouts)
        value = team.evaluated(kinds, states, rollouts, team.whole(rollouts))[1]
        return batches, value, {name: of.own["max_team"] for name, of in states.items()}

    batches, value, largest = looked_at(states, {"Seer": masked(seer), "Runner": masked(runner)})
    ahead = float(value[1, 0, 0, 0])
    gamma, lambd = np.float32(0.99), np.float32(0.95)
    whole = 2 + gamma * ((1 - lambd) * ahead + lambd * 1)
    first = 2 + gamma * ahead if form == "value" else whole
    np.testing.assert_allclose(batches["Seer"].returns[:, 0, 0], [first, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(batches["Runner"].returns[:, 0, 0], [whole, 1, 0], rtol=1e-6)
    assert float(states["Seer"].own["max_team"]) == 1.0  # before: the state that was given
    assert {name: float(of) for name, of in largest.items()} == {"Seer": 2.0, "Runner": 2.0}, "of the whole team"


def test_signals_of_each_kind_follow_what_its_own_members_were_paid_for() -> None:
    """RND's statistics: each decision of the kind once, as beside one behavior."""
    signals = {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 4, "num_layers": 1, "normalize": True}}}
    settings = poca_settings(**SMALL, reward_signals=signals)
    parts = {name: poca.make_poca(spec, settings).parts for name, spec in (("Seer", SEER), ("Runner", SPEC))}
    kinds = {name: Kind(of, bind(of.spec, settings)) for name, of in parts.items()}
    together = team.make_team(
        "lock", {name: poca.make_poca(of.spec, settings) for name, of in parts.items()}, dict.fromkeys(parts, settings)
    )

    @quick_jit
    def prepared(key, rollouts):
        states = {name: kind.init(key) for name, kind in together.kinds.items()}
        after = team.prepare(kinds, states, {name: rollouts[name] for name in kinds})[0]
        return {name: state.signals["rnd"]["normalizer"][0].count for name, state in after.items()}

    rollouts = mixed(6)
    counts = prepared(jax.random.key(0), rollouts)
    assert {name: int(count) for name, count in counts.items()} == {
        name: 1 + int(rollout.acted.sum()) for name, rollout in rollouts.items()
    }


@pytest.mark.parametrize(("trainer", "more"), [("mappo", {}), ("coma", {}), ("mappo", MEMORY), ("coma", MEMORY)])
def test_a_critic_with_places_sees_two_kinds_as_it_sees_one(trainer, more) -> None:
    """V and b of 1 + 2 members with tied parameters; a fresh team has parameters of the same shapes."""
    rollout, plain = random_rollout(8, spec=SPEC), {**SMALL, "network_settings__normalize": False, **more}
    rollout = remembering(rollout, 8, trainer == "coma") if more else rollout
    capacity = {"First": 1, "Second": 2, "All": 3}
    parts = {
        name: PARTS[trainer].parts_of(SPEC, settings_of(trainer, {**plain, "hyperparameters__team_capacity": count}))
        for name, count in capacity.items()
    }
    whole = parts.pop("All")
    kinds = {"First": cut(rollout, FIRST), "Second": cut(rollout, OTHERS)}

    @quick_jit
    def both(key):
        groups, _ = whole.init(key)
        made = {name: whole.shared.init(parts, name, jax.random.key(1)) for name in parts}
        shared = {name: {"critic": only(groups["critic"], of)} for name, of in made.items()}
        seen = {name: Seen(of.obs, of.action, of.present, of.carry) for name, of in kinds.items()}
        all_seen = Seen(rollout.obs, rollout.action, rollout.present, rollout.carry)
        return whole.estimates(groups, all_seen, {}), whole.shared.judge(parts, shared, seen, {})[:2], made, shared

    expected, found, made, shared = both(jax.random.key(0))
    present = rollout.present[..., None]
    for ours, theirs in zip(found, expected, strict=True):
        if theirs is not None:
            assert_close(np.where(present, ours, 0.0), np.where(present, theirs, 0.0), 1e-6)
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, {name: of["critic"] for name, of in shared.items()})
    assert len(jax.tree.leaves(made["Second"])) < len(jax.tree.leaves(made["First"]))


@pytest.mark.parametrize("trainer", ["poca", "coma"])
def test_what_a_critic_remembers_of_two_kinds_is_what_it_remembers_of_one(trainer) -> None:
    """After a decision, with tied parameters and capacities that fit; members that are absent remember whatever."""
    rollout = remembering(random_rollout(9, t=1, spec=SPEC), 9)
    capacity = {"First": 1, "Second": 2, "All": 3}
    settings = {
        name: settings_of(
            trainer, SMALL | MEMORY | ({"hyperparameters__team_capacity": n} if trainer == "coma" else {})
        )
        for name, n in capacity.items()
    }
    algorithms = {name: ALGORITHMS[trainer](SPEC, of) for name, of in settings.items()}
    whole, state = algorithms.pop("All"), fresh(algorithms["First"])
    together = team.make_team("x", algorithms, {name: settings[name] for name in algorithms})
    rollouts = [cut(rollout, FIRST), cut(rollout, OTHERS)]

    def decided(of):
        return Decision(of.action, of.action, {}, of.carry)

    @quick_jit
    def both(state, key):
        state = state.replace(critic=whole.init(key).critic)
        policy = acting(whole, state)
        parts = [kind.init(key).critic for kind in together.kinds.values()]
        policies = [policy.replace(critic=only(policy.critic, of)) for of in parts]
        expected = whole.critic_step(policy, rollout.obs, rollout.present, decided(rollout))
        of_each = ([of.obs for of in rollouts], [of.present for of in rollouts], [decided(of) for of in rollouts])
        return expected, together.critic_step(policies, *of_each)

    expected, found = both(state, jax.random.key(0))
    present = rollout.present[..., None]
    critic = np.concatenate([of["critic"] for of in found], axis=2)
    assert_close(np.where(present[..., None], critic, 0), np.where(present[..., None], expected["critic"], 0), 1e-6)
    assert_close([of["actor"] for of in found], [of.carry["actor"] for of in rollouts], 0)
    assert (critic != rollout.carry["critic"]).all()


def test_each_kind_is_remembered_as_its_own_normaliser_shows_it() -> None:
    """Statistics of the second kind alone differ: the memory is that of observations normalised by hand before."""
    rollout = remembering(random_rollout(9, t=1, spec=SPEC), 9)
    rollouts = [cut(rollout, FIRST), cut(rollout, OTHERS)]
    specs = dict.fromkeys(("First", "Second"), SPEC)
    teams = [
        team.make_team("x", {name: poca.make_poca(spec, of) for name, spec in specs.items()}, dict.fromkeys(specs, of))
        for of in (poca_settings(**SMALL | MEMORY | plain) for plain in ({}, {"network_settings__normalize": False}))
    ]
    mean, scale = np.array([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5]], np.float32), np.array([1.0, 2.0], np.float32)

    @quick_jit
    def both(key):
        states = [kind.init(key) for kind in teams[0].kinds.values()]
        policies = [acting(teams[0], state) for state in states]
        known = [NormalizerState(mean[i], jnp.full(3, 9 * scale[i] ** 2), jnp.int32(9)) for i in range(2)]
        shown = [((of.obs[0] - mean[i]) / scale[i],) for i, of in enumerate(rollouts)]
        made = [Decision(of.action, of.action, {}, of.carry) for of in rollouts]
        there = [of.present for of in rollouts]
        found = teams[0].critic_step(
            [policy.replace(normalizer=(of,)) for policy, of in zip(policies, known, strict=True)],
            [of.obs for of in rollouts], there, made,
        )  # fmt: skip
        plain = [policy.replace(normalizer=(None,)) for policy in policies]
        return found, teams[1].critic_step(plain, shown, there, made)

    found, expected = both(jax.random.key(0))
    assert_close([of["critic"] for of in found], [of["critic"] for of in expected], 1e-6)


def only(tree, like):
    """Of a tree what another one has too."""
    return {name: only(tree[name], of) for name, of in like.items()} if isinstance(like, dict) else tree


@pytest.mark.parametrize(
    ("trainer", "changed", "text"),
    [
        (
            "poca",
            {"hyperparameters__batch_size": 8},
            r"Runner.hyperparameters.batch_size: got 8, expected 16 as .*Seer has",
        ),
        ("poca", {"network_settings__hidden_units": 16}, r"network_settings.hidden_units: got 16, expected 8"),
        ("poca", {"reward_signals__extrinsic__gamma": 0.9}, r"extrinsic.gamma: got 0.9, expected 0.99"),
        ("ppo", {}, r"Runner.trainer_type: got ppo, expected poca as behaviors.Seer has it: both are of the team lock"),
    ],
)
def test_what_a_team_has_in_common_is_checked(trainer, changed, text) -> None:
    one = settings_of("poca", {**SMALL, "team": "lock"})
    other = settings_of(trainer, {**SMALL, "team": "lock", **changed})
    algorithms = {"Seer": poca.make_poca(SEER, one), "Runner": poca.make_poca(SPEC, settings_of("poca", SMALL))}
    with pytest.raises(SettingsError, match=text):
        team.make_team("lock", algorithms, {"Seer": one, "Runner": other})


def test_a_behavior_without_a_critic_for_all_is_refused() -> None:
    settings = settings_of("ppo", {**SMALL, "team": "lock"})
    algorithms = {name: ppo.make_ppo(spec, settings) for name, spec in (("Seer", SEER), ("Runner", SPEC))}
    with pytest.raises(SettingsError, match=r"behaviors.Seer.team: got lock, but ppo has no critic that several"):
        team.make_team("lock", algorithms, dict.fromkeys(algorithms, settings))
    settings = settings_of("poca", {**SMALL, "team": "lock"})
    own = policy_gradient.make(poca.parts_of(SPEC, settings)._replace(estimates=lambda *_: (jnp.zeros(()), None)))
    with pytest.raises(
        SettingsError, match=r"behaviors.Own.team: got lock, but its estimates of value and baseline are"
    ):
        team.make_team("lock", {"Own": own, "Two": own}, {"Own": settings, "Two": settings})


def put(state, params):
    return state.replace(policy=state.policy.replace(params=params["actor"]), critic=params["critic"])


@pytest.mark.slow
def test_a_kind_that_is_never_there_changes_nothing_whatever_its_cells_hold() -> None:
    """The whole `learn` of a team whose second kind is absent is that of the first on its own."""
    algorithm = poca.make_poca(SPEC, SETTINGS)
    state = fresh(algorithm)
    together = team.make_team(
        "x", {"A": algorithm, "B": poca.make_poca(SEER, SETTINGS)}, {"A": SETTINGS, "B": SETTINGS}
    )
    rollout, other = random_rollout(4, spec=SPEC), random_rollout(5, a=2, spec=SEER)
    nobody = members(
        other,
        lambda x: np.zeros_like(x) if x.dtype == bool else np.full_like(x, np.nan) if x.dtype == np.float32 else x,
    )
    states = {"A": state, "B": fresh(together.kinds["B"], 1)}
    expected, metrics = quick_jit(algorithm.learn)(state, pad_members(rollout, 2))  # minibatches of as many rows
    after, told = quick_jit(together.learn)(states, {"A": rollout, "B": nobody})
    assert_close(learned(params_of(after["A"])), learned(params_of(expected)), 1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(told["A"][name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after["B"].policy))


def test_a_team_is_traced_alike_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field by field as a rollout names them: in another order it would be another program, which no cache has."""
    rollout, order = random_rollout(0), []
    monkeypatch.setattr(team, "_beside", lambda arrays: order.extend(arrays))
    team.whole({"Seer": rollout})
    wanted = [getattr(rollout, field) for field in rollout._fields if field not in own_fields()]
    assert len(order) == len(wanted) and all(x is y for x, y in zip(order, wanted, strict=True))

"""GAIL and behavioral cloning inside of algorithms: units, ends, memory, and that the policy does as it was shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms import policy_gradient, ppo
from jaxrl.demonstrations import Demonstration, Pair, decisions, write
from jaxrl.learning import cloning
from jaxrl.networks import actions
from jaxrl.rewards import gail
from jaxrl.rewards.gail import paid
from jaxrl.rewards.signals import bind
from jaxrl.rollout.transitions import transitions
from jaxrl.settings.traced import with_values
from jaxrl.training.host.imitation import _faded
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec
from tests.algorithms.team_rollouts import SMALL, SPEC, fresh, quick_jit, random_rollout
from tests.helpers import settings_of

UNITY = Path(__file__).parents[1] / "demonstrations" / "recordings"
TINY = {"hidden_units": 4, "num_layers": 1}
SHOWN = 0.5
"""What is demonstrated of every number; of branches the last choice."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two episodes of six decisions, which see random numbers."""
    path, draws = tmp_path_factory.mktemp("demo") / "shown.demo", np.random.default_rng(1)
    chosen = [SHOWN] * SPEC.action.continuous_size, [size - 1 for size in SPEC.action.discrete_branches]

    def pairs() -> Any:
        for number in range(14):
            obs = [draws.normal(size=sensor.shape).astype(np.float32) for sensor in SPEC.observations]
            over = number % 7 == 6
            yield Pair(obs, done=True) if over else Pair(obs, *chosen)

    write(path, "Any", SPEC, pairs())
    return str(path)


def of_gail(demo: str, **keys: Any) -> dict[str, Any]:
    return {"extrinsic": {}, "gail": {"demo_path": demo, "network_settings": TINY, **keys}}


def test_actions_are_compared_as_the_environment_has_them(demo):
    """Of a raw action of PPO the environment gets clip(a, -3, 3) / 3, which is what is demonstrated."""
    settings = settings_of("ppo", {**SMALL, "reward_signals": of_gail(demo, use_actions=True)})
    algorithm, rollout = jaxrl.make_algorithm(SPEC, settings), random_rollout(3, t=8)
    state: Any = fresh(algorithm)
    signals = bind(SPEC, settings, actions.to_environment)
    alone = signals.bound["gail"]
    found = transitions(rollout)
    sent = jnp.clip(found.action.continuous, -3.0, 3.0) / 3.0
    as_sent = found._replace(action=Action(sent, found.action.discrete))
    by_hand = alone.reward(state.signals["gail"], as_sent, cooperative=False)
    paid = signals.rewards(state.signals, rollout, cooperative=False)["gail"]
    np.testing.assert_array_equal(paid, by_hand)
    raw = alone.reward(state.signals["gail"], found, cooperative=False)
    assert np.abs(np.asarray(raw - by_hand))[np.asarray(rollout.acted)].max() > 1e-4
    _, told = quick_jit(algorithm.learn)(state, rollout)
    assert {"loss/gail", "grad_mag_loss/gail", "policy_estimate/gail", "expert_estimate/gail"} <= set(told)
    key = jax.random.key(2)
    _, learned = quick_jit(signals.gradients)(state.signals, found, key)
    assert alone.gradient is not None
    _, by_hand = alone.gradient(state.signals["gail"], as_sent, key)
    np.testing.assert_allclose(learned["policy_estimate/gail"], by_hand["policy_estimate"], rtol=1e-6)
    strangers = bind(SPEC, settings)  # without the conversion it would learn something else
    assert strangers.sent(found.action) is found.action


def _discriminator(demonstration: Demonstration, **keys: Any) -> Any:
    settings = settings_of("ppo", {**SMALL, "reward_signals": of_gail("unread", use_actions=True, **keys)})
    return gail.gail(SPEC, settings.reward_signals["gail"], demonstration)


def _picked(shown: Demonstration, *rows: int) -> Demonstration:
    """Return these decisions alone."""
    columns = ("obs", "action", "reward", "done", "interrupted", "terminal", "last")
    return shown._replace(**{name: jax.tree.map(lambda x: x[list(rows)], getattr(shown, name)) for name in columns})


def test_all_of_the_demonstrations_are_drawn_and_known_to_the_normaliser(demo):
    """Two decisions, of which 500 draws have about as many: the mean of D lies between both, and near the middle."""
    shown, found = _picked(decisions(demo, SPEC), 0, 1), transitions(random_rollout(3, t=5, b=50, a=2))
    signal = _discriminator(shown, network_settings={**TINY, "normalize": True})
    state = signal.init(jax.random.key(0))
    mean, m2, count = (np.asarray(getattr(state["normalizer"][0], name)) for name in ("mean", "m2", "count"))
    rows = np.asarray(shown.obs[0], np.float64)
    np.testing.assert_allclose(mean, rows.sum(0) / 3, rtol=1e-5)  # 0 counts as one row
    np.testing.assert_allclose(m2, 1.0 + ((rows - mean) * rows).sum(0), rtol=1e-5)
    assert count == 3
    alone = []
    for row in range(2):
        of_one = _discriminator(_picked(shown, row, row), network_settings={**TINY, "normalize": True})
        alone.append(float(quick_jit(of_one.gradient)(state, found, jax.random.key(1))[1]["expert_estimate"]))
    estimate = float(quick_jit(signal.gradient)(state, found, jax.random.key(1))[1]["expert_estimate"])
    assert abs(alone[0] - alone[1]) > 1e-3
    assert 0.4 < (estimate - alone[0]) / (alone[1] - alone[0]) < 0.6


def test_noise_of_policy_and_experts_is_drawn_apart(demo):
    """Where the policy does what was demonstrated, D differs by the noise of VAIL alone."""
    one = _picked(decisions(demo, SPEC), 0, 0)
    found = transitions(random_rollout(3, t=8))
    shape = found.valid.shape
    same = found._replace(
        obs=tuple(jnp.broadcast_to(jnp.asarray(x[0]), (*shape, *x.shape[1:])) for x in one.obs),
        action=jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x[0]), (*shape, *x.shape[1:])), one.action),
        discount=jnp.ones(shape),
        valid=jnp.ones(shape, bool),
    )
    signal = _discriminator(one, use_vail=True)
    _, told = quick_jit(signal.gradient)(signal.init(jax.random.key(0)), same, jax.random.key(1))
    assert abs(float(told["policy_estimate"]) - float(told["expert_estimate"])) > 1e-5


def test_an_interruption_is_no_end(demo):
    shown, found = decisions(demo, SPEC), transitions(random_rollout(3, t=8))
    learned = []
    for done, interrupted in (
        (shown.done, shown.done),
        (~shown.done & False, shown.done),
        (shown.done, ~shown.done & False),
    ):
        signal = _discriminator(shown._replace(done=done, interrupted=interrupted))
        state = signal.init(jax.random.key(0))
        gradient, _ = quick_jit(signal.gradient)(state, found, jax.random.key(1))
        learned.append(jax.tree.leaves(gradient))
    assert all(np.array_equal(x, y) for x, y in zip(learned[0], learned[1], strict=True))
    assert not all(np.array_equal(x, y) for x, y in zip(learned[0], learned[2], strict=True))


def test_what_lies_in_files_is_learned_from_alike(demo, tmp_path):
    """Mapped arrays are gathered by the host, for several seeds side by side too: the same numbers."""
    held = decisions(demo, SPEC)
    mapped = held._replace(obs=tuple(_mapped(tmp_path / str(i), x) for i, x in enumerate(held.obs)))
    found, keys, learned = transitions(random_rollout(3, t=8)), jax.random.split(jax.random.key(1)), []
    copied = cloning.Copied(lambda *_: Any, lambda *_: jnp.zeros(()), lambda action: action)
    for one in (held, mapped):
        signal = _discriminator(one, network_settings={**TINY, "normalize": True})
        states = quick_jit(jax.vmap(signal.init))(keys)
        of_gail = quick_jit(jax.vmap(signal.gradient, in_axes=(0, None, 0)))(states, found, keys)
        rows_at = cloning.as_wanted(copied, cloning.in_sequences(one, 4))
        learned.append((states, of_gail, quick_jit(jax.vmap(rows_at))(jnp.array([[0, 3], [1, 2]]))))
    jax.tree.map(np.testing.assert_array_equal, *learned)


def _mapped(path: Path, x: np.ndarray) -> np.ndarray:
    x.tofile(path)
    return np.memmap(path, x.dtype, "r", shape=x.shape)


def test_what_does_not_count_changes_no_gradient(demo):
    """NaN would spread over everything: numbers far away in cells that are masked, the same bits."""
    found = transitions(random_rollout(3, t=8))
    gone = ~np.asarray(found.valid)
    assert gone.any()
    far = found._replace(
        obs=tuple(jnp.where(gone.reshape(*gone.shape, *[1] * (x.ndim - 3)), 7.0, x) for x in found.obs)
    )
    for keys in ({}, {"use_vail": True}, {"whole_penalty": True}):
        signal = _discriminator(decisions(demo, SPEC), **keys)
        state, learn = signal.init(jax.random.key(0)), quick_jit(signal.gradient)
        clean, dirty = (learn(state, x, jax.random.key(1))[0] for x in (found, far))
        jax.tree.map(np.testing.assert_array_equal, clean, dirty)


def test_the_penalty_weighs_what_its_key_says(demo):
    """The gradient is a + λ b: from 0 to 10, which is the default, four times as far as from 0 to 2.5."""
    found, learned = transitions(random_rollout(3, t=8)), []
    for keys in ({"gradient_penalty": 0.0}, {"gradient_penalty": 2.5}, {}):
        signal = _discriminator(decisions(demo, SPEC), **keys)
        (slope, _), told = quick_jit(signal.gradient)(signal.init(jax.random.key(0)), found, jax.random.key(1))
        flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(slope)])
        learned.append(np.append(flat, told["grad_mag_loss"]))
    none, some, usual = learned
    assert none[-1] == 0.0 and np.abs(some - none).max() > 1e-3
    np.testing.assert_allclose(usual - none, 4.0 * (some - none), rtol=1e-3, atol=1e-6)


def test_beta_rises_while_too_much_is_said_and_moves_the_same_step(demo):
    """β ← max(0, β + 0.0005 (KL − 0.5)), before it weighs anything."""
    found, signal = transitions(random_rollout(3, t=8)), _discriminator(decisions(demo, SPEC), use_vail=True)
    assert signal.gradient is not None
    state = signal.init(jax.random.key(0)) | {"beta": jnp.float32(0.1)}
    gradient, told = quick_jit(signal.gradient)(state, found, jax.random.key(1))
    np.testing.assert_allclose(told["beta"], 0.1 + 5e-4 * (float(told["kl_loss"]) - 0.5), rtol=1e-6)
    np.testing.assert_allclose(signal.apply(state, gradient)["beta"], told["beta"])


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_clone_of_ppo_acts_as_it_was_shown(demo, deterministic: bool):
    """The environment gets a third of what is drawn: half of what can be done is a mean of 1.5.

    Who collects with its likeliest actions is cloned into as well, without noise, of which a loss would remain.
    """
    settings = settings_of(
        "ppo",
        {
            **SMALL,
            "behavioral_cloning": {"demo_path": demo, "strength": 30.0, "num_epoch": 40},
            "network_settings__deterministic": deterministic,
        },
    )
    algorithm, rollout = jaxrl.make_algorithm(SPEC, settings), random_rollout(3, t=8)
    state: Any = fresh(algorithm)
    learn = quick_jit(algorithm.learn)
    for _ in range(4):
        state, told = learn(state, rollout)
    shown = decisions(demo, SPEC)
    dist = ppo.parts_of(SPEC, settings).actor(state.policy.params, tuple(map(jnp.asarray, shown.obs)), ())
    mask = jnp.ones((len(shown.done), SPEC.action.mask_size), bool)
    sent = actions.to_environment(actions.mode(dist, mask, SPEC.action))
    if SPEC.action.continuous_size:
        assert abs(float(sent.continuous.mean()) - SHOWN) < 0.1
    wanted = [size - 1 for size in SPEC.action.discrete_branches]
    assert (np.asarray(sent.discrete) == wanted).mean() > 0.9
    assert (told["pretraining_loss"] < 0.1) == deterministic


def test_each_epoch_of_cloning_has_an_order_of_its_own(demo):
    """Three epochs over twelve decisions, four at a time: each meets every decision once, in another order."""
    section = {"demo_path": demo, "num_epoch": 3, "batch_size": 4}
    settings = settings_of("ppo", {**SMALL, "behavioral_cloning": section})
    algorithm = jaxrl.make_algorithm(SPEC, settings)
    laid, chosen = cloning.in_sequences(decisions(demo, SPEC), 1), []
    assert algorithm.copied is not None
    rows_at = cloning.as_wanted(algorithm.copied, laid)

    def noted(places: jax.Array) -> cloning.Rows:
        jax.debug.callback(lambda x: chosen.append(np.asarray(x)), places, ordered=True)
        return rows_at(places)

    made = cloning.make_cloning(SPEC, settings, algorithm.copied, noted, laid.places.shape)
    policy: Any = fresh(algorithm).policy
    learn = quick_jit(made.learn)
    out = learn(made.init(policy.params), policy.params, policy.normalizer, jnp.int32(0), jax.random.key(3))
    jax.block_until_ready(out)
    jax.effects_barrier()
    orders = np.concatenate(chosen).reshape(3, 12)
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(12))
    assert len({order.tobytes() for order in orders}) == 3


def test_cloning_ends_at_its_step_and_the_policy_rests(demo):
    """The turn that reaches `steps` still learns; the next one does not, and says 0: unless `steps` is raised."""
    settings, raised = (
        settings_of("ppo", {**SMALL, "behavioral_cloning": {"demo_path": demo, "steps": steps}}) for steps in (100, 400)
    )
    made = policy_gradient.make(ppo.parts_of(SPEC, settings))
    state: Any = made.init(jax.random.key(0))
    copied = cloning.Copied(ppo.parts_of(SPEC, settings).actor, lambda dist, x: dist.mean, actions.from_environment)
    bound, longer = (cloning.bind_cloning(SPEC, one, copied) for one in (settings, raised))
    assert bound is not None and longer is not None
    kept, params, states = state.own["behavioral_cloning"], state.policy.params, state.policy.normalizer
    base = settings.hyperparameters.learning_rate
    assert float(kept["rate"]) == pytest.approx(base)
    halved = with_values(settings, {"hyperparameters.learning_rate": 0.5 * base})  # as a point of a sweep
    own = cloning.bind_cloning(SPEC, halved, copied)
    assert own is not None and float(own.rate(kept, 50)) == pytest.approx(0.5 * base)
    learn, losses = quick_jit(bound.learn), []
    for step, rate in ((50, 0.5 * base), (100, 1e-10), (150, 1e-10)):
        before = params
        kept, params, loss = learn(kept, params, states, jnp.int32(step), jax.random.key(1))
        assert float(kept["rate"]) == pytest.approx(rate, rel=1e-4)
        losses.append(float(loss))
    assert losses[1] > 0.0 == losses[2]
    jax.tree.map(np.testing.assert_array_equal, before, params)
    behavior = SimpleNamespace(name="Any", step=150, state=SimpleNamespace(own={"behavioral_cloning": kept}))
    studies: Any = [SimpleNamespace(behavior=behavior, cloning=of) for of in (bound, longer)]
    assert list(map(_faded, studies)) == [True, False]
    kept, _, loss = quick_jit(longer.learn)(kept, params, states, jnp.int32(200), jax.random.key(1))
    assert float(loss) > 0.0 and float(kept["rate"]) == pytest.approx(0.5 * base, rel=1e-4)


def test_both_pair_actions_as_their_key_says():
    """Of Unity's recording: by default the next record's, as recorded its own. GAIL without actions reads any."""
    spec = BehaviorSpec((ObservationSpec("", (2,)),), ActionSpec(0, (3,)))
    action = Action(jnp.zeros((4, 2, 0)), jnp.zeros((4, 2, 1), jnp.int32))
    seen: Any = transitions(random_rollout(3, t=4))
    seen = seen._replace(
        obs=(jnp.zeros((4, 2, 2)),), action=action, valid=jnp.ones((4, 2), bool), discount=jnp.ones((4, 2))
    )
    says = actions.ActionDistribution(jnp.zeros((16, 0)), jnp.zeros(0), jnp.tile(jnp.array([0.0, 1.0, 2.0]), (16, 1)))
    learned = []
    for how in ("detect", "as_recorded"):
        shown = {"demo_path": str(UNITY / "walk_discrete.demo"), "demo_actions": how}
        signals = {"gail": {**shown, "network_settings": TINY, "use_actions": True}}
        settings = settings_of("ppo", {**SMALL, "reward_signals": signals, "behavioral_cloning": shown})
        signal = gail.make_gail(spec, settings.reward_signals["gail"])
        assert signal.gradient is not None
        _, told = quick_jit(signal.gradient)(signal.init(jax.random.key(0)), seen, jax.random.key(1))
        copied = cloning.Copied(lambda *_: says, lambda dist, x: x, lambda action: action)
        clone = cloning.bind_cloning(spec, settings, copied)
        assert clone is not None
        chosen, none = jnp.arange(16), jnp.zeros((16, 1, 0))
        moments = clone.init(jnp.zeros(()))["optimizer"]
        loss = quick_jit(clone.step)(jnp.zeros(()), moments, (None,), 0.1, chosen, none)[2]
        learned.append([float(told["loss"]), float(loss)])
    assert all(x != y for x, y in zip(*learned, strict=True))
    unused = settings_of("ppo", {**SMALL, "reward_signals": of_gail(str(UNITY / "bad_action.demo"))})
    gail.make_gail(spec._replace(action=ActionSpec(0, (4,))), unused.reward_signals["gail"])


def test_sequences_do_not_cross_the_end_of_an_episode(demo):
    laid = cloning.in_sequences(decisions(demo, SPEC), 4)
    copied = cloning.Copied(lambda *_: Any, lambda *_: jnp.zeros(()), lambda action: action)
    rows = cloning.as_wanted(copied, laid)(jnp.arange(4))
    assert rows.valid.tolist() == [[True] * 4, [True, True, False, False]] * 2
    whole = decisions(demo, SPEC).obs[0]
    np.testing.assert_array_equal(rows.obs[0][2], whole[6:10])
    assert not rows.obs[0][1, 2:].any()


@pytest.mark.parametrize("trainer", ["ppo", "poca", "mappo", "coma", "sac"])
def test_all_trainers_take_both_with_memory_too(demo, trainer):
    keys = {"reward_signals": of_gail(demo), "behavioral_cloning": {"demo_path": demo}}
    keys |= {"hyperparameters__team_capacity": 3} if trainer in ("mappo", "coma") else {}
    network = {**TINY, "memory": {"memory_size": 4, "sequence_length": 4}}
    settings = settings_of(trainer, {**keys, "network_settings": network})
    algorithm = jaxrl.make_algorithm(SPEC, settings)
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    if trainer == "sac":
        given = jax.eval_shape(algorithm.storage.init)
    else:
        rollout = random_rollout(3, t=8)
        lead = rollout.acted.shape
        given = rollout._replace(carry={name: jnp.zeros((*lead, *axes)) for name, axes in algorithm.memories})
    after, told = jax.eval_shape(algorithm.learn, state, given)
    assert jax.tree.structure(after) == jax.tree.structure(state) and "pretraining_loss" in told


def test_the_demonstrations_are_named_where_they_do_not_fit(tmp_path: Path):
    with pytest.raises(jaxrl.JaxrlError, match=r"none\.demo: there is no such file"):
        jaxrl.make_algorithm(
            SPEC, settings_of("ppo", {**SMALL, "reward_signals": of_gail(str(tmp_path / "none.demo"))})
        )


@pytest.mark.parametrize("section", ["gail", "behavioral_cloning"])
def test_connectors_do_not_stand_between_a_policy_and_its_demonstrations(demo, section):
    """Those of rewards may; a scaled observation would be compared with one that is not."""
    shown = {"behavioral_cloning": {"demo_path": demo}} if section != "gail" else {"reward_signals": of_gail(demo)}
    scale: dict[str, Any] = {"type": "scale", "factor": 0.1}
    with pytest.raises(jaxrl.JaxrlError, match=r"connectors\[1\]: got scale, but the demonstrations of gail and"):
        jaxrl.make_algorithm(SPEC, settings_of("ppo", {**shown, "connectors": [{**scale, "of": "rewards"}, scale]}))
    jaxrl.make_algorithm(SPEC, settings_of("ppo", {**shown, "connectors": [{**scale, "of": "rewards"}]}))


def test_forms_of_gails_reward() -> None:
    """D 0.5 and 0.8: -ln 0.5 and -ln 0.2; ln D; their sum, 0 where nothing tells both apart and ln 4."""
    estimate = jnp.array([0.5, 0.8])
    for form, expected in (("positive", [0.6931, 1.6094]), ("negative", [-0.6931, -0.2231]), ("logit", [0.0, 1.3863])):
        np.testing.assert_allclose(paid(estimate, form), expected, atol=1e-4)
    for certain in (0.0, 1.0):
        assert all(np.isfinite(paid(jnp.float32(certain), form)) for form in ("positive", "negative", "logit"))

"""Each part that docs/own-algorithm.md lists, replaced: everything that uses it takes the new one, by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from team_rollouts import SMALL, SPEC, assert_close, fresh, now_of, params_of, quick_jit, random_rollout

from jaxrl.algorithms import coma, mappo, poca, policy_gradient, ppo, team
from jaxrl.algorithms.parts import Parts, Seen, forward, loss_of
from jaxrl.algorithms.preparing import prepare
from jaxrl.algorithms.updating import Kind
from jaxrl.networks import actions
from jaxrl.rewards.signals import bind
from tests.helpers import settings_of

ROOM = {"hyperparameters__team_capacity": 3}
PARTS: dict[str, Callable[[], Parts]] = {
    "ppo": lambda: ppo.parts_of(SPEC, settings_of("ppo", SMALL)),
    "ppo, one body": lambda: ppo.parts_of(SPEC, settings_of("ppo", SMALL | {"hyperparameters__shared_critic": True})),
    "mappo": lambda: mappo.parts_of(SPEC, settings_of("mappo", SMALL | ROOM)),
    "poca": lambda: poca.parts_of(SPEC, settings_of("poca", SMALL)),
    "coma": lambda: coma.parts_of(SPEC, settings_of("coma", SMALL | ROOM)),
}
ALL = pytest.mark.parametrize("name", PARTS)


def learned(parts: Parts, rollout: Any) -> Any:
    """Return the batch of a rollout, V and b of its states before the update, and loss and metrics of all of them."""

    @quick_jit
    def run(state: Any) -> Any:
        state, batch, _ = prepare(parts, bind(SPEC, parts.settings), state, rollout)
        params, now = params_of(state), now_of(state)
        return batch, forward(parts, params, batch.seen, now.own), loss_of(parts, params, batch, now)

    return run(fresh(policy_gradient.make(parts)))


@ALL
def test_returns_and_loss_are_made_of_replaced_estimates(name: str) -> None:
    """V' = 3 - 2 V: the value's loss is the mean square of V' less the return, which V' bootstraps."""
    plain, rollout = PARTS[name](), random_rollout(1, a=1 if name.startswith("ppo") else 3)

    def estimates(params: Any, seen: Any, own: Any) -> Any:
        value, baseline = plain.estimates(params, seen, own)
        return 3.0 - 2.0 * value, baseline

    batch, (_, value, _), (_, metrics) = learned(plain._replace(estimates=estimates), rollout)
    before, (_, plain_value, _), _ = learned(plain, rollout)
    acted = np.asarray(batch.acted)
    np.testing.assert_allclose(value[acted], (3.0 - 2.0 * plain_value)[acted], rtol=1e-5, atol=1e-5)
    assert np.abs(np.asarray(batch.returns - before.returns))[acted].max() > 0.1
    square = np.mean(np.square(np.asarray(value - batch.returns)[acted]))
    assert float(metrics["value_loss"]) == pytest.approx(square, rel=1e-5)


@ALL
def test_the_loss_takes_a_replaced_actor(name: str) -> None:
    """With logits and means of 0 the entropy is that of equal chances, whatever the network says."""
    plain, rollout = PARTS[name](), random_rollout(2, a=1 if name.startswith("ppo") else 3)

    def actor(*inputs: Any) -> Any:
        return jax.tree.map(lambda x: 0.0 * x, plain.actor(*inputs))

    batch, (dist, value, _), (_, metrics) = learned(plain._replace(actor=actor), rollout)
    acted = np.asarray(batch.acted)
    entropy = np.asarray(actions.entropy(dist, batch.action_mask, SPEC.action))[acted].mean()
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(metrics["entropy"]) != pytest.approx(float(learned(plain, rollout)[2][1]["entropy"]), rel=1e-3)
    assert_close(value, learned(plain, rollout)[1][1])  # which has not been replaced


@ALL
def test_a_replaced_loss_is_given_distribution_value_and_baseline(name: str) -> None:
    plain, rollout = PARTS[name](), random_rollout(3, a=1 if name.startswith("ppo") else 3)

    def loss(dist: Any, value: Any, baseline: Any, batch: Any, now: Any) -> Any:
        rest = 0.0 if baseline is None else 10.0 * baseline[0, 0, 0]
        return value[0, 0, 0] + rest + now.beta, {"mine": actions.entropy(dist, batch.action_mask, SPEC.action)[0, 0]}

    batch, (dist, value, baseline), (total, metrics) = learned(plain._replace(loss=loss), rollout)
    expected = float(value[0, 0, 0]) + (0.0 if baseline is None else 10.0 * float(baseline[0, 0, 0])) + 5e-3
    assert (baseline is None) == (name in ("ppo", "ppo, one body", "mappo"))
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert float(metrics["mine"]) == pytest.approx(
        float(actions.entropy(dist, batch.action_mask, SPEC.action)[0, 0]), rel=1e-5
    )


@ALL
def test_a_replaced_advantage_is_normalised_as_any(name: str) -> None:
    parts = PARTS[name]()._replace(advantage=lambda returns, value, baseline, rollout: returns * returns)
    batch, *_ = learned(parts, random_rollout(4, a=1 if name.startswith("ppo") else 3))
    acted = np.asarray(batch.acted)
    raw = np.square(np.asarray(batch.returns))[acted].mean(-1)
    np.testing.assert_allclose(np.asarray(batch.advantage)[acted], (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-5)


def test_own_state_is_watched_before_all_else() -> None:
    parts = PARTS["ppo"]()._replace(
        own={"seen": np.float32(0.0)},
        watch=lambda own, rollout: {"seen": own["seen"] + rollout.acted.sum()},
        loss=lambda dist, value, baseline, batch, now: (0.0 * value.sum(), {"mine": now.own["seen"]}),
    )
    rollout = random_rollout(5, a=1)
    algorithm = policy_gradient.make(parts)
    state, metrics = quick_jit(algorithm.learn)(fresh(algorithm), rollout)
    assert float(state.own["seen"]) == float(metrics["mine"]) == rollout.acted.sum()


def test_a_behavior_of_a_team_has_its_own_loss_over_the_critic_of_all() -> None:
    settings = settings_of("poca", SMALL | {"team": "all"})
    plain = poca.parts_of(SPEC, settings)

    def loss(dist: Any, value: Any, baseline: Any, batch: Any, now: Any) -> Any:
        return value.sum(), {"mine": value[0, 0, 0]}

    algorithms = {"A": policy_gradient.make(plain._replace(loss=loss)), "B": policy_gradient.make(plain)}
    together = team.make_team("all", algorithms, {"A": settings, "B": settings})
    states = {name: quick_jit(of.init)(jax.random.key(1)) for name, of in together.kinds.items()}
    rollouts = {"A": random_rollout(6), "B": random_rollout(7)}
    kinds = {name: Kind(algorithms[name].parts, bind(SPEC, settings)) for name in algorithms}

    @quick_jit
    def run(states: Any) -> Any:
        states, batches, _ = team.prepare(kinds, states, rollouts)
        params = {name: params_of(state) for name, state in states.items()}
        now = {name: now_of(state) for name, state in states.items()}
        shared = plain.shared
        assert shared is not None
        seen = {name: Seen(of.obs, of.action, of.present, of.memory) for name, of in batches.items()}
        value = shared.judge({name: kind.parts for name, kind in kinds.items()}, params, seen, now["A"].own)[0]
        return value, team.losses_of(kinds, params, batches, now)

    value, losses = run(states)
    assert float(losses["A"][1]["mine"]) == pytest.approx(float(value[0, 0, 0]), rel=1e-5)
    assert "policy_loss" in losses["B"][1] and "policy_loss" not in losses["A"][1]

"""`share_policy: false`: with tied parameters the numbers of the shared policy, and what does not go together."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from team_rollouts import SMALL, SPEC, assert_close, fresh, now_of, params_of, quick_jit, random_rollout, steps_of

from jaxrl.algorithms import ALGORITHMS, make_settings, policy_gradient
from jaxrl.algorithms.parts import loss_of
from jaxrl.networks import actions
from jaxrl.own_code import OwnCodeError
from jaxrl.settings import SettingsError
from tests.helpers import settings_of

APART = {"hyperparameters__share_policy": False, "hyperparameters__team_capacity": 3}


@pytest.mark.parametrize("trainer", ["poca", *(pytest.param(of, marks=pytest.mark.slow) for of in ("mappo", "coma"))])
def test_tied_policies_have_the_numbers_of_a_shared_one(trainer: str) -> None:
    """Log-probabilities, loss and metrics; the critic's gradient, and that of the policy as a sum over places."""
    room = {} if trainer == "poca" else {"hyperparameters__team_capacity": 3}
    settings = [settings_of(trainer, SMALL | more) for more in (room, APART)]
    shared, apart = (steps_of(trainer, of) for of in settings)
    state, rollout = fresh(policy_gradient.make(shared.parts)), random_rollout(3)
    one = params_of(state)
    tied = one | {"actor": jax.tree.map(lambda x: np.stack([x] * 3), one["actor"])}

    @quick_jit
    def both(state: Any, rollout: Any, one: Any, tied: Any) -> Any:
        state, batch, _ = shared.prepare(state, rollout)
        found = []
        for steps, params in ((shared, one), (apart, tied)):
            loss = jax.value_and_grad(partial(loss_of, steps.parts), has_aux=True)
            dist = steps.parts.actor(params["actor"], rollout.obs)
            given = rollout.action, rollout.action_mask, SPEC.action
            found.append((actions.log_prob(dist, *given), loss(params, batch, now_of(state))))
        return found

    (scored, (told, gradient)), (also, (many, gradients)) = both(state, rollout, one, tied)
    assert_close(also, scored, 1e-6)
    assert_close(many, told, 1e-6)
    assert_close(gradients["critic"], gradient["critic"], 1e-6)
    assert_close(jax.tree.map(lambda x: np.asarray(x).sum(0), gradients["actor"]), gradient["actor"], 1e-6)


WRONG = {
    "no number": (
        {"share_policy": False},
        {},
        r"hyperparameters.team_capacity: this key is required with share_policy: f",
    ),
    "no use": (
        {"team_capacity": 2},
        {},
        r"hyperparameters.team_capacity: got 2, expected null: it counts the policies",
    ),
    "self-play": (
        {},
        {"self_play": {}},
        r"hyperparameters.share_policy: got false, expected true with self_play: op",
    ),
    "team": ({}, {"team": "lock"}, r"hyperparameters.share_policy: got false, expected true with team: members"),
    "cloning": (
        {},
        {"behavioral_cloning": {"demo_path": "x.demo"}},
        r"hyperparameters.share_policy: got false, expected true with behavioral_cloning: demonstrations do not say",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_go_together_is_refused_in_one_sentence(case: str) -> None:
    hyper, more, text = WRONG[case]
    apart = {} if hyper else {"share_policy": False, "team_capacity": 2}
    with pytest.raises(SettingsError, match=text) as refused:
        make_settings("poca", hyperparameters=hyper | apart, **more)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_algorithms_of_single_agents_do_not_know_it(trainer: str) -> None:
    with pytest.raises(SettingsError, match=r"share_policy: unknown key, it belongs to trainer_type: poca, map"):
        make_settings(trainer, hyperparameters={"share_policy": False})


def test_an_own_algorithm_with_one_policy_is_told(tmp_path: Any) -> None:
    """Silently shared otherwise."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import jaxrl\nfrom jaxrl.algorithms.hyperparameters import POCAHyperparameters\n\n"
        "@jaxrl.trainer_type(hyperparameters=POCAHyperparameters)\n"
        "def make_mine(spec, settings):\n"
        "    one = settings.hyperparameters.model_copy(update={'share_policy': True, 'team_capacity': None})\n"
        "    return jaxrl.make_poca(spec, settings.model_copy(update={'hyperparameters': one}))\n"
    )
    name = f"{path}:make_mine"
    settings = settings_of(name, SMALL | APART)
    with pytest.raises(OwnCodeError, match=r"share_policy: got false, expected true with trainer_type .*make_mine"):
        ALGORITHMS[name](SPEC, settings)

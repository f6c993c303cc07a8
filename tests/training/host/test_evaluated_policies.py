"""What an evaluation of the host loop plays with: the policy of now, and the same episodes each time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

from jaxrl.algorithms import make_algorithm
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import behavior_settings_for
from jaxrl.training.host.behavior import make_behavior
from jaxrl.training.host.evaluation import Evaluation
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.interrupt import Interrupt
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.toy_runs import configured

REWARD = "Evaluation/Cumulative Reward"
pytestmark = pytest.mark.usefixtures("runs")


class Noting(ToyEnv):
    """Pays 1 for choice 0 or 1, as its agents see, and nothing for 2. Notes the seeds that it begins with."""

    seeds: ClassVar[list[int | None]] = []

    def reset(self, parameters: Any = None, seed: int | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(parameters, seed)


def choosing(policy: Any, choice: int) -> Any:
    """Return the policy that always makes this choice."""
    params = jax.tree.map(jnp.zeros_like, policy.params)
    params["params"]["heads"]["logits"]["bias"] = 50.0 * jax.nn.one_hot(choice, 3)
    return policy.replace(params=params)


def test_an_evaluation_plays_the_policy_of_now_in_the_same_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ToySettings(teams=False, agents_per_team=1, continuous=0)
    monkeypatch.setattr(Noting, "seeds", [])
    pools = partial(EnvPool, lambda worker: Noting(worker, alone), 1, inline=True, wait=False)
    monkeypatch.setattr("jaxrl.training.host.evaluation.evaluation_pool", lambda *_: pools())
    options = {"trainer_type": "ppo", "evaluation": {"interval": 20, "episodes": 8, "max_length": 50, "seed": 7}}
    settings = configured(tmp_path, changes={"env_settings": {"env_path": "gymnasium:CartPole-v1"}}, Toy=options)
    own, spec = behavior_settings_for(settings, "Toy"), Noting(0, alone).spec
    algorithm = make_algorithm(spec, own)
    programs = compile_programs(algorithm, own.segment_limit)
    toy = make_behavior("Toy", spec, own, algorithm, programs, jax.random.key(0), training=True)
    found = []
    with Interrupt() as interrupt:
        evaluation = Evaluation(settings, interrupt)
        for choice in (2, 0, 1, 0):
            toy.learner.state = toy.state.replace(policy=choosing(toy.state.policy, choice))
            found.append(evaluation.play("Toy", {"Toy": toy}, {})[REWARD].mean)
        evaluation.close()
    assert found[0] == 0.0 < found[1] == found[3]
    assert found[1] + found[2] == pytest.approx(5.0)  # each episode of 5 pays one of both choices
    assert Noting.seeds[-4:] == [7] * 4

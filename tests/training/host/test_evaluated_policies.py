"""What an evaluation of the host loop plays with: the policy of now, and the same episodes from their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest

from jaxrl.algorithms import make_algorithm
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import behavior_settings_for
from jaxrl.training.host.behavior import Behavior, make_behavior
from jaxrl.training.host.evaluation import Evaluation
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.interrupt import Interrupt
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.toy_runs import configured

REWARD, LENGTH = (f"Evaluation/{what}" for what in ("Cumulative Reward", "Episode Length"))
ALONE = ToySettings(teams=False, agents_per_team=1, continuous=0)
pytestmark = pytest.mark.usefixtures("runs")


class Noting(ToyEnv):
    """Pays 1 for choice 0 or 1, as its agents see, and nothing for 2. Notes the seeds that it begins with."""

    seeds: ClassVar[list[int | None]] = []

    def reset(self, parameters: Any = None, seed: int | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(parameters, seed)


class Keeping(ToyEnv):
    """Agents keep their ids over episodes, which last 5 decisions in the first area and 9 in the second."""

    def _begin(self, area: Any) -> None:
        super()._begin(area)
        number = next(i for i, one in enumerate(self._all_areas()) if one is area)
        area.members[0].agent_id, area.clock = 1 + number, -4 * number


@contextmanager
def evaluation_of(
    made: type[ToyEnv], folder: Path, monkeypatch: pytest.MonkeyPatch, **section: Any
) -> Iterator[tuple[Behavior, Any]]:
    """A behavior, and a function that plays its evaluation and returns the statistics by tag."""
    pools = partial(EnvPool, lambda worker: made(worker, ALONE), 1, inline=True, wait=False)
    monkeypatch.setattr("jaxrl.training.host.evaluation.evaluation_pool", lambda *_: pools())
    options = {"trainer_type": "ppo", "evaluation": {"interval": 20, "max_length": 50, **section}}
    settings = configured(folder, changes={"env_settings": {"env_path": "gymnasium:CartPole-v1"}}, Toy=options)
    own, spec = behavior_settings_for(settings, "Toy"), made(0, ALONE).spec
    algorithm = make_algorithm(spec, own)
    programs = compile_programs(algorithm, own.segment_limit)
    toy = make_behavior("Toy", spec, own, algorithm, programs, jax.random.key(0), training=True)
    with Interrupt() as interrupt:
        evaluation = Evaluation(settings, interrupt)

        def play() -> dict[str, Summary]:
            return evaluation.play("Toy", {"Toy": toy}, {})

        yield toy, play
        evaluation.close()


def choosing(policy: Any, choice: int) -> Any:
    """Return the policy that always makes this choice."""
    params = jax.tree.map(jnp.zeros_like, policy.params)
    params["params"]["heads"]["logits"]["bias"] = 50.0 * jax.nn.one_hot(choice, 3)
    return policy.replace(params=params)


def test_an_evaluation_plays_the_policy_of_now_in_the_same_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[float] = []
    monkeypatch.setattr(Noting, "seeds", [])
    with evaluation_of(Noting, tmp_path, monkeypatch, episodes=8, seed=7) as (toy, play):
        for choice in (2, 0, 1, 0):
            toy.learner.state = toy.state.replace(policy=choosing(toy.state.policy, choice))
            found.append(play()[REWARD].mean)
    assert found[0] == 0.0 < found[1] == found[3]
    assert found[1] + found[2] == pytest.approx(5.0)  # each episode of 5 pays one of both choices
    assert Noting.seeds[-4:] == [7] * 4


def test_an_evaluation_knows_nothing_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with message 9, in the middle of the first agent's second episode, which the next one must not go on."""
    with evaluation_of(Keeping, tmp_path, monkeypatch, episodes=2) as (_, play):
        assert [play()[LENGTH].mean for _ in range(2)] == [(4 + 8) / 2] * 2

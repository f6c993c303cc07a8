"""Team algorithms learn what pays for the team, whoever is paid: a sacrifice, and help for a mate.

Each probe prints the probability that it asserts; `pytest -s` shows it.
"""

from __future__ import annotations

import pytest
from credit_envs import BlindSeer, Deserter, Helpers, Sacrifice, Script
from probe_learner import Learner

TEAM = pytest.mark.parametrize(
    "trainer", ["poca", *(pytest.param(trainer, marks=pytest.mark.slow) for trainer in ("coma", "mappo"))]
)
COOPERATIVE = pytest.mark.parametrize("trainer", ["poca", pytest.param("coma", marks=pytest.mark.slow)])
SACRIFICES = {
    "plain": {},
    "a penalty that also reaches the dying": {"penalty": -0.001},
    "death, reward and end in one message": {"end": "same"},
    "one message apart, no decision between": {"end": "next"},
    "all interrupted in one message": {"end": "same", "truncated": True},
}
OTHERS_ARE_SLOW = [
    pytest.param(
        trainer, case, marks=pytest.mark.slow if (trainer != "poca" and i) or i == 4 else (), id=f"{case}-{trainer}"
    )
    for trainer in ("poca", "coma", "mappo")
    for i, case in enumerate(SACRIFICES)
]
"""Credit is given by one file, `rewards/extrinsic.py`: MA-POCA shows all cases, the others the first."""


FORMS = pytest.mark.parametrize("credit", ["value", "return"])


def chance_of_one(trainer: str, env: Script, what: str, credit: str = "return") -> float:
    """P(1) of the first member of a team after 25 updates."""
    chance = float(Learner(trainer, env, updates=25, hyperparameters__posthumous_credit=credit).policy(1, 0)[1][1])
    print(f"\n{trainer}, {what}, {credit}: P = {chance:.3f}")
    return chance


@pytest.mark.parametrize(("trainer", "variant"), OTHERS_ARE_SLOW)
def test_a_sacrifice_that_pays_is_made(trainer: str, variant: str) -> None:
    """-0.2 for the hero, +1 for its team, and the hero is gone when the reward is given."""
    assert chance_of_one(trainer, Sacrifice(**SACRIFICES[variant]), variant) > 0.9


@TEAM
@pytest.mark.parametrize("end", ["later", "same", "next"])
def test_a_sacrifice_for_nothing_is_not_made(trainer: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is credited for rewards that nobody had: P(death) falls where it costs 0.2 and brings 0."""
    monkeypatch.setattr("credit_envs.GAIN", 0.0)
    assert chance_of_one(trainer, Sacrifice(end=end), f"{end}, for nothing") < 0.1


@FORMS
@TEAM
def test_nobody_ends_itself_for_what_comes_without_it(trainer: str, credit: str) -> None:
    """-0.3, while a mate's decision is open that is paid later, when the team's next state has that in its value."""
    assert chance_of_one(trainer, Deserter(), "leaves for nothing", credit) < 0.1


@TEAM
def test_what_no_survivor_sees_is_credited_by_the_return_alone(trainer: str) -> None:
    """V of the opener's observation says nothing of the seer's choice, what the team then earns does."""

    def right(credit: str) -> float:
        learner = Learner(trainer, BlindSeer(), updates=25, hyperparameters__posthumous_credit=credit)
        return min(float(learner.policy(1, 0)[1][1]), float(learner.policy(-1, 0)[1][0]))

    assert right("return") > 0.9 and right("value") < 0.6


@COOPERATIVE
@pytest.mark.parametrize(
    "turns", [pytest.param(False, id="side by side"), pytest.param(True, id="in turns", marks=pytest.mark.slow)]
)
def test_help_that_pays_is_given(trainer: str, turns: bool) -> None:
    """-0.2 for the helper, +1 for its mate, all individual rewards."""
    assert chance_of_one(trainer, Helpers(turns=turns), "in turns" if turns else "side by side") > 0.9


def test_mappo_does_not_help() -> None:
    """Its members see their own and the group's reward: -0.2 for helping."""
    assert chance_of_one("mappo", Helpers(turns=True), "in turns") < 0.1

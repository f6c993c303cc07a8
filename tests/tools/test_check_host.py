"""`jaxrl check-env` with environments that the host loop steps: each odd thing is named, and nothing where none is."""

from __future__ import annotations

import pytest

from jaxrl.cli import main
from jaxrl.tools.check_host import check_host

PLACE = "tests.tools.odd_games"
ODD = {
    f"gymnasium:{PLACE}:OddNan-v0": ("problem", "agent 'agent', sensor 'observation': nan is not a finite number"),
    f"gymnasium:{PLACE}:OddClosed-v0": ("problem", "OddClosed-v0: action_mask forbids every choice of branch 0"),
    f"gymnasium:{PLACE}:Unbounded-v0": ("problem", "action space: Box(0.0, inf, (1,), float32) has no upper bound"),
    f"gymnasium:{PLACE}:OddOutside-v0": ("remark", "agent 'agent', observation: is above the bounds of Box(0.0, 1.0"),
    f"gymnasium:{PLACE}:OddEndless-v0": ("remark", "no episode has ended in 24 steps of 4 copies"),
    f"pettingzoo:{PLACE}:Uninvited": ("remark", "agent 'guest_0' has come, but possible_agents do not name it"),
    f"pettingzoo:{PLACE}:Vanishing": ("remark", "'left_0' is gone without terminated or truncated: it counts as trunc"),
    f"pettingzoo:{PLACE}:Growing": ("remark", "the spaces of agent 'left_0' have changed from Box(0.0, 1.0, (1,), flo"),
    f"pettingzoo:{PLACE}:Duel": ("remark", "player: the rewards of the members of a team have cancelled each other in"),
    f"pettingzoo:{PLACE}:Strangers": ("remark", "'ghost_0' is rewarded, but was not there before the step"),
    f"pettingzoo:{PLACE}:Unseeded": ("remark", "with one seed and the same actions differ after 0 steps: draw all"),
}


@pytest.mark.parametrize("address", ODD)
def test_what_is_odd_is_named(address: str) -> None:
    kind, words = ODD[address]
    found = check_host(address, steps=24, inline=True)
    texts, others = (found.problems, found.remarks)[:: 1 if kind == "problem" else -1]
    assert len(texts) == 1 and words in texts[0] and not others


@pytest.mark.parametrize("address", [f"pettingzoo:{PLACE}:Even", f"rllib:{PLACE}:Rl", "gymnasium:CartPole-v1"])
def test_nothing_is_said_of_an_environment_as_it_should_be(address: str) -> None:
    found = check_host(address, steps=40, inline=True)
    assert not found.problems and not found.remarks and found.episodes >= 4


def test_an_order_that_differs_between_processes_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 8 agents in a set two processes have one order in one of 40,320."""
    assert main(["check-env", f"pettingzoo:{PLACE}:Hashed", "--steps", "3", "--areas", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "behavior: walker: sees observation 1; does branches of 3"
    assert lines[1].startswith("remark: agents come in another order in another process (walker_")
    assert lines[-1].endswith("0 problem(s) in 3 steps of 1 copies in each of two processes, 0 episodes of agents")


def test_a_player_of_unity_s_protocol_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "player:basic", "--steps", "20", "--areas", "1"]) == 0
    assert "behavior: Basic?team=0: sees VectorSensor_size20 20" in capsys.readouterr().out

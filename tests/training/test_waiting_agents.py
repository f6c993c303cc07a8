"""A game of five in turns of 20 decisions, with the defaults: every player earns what it earns, in both loops.

Players come with their first turn, wait for 80 messages after each, and are paid meanwhile for the last decision of it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.training.host.collector import VANISHED, WAITED
from jaxrl.training.host.run import train
from tests.event_files import read_events
from tests.jax_envs import turn_game
from tests.jax_envs.turn_game import make_turn_game
from tests.rollout.test_overdue import SPEC, asks
from tests.toy_runs import configured
from tests.training.probe_loops import SOURCE, Messages, host_behavior, share_in_compiled_loop

FASTER = {"hyperparameters__learning_rate": 0.01, "hyperparameters__beta": 1e-3}


@pytest.mark.usefixtures("runs")
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.name == "nt", reason="players here are shell scripts")
@pytest.mark.parametrize("trainer", ["ppo", pytest.param("poca", marks=pytest.mark.slow)])
def test_all_returns_are_told_over_two_players(trainer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two games of two rounds in each of 16 areas, every bid paid: 2 for each of 160 agents, of 40 decisions each."""
    env: dict[str, Any] = {"env_path": f"player:{turn_game.__file__}:make_turn_game", "num_envs": 2, "num_areas": 8}
    env["env_args"] = ["rounds=2", "anyway=1"]
    learner = {"trainer_type": trainer, "max_steps": 6700, "summary_freq": 3300, "time_horizon": 64}
    with caplog.at_level(logging.WARNING, "jaxrl"):
        train(configured(tmp_path, changes={"env_settings": env}, TurnGame=learner))
    (path,) = (tmp_path / "results" / "two" / "TurnGame").glob("events*")
    values = [value for event in read_events(path) for value in event.summary.value]
    returns = [x.simple_value for x in values if x.tag == "Environment/Cumulative Reward"]
    assert returns == [2.0, 2.0]
    assert sum(x.histo.num for x in values if x.tag == "Environment/Cumulative Reward_hist") == 160
    assert not any("vanished" in text for text in caplog.messages)


@pytest.mark.parametrize("trainer", [pytest.param("ppo", marks=pytest.mark.slow), "poca"])
def test_all_returns_are_told_in_the_compiled_loop(trainer: str) -> None:
    assert share_in_compiled_loop(trainer, make_turn_game(turn=4, rounds=2, anyway=1.0), 11, paid="each") == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_the_game_is_learned_in_both_loops(trainer: str) -> None:
    """By chance 2 of 4. With episodes that were interrupted at each turn the host loop told 0.05, and stayed there."""
    env = make_turn_game()
    behavior, played, returns = host_behavior(trainer, env, **FASTER), Messages(env), []
    message = played.first()
    while len(returns) < 8 * 80:
        actions, episodes = behavior.act({SOURCE: message})
        returns += [x for records in episodes for x in records.returns]
        message = played.step(actions[SOURCE])
        if behavior.due():
            behavior.learn()
    assert np.mean(returns[-80:]) > 3.7
    assert share_in_compiled_loop(trainer, env, 250, paid="each", **FASTER) > 3.7


def test_what_is_taken_for_vanished_and_what_had_waited_is_said_with_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """400 agents ask twice, then 120 others; of the 50 that were interrupted five are back."""
    behavior = host_behavior("ppo", JaxEnv("Wait", SPEC, 1, {}, *2 * [lambda *_: None]))  # pyright: ignore
    for asking in [range(400)] * 2 + [range(400, 401)] * 30 + [range(400, 521), range(5)]:
        behavior.act({SOURCE: asks((), list(asking))})
    assert caplog.messages == [VANISHED % ("Probe", 50), WAITED % ("Probe", 32)]
    assert all("env_settings.missing_after" in text for text in caplog.messages)

"""Baton Pass in both loops: what becomes of a team whose only living member is replaced in the same message.

On the wire that is the end of one episode and the start of the next: `EndGroupEpisode` ends all living members, and a
scene keeps its group object, and with it the group id, for the next episode. ML-Agents counts a newcomer as a group
mate only from its second request on, so nothing follows for the one who left. The host loop agrees; the compiled loop
is told by the environment that the team goes on.
"""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.jax_envs.baton_pass import BRANCHES, BatonSettings, make_baton_pass
from jaxrl.jax_envs.served.launcher import make_player
from jaxrl.rollout.booking.records import Ending
from jaxrl.rollout.booking.slots import Slots, Source
from jaxrl.rollout.rollout import Rollout
from jaxrl.types import Action, BehaviorMessage
from tests.envs.raw_trainer import free_port
from tests.helpers import decision_steps, message, terminal_steps
from tests.training.compiled.both_loops import Part, Told, algorithm, by_number, play, preparation, told

BATON = make_baton_pass(BatonSettings(size=2, runners=3, max_food=2, life=6))
NAME = "BatonPass?team=0"


@cache
def played() -> tuple[list[Part], dict[bool, list[Told]]]:
    """Two rollouts of the compiled loop, and of the host loop by `team_rows`."""
    parts = play(BATON)
    return parts, {team_rows: told(BATON, parts, team_rows=team_rows) for team_rows in (True, False)}


def prepared(trainer: str, rollout: Rollout) -> dict[str, np.ndarray]:
    made = algorithm(trainer, BATON.spec)
    return by_number(rollout, preparation(trainer, BATON.spec)(made.init(jax.random.key(2)), rollout)[1])


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for field in expected:
        np.testing.assert_allclose(found[field], expected[field], rtol=1e-5, atol=1e-5, err_msg=field)


def handovers(part: Part) -> int:
    """Members that ended while their team went on."""
    ended, stays = part.steps.terminated.any(-1), part.steps.stays.any(-1)
    return int((ended & stays).sum())


def test_without_rows_for_teams_both_loops_agree() -> None:
    """PPO: an agent that ends alone in its row ends for good in both."""
    parts, hosts = played()
    for part, host in zip(parts, hosts[False], strict=True):
        assert_equal(prepared("ppo", part.rollouts[False]), prepared("ppo", host.rollout))


def test_with_rows_for_teams_the_handovers_are_all_that_differs() -> None:
    """MA-POCA: the host loop calls terminated what the environment calls left; called so in both, all is equal."""
    parts, hosts = played()
    for part, host in zip(parts, hosts[True], strict=True):
        ours, theirs = part.rollouts[True], host.rollout
        assert ours.left.sum() == handovers(part) > 1 and not np.any(theirs.left)
        as_told = ours._replace(terminated=ours.terminated | ours.left, left=np.zeros_like(ours.left))
        assert (as_told.terminated.sum(), ours.terminated.sum()) == (np.sum(theirs.terminated), part.steps.over.sum())
        assert np.any(ours.cut) and np.any(ours.terminated)
        assert_equal(prepared("poca", as_told), prepared("poca", theirs))


def test_episodes_of_runners_agree_and_each_is_a_team_to_the_host_loop() -> None:
    parts, hosts = played()
    for host in hosts.values():
        for part, (_, episodes) in zip(parts, host, strict=True):
            for moments, kind in ((part.figures.reward, "returns"), (part.figures.length, "lengths")):
                expected = np.array([x for record in episodes for x in getattr(record, kind)])
                assert (len(expected), moments.total) == (moments.count, pytest.approx(expected.sum(), abs=1e-5))
            assert sum(len(record.team_returns) for record in episodes) == part.figures.reward.count
            assert part.figures.group_reward.count == part.steps.over.sum() < part.figures.reward.count


def told_of(steps: BehaviorMessage) -> tuple:
    """All that a message tells of who ended and who came, but for observations and rewards."""
    ended, deciding = steps.ended, steps.deciding
    facts = ended.group_id, deciding.group_id, ended.truncated, deciding.agent_id - ended.agent_id
    return tuple(tuple(fact.tolist()) for fact in facts)


def test_a_player_tells_a_handover_and_the_end_of_an_episode_alike(tmp_path) -> None:
    """One runner ended for good, another id asks in the same group: no rule on ids, groups and flags tells which.

    A real player with one area, so that statistics come in exactly those messages that end an episode.
    """
    random = np.random.default_rng(0)
    messages: dict[bool, set[tuple]] = {False: set(), True: set()}  # by whether the episode is over
    endings: dict[bool, list[int]] = {False: [], True: []}
    environment = UnityHostEnv(
        worker=0, file_name=str(make_player("baton_pass", tmp_path)), base_port=free_port(), seed=1, no_graphics=True
    )
    slots = Slots(BATON.spec, team_rows=True, rows=1, members=1)
    try:
        result = environment.reset()
        for _ in range(400):
            steps = result.steps[NAME]
            ingested = slots.ingest({Source(0, NAME): steps})
            if len(steps.ended.agent_id):
                over = bool(result.stats)
                messages[over].add(told_of(steps))
                endings[over] += ingested.steps.ending.ravel().tolist()
            chosen = np.array([[random.integers(branch) for branch in BRANCHES]], np.int32)
            result = environment.step({NAME: Action(continuous=np.zeros((1, 0), np.float32), discrete=chosen)})
    finally:
        environment.close()
    assert {((1,), (1,), (False,), (later,)) for later in (1, 2)} <= messages[False] & messages[True]
    assert set(endings[False]) == set(endings[True]) == {Ending.TERMINATED}
    assert min(map(len, endings.values())) > 3 and (slots.rows, slots.members) == (1, 1)


def test_a_team_lives_on_whose_newcomer_asks_before_the_other_ends() -> None:
    """How an environment can say it on the wire: let the two overlap. The one who leaves asks for nothing meanwhile."""
    spec, source = BATON.spec, Source(0, NAME)
    slots = Slots(spec, team_rows=True, rows=1, members=2)
    slots.ingest({source: message(spec, None, decision_steps(spec, [1], groups=[7]))})
    both = slots.ingest({source: message(spec, None, decision_steps(spec, [2], groups=[7]))}).steps
    assert both.present[1].tolist() == [[True, True]] and both.deciding.tolist() == [[False, True]]
    leaves = terminal_steps(spec, [1], groups=[7], reward=[3.0])
    alone = slots.ingest({source: message(spec, leaves, decision_steps(spec, [2], groups=[7]))}).steps
    assert alone.ending.tolist() == [[Ending.LEFT, Ending.CONTINUES]]
    assert alone.reward[0, :, 0].tolist() == [3.0, 0.0] and alone.present[1].tolist() == [[False, True]]

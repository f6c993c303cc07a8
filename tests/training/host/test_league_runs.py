"""A league in whole runs of the host loop: who plays in which worker, who joins the pool, and what goes on."""

from __future__ import annotations

import json
import logging
import shutil
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.checkpoint.folder import checkpoints, point_at, remove
from jaxrl.rollout.booking.episodes import NO_EPISODES, GameEnd
from jaxrl.settings import behavior_settings_for
from jaxrl.training.host.opponents import Opponents
from jaxrl.training.host.run import host_loop
from jaxrl.types import EnvMessage
from tests.envs.duel_env import DuelEnv, DuelSettings
from tests.helpers import make_spec
from tests.toy_runs import environment
from tests.training.host.test_opponents import SELF_PLAY_KEYS, duels, run, settings_of, state_of

pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(400)]
RIVAL = "Duel/exploiter_1"


def keys(**league: Any) -> dict[str, Any]:
    own = {"exploiters": 1, "renew_steps": 400, "win_share": 1.0} | league
    return {"self_play": SELF_PLAY_KEYS | {"save_steps": 100000, "team_change": 500, "league": own}}


class Turn(NamedTuple):
    step: int  # of the exploiter
    joined: int
    resets: int  # of its worker
    ratings: tuple[float, float]  # of the main agent, of the exploiter
    snapshots: list[bytes]
    own: bytes
    newest: bytes  # main agent
    met: bytes  # by the exploiter


def content(policy: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(policy.params))


class Run(NamedTuple):
    folder: Path
    turns: list[Turn]
    follows: set[tuple[str, ...]]
    results: list[str]  # how the run ended, as the log tells


@pytest.fixture(scope="module")
def league(runs: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """4 areas in each of two workers: a message of both brings 4 decisions of each learner."""
    folder, envs, turns, follows = tmp_path_factory.mktemp("league"), list[DuelEnv](), list[Turn](), set()

    def make(worker: int) -> DuelEnv:
        envs.append(DuelEnv(worker))
        return envs[-1]

    settings = settings_of(folder, max_steps=1100, **keys())
    with environment(make=make, workers=2) as started, host_loop(settings, started=started) as loop:
        for _ in loop.iterate():
            side, standing = loop.opponents.game.sides["Duel"], loop.opponents.league.standings[RIVAL]
            main, rival = loop.behaviors["Duel"], loop.behaviors[RIVAL]
            learning = loop.opponents.game.rotation.learning
            met = loop.policies._frozen[f"{RIVAL}?team={1 - (learning or 0)}"].actor.policy
            shown = [content(each.weights.policy) for each in side.pool.snapshots]
            own, newest = (content(of.state.policy) for of in (rival, main))
            ratings = side.pool.elo, standing.elo
            turns.append(Turn(rival.step, standing.joined, envs[1].resets, ratings, shown, own, newest, content(met)))
            ids = [(worker, f"Duel?team={team}") for worker in (0, 1) for team in (0, 1)]
            follows.add(tuple(loop.policies.own(*each) for each in ids))
        assert main.step == rival.step == 1104
        heard = BufferingHandler(1000)
        log = logging.getLogger("jaxrl")  # the fixture `runs` has it as it was afterwards
        log.addHandler(heard)
        log.setLevel(logging.INFO)
        loop.recorder.finish(loop.behaviors.saved, None)
    said = [record.getMessage() for record in heard.buffer]
    return Run(folder, turns, follows, [line for line in said if "mean reward" in line])


def test_an_exploiter_has_workers_of_its_own_and_meets_the_newest_main_agent(league: Run) -> None:
    assert league.follows == {
        ("Duel", "Duel?team=1", RIVAL, f"{RIVAL}?team=1"),
        ("Duel?team=0", "Duel", f"{RIVAL}?team=0", RIVAL),
    }
    mains = [turn.newest for turn in league.turns]
    met = [mains.index(turn.met) for turn in league.turns]
    assert len({turn.met for turn in league.turns}) >= 3 and met == sorted(met)
    assert not {turn.own for turn in league.turns} & set(mains)
    assert league.turns[-1].ratings[1] != 1200.0 != league.turns[-1].ratings[0]


def test_who_is_done_joins_the_pool_and_begins_anew(league: Run) -> None:
    """Its policy as it was after the first update past 400 steps; the main agent has no snapshots of its own here."""
    turns = league.turns
    first, second = (next(i for i, turn in enumerate(turns) if turn.joined == n) for n in (1, 2))
    assert [turns[i].step for i in (first, second)] == [520, 1040], "updates at 260, 520 ... decisions"
    before, after = turns[first - 1], turns[first]
    assert len(before.snapshots) == 1 and len(after.snapshots) == 2 and after.resets == before.resets + 1
    assert after.snapshots[1] not in {before.own, after.own, after.newest}, "it has learned since, and is another now"
    assert after.ratings[1] == 1200.0
    assert turns[second].snapshots[:2] == after.snapshots and len(turns[second].snapshots) == 3


def test_files_are_those_of_the_main_agent_and_statistics_beside_it(league: Run) -> None:
    folder = league.folder / "results" / "run"
    rows = (folder / RIVAL / "metrics.csv").read_text()
    assert "League/Score against Main Agent" in rows and "League/Exploiters in Pool so far" in rows
    assert "League/Exploiters in Pool so far" in (folder / "Duel" / "metrics.csv").read_text()
    assert all(path.name.startswith(("metrics.csv", "events")) for path in (folder / RIVAL).iterdir())
    assert [path.name for path in folder.glob("**/*.onnx") if "exploiter" in path.name] == []
    assert list(json.loads((folder / "run_logs" / "training_status.json").read_text())) >= ["Duel"]
    assert [line.split(":")[0] for line in league.results] == ["Duel"], "exploiters are no results"
    (standing,) = (each["standing"] for each in state_of(league.folder)["league"])
    assert standing["joined"] == 2 and standing["begun"] == 1040 and standing["ghost_step"] == 1104


def test_a_league_goes_on_and_is_not_cut(league: Run, tmp_path: Path) -> None:
    shutil.copytree(league.folder / "results", tmp_path / "results")
    flags = {"run_id": "run", "results_dir": str(tmp_path / "results"), "resume": True}

    def begun(inference: bool = False, **own: Any) -> Any:
        changes = {"checkpoint_settings": flags | {"inference": inference}}
        settings = settings_of(tmp_path, changes=changes, max_steps=1200, **keys(**own))
        workers = 4 if own else 2
        with (
            environment(make=partial(duels, DuelSettings()), workers=workers) as started,
            host_loop(settings, started=started) as loop,
        ):
            next(iter(loop.iterate()))
            return loop

    loop, last = begun(), league.turns[-1]
    standing = loop.opponents.league.standings[RIVAL]
    assert (standing.joined, standing.begun, standing.elo) == (2, 1040, last.ratings[1])
    assert loop.behaviors[RIVAL].step == 1104 and content(loop.behaviors[RIVAL].state.policy) == last.own
    with pytest.raises(CheckpointError, match=r"self_play\.league: 3 exploiter\(s\) here, and 1 in this checkpoint"):
        begun(exploiters=3)
    assert list(begun(inference=True).behaviors) == ["Duel"]


@pytest.mark.slow
def test_an_exact_league_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def part(folder: Path, max_steps: int, *, resume: bool) -> None:
        flags = {"run_id": "run", "results_dir": str(folder / "results"), "exact": True, "resume": resume}
        saves = {"checkpoint_interval": 300, "keep_checkpoints": 0}
        run(settings_of(folder, changes={"checkpoint_settings": flags}, max_steps=max_steps, **saves, **keys()), 2)

    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    part(tmp_path / "whole", 1300, resume=False)
    part(tmp_path / "parts", 700, resume=False)
    folder = tmp_path / "parts" / "results" / "run" / "Duel"
    *_, last, final = checkpoints(folder)
    remove(final)
    point_at(last.path, last.step)
    part(tmp_path / "parts", 1300, resume=True)
    whole, parts = (state_of(tmp_path / name) for name in ("whole", "parts"))
    assert whole["league"][0]["standing"]["joined"] == 2 and parts == whole


class Rated(dict[str, Any]):
    """Behaviors of two names that learn by turns, each with one exploiter; nobody acts."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        actor = SimpleNamespace(finished=0, decisions=0, act_as=lambda _: None)
        self.policies = SimpleNamespace(freeze=lambda *_: SimpleNamespace(actor=actor), route=lambda *_: None)
        for name in ("A", "B"):
            rival = SimpleNamespace(name=f"{name}/exploiter_1", step=0)
            settings = behavior_settings_for(settings_of(folder, name, **keys()), name)
            state = SimpleNamespace(policy=())
            self[name] = SimpleNamespace(
                name=name, step=0, settings=settings, state=state, exploiters=[rival], unfinished=lambda: True
            )


def test_games_that_end_with_the_turn_of_their_team_are_rated_against_who_was_met(tmp_path: Path) -> None:
    """A's exploiter has met B, which is rated 1600, and A's turn ends: half a point less 1 / 11 is not expected."""
    behaviors: Any = Rated(tmp_path)
    recorder: Any = SimpleNamespace(resumed={}, rated=lambda *_: None, told=lambda *_: None)
    opponents = Opponents(settings_of(tmp_path, "A", "B", **keys()), recorder, behaviors)
    opponents.meet([EnvMessage(0, {}, dict.fromkeys(("A?team=0", "B?team=1"), make_spec((1,))), (), 0.0)])
    opponents.game.sides["B"].pool.ratings[-1] = 1600.0
    behaviors["A"].step = 501
    drawn = NO_EPISODES._replace(games=[GameEnd(1, 0.0, 0.0)])
    behaviors.policies.over = {"A/exploiter_1": [drawn]}
    assert opponents.turn(())
    assert opponents.game.rotation.learning == 1
    assert opponents.league.standings["A/exploiter_1"].elo == pytest.approx(1200 + 1 / 2 - 1 / 11)


def test_an_exploiter_is_rated_against_each_of_several_teams(tmp_path: Path) -> None:
    """It was paid 1, the main agents of its worker 2 and 0: a loss and a win of equals. Worker 3 has another game."""
    behaviors: Any = Rated(tmp_path)
    recorder: Any = SimpleNamespace(resumed={}, rated=lambda *_: None, told=lambda *_: None)
    opponents = Opponents(settings_of(tmp_path, "A", **keys()), recorder, behaviors)
    ids = [f"A?team={team}" for team in range(3)]
    opponents.meet([EnvMessage(0, {}, dict.fromkeys(ids, make_spec((1,))), (), 0.0)])
    paid = {"": (1, 1.0), "?team=1": (1, 2.0), "?team=2": (1, 0.0)}
    behaviors.policies.over = {
        f"A/exploiter_1{team}": [
            NO_EPISODES._replace(games=[GameEnd(worker, one, one), GameEnd(3, -one, -one)][:count])
        ]
        for (team, (worker, one)), count in zip(paid.items(), (1, 2, 2), strict=True)
    }
    opponents.turn(())
    standing = opponents.league.standings["A/exploiter_1"]
    assert (standing.elo, standing.games, standing.score) == (1200.0, 1.0, 0.5)
    behaviors.policies.over["A/exploiter_1?team=1"] = []
    opponents.turn(())
    assert (standing.elo, standing.score) == (1201.0, pytest.approx(0.98 * 0.5 + 1.0)), "nothing is known of team 1"

"""`jaxrl tournament`: games of players whose strength is known, ratings and files by value, and what is refused."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from onnx import helper

from jaxrl.algorithms import ALGORITHMS
from jaxrl.artifacts.checkpoint import earlier, manifest
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.cli import main
from jaxrl.settings.behavior import SelfPlaySettings
from jaxrl.tools.tournament import tournament as module
from jaxrl.tools.tournament.matches import Match, Record
from jaxrl.tools.tournament.ratings import rate
from jaxrl.tools.tournament.tournament import Standings, tournament
from jaxrl.training.host.saver import Saved
from jaxrl.training.self_play.game import Game
from jaxrl.types import JaxrlError
from tests.helpers import settings_of
from tests.jax_envs.toy_jax_env import quick_compilation
from tests.tools.tournament.bids import make_bids

sys.path.insert(0, str(Path(__file__).parents[2] / "artifacts"))

from handmade_models import good

BIDS = Path(__file__).with_name("bids.py")
ENV = f"{BIDS}:make_bids"
LOW, MIDDLE, HIGH = (f"{BIDS}:{name}" for name in ("low", "middle", "high"))


def play(*words: str, **options: Any) -> Standings:
    with quick_compilation():
        return tournament(words, environment=ENV, **{"games": 20, **options})


def test_the_stronger_wins_every_game_and_the_order_is_that_of_strength() -> None:
    found = play(MIDDLE, LOW, f"{BIDS}:BY_BEHAVIOR", HIGH)
    assert found.players == ("middle", "low", "BY_BEHAVIOR", "high")
    total = {pair: tuple(match.total) for pair, match in found.matches.items()}
    won, drawn, lost = (20, 0, 0, 0), (0, 20, 0, 0), (0, 0, 20, 0)
    assert total == {(0, 1): won, (0, 2): drawn, (0, 3): lost, (1, 2): lost, (1, 3): lost, (2, 3): lost}
    assert [found.order[0], found.order[-1]] == [3, 1]
    ratings = found.ratings
    assert ratings[3].interval[0] > ratings[0].interval[1] and ratings[0].interval[0] > ratings[1].interval[1]
    assert abs(ratings[0].mean - ratings[2].mean) < ratings[0].deviation, "equal bids"
    assert found.record(0) == (20, 20, 20, 0) and found.record(3, 1) == (20, 0, 0, 0)
    np.testing.assert_array_equal(found.shares()[0], [np.nan, 1.0, np.nan, 0.0])


def test_games_that_have_not_ended_in_time_are_told_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ["tournament", LOW, HIGH, "--env", f"{BIDS}:make_long", "--games", "4", "--out", str(tmp_path / "out")]
    for longest, text in (("3", "0 : 4, 0 drawn"), ("2", "0 : 0, 4 drawn, 4 of them cut after 2 decisions")):
        with quick_compilation():
            assert main([*line, "--longest", longest]) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"low : high  {text}"


def test_models_play_too(tmp_path: Path) -> None:
    """Files that bid 0.3 and 0.7, whatever is seen; one of them against what stands in this file too."""
    models = []
    for bid in (0.3, 0.7):
        nodes = [helper.make_node("Add", ["obs_0", "bid/value"], ["sum"])]
        constants = {"version_number": [3], "memory_size": [0], "continuous_action_output_shape": [1], "bid": [bid]}
        path = tmp_path / f"bids {bid}.onnx"
        copies = {"continuous_actions": "sum", "deterministic_continuous_actions": "sum"}
        models.append(good(path, inputs={"obs_0": [1]}, nodes=nodes, constants=constants, copies=copies))
    found = play(str(models[0]), MIDDLE, str(models[1]))
    assert found.players == ("bids 0.3", "middle", "bids 0.7")
    lost = (0, 0, 20, 0)
    assert {pair: tuple(match.total) for pair, match in found.matches.items()} == dict.fromkeys(
        [(0, 1), (0, 2), (1, 2)], lost
    )
    with pytest.raises(JaxrlError, match=r"bids 0.3.onnx: one model plays one behavior, and .* has Striker, Goalie"):
        tournament([str(models[0]), "random"], environment="jax:strikers_vs_goalie", games=2)


def test_sides_are_exchanged(tmp_path: Path) -> None:
    """Team 0 bids 1 more here: the first player wins its games on side 0, and loses the others."""
    path = tmp_path / "run"
    saved(path, env_args=["handicap=1.0"])
    with quick_compilation():
        match = tournament([LOW, MIDDLE, str(path)], games=7).matches[0, 1]
    assert match == Match(Record(4, 0, 0), Record(0, 0, 3)) and match.total.share == 4 / 7


@pytest.mark.parametrize(("result", "total"), [("return", (10, 0, 0, 0)), ("final_reward", (0, 10, 0, 0))])
def test_the_first_run_says_by_what_a_game_is_won(result: str, total: Any, tmp_path: Path) -> None:
    """The last step of this game costs both teams 0.01, and the one before pays the winner."""
    path = saved(tmp_path / "run", env_args=["early=true"])
    written = yaml.safe_load((path / "configuration.yaml").read_text())
    written["behaviors"] = {"Bids": {"self_play": {"result": result}}}
    (path / "configuration.yaml").write_text(yaml.safe_dump(written))
    with quick_compilation():
        assert tuple(tournament([HIGH, LOW, str(path)], games=10).matches[0, 1].total) == total


def test_a_rating_follows_the_share_of_won_games() -> None:
    """Of 300 games each: 0 beats 1 in 2 of 3, 1 beats 2 in 2 of 3, 0 beats 2 in 4 of 5 (odds 2, 2 and 4)."""
    found = rate(3, {(0, 1): Record(200, 0, 100), (1, 2): Record(200, 0, 100), (0, 2): Record(240, 0, 60)})
    first, second, third = (of.mean for of in found)
    assert first > second > third and abs((first - second) - (second - third)) < 1.5
    assert found == rate(3, {(0, 1): Record(200, 0, 100), (1, 2): Record(200, 0, 100), (0, 2): Record(240, 0, 60)})
    assert [Record(0, 3, 0).share] != [Record(0, 3, 0).share], "NaN: nothing was decided"
    few = rate(2, {(0, 1): Record(2, 0, 1)})
    assert few[0].deviation > 2 * found[0].deviation, "fewer games tell less"


def saved(run: Path, env_args: Any = None, steps: Any = (10, 20), pool: bool = False, **env: Any) -> Path:
    """A run of Bids: random policies; with a pool those that it was at steps 5 and 10."""
    spec = make_bids(**env).spec
    settings = settings_of("ppo", {"network_settings__hidden_units": 4, "network_settings__num_layers": 1})
    algorithm, described = ALGORITHMS["ppo"](spec, settings), settings.model_dump(mode="json")
    for number, step in enumerate(steps):
        train = algorithm.init(jax.random.key(number))
        snapshots = {}
        if pool:
            packed = [earlier.pack(algorithm.init(jax.random.key(10 + i)).policy) for i in range(2)]
            earlier.write(run / "Bids", dict(packed))
            kept = [{"step": 5 * (i + 1), "weights": name} for i, (name, _) in enumerate(packed)]
            game = Game(np.random.default_rng(0))
            game.join("Bids", 0, SelfPlaySettings(), None)
            state = game.state("Bids", lambda _: "")
            state |= {"saved": 2, "snapshots": kept[::-1], "playing": {}}
            snapshots = {SELF_PLAY: state | {"random": np.random.default_rng(0).bit_generator.state}}
        content = Saved(train=train, step=np.int64(step), decisions=np.int64(9))
        checkpoint.save(run / "Bids", step, content, spec=spec, settings={**described, **snapshots}, keep=0)
    written = {"behaviors": {}, "env_settings": {"env_path": ENV, "env_args": env_args or []}}
    (run / "configuration.yaml").write_text(yaml.safe_dump(written))
    return run


def names(*words: str, **options: Any) -> tuple[str, ...]:
    """Who plays, without a game."""
    entry = module.Entry((make_bids(),), ENV, most=options.get("most", 10), deterministic=False)
    return tuple(of.name for of in module._players(entry, module.read(words)))


def test_words_name_policies_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, pooled = saved(tmp_path / "plain", steps=(10, 20, 30)), saved(tmp_path / "pooled", pool=True)
    assert names("plain", "random") == ("plain", "random")
    assert names("plain@20", "pooled", LOW) == ("plain@20", "pooled", "low")
    assert names("plain@checkpoints") == names("plain") == ("plain@10", "plain@20", "plain")
    assert names("plain@checkpoints", most=1) == ("plain@10", "plain")
    assert names("pooled@pool", "random") == ("pooled@5", "pooled@10", "pooled", "random")
    assert names("pooled") == names("pooled@pool"), "alone it stands for its pool"
    assert names("pooled@checkpoints") == ("pooled@10", "pooled")
    entry = module.Entry((make_bids(),), ENV, most=10, deterministic=False)
    policies = [player.roles["Bids"] for player in entry.players(module.read(["pooled@pool"])[0])]
    assert len({role.act for role in policies}) == 1, "one program for all of a run"
    bias = [np.asarray(jax.tree.leaves(role.policy)[1]).tolist() for role in policies]
    expected = [ALGORITHMS["ppo"](make_bids().spec, settings_of("ppo", {
        "network_settings__hidden_units": 4, "network_settings__num_layers": 1,
    })).init(jax.random.key(key)).policy for key in (10, 11, 1)]  # fmt: skip
    assert bias == [np.asarray(jax.tree.leaves(policy)[1]).tolist() for policy in expected]
    with pytest.raises(JaxrlError, match="plain@pool: Bids was trained without self_play, and has no pool"):
        names("plain@pool")
    (pooled / "Bids" / "self_play").rename(tmp_path / "away")
    with pytest.raises(checkpoint.CheckpointError, match="this snapshot of the self-play pool is missing"):
        names("pooled@pool")
    assert plain.is_dir()


MALFORMED: dict[str, tuple[str, Any]] = {  # a key of the state, and what a stranger has written there
    "no weights": ("snapshots", [{"step": 5, "weights": None}]),
    "a path out of the folder": ("snapshots", [{"step": 5, "weights": "../../../secret.npz"}]),
    "a step that is a text": ("snapshots", [{"step": "5", "weights": "0" * 64 + ".npz"}]),
    "no snapshot": ("snapshots", []),
    "no list": ("snapshots", 3),
    "opponents that are not there": ("opponents", [[0, 7]]),
    "a rating beyond floats": ("ratings", [1e9] * 11),
    "no rating": ("ratings", [float("nan")] * 11),
    "games of texts": ("met", [["1", "2"]]),
    "a clock that is short": ("last", [1, 2]),
    "another generator": ("random", {"bit_generator": "MT19937", "state": {}}),
    "a generator without its state": ("random", None),
    "playing with a path": ("playing", {"0": {"weights": "/etc/passwd", "decisions": 1}}),
    "an exploiter with more": ("league", [{"standing": {"elo": 1.0, "evil": 1}, "playing": {}}]),
}


def test_a_state_that_is_not_jaxrls_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = saved(tmp_path / "theirs", pool=True, steps=(10,))
    path = run / "Bids" / "Bids-10" / "checkpoint.json"
    document = json.loads(path.read_text())
    for what, (key, value) in MALFORMED.items():
        state = document["settings"][SELF_PLAY] | {key: value}
        changed = document | {"settings": document["settings"] | {SELF_PLAY: state}}
        path.write_text(json.dumps(changed))
        (path.parent / manifest.MANIFEST).unlink()
        manifest.write(path.parent)
        assert main(["tournament", f"{run}@pool", "random", "--env", ENV, "--games", "2"]) == 1, what
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert f"settings.self_play_state{'.' + key if key != 'opponents' else ''}" in line, what


def test_the_command_writes_table_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with quick_compilation():
        assert main(["tournament", LOW, HIGH, "--env", ENV, "--games", "4", "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "low : high  0 : 4, 0 drawn"
    best, worst = (line.split() for line in said[3:5])
    assert best[:2] == ["1", "high"] and best[5:10] == ["4", "0", "0", "100", "%"]
    assert worst[:2] == ["2", "low"] and worst[5:10] == ["0", "0", "4", "0", "%"]
    told = json.loads((out / "tournament.json").read_text())
    assert told["environment"] == ENV and [of["name"] for of in told["players"]] == ["high", "low"]
    side = {"won": 0, "drawn": 0, "lost": 2, "cut": 0}
    match = {"first": "low", "second": "high", "won": 0, "drawn": 0, "lost": 4, "cut": 0}
    assert told["matches"] == [match | {"on_first_side": side, "on_second_side": side}]
    assert told["players"][0]["low"] < told["players"][0]["rating"] < told["players"][0]["high"]
    rows = list(csv.reader((out / "games.csv").read_text().splitlines()))
    assert rows[1:] == [["low", "high", "0", "0", "0", "2", "0"], ["low", "high", "1", "0", "0", "2", "0"]]
    assert (out / "tournament.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "options", "text"),
    [
        ([LOW], {}, "low: plays alone, expected two players or more"),
        ([LOW, LOW], {}, "low: is there twice"),
        ([LOW, HIGH], {"games": 1}, "games = 1, .*expected at least 2 games"),
        ([LOW, HIGH], {"environment": None}, "--env: missing, and no run tells which environment is played"),
        ([LOW, HIGH], {"environment": "jax:basic"}, r"Basic: has 1 team\(s\), and a game of a tournament is played by"),
        ([LOW, HIGH], {"environment": "gymnasium:CartPole-v1"}, "is no environment in which a tournament"),
        ([LOW, f"{BIDS}:WITHOUT"], {}, "bids.py:WITHOUT: has nobody who plays Bids, expected a function"),
        ([LOW, f"{BIDS}:BIDS"], {}, "bids.py has no function BIDS"),
        ([LOW, f"{BIDS}:too_many"], {}, r"too_many: gives actions of the shapes .* expected \(\(4, 1\), \(4, 0\)\)"),
        ([LOW, "nowhere"], {}, "nowhere: no such folder"),
        ([LOW, "zoo:nothing"], {}, "no policy of jaxrl's has that name"),
    ],
)
def test_what_cannot_be_played_is_refused(words: list[str], options: Any, text: str) -> None:
    with pytest.raises(JaxrlError, match=text):
        tournament(words, **{"environment": ENV, **options})


def test_runs_that_were_trained_with_something_else(tmp_path: Path) -> None:
    other = saved(tmp_path / "other", seen="everything")
    with pytest.raises(JaxrlError) as raised:
        tournament([str(saved(tmp_path / "run")), str(other)])
    assert str(raised.value) == (
        f"{other}: was trained with other observations or actions of Bids than {ENV} has (observation 0 (nothing) "
        "name: everything there, nothing here): leave it out, or name another environment with --env"
    )

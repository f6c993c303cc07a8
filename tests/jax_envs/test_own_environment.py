"""An environment of one's own: found or refused in one sentence, checked in play, trained, served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxrl
from jaxrl.cli import main
from jaxrl.envs.address import UnknownEnvironmentError
from jaxrl.jax_envs import make_environment
from jaxrl.jax_envs.contract import JaxEnvError, check_environment
from jaxrl.types import JaxrlError

ROOT = Path(__file__).parents[2]
CORRIDOR = Path(__file__).parent / "own" / "corridor.py"


def written(folder: Path, *changes: tuple[str, str], name: str = "mine.py") -> str:
    """The corridor with parts of its text exchanged, as FILE.py:FUNCTION."""
    text = CORRIDOR.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / name).write_text(text, encoding="utf-8")
    return f"{folder / name}:make_corridor"


def test_it_keeps_its_contract():
    found = check_environment(make_environment(f"{CORRIDOR}:make_corridor"))
    assert found.problems == found.remarks == [] and found.episodes > 100


ALIVE, MASK = "view=view(state, ~(arrived | late)),", "jnp.ones((1, 2), bool)"
BREAKS = {
    "nobody is alive": [("return state, view(state, True)", "return state, view(state, False)")],
    "forbids every choice": [(MASK, "jnp.zeros((1, 2), bool)")],
    "is NaN or infinite": [("0.0)[None]", "jnp.nan)[None]")],
    "an observation, a reward": [("float32)[None]", "float32)[None] * jnp.where(state[2] == 0, jnp.nan, 1.0)")],
    "still `alive`": [(ALIVE, "view=view(state, True),")],
    "nobody ended": [("terminated=arrived[None]", "terminated=jnp.zeros(1, bool)")],
    "truncates=True": [(", truncates=True", "")],
    "set `over`": [("over=arrived | late", "over=late")],
    "not both": [("truncated=(late & ~arrived)[None]", "truncated=(late | arrived)[None]")],
}


@pytest.mark.parametrize("sentence", BREAKS)
def test_a_break_of_the_contract_is_one_sentence(tmp_path, sentence):
    found = check_environment(make_environment(written(tmp_path, *BREAKS[sentence])), steps=60)
    assert any(sentence in text and text.startswith("Corridor: ") for text in found.problems), found


def test_an_error_in_a_function_names_its_line(tmp_path):
    for change in (("2 * actions.discrete[0, 0]", "2 * actions.discreet[0, 0]"), ("clock == 20", "{}['no'] == 20")):
        env = make_environment(written(tmp_path, change))
        with pytest.raises(JaxEnvError, match=r"Corridor: step raised (Attribute|Key)Error: .*mine\.py, line \d+"):
            check_environment(env)


TEAM = [
    ("seen = jnp.stack([place, goal]).astype(jnp.float32)[None]", "seen = jnp.zeros((2, 2))"),
    (MASK, "jnp.ones((2, 2), bool)"),
    ("alive=jnp.asarray(alive)[None]", "alive=jnp.array([True, False]) & alive"),
    ("0.0)[None]", "0.0) * jnp.array([1.0, 0.0])"),
    ("group_reward=jnp.zeros(1)", "group_reward=jnp.zeros(2)"),
    ("terminated=arrived[None]", "terminated=arrived & jnp.array([True, False])"),
    ("truncated=(late & ~arrived)[None]", "truncated=(late & ~arrived) & jnp.array([True, False])"),
    ('"Corridor", spec, 1', '"Corridor", spec, 2'),
]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "group_reward=jnp.zeros(1)",
            "group_reward=jnp.ones(2)",
            "reward or group_reward of a member that was neither alive nor pausing",
        ),
        (
            "terminated=arrived[None]",
            "terminated=arrived & jnp.array([True, True])",
            "for a member that was neither alive nor pausing",
        ),
        (
            "alive=jnp.asarray(alive)[None]",
            "alive=jnp.array([True, True]) & alive",
            "a member that was alive, or paused, has not ended",
        ),
    ],
)
def test_breaks_of_teams(tmp_path, old, new, sentence):
    """The second of two places is empty; the last case has somebody there who never ends."""
    assert check_environment(make_environment(written(tmp_path, *TEAM)), steps=60).problems == []
    changes = [(before, new if before == old else after) for before, after in TEAM]
    found = check_environment(make_environment(written(tmp_path, *changes)), steps=60)
    assert any(sentence in text for text in found.problems), found


def test_what_may_be_meant_is_a_remark(tmp_path):
    """Every area alike: no key is used, and actions do nothing. And episodes without an end."""
    same = [("jnp.where(jax.random.bernoulli(key), 3, -3)", "jnp.int32(3)"), ("2 * actions.discrete[0, 0] - 1", "1")]
    found = check_environment(make_environment(written(tmp_path, *same)), steps=60)
    assert not found.problems and len(found.remarks) == 1 and "all areas see the same" in found.remarks[0]
    endless = [("jnp.abs(place) == 3, clock == 20", "jnp.bool_(False), clock < 0")]
    found = check_environment(make_environment(written(tmp_path, *endless)), steps=60)
    assert not found.problems and len(found.remarks) == 1 and "no episode has ended in 60 decisions" in found.remarks[0]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        (
            [("def make_corridor", "def make_hall")],
            UnknownEnvironmentError,
            "has no function make_corridor, .*make_hall",
        ),
        (
            [("import jax\n", "import jaks\n")],
            JaxrlError,
            r"ModuleNotFoundError: No module named 'jaks' \(.*line 3\)",
        ),
        ([("def reset(key, parameters):", "def reset(key, parameters)")], JaxrlError, "SyntaxError: .*line 15"),
        ([("(2,)),), ActionSpec(0, (2,)))", "(2,)),), Action(0))")], JaxrlError, r"raised NameError: .*line 38"),
        ([("    spec = Beh", "    return 3\n    spec = Beh")], JaxEnvError, "returns a int, expected a jaxrl.JaxEnv"),
    ],
)
def test_a_file_that_is_none(tmp_path, changes, kind, words):
    with pytest.raises(kind, match=words):
        make_environment(written(tmp_path, *changes))


def test_a_place_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, words in (("no.py:make", "there is no file"), ("no.such:make", "there is no module no;")):
        with pytest.raises(UnknownEnvironmentError, match=words):
            make_environment(name)


def command(folder: Path, *argv: str) -> tuple[int, str]:
    """Exit code and all output of a process of its own."""
    place = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "cache"), "COLUMNS": "500"}
    words = [sys.executable, "-m", "jaxrl.cli", *argv]
    ended = subprocess.run(words, cwd=folder, env=place, capture_output=True, text=True, timeout=110, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    written(tmp_path)
    written(tmp_path, *BREAKS["truncates=True"], name="bad.py")
    for argv, code, words in (
        (["check-env", "mine.py:make_corridor", "--steps", "60"], 0, "0 problem(s) in 60 decisions"),
        (["check-env", "bad.py:make_corridor", "--steps", "60"], 1, "problem: Corridor: a step says `truncated`"),
        (["watch", "mine.py:make_corridor", "--out", "a.gif"], 1, "no picture"),
        (["train", "--env", "no.py:make", "--run-id", "a"], 1, "there is no file"),
        (["train", "--env", "player:no.py:make", "--run-id", "a"], 1, "there is no file"),
    ):
        found, said = main(argv), capsys.readouterr()
        assert found == code and words in said.out + said.err, said
    assert not (tmp_path / "results").exists()


def test_a_player_of_ones_own(tmp_path, monkeypatch, capsys):
    """Its script names the file wherever it is started from; what is wrong inside is in the player's own words."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    assert main(["make-player", "mine.py:make_corridor", "players"]) == 0
    player = Path(capsys.readouterr().out.strip())
    assert player == tmp_path / "players" / "MineMakeCorridor.x86_64"
    assert f"{tmp_path / 'mine.py'}:make_corridor" in player.read_text()
    written(tmp_path, *BREAKS["truncates=True"][:0], ("import jax\n", "import jaks\n"))
    ended = subprocess.run([player, "--mlagents-port", "6999"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "No module named 'jaks'" in ended.stderr


@pytest.mark.parametrize("prefix", ["", pytest.param("player:", marks=pytest.mark.slow)])
def test_it_trains(tmp_path, prefix):
    """A few updates in each loop."""
    config = tmp_path / "c.yaml"
    config.write_text(
        "behaviors: {Corridor: {trainer_type: ppo, max_steps: 1500, summary_freq: 500, "
        "hyperparameters: {batch_size: 64, buffer_size: 512}, network_settings: {hidden_units: 16}}}\n"
        f"env_settings: {{env_path: '{prefix}{written(tmp_path)}', num_areas: 8, seed: 1, base_port: 7205}}\n"
    )
    code, output = command(tmp_path, "train", str(config), "--run-id", "a")
    assert code == 0, output
    assert (tmp_path / "results" / "a" / "Corridor.onnx").exists()


def test_names_of_the_package():
    assert {"JaxEnv", "TeamStep", "check_environment", "make_poca"} <= set(dir(jaxrl))
    assert jaxrl.check_environment is check_environment and jaxrl.__version__.count(".") == 2

"""`jaxrl zoo`: what it lists, and that a policy earns what its card says."""

import re
import subprocess
import sys

import pytest

from jaxrl.artifacts.zoo import card, cards
from jaxrl.cli import main
from jaxrl.cli.commands import parse


def run(*words, timeout=100):
    """The command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "jaxrl.cli", *words], capture_output=True, text=True, timeout=timeout)


def test_the_list_and_a_card(capsys):
    assert main(["zoo"]) == 0
    shown = capsys.readouterr().out
    for one in cards():
        assert re.search(
            rf"^{one.name} +{one.environment} +{one.algorithm} +{one.steps:,} .* kB\n    {one.command}$", shown, re.M
        )
    assert main(["zoo", "basic"]) == 0
    shown = capsys.readouterr().out
    assert card("basic").command in shown and "0.930 ± 0.000 in 256 episodes of seed 1000" in shown
    assert re.search(r"curve: +Environment/Cumulative Reward: .* [▁▂▃▄▅▆▇█]{10,} 0\.93", shown)


def test_a_policy_earns_what_its_card_says():
    """All 256 evaluation episodes of Dungeon Escape, in which every team gets out."""
    ended = run("zoo", "play", "dungeon_escape")
    assert ended.returncode == 0, ended.stderr
    first, second = ended.stdout.splitlines()
    assert first == "jax:dungeon_escape, zoo:dungeon_escape: return 1.000 ± 0.000 in 256 episodes of seed 1000"
    assert second.endswith("so it is.")
    assert card("dungeon_escape").evaluation.random < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in cards()])
def test_every_policy_earns_what_its_card_says(name):
    ended = run("zoo", "play", name, timeout=300)
    assert ended.returncode == 0 and "so it is" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize("words", ["play --episodes 3 basic", "--episodes 3 play basic", "play basic --episodes 3"])
def test_flags_stand_anywhere(words):
    given = parse(["zoo", *words.split()])
    assert (given.words, given.episodes, given.seed) == (["play", "basic"], 3, None)
    runs = parse(["report", "one", "--out", "page.html", "other"])
    assert (runs.runs, runs.out) == (["one", "other"], "page.html")


def test_a_film_of_a_shipped_policy(tmp_path):
    ended = run("watch", "jax:basic", "--run", "zoo:basic", "--out", str(tmp_path / "film.gif"))
    assert ended.returncode == 0, ended.stderr
    assert "reward 0.93 in 7 steps" in ended.stdout and (tmp_path / "film.gif").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["zoo", "bassic"], "did you mean basic or basic_sac or baton_pass?"),
        (["zoo", "play"], "expected nothing, NAME or play NAME"),
        (["zoo", "basic", "ball3d"], "expected nothing, NAME or play NAME"),
        (["zoo", "play", "basic", "--episodes", "0"], "--episodes: got 0, expected at least 1"),
        (["zoo", "basic", "--seed", "3"], "--episodes and --seed are for jaxrl zoo play NAME"),
    ],
)
def test_what_is_refused(words, message, capsys):
    assert main(words) == 1
    assert message in " ".join(capsys.readouterr().err.split())

"""`--env-args` of environments that are compiled: jaxrl's own, one's own function, and on the command line."""

from __future__ import annotations

import pytest

from jaxrl.cli import main
from jaxrl.envs.foreign.arguments import ArgumentsError
from jaxrl.jax_envs import make_environment
from jaxrl.jax_envs.served import serve
from jaxrl.types import JaxrlError

OWN = """
import jaxrl
def make_env(length, *, teams: int = 1, fail=False):
    if fail:
        raise RuntimeError("asked to")
    return jaxrl.make_environment("jax:hallway", length=length)._replace(teams=teams)
"""


def test_settings_of_jaxrls_own_are_arguments():
    env = make_environment("jax:dungeon_escape", team_size=2)
    assert env.parameters["team_size"] == 2.0 and make_environment("jax:dungeon_escape").parameters["team_size"] != 2.0
    assert make_environment("ball3d", episode_limit=7).name == "3DBall"
    for arguments, text in [
        ({"tem_size": 2}, "jax:dungeon_escape: takes no argument tem_size, did you mean team_size"),
        ({"team_size": 2.5}, "argument team_size: got 2.5, expected a whole number"),
        ({"team_size": 99}, "jax:dungeon_escape: team_size = 99: must lie between 1 and capacity"),
    ]:
        with pytest.raises(ArgumentsError, match=text):
            make_environment("jax:dungeon_escape", **arguments)


def test_ones_own_function_is_called_with_them(tmp_path):
    address = f"{tmp_path / 'mine.py'}:make_env"
    (tmp_path / "mine.py").write_text(OWN)
    env = make_environment(address, length=9, teams=2)
    assert env.teams == 2 and env.parameters == {"length": 9.0}
    with pytest.raises(ArgumentsError, match=r"mine\.py:make_env: takes no argument lenth, did you mean length"):
        make_environment(address, lenth=9)
    with pytest.raises(JaxrlError, match="raised RuntimeError: asked to"):
        make_environment(address, length=9, fail=True)


def test_on_the_command_line_they_reach_the_environment_before_anything_is_written(tmp_path, capfd):
    (tmp_path / "c.yaml").write_text("behaviors: {Hallway: {trainer_type: ppo}}\n")
    words = ["train", str(tmp_path / "c.yaml"), "--env", "jax:hallway", "--run-id", "h", "--results-dir", str(tmp_path)]
    assert main([*words, "--env-args", "lenth=9"]) == 1
    assert "takes no argument lenth, did you mean length?" in capfd.readouterr().err and not (tmp_path / "h").exists()
    assert main(["check-env", "jax:hallway", "--areas", "1", "--steps", "2", "--env-args", "length=2"]) == 1
    assert "length = 2: the hall needs at least" in capfd.readouterr().err


def test_they_reach_a_player(caplog):
    """Beside what Unity players are told; `main` fails before it looks for a trainer."""
    unity = ["--mlagents-port", "5", "-screen-width", "84", "-nographics"]
    assert serve._parse(["ball3d", *unity, "episode_limit=7"]).arguments == ["episode_limit=7"]
    assert serve.main(["ball3d", *unity, "episode_limt=7"]) == 1
    assert "ball3d: takes no argument episode_limt, did you mean episode_limit" in caplog.text
    assert serve.main(["ball3d", *unity, "episode_limit=long"]) == 1
    assert "argument episode_limit: got 'long', expected a whole number" in caplog.text

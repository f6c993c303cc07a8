"""Looking at somebody's run runs nothing of theirs, whatever its files name; one's own runs stay as easy as before."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import jaxrl
from jaxrl import trust
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.cli import main
from jaxrl.envs.gymnasium import simulator as gymnasium
from jaxrl.envs.pettingzoo.simulator import check
from jaxrl.jax_envs.served.launcher import resolve_player
from jaxrl.trust import UntrustedError
from tests.tools.report.report_folders import write_events

ROOT = Path(__file__).parents[1]
EVIL = """
from pathlib import Path

Path(__file__).with_name("ran").touch()

from jaxrl.jax_envs.basic import make_basic as make
from jaxrl.algorithms.ppo import make_ppo
"""


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has named nothing yet, with a cache folder of its own, in an empty folder."""
    for name, empty in (("_theirs", {}), ("_ours", set()), ("_followed", {}), ("_accepted", [])):
        monkeypatch.setattr(trust, name, empty)
    monkeypatch.setenv("JAXRL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Code that leaves `ran` beside it when it is imported."""
    (tmp_path / "evil.py").write_text(EVIL)
    return tmp_path / "ran"


def run_of(folder: Path, environment: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A run that plays jax:basic, whose checkpoint and configuration say what they are told to."""
    run = folder / "results" / "theirs"
    shutil.copytree(ROOT / "zoo" / "basic", run)
    document = next(run.glob("*/*/checkpoint.json"))
    written = json.loads(document.read_text())
    written["settings"] |= settings
    document.with_name("manifest.json").unlink()
    document.write_text(json.dumps(written))
    manifest.write(document.parent)
    (run / "configuration.yaml").write_text(yaml.safe_dump({"env_settings": environment or {"env_path": "jax:basic"}}))
    write_events(run / "Basic", {1000: 0.1, 2000: 0.2})
    return run


_SIGNAL = {"extrinsic": {}, "mine": {"type": "evil.py:make"}}


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("trainer_type", {"trainer_type": "evil.py:make_ppo"}),
        ("postprocess", {"postprocess": "evil:make"}),
        ("reward_signals.mine.type", {"reward_signals": _SIGNAL}),
        ("network_settings.body_type", {"network_settings": {"body_type": "evil:make"}}),
    ],
)
def test_a_checkpoint_names_code_that_is_not_imported(tmp_path: Path, evil: Path, key: str, settings: dict) -> None:
    run = run_of(tmp_path, **settings)
    with pytest.raises(UntrustedError, match=rf"checkpoint\.json: {key}: got evil.*--trust, in Python trust=True"):
        jaxrl.load(run)
    assert not evil.exists()
    with contextlib.suppress(jaxrl.JaxrlError):  # what it names is no signal, encoder or body, which is seen now
        jaxrl.load(run, trust=True)
    assert evil.exists()


def test_commands_that_look_run_nothing_until_they_are_told_to(tmp_path, evil, capsys) -> None:
    run = run_of(tmp_path, {"env_path": "evil.py:make"}, trainer_type="evil.py:make_ppo")
    film, looked = tmp_path / "a.png", ["watch", "--run", str(run), "--steps", "2", "--out", str(tmp_path / "a.png")]
    assert main(looked) == 1
    said = capsys.readouterr().err
    assert f"{run}/configuration.yaml: env_settings.env_path: got evil.py:make, which is code" in said
    assert "--trust" in said
    assert main(["export-torch", str(run), "--out", str(tmp_path / "a.pt")]) == 1
    assert "trainer_type: got evil.py:make_ppo" in capsys.readouterr().err
    assert main(["report", "--films", str(run), "--out", str(tmp_path / "a.html")]) == 0
    assert "no film" in capsys.readouterr().out
    assert main(["tournament", str(run), "random", "--out", str(tmp_path / "t")]) == 1
    assert "env_settings.env_path: got evil.py:make" in capsys.readouterr().err and not (tmp_path / "t").exists()
    assert main(["tournament", str(run), "random", "--env", "jax:pong"]) == 1
    assert "holds no policy for behavior Pong" in capsys.readouterr().err
    assert not evil.exists() and not film.exists()
    assert main([*looked, "--trust"]) == 0
    assert evil.exists() and film.exists()


def test_a_shell_is_no_environment_whoever_names_it(tmp_path, capsys) -> None:
    marker = tmp_path / "ran"
    arguments = {"env_path": "pettingzoo:os:system", "env_args": [f"command=touch {marker}"]}
    run = run_of(tmp_path, arguments)
    for more in ([], ["--trust"]):
        assert main(["watch", "--run", str(run), "--steps", "2", *more]) == 1
        said = capsys.readouterr().err
        assert "makes no environments" in said if more else "--trust" in said
    for name in ("os:system", "subprocess:getoutput", "builtins:exec", "numpy:load"):
        with pytest.raises(jaxrl.JaxrlError, match=f"pettingzoo:{name}: .* makes no environments; expected a class"):
            check(name)
    with pytest.raises(jaxrl.JaxrlError, match="the class TextCalendar is no AECEnv"):
        check("calendar:TextCalendar")
    assert not marker.exists()


def test_players_and_modules_of_a_folder_are_not_followed_and_installed_ones_are(tmp_path, evil) -> None:
    names = ["player:evil.py:make", "gymnasium:evil:Game-v0", "gymnasium:GymV26Environment-v0", "pettingzoo:evil",
             "pettingzoo:pettingzoo.utils.conversions:parallel_to_aec"]  # fmt: skip
    installed = ["mpe2.simple_spread_v3", "mpe2.simple_spread_v3:raw_env", "sisl/multiwalker-v9"]
    trust.note([*names, *(f"pettingzoo:{name}" for name in installed), "gymnasium:CartPole-v1"], tmp_path / "a.yaml")
    for address, look in zip(names, (resolve_player, gymnasium.check, gymnasium.check, check, check), strict=True):
        with pytest.raises(UntrustedError, match=f"got {address}"):
            look(address.partition(":")[2])
    for name in installed:
        check(name)
    gymnasium.check("CartPole-v1")
    assert not evil.exists()


def test_what_the_user_names_is_his_also_where_a_folder_has_it(tmp_path, evil) -> None:
    run = run_of(tmp_path, trainer_type="evil.py:make_ppo")
    with pytest.raises(UntrustedError):
        jaxrl.load(run)
    jaxrl.make_settings("evil.py:make_ppo")
    assert evil.exists() and jaxrl.load(run).behavior == "Basic"


def test_a_run_is_remembered_as_ones_own_where_it_was_trained(tmp_path, evil, monkeypatch) -> None:
    """The folder of somebody else's run of that name says nothing, and code inside a run is never remembered."""
    settings = jaxrl.make_settings("evil.py:make_ppo")
    run = run_of(tmp_path, trainer_type="evil.py:make_ppo")
    trust.remember(run, settings.model_dump(mode="json"))
    forget = {"_theirs": {}, "_ours": set(), "_followed": {}}
    for name, empty in forget.items():
        monkeypatch.setattr(trust, name, empty)
    moved = shutil.copytree(run, tmp_path / "results" / "moved")
    with pytest.raises(UntrustedError):
        jaxrl.load(moved)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where another evil.py may stand
    with pytest.raises(UntrustedError):
        jaxrl.load(run)
    monkeypatch.chdir(tmp_path)
    evil.unlink(missing_ok=True)
    assert jaxrl.load(run).behavior == "Basic"
    inside = run / "mine.py"
    inside.write_text(EVIL)
    trust.require(f"{inside}:make")
    trust.remember(run, {"env_path": f"{inside}:make"})
    assert "mine.py" not in "".join(path.read_text() for path in (tmp_path / "cache").rglob("*.json"))

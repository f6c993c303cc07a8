"""The site builds without a warning, shows every public name, and fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxrl
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli.commands import _COMMANDS
from jaxrl.settings import BehaviorSettings, EnvironmentSettings, NetworkSettings, RunSettings
from tests.browser import opened_browser, opened_page

ROOT = Path(__file__).parents[2]
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def test_it_builds_strictly_and_every_page_is_there(site):
    pages = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= pages


def test_every_public_name_has_its_docstring_there(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    assert [name for name in jaxrl.__all__ if f'id="jaxrl.{name}"' not in page] == []
    assert "random allowed decisions in some areas" in page  # of check_environment
    assert "the episode's figures, to be read where <code>over</code>" in page  # beside a field of TeamStep
    assert "agent steps per minibatch" in page  # a Field's description
    assert 'id="jaxrl._' not in page and "__getattr__" not in page


def test_every_setting_and_command_stands_in_the_references(site):
    page = (site / "settings.html").read_text(encoding="utf-8")
    for model in (RunSettings, BehaviorSettings, EnvironmentSettings, NetworkSettings, *HYPERPARAMETER_TYPES.values()):
        for key in model.model_fields:
            assert f"<td><code>{key}</code></td>" in page, key
    row = re.search(r"<td><code>num_envs</code></td>(.*?)</tr>", page, re.DOTALL).group(1)
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row)]
    assert cells == ["whole number ≥ 1", "1", "ML-Agents", "environment processes"]
    assert "<td>jaxrl</td>" in re.search(r"<td><code>count_by</code></td>.*?</tr>", page, re.DOTALL).group()
    page = (site / "command-line.html").read_text(encoding="utf-8")
    assert [name for name in _COMMANDS if f"usage: jaxrl {name}" not in page] == [] and "--env-args" in page
    page = (site / "learning.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("lambda_return", "value_loss", "make_jaxmarl", "env_config"))


def test_no_ids_of_our_own_lists_stand_in_the_references(site):
    for name in ("reference", "learning", "settings", "command-line"):
        text = re.sub(r"<[^>]*>", "", (site / f"{name}.html").read_text(encoding="utf-8"))
        assert re.findall(r"\((?:[MRUXPSBA]\d{1,2}(?:, )?)+\)", text) == [], name


def test_tables_and_equations_are_not_cut_at_1280_pixels(site):
    wider = "e => e.scrollWidth > e.clientWidth + 1"
    parts = "[...document.querySelectorAll('.md-typeset__scrollwrap, .equation')]"
    with opened_browser() as browser:
        for path in sorted(set(site.glob("*.html")) - {site / "404.html"}):  # whose links are those of a server
            with opened_page(browser, path.as_uri()) as page:
                assert page.evaluate(f"() => {parts}.filter({wider}).map(e => e.innerText.slice(0, 80))") == [], (
                    path.name
                )


def test_equations_are_mathml(site):
    page = (site / "ma-poca.html").read_text(encoding="utf-8")
    assert page.count("<math") > 60 and "arithmatex" not in page and "\\frac" not in page
    assert "<mi>γ</mi>" in page


def test_nothing_is_fetched_from_elsewhere(site):
    for path in site.rglob("*.html"):
        found = _FETCHED.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.name}: {found}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text(encoding="utf-8")), path


def test_drawings_are_whole(site):
    page = (site / "concepts.html").read_text(encoding="utf-8")
    drawings = sorted(path.name for path in (ROOT / "docs" / "drawings").glob("*.svg"))
    assert len(drawings) == 4
    assert [name for name in drawings if f'src="drawings/{name}"' not in page] == []


@pytest.mark.parametrize("name", ["own_environment", "own_algorithm", "own_poca"])
def test_the_examples_stand_there_whole(site, name):
    name_of_page = name.replace("_", "-").replace("poca", "ma-poca")
    page = (site / f"{name_of_page}.html").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")))
    assert words <= set(re.findall(r"\w+", page))

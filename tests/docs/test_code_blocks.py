"""What the README and the pages of docs/ show can be typed: commands parse, configurations load, programs run.

A comment before a Python block says what is done with it:
    <!-- as in README.md -->   it is the README's, whose test runs it
    <!-- shown: why -->        it cannot run here: it must compile, and the names that it takes from jaxrl must exist
Without a comment it runs in a process of its own.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import jaxrl
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli.commands import _COMMANDS, parse
from jaxrl.cli.shipped import named
from jaxrl.settings import load_run_settings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
AS_IN_README, SHOWN = "as in README.md", "shown:"
OTHER_COMMANDS = {"alias", "git", "mkdocs", "mlagents-learn", "pip", "ray", "tensorboard"}
_FENCE = re.compile(r"(?:<!-- (?P<comment>[^\n]*?) -->\n)?^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"`(jaxrl [^`\n]+)`")


class Block(NamedTuple):
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    comment: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    whole = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(whole):
        line = whole.count("\n", 0, found.start("text"))
        yield Block(page, line, found["language"], found["text"], found["comment"] or "")


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and "--8<--" not in block.text]


def parses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One command line of jaxrl; a command alone names it, as `jaxrl check-env` does."""
    words = shlex.split(command.replace("…", ""))[1:]
    if " ".join(words) in (*_COMMANDS, "onnx check"):
        return
    try:
        given = parse(words)
    except SystemExit as leaving:
        assert leaving.code == 0, f"{command}: {capsys.readouterr().err}"
        return
    config = getattr(given, "config", None)
    if words[0] == "train" and config is not None:
        there = any((folder / config).is_file() for folder in (ROOT, ROOT / "examples"))
        assert there or config in ("config.yaml", "NAME") or named(config), command


def test_every_kind_of_block_is_looked_at():
    assert {block.language for block in BLOCKS} <= {"python", "sh", "text", "yaml"}
    assert len(of("sh")) > 15 and len(of("yaml")) >= 1 and len(of("python")) >= 4


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_command_lines_parse(block, capsys):
    whole = block.text.replace("\\\n", " ")
    for line in filter(None, map(str.strip, whole.splitlines())):
        for command in line.partition("  #")[0].split("&&"):
            words = shlex.split(command)
            words = words[3:] if words[0] == "taskset" else words
            if words[0] == "jaxrl":
                parses(shlex.join(words), capsys)
            elif words[0] == "python":
                script = words[1] if words[1] != "-m" else f"{words[2].replace('.', '/')}"
                assert (ROOT / script).exists() or script in ("pytest",), f"{command}: no {script}"
            else:
                assert words[0] in OTHER_COMMANDS, f"{command}: what is {words[0]}?"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_parse(page, capsys):
    for command in _INLINE.findall(page.read_text(encoding="utf-8")):
        parses(command, capsys)


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_configurations_load(block, tmp_path, caplog):
    path = tmp_path / "config.yaml"
    path.write_text(block.text, encoding="utf-8")
    load_run_settings(path, {}, HYPERPARAMETER_TYPES)
    assert [record.getMessage() for record in caplog.records] == []


PROGRAMS = [block for block in of("python") if block.page != README]
LONG = ("make_jitted_trainer",)  # what is compiled and trained there takes as long as twenty others


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, marks=pytest.mark.slow if any(x in b.text for x in LONG) else (), id=str(b)) for b in PROGRAMS],
)
def test_programs_run_or_are_the_ones_that_do(block, tmp_path):
    if block.comment == AS_IN_README:
        assert block.text in README.read_text(encoding="utf-8")
    elif block.comment.startswith(SHOWN):
        names_exist(ast.parse(block.text))
    else:
        ended = subprocess.run(
            [sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
        assert ended.returncode == 0, ended.stderr


def names_exist(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jaxrl":
            assert node.attr in jaxrl.__all__, node.attr
        if isinstance(node, ast.ImportFrom) and node.module == "jaxrl":
            assert {alias.name for alias in node.names} <= set(jaxrl.__all__)


def test_a_name_that_is_not_there_is_found():
    with pytest.raises(AssertionError, match="make_nothing"):
        names_exist(ast.parse("import jaxrl\njaxrl.make_nothing()"))


def test_a_flag_that_is_not_there_is_found(capsys):
    with pytest.raises(AssertionError, match="--sedes"):
        parses("jaxrl train dungeon_escape --sedes 3", capsys)

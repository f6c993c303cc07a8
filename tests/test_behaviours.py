"""Ids of behaviours (M6, U1 ...) mean something: what is cited is defined in behaviours.md, with its state."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.mutate.mutations import MUTATIONS
from tests.mutate.newer import NEWER
from tests.mutate.runner import chosen_tests, mutated, part_of

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "tests" / "behaviours.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
DEFINED = [row for row in ROWS if re.fullmatch(r"[A-Z]\d+", row[0])]
STATES = ("kept", "untested", "part", "different", "open", "none")
CITED = re.compile(r"\b[MURAPSBX][1-9]\d?\b")
IN_A_NAME = re.compile(r"_([murapsbx][1-9]\d?)(?=_|\b)")


def words(source: str) -> str:
    """Comments and docstrings of a module."""
    comments = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return "\n".join([*(text for text in comments if "noqa" not in text), *(ast.get_docstring(n) or "" for n in nodes)])


def rough(source: str) -> set[str]:
    """What looks like an id anywhere, code as well: reading it as `cited` does takes many times as long."""
    return set(CITED.findall(source)) | {found.upper() for found in IN_A_NAME.findall(source)}


def cited(source: str) -> set[str]:
    """Ids in comments, docstrings and the names of tests."""
    names = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    in_names = {found.upper() for name in names if name.startswith("test_") for found in IN_A_NAME.findall(name)}
    return in_names | set(CITED.findall(words(source)))


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_every_id_that_is_cited_is_defined() -> None:
    defined = {row[0] for row in DEFINED}
    texts = {path: path.read_text() for folder in ("jaxrl", "tests") for path in sources(folder)}
    found = {path: rough(text) for path, text in texts.items()}
    assert {"M6", "U1", "U10", "M27"} <= set().union(*found.values())
    unknown = {
        path.relative_to(ROOT).as_posix(): left
        for path, ids in found.items()
        if ids - defined and (left := cited(texts[path]) - defined)
    }
    assert not unknown, "define them in tests/behaviours.md, or say in words what is meant"


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ('"""Endings first (M6)."""\n# U10: kept\nx = "M7"  # noqa: B023', {"M6", "U10"}),
        ("def test_m7_m8_reward_of_u1(): pass\ndef f_m9(): pass", {"M7", "M8", "U1"}),
        ("def test_form(): 'V2, m3 and S100 are none'", set()),
    ],
)
def test_the_search_finds_every_place_and_nothing_else(source: str, ids: set[str]) -> None:
    assert cited(source) == ids <= rough(source)


def test_every_behaviour_is_defined_once_and_has_a_state() -> None:
    assert [name for name, times in Counter(row[0] for row in DEFINED).items() if times > 1] == []
    with_state = {row[0]: row[2] for row in DEFINED if len(row) == 4}
    assert {name: state for name, state in with_state.items() if state not in STATES} == {}
    for row in DEFINED:
        if len(row) == 3:  # merged ones and those of the chain point to the rows that have the state
            assert row[0][0] in "MU"
            first, _, last = row[2].partition(" to ")
            assert set(re.split(", ", first) + ([last] if last else [])) <= with_state.keys(), row


def test_what_is_kept_names_a_test_and_what_differs_its_reason() -> None:
    silent = [row[0] for row in DEFINED if len(row) == 4 and row[2] in ("kept", "different") and not row[3]]
    assert silent == []
    assert [row[0] for row in DEFINED if len(row) == 4 and row[2] == "kept" and "`" not in row[3]] == []


def marks_of(path: Path) -> dict[str, str]:
    """Tests of a module by name, each with what decorates it and the module's own marks."""
    tree = ast.parse(path.read_text())
    marks = [
        ast.unparse(n) for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"
    ]
    skips = [text for text in map(ast.unparse, tree.body) if "pytest.importorskip" in text]
    return {
        node.name: "\n".join([*marks, *skips, *map(ast.unparse, node.decorator_list)])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def only_with(marks: str) -> list[str]:
    """Packages without which the test is skipped."""
    return re.findall(r"(?:importorskip|find_spec)\('([\w.]+)'", marks)


def test_every_test_that_is_named_exists_and_runs_with_the_ordinary_suite() -> None:
    """Not where it needs a package that the extra `dev` lacks, and not where all of its cases are slow."""
    dev = (ROOT / "pyproject.toml").read_text().partition("dev = [")[2].partition("\n]")[0].replace("-", "_")
    cited = re.findall(r"`([\w/]+\.py)::(test_\w+)(?:\[\w+\])?`", TEXT)
    assert len(cited) > 150
    assert re.findall(r"`test_\w+`", TEXT) == [], "name the file as well: `folder/test_x.py::test_y`"
    known = {file: marks_of(ROOT / "tests" / file) for file, _ in cited if (ROOT / "tests" / file).is_file()}
    problems = []
    for file, name in cited:
        marks = known.get(file, {}).get(name)
        if marks is None:
            problems.append(f"{file}::{name} does not exist")
        elif re.search(r"^(pytestmark = .*)?pytest\.mark\.slow", marks, re.M):
            problems.append(f"{file}::{name} is slow")
        else:
            lacking = [package for package in only_with(marks) if package.partition(".")[0] not in dev]
            problems += [f"{file}::{name} is skipped without {package}" for package in lacking]
    assert problems == []


def test_parts_of_the_mutations_go_through_all_that_are_quick() -> None:
    """As `.ci/run` takes one of them, by the number of commits."""
    first = part_of(NEWER, 0)
    parts = [first]
    while part_of(NEWER, len(parts)) != first:
        parts.append(part_of(NEWER, len(parts)))
    assert sorted(mutation for part in parts for mutation in part) == sorted(of for of in NEWER if not of.long)
    assert {len(part) for part in parts} <= {11, 12, 13} and part_of(NEWER, 1000 * len(parts)) == first


def test_every_mutation_can_be_made_and_its_row_cites_a_test() -> None:
    """`python -m tests.mutate` breaks the code in these places; here only that they are still there."""
    rows = {row[0] for row in DEFINED if len(row) == 4}
    assert len(MUTATIONS) >= 140 and {m.row[0] for m in MUTATIONS} == {"A", "R", "X", "P", "S", "B", "L"}
    for mutation in MUTATIONS:
        assert mutation.row in rows and chosen_tests(mutation, TEXT)
        ast.parse(mutated(mutation, (ROOT / "jaxrl" / mutation.file).read_text()))

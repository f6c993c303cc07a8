"""The example of a CI job is YAML that covers every supported Python, and its commands exist."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from jaxrl.cli.commands import parse

ROOT = Path(__file__).parents[2]
JOBS: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "ci-example.yml").read_text(encoding="utf-8"))["jobs"]


def commands(job: str) -> list[str]:
    lines = [line for step in JOBS[job]["steps"] for line in step.get("run", "").splitlines()]
    return [line.strip() for line in lines]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_python_that_the_package_names_is_tested_or_trains():
    named = [entry.rpartition(" ")[2] for entry in project()["classifiers"] if "Python :: 3." in entry]
    tested, trains = (JOBS[job]["strategy"]["matrix"]["python"] for job in ("tests", "wheel"))
    assert tested == named[: len(tested)] and trains[-1] == named[-1] and {*tested, *trains} == set(named)


def test_it_lints_as_this_repositorys_own_checks_do():
    own = [line.strip() for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()]
    tools = [line for line in own if line.split(" ")[0] in ("ruff", "pyright", "lint-imports")]
    assert commands("lint")[-len(tools) :] == tools and len(tools) == 4


def test_extras_and_commands_exist():
    extras = project()["optional-dependencies"]
    for job in JOBS:
        for command in commands(job):
            if "'.[" in command:
                assert command.split("[")[1].split("]")[0] in extras
            if command.startswith("jaxrl ") and "--version" not in command:
                parse(command.split()[1:])
    assert "mkdocs build --strict --site-dir site" in commands("docs")

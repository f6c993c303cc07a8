"""The house's rules that no type checker knows: layers, where `jit` may stand, numpy-only workers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxrl.envs.workers.pool import EnvPool
from jaxrl.types import Action, Aggregation, EnvironmentStat, EnvMessage, ParameterValue

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "jaxrl").rglob("*.py"))

MAY_COMPILE = {
    "training/host/programs.py",  # of the host loop
    "training/compiled/trainer.py",  # the shell of the loop inside jit
    "training/compiled/planning.py",  # which asks the scene how many agents it begins with
    "jax_envs/served/serve.py",  # a player process has its own shell
    "client/policy.py",  # a policy in Python
    "tools/watch/film.py",  # and so has the film of a game
    "tools/watch/recorded.py",  # and that of a demonstration
    "tools/tournament/matches.py",  # and a match
    "training/host/imitation.py",  # a training without an environment
    "training/player.py",  # a policy that plays message by message
    "jax_envs/contract.py",  # and the play that checks an environment
    "artifacts/onnx/export.py",  # what the policy says, which a file is compared with
    "compilation.py",  # tries an option
}
NOT_IN_WORKERS = ("jax", "jaxlib", "flax", "optax", "chex", "orbax", "torch")


def name_of(source: Path) -> str:
    return source.relative_to(ROOT / "jaxrl").as_posix()


def compiling_lines(text: str) -> list[int]:
    """Lines that name `jax.jit` or `jax.pmap`, or import or use a bare `jit`; comments and docstrings do not count."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        if {"jit", "pmap", "pjit"} & set(names):
            lines.append(getattr(node, "lineno", 0))
    return sorted(set(lines))


class ModulesEnv:
    """Reports the imported top-level modules of its process as statistics."""

    def __init__(self, worker: int) -> None:
        self.worker = worker

    @property
    def about(self) -> str:
        return ""

    def reset(self, parameters: Mapping[str, ParameterValue] | None = None) -> EnvMessage:
        names = sorted({name.split(".")[0] for name in sys.modules})
        stats = tuple(EnvironmentStat(name=name, value=1.0, aggregation=Aggregation.AVERAGE) for name in names)
        return EnvMessage(worker=self.worker, steps={}, new_specs={}, stats=stats, seconds=0.0)

    def step(self, actions: Mapping[str, Action]) -> EnvMessage:
        return self.reset()

    def set_parameters(self, parameters: Mapping[str, ParameterValue]) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is held."""


def test_import_contracts_hold():
    # In a process of its own: the linter reconfigures logging.
    program = "from importlinter.cli import lint_imports_command as run; run(['--no-cache', '--no-logo'])"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 broken" in ended.stdout


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_programs_are_compiled_in_the_shells_only(source):
    if name_of(source) not in MAY_COMPILE:
        assert compiling_lines(source.read_text()) == [], f"{name_of(source)} compiles; return a function instead"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import jax\n\nf = jax.jit(abs)", [3]),
        ("import jax\n@jax.jit\ndef f(): pass", [2]),
        ("from jax import jit as fast", [1]),
        ("from functools import partial\nimport jax\nf = partial(jax.jit, static_argnums=0)", [3]),
        ('"""Call it in jax.jit(...)."""\nx = 1  # jit(x)', []),
    ],
)
def test_the_check_for_compilation_finds_every_spelling(text, lines):
    assert compiling_lines(text) == lines


def test_a_spawned_worker_imports_neither_jax_nor_what_needs_it():
    with EnvPool(ModulesEnv, 1) as pool:
        pool.reset()
        (result,) = pool.recv()
    modules = {stat.name for stat in result.stats}
    assert {"jaxrl", "numpy"} <= modules
    assert not modules & set(NOT_IN_WORKERS)

"""The cache of compiled programs in Python: on by default, switched off in two ways, never taken from the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import jax, sys
{before}
jax.jit(lambda x: x - 1)(2.0)  # a notebook has compiled something before
import jaxrl
jaxrl.compilation.cache_by_default()
jax.jit(lambda x: x + 1)(2.0).block_until_ready()
print(jax.config.jax_compilation_cache_dir)
"""


def after(folder: Path, before: str = "", **environment: str) -> tuple[str, list[str]]:
    """The cache folder of a process that has asked for one, and what lies in all folders."""
    place = {**os.environ, "PYTHONPATH": str(ROOT), "JAXRL_CACHE_DIR": str(folder / "jaxrl"), **environment}
    program = PROGRAM.format(before=before).replace("import jaxrl\n", "import jaxrl.compilation\n")
    ended = subprocess.run(
        [sys.executable, "-c", program], env=place, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    files = [path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()]
    return ended.stdout.strip(), sorted(set(files))


def test_programs_are_kept_though_others_were_compiled_before(tmp_path: Path) -> None:
    assert after(tmp_path) == (str(tmp_path / "jaxrl" / "xla"), ["jaxrl"])


@pytest.mark.parametrize("switch", [{"JAXRL_COMPILATION_CACHE": "0"}, {"JAX_ENABLE_COMPILATION_CACHE": "false"}])
def test_it_is_switched_off(tmp_path: Path, switch: dict[str, str]) -> None:
    assert after(tmp_path, **switch) == ("None", [])


def test_a_cache_of_the_users_own_stays(tmp_path: Path) -> None:
    own = tmp_path / "own"
    before = (
        f"jax.config.update('jax_compilation_cache_dir', {str(own)!r}); "
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)"
    )
    assert after(tmp_path, before) == (str(own), ["own"])


FREED = """
import ctypes, psutil
from jaxrl.compilation import release_memory
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = [libc.malloc(50_000) for _ in range(2000)]
for piece in pieces:
    ctypes.memset(ctypes.c_void_p(piece), 1, 50_000)
for piece in pieces[:-1]:  # the last one keeps the heap from shrinking by itself
    libc.free(piece)
before = psutil.Process().memory_info().rss
release_memory()
print(before - psutil.Process().memory_info().rss > 80_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_what_is_free_within_the_process_is_given_back() -> None:
    place = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", FREED], env=place, capture_output=True, text=True).stdout == "True\n"

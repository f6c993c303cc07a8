"""The command `jaxrl bench`, with real processes."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxrl.artifacts import files as places
from jaxrl.artifacts.files import ArtifactError, carried
from jaxrl.tools.bench import machine, suite
from jaxrl.tools.bench.catalogue import BENCHMARKS, Benchmark, Figure, choose
from jaxrl.tools.bench.lines import read_lines
from jaxrl.tools.bench.suite import run_all, run_script
from jaxrl.tools.bench.table import rows_of
from jaxrl.types import JaxrlError
from tests.tools.bench.bench_numbers import CPU, GPU, line

FOLDER = carried("benchmarks")
DEVICE = 'print(\'{"backend": "cpu", "kind": "cpu", "count": 1}\')'
GOOD = """
import json, sys
with open(sys.argv[sys.argv.index("--json") + 1], "a") as file:
    for rows in (1, 16):
        file.write(json.dumps({"rows": rows, "act": {"median": 2.5 * rows}, "quick": "--quick" in sys.argv}) + "\\n")
"""


def write(folder, **scripts):
    """A clone with these benchmark scripts."""
    (folder / "benchmarks").mkdir()
    for name, text in scripts.items():
        (folder / "benchmarks" / f"{name}.py").write_text(text)
    return folder / "benchmarks"


def test_one_failure_is_one_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "_DEVICES", DEVICE)
    folder = write(tmp_path, good=GOOD, bad="print('so far')\nraise ValueError('no such thing')")
    monkeypatch.setattr(suite, "carried", lambda name: folder)
    listed = [Benchmark("bad", "bad.py"), Benchmark("good", "good.py", ("rows",), (Figure("act {} us", "act.median"),))]
    monkeypatch.setattr(suite, "BENCHMARKS", [*listed, Benchmark("missing", "missing.py")])
    out = tmp_path / "numbers.jsonl"
    out.write_text('{"benchmark": "of yesterday"}\n')
    with pytest.raises(JaxrlError, match="1 of 3 benchmarks failed: bad"):
        suite.run(None, out, quick=True, timeout=60.0)
    old, bad, good, missing = (json.loads(line) for line in out.read_text().splitlines())
    assert old["benchmark"] == "of yesterday"
    assert (bad["state"], good["state"], missing["state"]) == ("failed", "ok", "skipped")
    assert "so far" in bad["message"] and "no such thing" in bad["message"]
    assert good["results"][1] == {"rows": 16, "act": {"median": 40.0}, "quick": True}
    assert good["machine"]["cores"] >= 1 and good["machine"]["accelerator"]["count"] == 1
    assert good["versions"]["jaxrl_version"] and good["commit"] is None and good["load"] >= 0.0
    shown = capsys.readouterr().out
    assert "act 40 us" in shown and "ValueError: no such thing" in shown


def test_a_hanging_script_ends_with_its_children(tmp_path):
    text = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    begun = time.monotonic()
    outcome = run_script(Benchmark("slow", "slow.py"), write(tmp_path, slow=text), quick=True, timeout=3.0)
    assert time.monotonic() - begun < 30.0
    assert outcome.state == "failed" and outcome.message.endswith("no end after 3 s")
    child = Path("/proc") / outcome.message.splitlines()[0] / "stat"
    deadline = time.monotonic() + 20.0
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert time.monotonic() < deadline, "the script's own child lives on"


def test_what_is_no_result_or_cannot_run(tmp_path, monkeypatch):
    broken = "import sys\nopen(sys.argv[sys.argv.index('--json') + 1], 'w').write('{\"half')"
    folder = write(tmp_path, silent="", broken=broken)
    silent = run_script(Benchmark("silent", "silent.py"), folder, quick=False, timeout=60.0)
    assert (silent.state, silent.message) == ("failed", "it wrote no numbers")
    broken = run_script(Benchmark("broken", "broken.py"), folder, quick=False, timeout=60.0)
    assert broken.state == "failed" and "no JSON lines" in broken.message
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    needs = run_script(Benchmark("silent", "silent.py", packages=("psutil",)), folder, quick=False, timeout=60.0)
    assert (needs.state, needs.message) == ("skipped", "needs psutil, not installed here")


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(JaxrlError, match=r"unknown benchmark 'fast'; expected some of: update_phase, returns"):
        choose(BENCHMARKS, ["fast"])
    assert [benchmark.name for benchmark in choose(BENCHMARKS, ["act_latency", "returns"])] == [
        "returns",
        "act latency",
    ]
    with pytest.raises(JaxrlError, match=r"--json .* cannot be written"):
        run_all(BENCHMARKS, FOLDER, tmp_path, quick=True, timeout=1.0)
    monkeypatch.setattr(machine, "_DEVICES", "raise RuntimeError('no TPU here')")
    with pytest.raises(machine.MachineError, match="JAX does not start: RuntimeError: no TPU here"):
        machine.machine()


def test_rows_of_the_table():
    figures = (Figure("{} steps/s", "speed", "higher"), Figure("{} of CPU", "share.cpu", on="cpu"))
    benchmark = Benchmark("a", "a.py", ("name", "rows"), figures)
    results = [{"name": "x", "rows": 2, "speed": 1234.5, "share": {"cpu": 0.5}}, {"name": "y", "speed": None}]
    one = line("a", results)
    assert rows_of(benchmark, [one]) == [("x, 2 rows", "1,234 steps/s, 0.5 of CPU")]
    assert rows_of(benchmark, [line("a", results, device=GPU)]) == [("x, 2 rows", "1,234 steps/s")]
    again = line("a", [results[0] | {"speed": 1.0, "share": {"cpu": 0.7}}], device=CPU)
    assert rows_of(benchmark, [one, again]) == [
        ("x, 2 rows", "618 (1 to 1,234) steps/s, 0.6 (0.5 to 0.7) of CPU"),
    ]
    failed = one.model_copy(update={"state": "failed", "message": "one\ntwo"})
    assert rows_of(benchmark, [one, failed]) == [("", "failed: two")]


def test_rounds_and_the_device_reach_the_scripts(tmp_path, monkeypatch):
    """Both benchmarks twice, in turn; JAX is asked about the device that the scripts are told to take."""
    monkeypatch.setattr(
        machine,
        "_DEVICES",
        'import json, os\nprint(json.dumps({"backend": "gpu", "kind": os.environ["JAX_PLATFORMS"], "count": 1}))',
    )
    text = (
        "import json, os, sys\n"
        "seen = {name: os.environ.get(name) for name in ('JAX_PLATFORMS', 'CUDA_VISIBLE_DEVICES')}\n"
        "open(sys.argv[sys.argv.index('--json') + 1], 'w').write(json.dumps(seen))"
    )
    folder, out = write(tmp_path, first=text, second=text), tmp_path / "numbers.jsonl"
    both = [Benchmark("first", "first.py"), Benchmark("second", "second.py")]
    run_all(both, folder, out, quick=True, timeout=60.0, repeat=2, device="cuda:3")
    lines = read_lines(out)
    assert [one.benchmark for one in lines] == ["first", "second", "first", "second"]
    assert lines[3].results == ({"JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": "3"},)
    assert lines[0].machine.accelerator.kind == "cuda,cpu" and lines[0].load is not None
    assert machine.variables_for("cpu") == {"JAX_PLATFORMS": "cpu"} and machine.variables_for(None) == {}


def test_a_device_that_is_not_there_is_no_other_device(tmp_path, monkeypatch):
    """JAX starts without it, on the CPU; those numbers would be read as the accelerator's."""
    monkeypatch.setattr(machine, "_DEVICES", DEVICE)
    with pytest.raises(machine.MachineError, match=r"--device cuda:1: JAX offers only 1 x cpu \(cpu\); install jax"):
        run_all([], tmp_path, tmp_path / "numbers.jsonl", quick=True, timeout=1.0, device="cuda:1")
    assert machine.machine("cpu").accelerator.kind == "cpu"


def test_the_commit_is_that_of_the_clone_itself(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    assert machine.commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "inside").mkdir()
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    found = machine.commit(tmp_path)
    assert found is not None and len(found.hash) == 40 and not found.changed
    assert found.time is not None and abs(found.time - time.time()) < 100.0
    (tmp_path / "file").write_text("2")
    assert machine.commit(tmp_path) == found.model_copy(update={"changed": True})
    assert machine.commit(tmp_path / "inside") is None


def test_a_shipped_script_runs():
    (returns,) = choose(BENCHMARKS, ["returns"])
    outcome = run_script(returns, FOLDER, quick=True, timeout=100.0)
    assert outcome.state == "ok", outcome.message
    assert [(found["steps"], found["trajectories"]) for found in outcome.results] == [(64, 16), (256, 16), (256, 128)]
    assert all(found["ratio"] > 1.0 for found in outcome.results)


def test_the_command_finds_the_runner_of_its_clone(tmp_path):
    """From any folder, and an error of the runner is the command's: one sentence, exit code 1, and no line written."""
    command = [sys.executable, "-m", "jaxrl.cli", "bench", "--quick", "--only", "fast"]
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "unknown benchmark 'fast'; expected some of: update_phase, returns" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr and not list(tmp_path.iterdir())


def test_scripts_in_the_package_go_before_those_of_a_folder_beside_it(tmp_path, monkeypatch):
    """As an installed wheel has them; another package's folder of that name may lie beside jaxrl's."""
    monkeypatch.setattr(places, "_PACKAGE", tmp_path / "jaxrl")
    with pytest.raises(ArtifactError, match="no folder benchmarks; install jaxrl again"):
        carried("benchmarks")
    (tmp_path / "benchmarks").mkdir()
    assert carried("benchmarks") == tmp_path / "benchmarks"
    (tmp_path / "jaxrl" / "benchmarks").mkdir(parents=True)
    assert carried("benchmarks") == tmp_path / "jaxrl" / "benchmarks"


def test_every_benchmark_has_its_script():
    for benchmark in BENCHMARKS:
        text = (FOLDER / benchmark.script).read_text()
        assert "--quick" in text and "--json" in text and benchmark.figures

"""`jaxrl bench compare` and `history` on numbers worked out by hand, by the command."""

import json
import re
from pathlib import Path

import pytest

from jaxrl.cli import main
from jaxrl.tools.bench.compare import comparison
from jaxrl.tools.bench.history import histories
from jaxrl.tools.bench.lines import latest, measured
from jaxrl.types import JaxrlError
from tests.tools.bench.bench_numbers import GPU, host_loop, line, save, update_phase


def rows_by_figure(first, second):
    rows, _ = comparison(latest(first), latest(second))
    return {row.key.figure.key: row.ratio for row in rows}


def test_ratios_bands_and_verdicts(tmp_path):
    a = save(tmp_path / "a.jsonl", [*update_phase(2.0, 2.2, 2.1), *host_loop(100.0, 110.0)])
    b = save(tmp_path / "b.jsonl", [*update_phase(2.8, 2.52, 2.64, prepare=1.0), *host_loop(200.0, 220.0)])
    found = rows_by_figure(a, b)
    assert set(found) == {"prepare", "update", "env_steps"}  # `share` is shown, and never compared
    update = found["update"]
    assert (update.median, update.best) == pytest.approx((2.64 / 2.1, 2.52 / 2.0))
    assert (update.low, update.high) == pytest.approx((2.52 / 2.2, 2.8 / 2.0))
    assert update.verdict == "slower" and update.above(1.14) and not update.above(1.15)
    assert found["prepare"].median == 1.0 and found["prepare"].verdict == "within noise"
    rate = found["env_steps"]  # a rate that doubles is half the cost
    assert (rate.median, rate.best) == pytest.approx((0.5, 0.5)) and rate.verdict == "faster"
    assert rate.low == pytest.approx(100.0 / 220.0) and rate.high == pytest.approx(110.0 / 200.0)


def test_noise_is_no_regression(tmp_path, capsys):
    """The median rose by half, yet one round of the second was as fast as the first's slowest."""
    a = save(tmp_path / "a.jsonl", update_phase(1.0, 1.1, 2.0))
    b = save(tmp_path / "b.jsonl", update_phase(1.65, 1.9, 2.1))
    ratio = rows_by_figure(a, b)["update"]
    assert ratio.median == pytest.approx(1.9 / 1.1) and ratio.verdict == "within noise" and not ratio.above(1.2)
    assert main(["bench", "compare", str(a), str(b), "--fail-above", "1.2"]) == 0
    shown = capsys.readouterr().out
    assert "update 1.1 (1 to 2) s" in shown and "within noise" in shown and "slower by" not in shown


def test_fail_above_is_exit_code_1(tmp_path, capsys):
    a, b = save(tmp_path / "a.jsonl", update_phase(1.0, 1.1)), save(tmp_path / "b.jsonl", update_phase(1.3, 1.4))
    command = ["bench", "compare", str(a), str(b)]
    assert main(command) == 0
    assert main([*command, "--fail-above", "1.2"]) == 0, "1.29 in the median, but 1.18 without the noise"
    capsys.readouterr()
    assert main([*command, "--fail-above", "1.1"]) == 1
    shown = capsys.readouterr().out
    assert "slower by more than 1.1: update phase, ppo, 1 members, update s: 1.18 to 1.40 times" in shown
    assert main(["bench", "compare", str(b), str(a), "--fail-above", "1.2"]) == 0, "faster"


@pytest.mark.parametrize("factor", ["0.9", "nan", "inf", "fast"])
def test_a_factor_that_is_none_is_a_usage_error(factor, capsys):
    with pytest.raises(SystemExit) as error:
        main(["bench", "compare", "a", "b", "--fail-above", factor])
    assert error.value.code == 2 and "a factor of 1 or more" in capsys.readouterr().err


def test_what_to_beware_of_is_said(tmp_path, capsys):
    a = save(tmp_path / "a.jsonl", [*update_phase(1.0, load=3.0), *host_loop(5.0)])
    other = {"jaxrl_version": "0.4.0", "jax_version": "0.11.0", "python_version": "3.11.2"}
    b = save(tmp_path / "b.jsonl", update_phase(1.0, device=GPU, versions=other))
    assert main(["bench", "compare", str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    for remark in (
        "different devices: 1 x cpu and 1 x NVIDIA H200",
        "different versions of jax: 0.10.2 and 0.11.0",
        "in one file alone: host loop",
        "a.jsonl was measured beside other work (load up to 3.0 on 2 cores)",
        "some were measured once",
    ):
        assert remark in shown
    assert "versions of Python" not in shown and "b.jsonl was measured beside" not in shown


def test_what_a_file_ends_with_counts(tmp_path):
    """bench.jsonl is appended to: rounds of the same source are one set, those of an earlier commit are left out."""
    old, new = update_phase(9.0, commit="a", time=1.0), update_phase(1.0, 2.0, 3.0, commit="b", time=2.0)
    path = save(tmp_path / "bench.jsonl", [*old, *new])
    assert [len(one.lines) for one in measured(path)] == [1, 3]
    assert [one.results[0]["update"] for one in latest(path).lines] == [1.0, 2.0, 3.0]
    back = save(tmp_path / "back.jsonl", [*new, *old, new[0]])
    assert [one.last.source for one in measured(back)] == ["a" * 8, "b" * 8] and len(latest(back).lines) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"half', r"line 1: no line of `jaxrl bench` \(the whole line: invalid json"),
        ("[1, 2]", r"line 1: no line of `jaxrl bench` \(the whole line: input should be an object"),
        ('{"benchmark": "x"}', r"line 1: no line of `jaxrl bench` \(state: field required\); measure again"),
        ("", "holds no numbers; give a file"),
    ],
)
def test_a_file_of_something_else(tmp_path, text, message):
    path = tmp_path / "numbers.jsonl"
    path.write_text(text)
    with pytest.raises(JaxrlError, match=message):
        latest(path)


def test_what_cannot_be_compared(tmp_path, capsys):
    full, quick = (
        save(tmp_path / "full.jsonl", update_phase(1.0)),
        save(tmp_path / "quick.jsonl", update_phase(1.0, quick=True)),
    )
    other = save(tmp_path / "other.jsonl", host_loop(1.0))
    failed = save(tmp_path / "failed.jsonl", update_phase(1.0, state="failed"))
    for first, second, message in (
        (full, quick, r"quick.jsonl was measured with --quick and .*full.jsonl without"),
        (full, other, "no benchmark in common that ended well in both"),
        (full, failed, "no benchmark in common"),
        (full, tmp_path / "none.jsonl", r"none.jsonl: cannot be read \(No such file"),
    ):
        assert main(["bench", "compare", str(first), str(second)]) == 1
        error = " ".join(capsys.readouterr().err.split())
        assert re.search(message, error) and "Traceback" not in error


def test_lines_of_an_earlier_version_are_read(tmp_path):
    """0.4.0 wrote neither the load nor the time of the commit; a later version may write more."""
    old = json.loads(update_phase(1.0, commit="a")[0].model_dump_json())
    del old["load"], old["commit"]["time"]
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(old | {"weather": "fine"}))
    one = latest(path)
    assert one.last.load is None and one.when == one.last.time and one.last.source == "a" * 8
    assert comparison(one, one)[0][0].ratio.median == 1.0


def test_history_is_in_order_of_commits(tmp_path, capsys):
    """Whatever the order of files and of measuring; a table per device; a change beyond the noise shows."""
    save(tmp_path / "1.jsonl", update_phase(2.0, 2.1, commit="c", time=300.0))
    save(
        tmp_path / "2.json", [*update_phase(1.0, 1.1, commit="a", time=100.0), *host_loop(7.0, commit="a", time=100.0)]
    )
    save(tmp_path / "3.jsonl", [*update_phase(1.05, commit="b", time=200.0), *update_phase(5.0, device=GPU)])
    (tmp_path / "notes.txt").write_text("not mine")
    cpu, gpu = sorted(
        histories([tmp_path / name for name in ("1.jsonl", "2.json", "3.jsonl")]), key=lambda h: "H200" in h.device
    )
    assert [column.last.source for column in cpu.columns] == ["a" * 8, "b" * 8, "c" * 8]
    cells = {key.figure.key: [(cell.text, cell.change) for cell in row] for key, row in cpu.rows}
    assert cells["update"] == [
        ("1.05 (1 to 1.1)", None),
        ("1.05", None),
        ("2.05 (2 to 2.1)", pytest.approx(2.05 / 1.05)),
    ]
    assert cells["env_steps"] == [("7", None), ("", None), ("", None)]
    assert [key.figure.key for key, _ in gpu.rows] == ["prepare", "update"]
    assert main(["bench", "history", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.index("aaaaaaaa") < shown.index("bbbbbbbb") < shown.index("cccccccc")
    assert "2.05 (2 to 2.1) [1.95]" in shown and "NVIDIA H200" in shown


def test_history_of_nothing(tmp_path, capsys):
    assert main(["bench", "history", str(tmp_path)]) == 1
    assert "holds no .json or .jsonl" in " ".join(capsys.readouterr().err.split())
    save(tmp_path / "a.json", [line("update phase", [], state="failed")])
    assert main(["bench", "history", str(Path(tmp_path))]) == 0
    assert "nothing ended well" in capsys.readouterr().out

"""Demonstration files: what is written is read, and what cannot be used is named. The original's own: tests/parity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.cli import main
from jaxrl.demonstrations import DemonstrationError, Pair, decisions, read, write
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

PLAIN = (DimensionProperty.NONE,)
SPEC = BehaviorSpec(
    (ObservationSpec("vec", (2,), PLAIN), ObservationSpec("goal", (1,), PLAIN, ObservationType.GOAL_SIGNAL)),
    ActionSpec(1, (3,)),
)


def episode(length: int, first: float = 0.0, *, interrupted: bool = False) -> Iterator[Pair]:
    """Decisions `first`, `first` + 1, ... that pay what they are numbered, and the pair that ends them."""
    for i in range(length + 1):
        number, over = first + i, i == length
        obs, paid = (np.array([number, -number]), np.array([1.0])), number - 1 if i else 99.0
        action: Any = ((), ()) if over else ([number / 10], [i % 3])
        yield Pair(obs, *action, reward=paid, group_reward=5.0, done=over, interrupted=over and interrupted)


def written(path: Path, *episodes: Iterator[Pair], behavior: str = "Walker") -> Path:
    write(path, behavior, SPEC, (pair for one in episodes for pair in one))
    return path


def test_the_reward_of_a_decision_stands_in_the_next_pair(tmp_path):
    path = written(tmp_path / "walk.demo", episode(3), episode(2, 10.0, interrupted=True))
    found = decisions(str(path), SPEC)
    numbers = [0.0, 1.0, 2.0, 10.0, 11.0]
    assert found.obs[0].tolist() == [[x, -x] for x in numbers] and found.obs[1].tolist() == [[1.0]] * 5
    assert found.reward.tolist() == numbers and found.action.discrete[:, 0].tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_allclose(found.action.continuous[:, 0], np.array(numbers) / 10, rtol=1e-6)
    assert found.done.tolist() == [False, False, True, False, True]
    assert found.interrupted.tolist() == [False, False, False, False, True]
    assert found.behavior == "Walker" and found.spec == SPEC
    with_ends = read(path)  # as the original, to which the end of an episode is a decision for the next one's 99
    assert with_ends.terminal.tolist() == [False] * 3 + [True] + [False] * 2 and with_ends.reward[3] == 99.0


def test_files_of_a_folder_come_by_name_and_nothing_goes_on_between_them(tmp_path):
    written(tmp_path / "b.demo", episode(2, 10.0))
    whole = list(episode(4))
    write(tmp_path / "a.demo", "Walker", SPEC, whole[:3])  # not finished: its third pair decides nothing known
    (tmp_path / "notes.txt").write_text("not looked at")
    found = decisions(str(tmp_path), SPEC)
    assert found.obs[0][:, 0].tolist() == [0.0, 1.0, 10.0, 11.0]
    assert found.last.tolist() == [False, True, False, True]


def test_a_file_that_changes_is_read_again(tmp_path):
    path = written(tmp_path / "walk.demo", episode(2))
    assert len(decisions(str(path), SPEC).done) == 2
    written(path, episode(5))
    assert len(decisions(str(path), SPEC).done) == 5


def test_what_is_written_has_the_bytes_of_the_format(tmp_path):
    data = written(tmp_path / "a_very_long_name_of_a_file.demo", episode(3)).read_bytes()
    assert data[0] <= 32 and data[1:3] == b"\x08\x01" and b"a_very_lon" in data[:33]  # header: version 1
    assert b"Walker" in data[33:60]


def other(**changes: Any) -> BehaviorSpec:
    return SPEC._replace(**changes)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            other(action=ActionSpec(2, (3,))),
            r"recorded with actions of 1 numbers and branches \[3\], expected actions of 2 .*the agent has: record",
        ),
        (
            other(observations=SPEC.observations[:1]),
            "recorded with 2 observations, expected 1, as the agent has: record",
        ),
        (
            other(observations=(ObservationSpec("eyes", (4,)), SPEC.observations[1])),
            r"observation 0 \('vec'\) recorded with shape \(2,\), expected \(4,\), as the agent's \('eyes'\) has: r",
        ),
    ],
)
def test_demonstrations_of_another_agent_are_refused(tmp_path, spec, words):
    path = written(tmp_path / "walk.demo", episode(2))
    with pytest.raises(DemonstrationError, match=words):
        decisions(str(path), spec)


def test_files_that_cannot_be_used(tmp_path):
    def refused(path: Path, words: str) -> None:
        with pytest.raises(DemonstrationError, match=words) as caught:
            read(path)
        assert str(path) in str(caught.value)

    refused(tmp_path, "no .demo file in this folder")
    refused(tmp_path / "none.demo", "no such file or folder")
    good = written(tmp_path / "walk.demo", episode(3))
    data = good.read_bytes()
    for cut in range(0, len(data) - 1, 3):  # wherever it is cut off
        good.write_bytes(data[:cut])
        refused(good, "cut off|empty|not one decision|no message")
    good.write_bytes(data)
    written(tmp_path / "z.demo", episode(2), behavior="Runner")
    refused(tmp_path, r"demonstrations of two behaviors, 'Walker' and 'Runner' \(z.demo\)")
    (tmp_path / "z.demo").unlink()
    bad = list(episode(3))
    bad[1] = bad[1]._replace(obs=(np.array([np.nan, 0.0]), np.array([1.0])))
    refused(written(good, iter(bad)), "pair 1: .*'vec'.*nan is not a finite number")
    bad = list(episode(3))
    bad[2] = bad[2]._replace(discrete=[3])
    words = "pair 2: action 3 of discrete branch 0, which has 3 choices: expected 0 to 2"
    refused(written(good, iter(bad)), words)
    bad[2] = bad[2]._replace(discrete=[1], continuous=[np.nan])
    refused(written(good, iter(bad)), "pair 2: continuous action 0 is nan, expected a finite number")
    bad[2] = bad[2]._replace(continuous=[0.1])
    bad[2] = bad[2]._replace(discrete=[1], reward=float("inf"))
    refused(written(good, iter(bad)), "pair 2: its reward is no number")


def test_a_pair_that_does_not_fit_is_not_written(tmp_path):
    (first, *_) = episode(2)
    for wrong, words in (
        (first._replace(discrete=[]), r"pair 0: an action of \(1, 0\) numbers, not \(1, 1\)"),
        (first._replace(obs=(np.zeros(3), np.zeros(1))), r"pair 0: 'vec' has \(3,\), not \(2,\)"),
    ):
        with pytest.raises(DemonstrationError, match=words):
            write(tmp_path / "walk.demo", "Walker", SPEC, [wrong])


def test_demo_info_tells_what_is_there(tmp_path, capsys):
    path = written(tmp_path / "walk.demo", episode(3), episode(2, 10.0, interrupted=True))
    assert main(["demo", "info", str(tmp_path)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        f"{path}: behavior 'Walker', 5 decisions, 2 whole episodes of 2.5 decisions, "
        "mean reward 12.000 (3.000 to 21.000), 1 interrupted"
    )
    assert rest[0] == "  observation 0: vec, shape (2,)" and rest[2] == "  actions: 1 numbers, branches [3]"
    assert rest[3] == (
        "  written by jaxrl: each action stands beside its observation; actions are read from the record of the "
        "observation"
    )
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["demo", "info", str(path)]) == 1
    assert f"{path}: it is cut off at byte" in capsys.readouterr().err

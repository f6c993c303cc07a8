"""Recordings of Unity: its recorder writes each action one record late, stops anywhere, and leaves odd bytes behind.

`recordings/walk_*.demo` are of the real recorder: an agent from -1 to 1 whose goal is the sign of the second number,
and an expert that always moves towards it. The other files there are made by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.cli import main
from jaxrl.demonstrations import DemonstrationError, Pair, decisions, read, records, write
from jaxrl.demonstrations.episodes import Episode, episodes
from jaxrl.demonstrations.reading import files, recordings, remembered
from jaxrl.demonstrations.records import BRAIN, Recorder, kind_of
from jaxrl.envs.player.messages import varint
from jaxrl.envs.protobuf import messages
from jaxrl.learning.cloning import in_sequences
from jaxrl.settings import SettingsError, load_run_settings
from jaxrl.settings.demonstrations import AS_RECORDED, NEXT_RECORD
from jaxrl.training.checks import check_run
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

RECORDINGS = Path(__file__).parent / "recordings"
WALKS = RECORDINGS / "walk_discrete.demo", RECORDINGS / "walk_continuous.demo"
SPEC = BehaviorSpec((ObservationSpec("where", (1,)),), ActionSpec(1, (9,)))


def brain_changed(path: Path, **changes: Any) -> Path:
    """Write other brain's parameters into a file."""
    data, kind = path.read_bytes(), messages().BrainParametersProto
    body, at = records._framed(path, data, BRAIN, "the brain")
    brain = kind.FromString(body)
    brain.action_spec.ClearField("action_descriptions")
    for name, value in changes.items():
        setattr(brain, name, value)
    body = brain.SerializeToString()
    path.write_bytes(data[:BRAIN] + varint(len(body)) + body + data[at:])
    return path


def unity(path: Path, pairs: Iterable[Pair], behavior: str = "Walker?team=0") -> Path:
    """Write these pairs as Unity does, without the mark of jaxrl."""
    write(path, behavior, SPEC, pairs)
    return brain_changed(path)


def late(first: int, length: int, *, agent: int = 1, ends: bool = True, interrupted: bool = False) -> list[Pair]:
    """An episode as Unity records it: decision t sees `first` + t and chooses t + 1, which the next record holds."""
    pairs = [
        Pair([np.array([first + t])], [t / 10], [t], reward=float(t), agent=agent) for t in range(length + 1)
    ]  # the action of the first is zeros, the last one's is of the last decision
    return [*pairs[:-1], pairs[-1]._replace(done=ends, interrupted=interrupted)]


@pytest.mark.parametrize("together", [1, 2, 3, 512])
def test_actions_of_unity_belong_to_the_observation_before_them(tmp_path, monkeypatch, together):
    """By hand: whole, interrupted, without an end; and as ML-Agents pairs them by the key."""
    monkeypatch.setattr(records, "_PAIRS", together)
    pairs = [*late(0, 3), *late(10, 2, interrupted=True), *late(20, 2, ends=False)]
    found = decisions(str(unity(tmp_path / "walk.demo", pairs)), SPEC)
    assert found.obs[0][:, 0].tolist() == [0, 1, 2, 10, 11, 20, 21]
    assert found.action.discrete[:, 0].tolist() == [1, 2, 3, 1, 2, 1, 2]
    np.testing.assert_allclose(found.action.continuous[:, 0], [0.1, 0.2, 0.3, 0.1, 0.2, 0.1, 0.2], rtol=1e-6)
    assert found.reward.tolist() == [1, 2, 3, 1, 2, 1, 2]
    assert found.done.tolist() == [False, False, True, False, True, False, False]
    assert found.interrupted.tolist() == [False] * 4 + [True, False, False]
    assert found.last.tolist() == [False] * 6 + [True]
    as_recorded = decisions(str(tmp_path / "walk.demo"), SPEC, demo_actions=AS_RECORDED)
    assert as_recorded.action.discrete[:, 0].tolist() == [0, 1, 2, 0, 1, 0, 1]
    original = read(tmp_path / "walk.demo", AS_RECORDED)  # which takes the end of an episode for a decision
    assert original.action.discrete[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1]
    assert original.terminal.tolist() == [False] * 3 + [True, False, False, True, False, False]
    for other in (found, as_recorded):
        for x, y in zip((*other.obs, other.reward, other.done), (*found.obs, found.reward, found.done), strict=True):
            np.testing.assert_array_equal(x, y)


def test_all_that_reads_demonstrations_has_the_moved_actions(tmp_path, capsys):
    """Episodes, `view`, `convert` there and back: what jaxrl has written once is not moved again."""
    path = unity(tmp_path / "walk.demo", [*late(0, 3), *late(20, 2, interrupted=True), *late(30, 1, ends=False)])
    whole = [one.action.discrete[:, 0].tolist() for one in episodes([path])]
    assert whole == [[1, 2, 3], [1, 2], [1]] and [len(one.obs[0]) for one in episodes([path])] == [4, 3, 2]
    assert main(["demo", "view", str(path), "--episode", "1"]) == 0
    assert [line.split(";")[0].split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["1", "2", "3"]
    for out in ("walk.npz", "back.demo", "again.demo"):
        source = {"walk.npz": path, "back.demo": tmp_path / "walk.npz", "again.demo": tmp_path / "back.demo"}[out]
        assert main(["demo", "convert", str(source), str(tmp_path / out)]) == 0
    again = tmp_path / "again.demo"
    assert (kind_of(path).recorder, kind_of(again).recorder) == (Recorder.UNITY, Recorder.JAXRL)
    assert kind_of(again).behavior == "Walker?team=0"
    assert [one.action.discrete[:, 0].tolist() for one in episodes([again])] == whole
    assert main(["demo", "convert", str(path), str(tmp_path / "as.npz"), "--demo-actions", AS_RECORDED]) == 0
    with np.load(tmp_path / "as.npz") as file:
        assert file["discrete"][:3, 0].tolist() == [0, 1, 2]


def test_an_episode_without_an_end_stays_alone_in_one_file(tmp_path):
    """Two recordings that were stopped become one file: the second does not go on where the first was left."""
    (tmp_path / "two").mkdir()
    for name, first in (("a", 0), ("b", 20)):
        unity(tmp_path / "two" / f"{name}.demo", late(first, 2, ends=False))
    assert main(["demo", "convert", str(tmp_path / "two"), str(tmp_path / "one.demo")]) == 0
    found = decisions(str(tmp_path / "one.demo"), SPEC)
    assert found.obs[0][:, 0].tolist() == [0, 1, 20, 21] and found.action.discrete[:, 0].tolist() == [1, 2, 1, 2]
    assert found.last.tolist() == [False, True, False, True]


@pytest.mark.parametrize("together", [1, 3, 512])
def test_pairs_of_several_agents_in_one_file_are_not_mixed(tmp_path, monkeypatch, together):
    monkeypatch.setattr(records, "_PAIRS", together)
    first, second = late(0, 3, agent=7), late(10, 3, agent=9, ends=False)
    alternating = [pair for both in zip(first, second, strict=True) for pair in both]
    path = unity(tmp_path / "two.demo", [*alternating, *late(20, 1, agent=7)])
    found = decisions(str(path), SPEC)
    rows = sorted(zip(found.obs[0][:, 0].tolist(), found.action.discrete[:, 0].tolist(), found.done, strict=True))
    assert rows == [
        (0, 1, False), (1, 2, False), (2, 3, True), (10, 1, False), (11, 2, False), (12, 3, False), (20, 1, True)
    ]  # fmt: skip
    for row in in_sequences(found, 4).places:
        numbers = found.obs[0][row[row >= 0], 0]
        assert (np.diff(numbers) == 1).all(), "of one agent, one after the other"
    lengths = sorted((one.obs[0][:, 0].tolist(), one.terminated) for one in episodes([path]))
    assert lengths == [([0, 1, 2, 3], True), ([10, 11, 12, 13], False), ([20, 21], True)]
    joined = read(path, AS_RECORDED)  # the original takes them for one agent
    assert joined.obs[0][:3, 0].tolist() == [0, 10, 1] and joined.action.discrete[:3, 0].tolist() == [0, 0, 1]


def test_more_agents_than_are_followed_leave_no_trace(tmp_path):
    """One who comes back behind 256 others begins anew: memory has a bound."""
    pairs = [pair for agent in range(1, 300) for pair in late(10 * agent, 1, agent=agent, ends=False)]
    path = unity(tmp_path / "many.demo", [*pairs, *late(0, 1, agent=1)])
    found = decisions(str(path), SPEC)
    assert len(found.done) == 300 and found.done.sum() == 1
    assert len(list(episodes([path]))) == 300


@pytest.mark.parametrize("path", WALKS, ids=lambda path: path.stem)
def test_the_expert_of_the_real_recorder_moves_towards_its_goal(path):
    found, original = remembered(str(path)), remembered(str(path), AS_RECORDED)

    def towards(one: Any) -> np.ndarray:
        goal = np.sign(one.obs[0][:, 1])
        moves = one.action.discrete[:, 0] - 1 if one.action.discrete.size else np.sign(one.action.continuous[:, 0])
        return moves == goal

    assert (len(found.done), found.done.sum()) == ((323, 81) if path == WALKS[0] else (319, 80))
    assert towards(found).all()
    assert 0.5 < towards(original).mean() < 0.9, "the original learns wrong ones"


def test_who_wrote_a_file_is_told_apart(tmp_path, capsys):
    ours, old = tmp_path / "ours.demo", tmp_path / "old.demo"
    write(ours, "Walker?team=3", SPEC, late(0, 3))
    write(old, "Walker", SPEC, late(0, 3))
    brain_changed(old)
    of_unity = unity(tmp_path / "unity.demo", late(0, 3))
    for path, recorder, first, place in (
        (ours, Recorder.JAXRL, 0, "the record of the observation"),
        (old, Recorder.OTHER, 0, "the record of the observation"),
        (of_unity, Recorder.UNITY, 1, "the next record"),
        (files("demo:pyramids")[0], Recorder.JAXRL, 1, "the record of the observation"),
    ):
        assert kind_of(path).recorder is recorder
        assert remembered(str(path)).action.discrete[0, 0] == first
        assert main(["demo", "info", str(path)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"  {recorder}; actions are read from {place}"
    assert remembered(str(old), NEXT_RECORD).action.discrete[:, 0].tolist() == [1, 2, 3]
    both = remembered(str(tmp_path))  # Walker of any team, of either recorder: each file as it is
    assert both.action.discrete[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 1, 2, 3]


@pytest.mark.parametrize("name", ["ball3d", "crawler", "hallway", "push_block", "pyramids"])
def test_shipped_demonstrations_are_read_as_they_stand(name):
    found, original = remembered(f"demo:{name}"), remembered(f"demo:{name}", AS_RECORDED)
    for x, y in zip(
        (*found.obs, *found.action, *found[4:]), (*original.obs, *original.action, *original[4:]), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_a_recording_that_was_stopped_has_no_end(capsys):
    found = remembered(str(RECORDINGS / "no_end.demo"))
    assert len(found.done) == 3 and not found.done.any() and found.action.continuous[:, 0].tolist() == [0.5] * 3
    assert main(["demo", "info", str(RECORDINGS / "no_end.demo")]) == 0
    assert ": behavior 'Agent?team=0', 3 decisions, 0 whole episodes, 0 interrupted\n" in capsys.readouterr().out


def test_the_last_record_needs_no_action(tmp_path):
    """Of Unity it would hold the action of the decision before, which is nowhere then; elsewhere it decides nothing."""
    path = RECORDINGS / "last_without_action.demo"
    found = remembered(str(path))
    np.testing.assert_allclose(found.obs[0][:, 0], [0.0, 0.1], atol=1e-6)
    original = remembered(str(path), AS_RECORDED)
    np.testing.assert_allclose(original.obs[0][:, 0], [0.0, 0.1, 0.3], atol=1e-6)
    assert original.action.continuous[:, 0].tolist() == [0.5] * 3
    (tmp_path / "old.demo").write_bytes(path.read_bytes())
    assert len(remembered(str(brain_changed(tmp_path / "old.demo", brain_name="Agent"))).done) == 3
    for files_, length in (([path], 2), ([tmp_path / "old.demo"], 3)):
        assert sum(len(one.reward) for one in episodes(files_)) == length


def test_the_header_once_more_behind_the_last_record_is_not_read(tmp_path):
    """Recordings whose header counts nothing: one that was stopped at once, and one with all its records."""
    data = WALKS[0].read_bytes()
    head, _ = records._framed(WALKS[0], data, 0, "the header")
    assert data.endswith(head)
    count = remembered(str(WALKS[0]), AS_RECORDED)
    header = messages().DemonstrationMetaProto.FromString(head)
    header.number_steps = 0
    again = header.SerializeToString()
    begin = (varint(len(again)) + again).ljust(BRAIN, b"\0")
    path = tmp_path / "walk.demo"
    path.write_bytes(begin + data[BRAIN : -len(head)] + again)
    found = remembered(str(path), AS_RECORDED)
    np.testing.assert_array_equal(found.obs[0], count.obs[0])
    _, at = records._framed(path, data, BRAIN, "the brain")
    path.write_bytes(begin + data[BRAIN:at] + again)
    with pytest.raises(DemonstrationError, match="0 pairs are not one decision: recording stopped as it began"):
        read(path)


def test_a_folder_without_its_empty_files(tmp_path, caplog, capsys):
    folder = RECORDINGS / "mixed_folder"
    assert len(remembered(str(folder)).done) == 2
    told = [text.partition("mixed_folder/")[2] for text in caplog.messages]
    assert told == [
        "empty.demo: 0 pairs are not one decision: recording stopped as it began. This file is left out.",
        "one_pair.demo: 1 pairs are not one decision: recording stopped as it began. This file is left out.",
    ]
    for line in (["info"], ["check"], ["view"]):
        assert main(["demo", *line, str(folder)]) == 0
        assert "good.demo" in capsys.readouterr().out
    assert main(["demo", "convert", str(folder), str(tmp_path / "x.npz")]) == 0
    (tmp_path / "none").mkdir()
    for name in ("empty", "one_pair"):
        (tmp_path / "none" / f"{name}.demo").write_bytes((folder / f"{name}.demo").read_bytes())
    (tmp_path / "none" / "nothing.demo").write_bytes(b"")
    with pytest.raises(DemonstrationError, match=r"none of its 3 \.demo files holds a decision: record at least one"):
        recordings(tmp_path / "none")
    with pytest.raises(DemonstrationError, match=r"one_pair\.demo: 1 pairs are not one decision"):
        remembered(str(folder / "one_pair.demo"))


def test_gail_without_actions_needs_none(tmp_path):
    path = str(RECORDINGS / "bad_action.demo")
    told = "pair 0: action 4 of discrete branch 0, which has 4 choices: expected 0 to 3"
    with pytest.raises(DemonstrationError, match=told):
        remembered(path)
    found = remembered(path, actions=False)
    np.testing.assert_allclose(found.obs[0][:, 0], [0.0, 0.1], atol=1e-6)

    def checked(section: dict[str, Any]) -> None:
        (tmp_path / "a.yaml").write_text(yaml.safe_dump({"behaviors": {"Agent": section}}))
        check_run(load_run_settings(tmp_path / "a.yaml", {}, HYPERPARAMETER_TYPES))

    checked({"reward_signals": {"gail": {"demo_path": path}}})
    for section in (
        {"reward_signals": {"gail": {"demo_path": path, "use_actions": True}}},
        {"behavioral_cloning": {"demo_path": path}},
    ):
        with pytest.raises(SettingsError, match=rf"demo_path: .*{told}"):
            checked(section)
    with pytest.raises(SettingsError, match=r"behavioral_cloning.demo_actions: got 'late', expected .*as_recorded"):
        checked({"behavioral_cloning": {"demo_path": path, "demo_actions": "late"}})


def varied(number: int, data: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def test_older_formats_are_called_that(tmp_path):
    """Before 0.12 vectors were apart from other observations; before 0.11 a record was the agent, with its action."""
    vector = varied(1, np.array([0.5, 1.5], np.float32).tobytes())
    reward, done = b"\x3d" + np.float32(1.0).tobytes(), b"\x40\x01"
    agent = vector + varied(4, np.array([0.25], np.float32).tobytes()) + reward + done + b"\x50\x07"
    head = messages().DemonstrationMetaProto(api_version=1, number_steps=2).SerializeToString()
    brain = b"\x08\x02\x10\x01" + varied(3, b"\x01") + b"\x30\x01" + varied(7, b"Ball")
    for record in (
        agent,
        varied(1, vector + reward + done) + varied(2, varied(1, np.array([0.25], np.float32).tobytes())),
    ):
        body = b"".join(varint(len(x)) + x for x in (brain, record, record))
        path = tmp_path / "old.demo"
        path.write_bytes((varint(len(head)) + head).ljust(BRAIN, b"\0") + body)
        with pytest.raises(DemonstrationError, match=r"old\.demo: an older format: ML-Agents before 0.12 recorded it"):
            read(path)


def test_old_numbers_that_are_no_choice_are_refused(tmp_path):
    """Files of before hybrid actions have choices as float: NaN and 1e30 are none."""
    spec = BehaviorSpec(SPEC.observations, ActionSpec(0, (3,)))
    for number in (float("nan"), 1e30, -1.0, 3.0):
        path = tmp_path / "a.demo"
        write(
            path,
            "A",
            spec,
            [Pair([np.zeros(1)], (), [0]), Pair([np.zeros(1)], (), [0]), Pair([np.zeros(1)], done=True)],
        )
        data = path.read_bytes()
        _, at = records._framed(path, data, BRAIN, "the brain")
        record, following = records._framed(path, data, at, "pair 0")
        pair = messages().AgentInfoActionPairProto.FromString(record)
        pair.action_info.ClearField("discrete_actions")
        pair.action_info.vector_actions_deprecated.append(number)
        record = pair.SerializeToString()
        path.write_bytes(data[:at] + varint(len(record)) + record + data[following:])
        with pytest.raises(
            DemonstrationError, match=r"pair 0: action (-1|3) of discrete branch 0, which has 3 choices"
        ):
            read(path)


def test_each_way_of_reading_has_its_own_columns(tmp_path, monkeypatch):
    """Large ones lie in files: those as recorded are not taken for the moved ones."""
    from jaxrl.demonstrations import columns, reading

    monkeypatch.setattr(columns, "LARGE", 100)
    monkeypatch.setattr(columns, "_results", [tmp_path / "results"])
    path = unity(tmp_path / "walk.demo", late(0, 8))
    for _ in range(2):
        reading._read_once.cache_clear()
        assert remembered(str(path)).action.discrete[:3, 0].tolist() == [1, 2, 3]
        assert remembered(str(path), AS_RECORDED).action.discrete[:3, 0].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "results" / columns.FOLDER).iterdir())) == 2
    reading._read_once.cache_clear()


def shifted(one: Episode) -> list[Pair]:
    """An episode as Unity would have recorded it."""
    length = len(one.reward)
    before = [np.concatenate([np.zeros_like(x[:1]), x]) for x in one.action]
    return [
        Pair([x[t] for x in one.obs], before[0][t], before[1][t], done=t == length, agent=1) for t in range(length + 1)
    ]


@pytest.mark.parametrize("name", ["ball3d", "push_block"])
def test_an_expert_as_unity_would_have_recorded_it_is_the_expert(tmp_path, name):
    source, path = files(f"demo:{name}")[0], tmp_path / "expert.demo"
    kind = kind_of(source)
    write(path, f"{kind.behavior}?team=0", kind.spec, (pair for one in episodes([source]) for pair in shifted(one)))
    moved, shipped = remembered(str(brain_changed(path))), remembered(f"demo:{name}")
    for one, other in zip((moved.obs, moved.action), (shipped.obs, shipped.action), strict=True):
        assert all(map(np.array_equal, one, other))
    assert not all(map(np.array_equal, remembered(str(path), AS_RECORDED).action, shipped.action))
    np.testing.assert_array_equal(moved.done, shipped.done)


@pytest.mark.parametrize("name", ["ball3d", "push_block", "pyramids"])
def test_check_tells_both_manners_apart(tmp_path, name, capsys):
    """Experts that answer what they see: the next action says much of a change that it did not cause."""
    source = files(f"demo:{name}")[0]
    assert main(["demo", "check", f"demo:{name}"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "  actions stand beside their observations, and are read so"
    kind, path = kind_of(source), tmp_path / "late.demo"
    write(path, kind.behavior, kind.spec, (pair for one in episodes([source]) for pair in shifted(one)))
    assert main(["demo", "check", str(path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [
        "  actions stand one record late, but are read as standing beside their observations:",
        "  write demo_actions: next_record below each demo_path of this file",
    ]


def test_check_of_the_real_recorder(capsys):
    for path, share in zip(WALKS, ("0.510", "0.679"), strict=True):
        assert main(["demo", "check", str(path)]) == 0
        told = capsys.readouterr().out.splitlines()
        assert told[0] == f"{path}: {Recorder.UNITY}" and told[1].startswith(
            f"  {242 if path == WALKS[0] else 239} tran"
        )
        assert told[2].startswith(f"  lag 0, the action beside the observation: {share}; beyond lag 1 0.000")
        assert told[3].startswith("  lag 1, the action of the next record: 1.000; beyond lag 0 0.")
        assert told[4] == "  actions stand one record late, and are read so"
    assert main(["demo", "check", str(RECORDINGS / "no_end.demo")]) == 0
    assert "it cannot be told where actions stand; they are read as standing one record late" in capsys.readouterr().out


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_check_is_not_misled_by_answers_to_chance(tmp_path, noise):
    """Chance moves the agent as much as it does itself: the next action tells more of the change than its cause."""
    from jaxrl.demonstrations.lags import measure_lags

    spec = BehaviorSpec((ObservationSpec("where", (2,)),), ActionSpec(0, (3,)))
    draws, paths = np.random.default_rng(1), {}
    played: dict[str, list[Pair]] = {"beside": [], "late": []}
    for _ in range(30):
        (place, goal), before = draws.normal(size=2), 0
        for time in range(41):
            wanted = np.clip(2.0 * (goal - place) + 0.3 * draws.normal(), -1.0, 1.0)
            action = int(np.sign(np.round(wanted)))
            seen, over = [np.array([place, goal])], time == 40
            played["beside"].append(Pair(seen, (), [action + 1], done=over))
            played["late"].append(Pair(seen, (), [before + 1], done=over))
            place, before = place + 0.3 * action + noise * draws.normal(), action
    for name, pairs in played.items():
        paths[name] = tmp_path / f"{name}.demo"
        write(paths[name], "A", spec, pairs)
    beside, moved = measure_lags(paths["beside"]), measure_lags(paths["late"])
    assert (beside.late, moved.late) == (False, True)
    assert (beside.lag_1 > beside.lag_0) == (noise == 0.3)

"""Self-play in whole runs of the host loop, over a zero-sum game of seconds."""

from __future__ import annotations

import json
import logging
import os
import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxrl.artifacts.checkpoint.document import CheckpointError, read_info
from jaxrl.artifacts.checkpoint.folder import checkpoints, point_at, remove, require_latest
from jaxrl.artifacts.checkpoint.loop import SELF_PLAY
from jaxrl.rollout.booking.occupants import Source
from jaxrl.settings import RunSettings, SettingsError
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.policies import make_frozen
from jaxrl.training.host.run import host_loop, train
from jaxrl.types import EnvMessage
from tests.envs.duel_env import DuelEnv, DuelSettings
from tests.toy_runs import configured, environment

pytestmark = [pytest.mark.usefixtures("runs", "traced_once"), pytest.mark.timeout(400)]
SELF_PLAY_KEYS = {"save_steps": 300, "team_change": 1000, "swap_steps": 100, "window": 4}
BEHAVIOR = {
    "trainer_type": "ppo",
    "hyperparameters": {
        "batch_size": 64, "buffer_size": 256, "learning_rate": 0.01, "learning_rate_schedule": "constant",
    },
    "network_settings": {"hidden_units": 16, "num_layers": 1},
    "self_play": SELF_PLAY_KEYS,
    "summary_freq": 500,
    "max_steps": 3000,
}  # fmt: skip
ELO = "Self-play/ELO"


def duels(duel: DuelSettings, worker: int) -> DuelEnv:
    return DuelEnv(worker, duel)


class LateDuel(DuelEnv):
    """The other side comes a message later than the first."""

    def reset(self, *given: Any) -> EnvMessage:
        message, first = super().reset(*given), self.settings.sides[0]
        return message._replace(steps={first: message.steps[first]}, new_specs={first: self.spec})


def resumed(folder: Path) -> dict[str, Any]:
    return {"checkpoint_settings": {"run_id": "run", "results_dir": str(folder / "results"), "resume": True}}


def settings_of(folder: Path, *names: str, changes: Any = None, **more: Any) -> RunSettings:
    behavior = BEHAVIOR | more
    return configured(folder, "run", changes, **dict.fromkeys(names or ("Duel",), behavior))


def run(settings: RunSettings, workers: int = 1, **duel: Any) -> None:
    with environment(make=partial(duels, DuelSettings(**duel)), workers=workers) as started:
        train(settings, started=started)


def state_of(folder: Path, name: str = "Duel") -> dict[str, Any]:
    return dict(read_info(require_latest(folder / "results" / "run" / name)).settings[SELF_PLAY])


class Turn(NamedTuple):
    step: int
    ghost_step: int
    learning: int | None
    programs: int
    elo: float


class Run(NamedTuple):
    folder: Path
    turns: list[Turn]
    resets: int
    wins: tuple[int, int]  # of the last policy against the first, and lost
    text: str


@pytest.fixture(scope="module")
def trained(runs: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run, watched turn by turn; afterwards its last policy plays against its first."""
    folder, turns = tmp_path_factory.mktemp("duel"), []
    envs: list[DuelEnv] = []
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("jaxrl").addHandler(handler)
    logging.getLogger("jaxrl").setLevel(logging.INFO)

    def make(worker: int) -> DuelEnv:
        envs.append(DuelEnv(worker))
        return envs[-1]

    with environment(make=make) as started, host_loop(settings_of(folder), started=started) as loop:
        first = None
        for _ in loop.iterate():
            side, behavior = loop.opponents.game.sides["Duel"], loop.behaviors["Duel"]
            first = first or side.latest
            programs = behavior.actor.programs.decide._cache_size()  # type: ignore[attr-defined]
            turns.append(Turn(behavior.step, side.ghost_step, side.learning, programs, side.pool.elo))
        loop.recorder.finish(list(loop.behaviors.values()), None)
        assert first is not None
        wins = duel_of(loop, loop.behaviors["Duel"].state.policy, first.policy)
    logging.getLogger("jaxrl").removeHandler(handler)
    return Run(folder, turns, envs[0].resets, wins, "\n".join(lines))


def duel_of(loop: HostLoop, one: Any, other: Any) -> tuple[int, int]:
    """Games that the first policy wins and loses."""
    env, won, lost = DuelEnv(5, DuelSettings(areas=32)), 0, 0
    sides = {
        behavior_id: make_frozen(behavior_id, loop.behaviors["Duel"], policy, jax.random.key(i))
        for i, (behavior_id, policy) in enumerate({"Duel?team=0": one, "Duel?team=1": other}.items())
    }
    message = env.reset()
    for _ in range(4 * 8):
        chosen = {}
        for behavior_id, steps in message.steps.items():
            source = Source(0, behavior_id, 0)
            chosen[behavior_id] = sides[behavior_id].act({source: steps})[0][source]
        message = env.step(chosen)
        paid = message.steps["Duel?team=0"].ended.reward
        won, lost = won + int((paid > 0).sum()), lost + int((paid < 0).sum())
    return won, lost


def test_it_learns_and_the_last_beats_the_first(trained: Run) -> None:
    won, lost = trained.wins
    assert won >= 0.9 * (won + lost) and won + lost > 150
    assert trained.turns[-1].elo > 1215.0


def test_the_learning_team_alone_counts_and_opponents_are_ghosts(trained: Run) -> None:
    """4 areas with an agent of each side: a message brings 4 decisions of each, but for the first after a reset."""
    before = Turn(0, 0, 0, 0, 1200.0)
    moved = {(now.step - was.step, now.ghost_step - was.ghost_step) for was, now in pairwise([before, *trained.turns])}
    assert moved == {(0, 0), (4, 4)}
    changes = [now.step for was, now in pairwise(trained.turns) if was.learning != now.learning]
    assert changes == [1004, 2008], "more than team_change (1000) since the last"
    assert trained.resets == 1 + len(changes)
    assert trained.turns[-1].step == 3004


def test_neither_swaps_nor_changes_of_the_team_compile_anything(trained: Run) -> None:
    assert trained.turns[-1].programs == trained.turns[2].programs <= 2


def test_the_rating_is_shown_as_the_original_does(trained: Run) -> None:
    run_folder = trained.folder / "results" / "run"
    rows = (run_folder / "Duel" / "metrics.csv").read_text().splitlines()
    assert any(ELO in row for row in rows)
    status = json.loads((run_folder / "run_logs" / "training_status.json").read_text())
    assert status["Duel"]["elo"] == trained.turns[-1].elo
    lines = [line for line in trained.text.splitlines() if line.startswith("Duel. Step: 1000.")]
    assert len(lines) == 1 and ". Training. ELO: 12" in lines[0]
    assert "without self_play" not in trained.text and (run_folder / "Duel.onnx").is_file()


def test_files_of_the_pool_are_those_that_checkpoints_name(trained: Run) -> None:
    state = state_of(trained.folder)
    named = {each["weights"] for each in state["snapshots"]}
    there = {path.name for path in (trained.folder / "results" / "run" / "Duel" / "self_play").iterdir()}
    assert named <= there and len(named) == 4 and len(there) <= 4 + 1 + 2, "of two checkpoints"


def test_a_run_that_goes_on_has_pool_ratings_and_schedule(trained: Run, tmp_path: Path) -> None:
    shutil.copytree(trained.folder / "results", tmp_path / "results")
    before = state_of(tmp_path)
    settings = settings_of(tmp_path, changes=resumed(tmp_path), max_steps=3100)
    with environment(make=LateDuel) as started, host_loop(settings, started=started) as loop:
        next(iter(loop.iterate()))
        side = loop.opponents.game.sides["Duel"]
        now = loop.opponents.game.state("Duel", lambda weights: weights.name)
        assert now | {"turns": 0} == {key: before[key] for key in now} | {"turns": 0}
        assert loop.opponents._random.bit_generator.state == before["random"]
        assert side.pool.elo == trained.turns[-1].elo != 1200.0

    name = before["snapshots"][0]["weights"]
    broken = tmp_path / "results" / "run" / "Duel" / "self_play" / name
    content = broken.read_bytes()
    broken.write_bytes(content[:-9] + b"?" + content[-8:])
    with pytest.raises(CheckpointError, match=f"{broken.name}: this snapshot of the self-play pool is damaged"):
        run(settings)
    broken.unlink()
    with pytest.raises(CheckpointError, match="this snapshot of the self-play pool is missing"):
        run(settings)
    if hasattr(os, "mkfifo"):
        os.mkfifo(broken)
        with pytest.raises(CheckpointError, match="this snapshot of the self-play pool cannot be read"):
            run(settings)

    anew = {
        "checkpoint_settings": {"run_id": "new", "results_dir": str(tmp_path / "results"), "initialize_from": "run"}
    }
    settings = settings_of(tmp_path, changes=anew, max_steps=100)
    with environment(make=partial(duels, DuelSettings())) as started, host_loop(settings, started=started) as loop:
        next(iter(loop.iterate()))
        pool = loop.opponents.game.sides["Duel"].pool
        assert (pool.saved, pool.elo) == (1, 1200.0)


def test_inference_plays_without_a_pool(trained: Run) -> None:
    results = str(trained.folder / "results")
    flags = {"run_id": "run", "results_dir": results, "resume": True, "inference": True}
    settings = settings_of(trained.folder, changes={"checkpoint_settings": flags})
    with environment(make=partial(duels, DuelSettings())) as started, host_loop(settings, started=started) as loop:
        turns = loop.iterate()
        for _ in range(3):
            next(turns)
        assert not loop.opponents.game.sides and loop.policies.policy_names == ["Duel"]


def test_an_exact_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def part(folder: Path, max_steps: int, *, resume: bool) -> None:
        flags = {"run_id": "run", "results_dir": str(folder / "results"), "exact": True, "resume": resume}
        keys = {"self_play": SELF_PLAY_KEYS | {"team_change": 250}, "checkpoint_interval": 300, "keep_checkpoints": 0}
        run(settings_of(folder, changes={"checkpoint_settings": flags}, max_steps=max_steps, **keys))

    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    part(tmp_path / "whole", 1300, resume=False)
    part(tmp_path / "parts", 700, resume=False)
    folder = tmp_path / "parts" / "results" / "run" / "Duel"
    *_, last, final = checkpoints(folder)
    remove(final)
    point_at(last.path, last.step)
    part(tmp_path / "parts", 1300, resume=True)
    whole, parts = (state_of(tmp_path / name) for name in ("whole", "parts"))
    assert whole["last"][1] > last.step, "teams have changed since"
    assert parts == whole


def test_one_team_only_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxrl"):
        run(settings_of(tmp_path, max_steps=420), sides=("Duel",))
    (line,) = [line for line in caplog.messages if "nobody plays against it" in line]
    assert line.startswith("Duel: self_play, but only team 0 has come in 100 messages")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"self_play": {"window": 0}}, "self_play.window: got 0, expected"),
        ({"self_play": None, "stop": {ELO: 1300}}, "written with `self_play` alone: add it"),
        ({"self_play": None, "keep_best": ELO}, "written with `self_play` alone: add it"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(keys: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_of(tmp_path, **keys)


def lesson(behavior: str) -> dict[str, Any]:
    criteria = {"measure": "elo", "behavior": behavior, "threshold": 1200.5, "signal_smoothing": False}
    lessons = [{"name": "a", "value": 1.0, "completion_criteria": criteria}, {"name": "b", "value": 2.0}]
    return {"environment_parameters": {"size": {"curriculum": lessons}}}


def test_the_rating_decides_about_lessons_the_best_moment_and_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "jaxrl"):
        run(settings_of(tmp_path, changes=lesson("Duel"), keep_best=ELO, stop={ELO: 1201.0}, max_steps=20000))
    assert any("lesson 'b' begins" in line for line in caplog.messages)
    (end,) = [line for line in caplog.messages if "The training ends here" in line]
    assert end.startswith("Duel: Self-play/ELO is 12")
    assert (tmp_path / "results" / "run" / "Duel" / "Duel-best").is_dir()
    with pytest.raises(SettingsError, match="got elo, which is a rating in self-play: behaviors"):
        settings_of(tmp_path, changes=lesson("Duel"), self_play=None)


def test_two_behaviors_take_turns(tmp_path: Path) -> None:
    """Asymmetric: the change is decided by one, and both adopt it at once. Steps of the other's turn are not one's own.

    So each update has 8 decisions of every environment step, less those that were open when a turn ended.
    """
    duel, learning, held = DuelSettings(sides=("Ox?team=0", "Fox?team=1"), members=2), [], []
    keys: dict[str, Any] = {"self_play": SELF_PLAY_KEYS | {"team_change": 200}, "count_by": "env_steps"}
    keys["hyperparameters"] = {"batch_size": 64, "buffer_size": 20}
    made = partial(settings_of, tmp_path, "Ox", "Fox", trainer_type="poca", checkpoint_interval=100, **keys)
    settings = made(max_steps=500)
    with environment(make=partial(duels, duel)) as started, host_loop(settings, started=started) as loop:
        for turn in loop.iterate():
            held += [learned.held for learned in turn.learned.values()]
            sides = loop.opponents.game.sides
            assert {side.learning for side in sides.values()} == {loop.opponents.game.rotation.learning}
            learning.append((sides["Ox"].learning, loop.behaviors["Ox"].step, loop.behaviors["Fox"].step))
    steps = [turn for was, turn in pairwise(learning) if was[0] != turn[0]]
    assert steps[:3] == [(1, 208, 0), (0, 208, 208), (1, 416, 208)], "8 decisions a message, more than 200"
    assert all(min(loop.behaviors[name].step, 501) == 501 for name in ("Ox", "Fox"))
    rated = [loop.opponents.game.sides[name].pool.elo for name in ("Ox", "Fox")]
    assert np.ptp(rated) != 0.0
    # It was killed: the newest checkpoint of each is of its own turn, and the newer one says whose turn it is.
    settings = made(max_steps=600, changes=resumed(tmp_path))
    with environment(make=partial(duels, duel)) as started, host_loop(settings, started=started) as loop:
        next(iter(loop.iterate()))
        assert [loop.policies.own(0, side) for side in duel.sides] == ["Ox?team=0", "Fox"]
    assert len(held) >= 4 and all(of.agent_steps >= 8 * (of.env_steps - 1) for of in held), held


def test_behaviors_of_one_team_learn_together_and_end_its_turn_together(tmp_path: Path) -> None:
    """Ox and Fox stand in both teams. Both clocks are over with one message: one turn has ended, not two."""
    sides = ("Ox?team=0", "Fox?team=0", "Ox?team=1", "Fox?team=1")
    settings, learning = (
        settings_of(tmp_path, "Ox", "Fox", max_steps=700, self_play=SELF_PLAY_KEYS | {"team_change": 200}),
        [],
    )
    made = partial(duels, DuelSettings(sides=sides))
    with environment(make=made) as started, host_loop(settings, started=started) as loop:
        for _ in loop.iterate():
            game = loop.opponents.game
            assert {side.learning for side in game.sides.values()} == {game.rotation.learning}
            learning.append((game.rotation.learning, *(loop.behaviors[name].step for name in ("Ox", "Fox"))))
        assert [loop.policies.own(0, side) for side in sides] == ["Ox?team=0", "Fox?team=0", "Ox", "Fox"]
    turns = [now for was, now in pairwise(learning) if was[0] != now[0]]
    assert turns == [(1, 204, 204), (0, 408, 408), (1, 612, 612)]


@pytest.mark.parametrize("result", ["final_reward", "return"])
def test_where_the_last_step_costs_both_the_return_tells_who_has_won(
    result: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rating falls by a half for each of 4 areas' games of 4 decisions; by the return it follows what is won."""
    keys = {"self_play": SELF_PLAY_KEYS | {"result": result, "play_against_latest_model_ratio": 0.0}, "max_steps": 900}
    with caplog.at_level(logging.WARNING, "jaxrl"):
        run(settings_of(tmp_path, **keys), early=True)
    rows = (tmp_path / "results" / "run" / "Duel" / "metrics.csv").read_text().splitlines()
    decided = [float(row.split(",")[3]) for row in rows if "Self-play/Decided Games" in row]
    remarks = [line for line in caplog.messages if "had a winner" in line]
    elo = state_of(tmp_path)["ratings"][-1]
    if result == "return":
        assert not remarks and min(decided) > 0.5 and elo > 1165.0
    else:
        assert len(remarks) == 1 and set(decided) == {0.0} and elo < 1150.0


VARIANTS = {
    "memory, threads and workers": (
        {
            "network_settings": BEHAVIOR["network_settings"] | {"memory": {"sequence_length": 4, "memory_size": 8}},
            "threaded": True,
        },
        {},
        2,
    ),
    "images": ({}, {"image": True}, 1),
    "sac": (
        {
            "trainer_type": "sac",
            "hyperparameters": {"batch_size": 32, "buffer_size": 500, "buffer_init_steps": 100, "steps_per_update": 8},
        },
        {"continuous": True},
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_run_plays(variant: str, tmp_path: Path) -> None:
    keys, duel, workers = VARIANTS[variant]
    play = SELF_PLAY_KEYS | {"save_steps": 100, "team_change": 150, "swap_steps": 50}
    run(settings_of(tmp_path, self_play=play, max_steps=500, **keys), workers, **duel)
    state = state_of(tmp_path)
    assert state["saved"] >= 4 and state["last"][1] > 300 and state["ratings"][-1] != 1200.0

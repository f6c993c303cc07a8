"""Evaluation episodes, best checkpoints and stop rules of the host loop, with real environments."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl.algorithms import make_algorithm
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.checkpoint.store import read_info
from jaxrl.artifacts.metrics.statistics import Summary
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import RestartLimits
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for
from jaxrl.settings.records import CUT
from jaxrl.training.host.behavior import make_behavior
from jaxrl.training.host.evaluation import Evaluation
from jaxrl.training.host.launch import launched
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.run import train
from jaxrl.training.interrupt import Interrupt
from jaxrl.types import NOTHING, CopyFault, EnvMessage, JaxrlError
from tests.artifacts.test_csv_file import rows
from tests.envs.toy_env import ToyEnv, ToySettings
from tests.envs.uneven_env import UNEVEN, Uneven
from tests.toy_runs import configured, environment

CARTPOLE = "CartPole-v1"
REWARD, GROUP, LENGTH = (
    f"Evaluation/{what}" for what in ("Cumulative Reward", "Group Cumulative Reward", "Episode Length")
)
REWARD_OF_TRAINING = "Environment/Cumulative Reward"
pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(300)]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("jaxrl"), "propagate", True)
    caplog.set_level(logging.INFO, "jaxrl")
    return caplog


def table(folder: Path, name: str, run_id: str = "two") -> list[list[str]]:
    return rows(folder / "results" / run_id / name / "metrics.csv")


def status(folder: Path, name: str, run_id: str = "two") -> dict[str, Any]:
    return json.loads((folder / "results" / run_id / "run_logs" / "training_status.json").read_text())[name]


def test_a_run_keeps_its_best_and_stops(tmp_path: Path, log: Any) -> None:
    """Lengths of the toy are 4 and more; both look at the same summaries."""
    tag = "Environment/Episode Length"
    settings = {"stop": {tag: {"value": 1, "patience": 2}}, "keep_best": tag, "max_steps": 10_000}
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, Toy=settings), started=started)
    found = table(tmp_path, "Toy")
    lengths = {int(step): float(value) for step, name, value in found if name == tag}
    assert list(lengths) == [100, 200]
    assert f"Toy: {tag} is {lengths[200]:.3f} at step 200" in log.text and "ends here, as at max_steps" in log.text
    assert (tmp_path / "results" / "two" / "Toy.onnx").is_file()
    best = status(tmp_path, "Toy")["best_checkpoint"]
    assert best["value"] == max(lengths.values()) and best["statistic"] == tag
    assert (tmp_path / "results" / "two" / "Toy" / "Toy-best.onnx").is_file()


@pytest.mark.slow
def test_one_behavior_stops_and_the_other_goes_on(tmp_path: Path, log: Any) -> None:
    """As with max_steps: it is done when all are, and learns no more meanwhile. Lengths of the toy are 4 and more."""
    short = {"stop": {"Environment/Episode Length": {"value": 1, "patience": 2}}, "max_steps": 10_000}
    with environment("Short?team=0", "Long?team=0") as started:
        train(configured(tmp_path, Short=short, Long={"max_steps": 400}), started=started)
    assert "Short: Environment/Episode Length is" in log.text and "2 times in a row. The training ends here" in log.text
    updates = [int(step) for step, tag, _ in table(tmp_path, "Short") if tag == "Losses/Policy Loss"]
    assert updates == [100, 200]
    assert {int(step) for step, _, _ in table(tmp_path, "Short")} == {100, 200, 300, 400}
    assert checkpoints(tmp_path / "results" / "two" / "Short")[-1].step > 400
    assert (tmp_path / "results" / "two" / "Short.onnx").is_file()


@pytest.mark.slow
def test_the_best_checkpoint_stays(tmp_path: Path, log: Any) -> None:
    settings = {"keep_best": "Policy/Entropy", "keep_checkpoints": 1, "checkpoint_interval": 100, "max_steps": 600}
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, Toy=settings), started=started)
    entropy = {int(step): float(value) for step, tag, value in table(tmp_path, "Toy") if tag == "Policy/Entropy"}
    best = status(tmp_path, "Toy")["best_checkpoint"]
    highest = max(entropy.values())
    assert best["value"] == highest and best["statistic"] == "Policy/Entropy" and best["seed"] is None
    at = min(step for step, value in entropy.items() if value == highest)
    assert at - 50 <= best["steps"] <= at + 50
    folder = tmp_path / "results" / "two" / "Toy"
    assert len(checkpoints(folder)) == 1  # the newest; the best is none of them
    assert read_info(folder / "Toy-best").step == best["steps"] and (folder / "Toy-best.onnx").is_file()
    (folder / "Toy-best.onnx").write_bytes(b"of the first run")
    with environment("Toy?team=0") as started:  # goes on from the value of the first run
        train(configured(tmp_path, Toy={**settings, "max_steps": 700}, changes={
            "checkpoint_settings": {"run_id": "two", "results_dir": str(tmp_path / "results"), "resume": True}
        }), started=started)  # fmt: skip
    again = status(tmp_path, "Toy")["best_checkpoint"]
    assert again["value"] >= best["value"]
    assert (again == best) == ((folder / "Toy-best.onnx").read_bytes() == b"of the first run")
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, Toy={"max_steps": 200}, changes={
            "checkpoint_settings": {"run_id": "two", "results_dir": str(tmp_path / "results"), "force": True}
        }), started=started)  # fmt: skip
    assert not list(folder.glob("Toy-best*")) and "best_checkpoint" not in status(tmp_path, "Toy")


@pytest.mark.slow
def test_an_unknown_statistic_ends_a_run_at_its_first_summary(tmp_path: Path) -> None:
    with environment("Toy?team=0") as started, pytest.raises(JaxrlError) as raised:
        train(configured(tmp_path, Toy={"stop": {"Toy/Clok": 3}, "max_steps": 10_000}), started=started)
    assert "behaviors.Toy.stop: got 'Toy/Clok', which nobody writes" in str(raised.value)
    assert "Toy/Clock" in str(raised.value)
    assert {step for step, _, _ in table(tmp_path, "Toy")} <= {"100", "200"}


def cartpole(folder: Path, run_id: str, **behavior: Any) -> RunSettings:
    settings = {"trainer_type": "ppo", "max_steps": 700, "summary_freq": 200, **behavior}
    return configured(folder, run_id, {"env_settings": {"env_path": f"gymnasium:{CARTPOLE}"}}, **{CARTPOLE: settings})


@pytest.mark.slow
def test_evaluations_of_an_unchanged_policy_are_equal_and_training_is_as_without(tmp_path: Path) -> None:
    """In processes of their own: the same seed each time, and none of it in the training's streams."""
    frozen = {"hyperparameters": {"batch_size": 16, "buffer_size": 64, "num_epoch": 1, "learning_rate": 0.0}}
    train(cartpole(tmp_path, "with", **frozen, evaluation={"interval": 150, "episodes": 4}))
    train(cartpole(tmp_path, "without", **frozen))
    found, plain = (
        [row for row in table(tmp_path, CARTPOLE, run) if not row[1].startswith("Time/")] for run in ("with", "without")
    )
    assert [row for row in found if not row[1].startswith("Evaluation/")] == plain
    rewards, lengths = ([row for row in found if row[1] == tag] for tag in (REWARD, LENGTH))
    assert [int(step) for step, _, _ in rewards] == [150, 300, 450, 600]
    assert len({value for _, _, value in rewards}) == 1 == len({value for _, _, value in lengths})
    assert float(rewards[0][2]) == float(lengths[0][2]) + 1.0 >= 8.0  # one for each decision
    assert not [row for row in found if row[1] == GROUP]  # nobody has a team
    onnx = [(tmp_path / "results" / run_id / f"{CARTPOLE}.onnx").read_bytes() for run_id in ("with", "without")]
    assert onnx[0] == onnx[1]


class Vanishing(ToyEnv):
    """Its agents ask eight times, then they are gone without an ending, and others have come."""

    def _advance(self, areas: list[Any]) -> list[tuple[Any, ...]]:
        super()._advance(areas)
        return []


ALONE = ToySettings(teams=False, agents_per_team=1, episode_length=8, living_reward=1.0)
Play = Callable[..., dict[str, Summary]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Evaluates an untrained policy in an environment: (make, options of the evaluation, of the behavior, changes)."""
    made: list[Evaluation] = []

    def played(
        make: Callable[[int], ToyEnv], options: Any, own: Any = NOTHING, changes: Any = None, times: int = 1
    ) -> dict[str, Summary]:
        pools = partial(EnvPool, make, 1, inline=True, wait=False, limits=RestartLimits(lifetime=-1, rate=-1))
        monkeypatch.setattr("jaxrl.training.host.evaluation.evaluation_pool", lambda *_: pools())
        toy = {"trainer_type": "ppo", "evaluation": {"interval": 20, **options}, **own}
        settings = configured(tmp_path, changes=changes, Toy=toy)
        of, spec = behavior_settings_for(settings, "Toy"), make(0).spec
        algorithm = make_algorithm(spec, of)
        programs = compile_programs(algorithm, of.segment_limit)
        behavior = make_behavior("Toy", spec, of, algorithm, programs, jax.random.key(0), training=True)
        with Interrupt() as interrupt:
            made.append(Evaluation(settings, interrupt))
            return [made[-1].play("Toy", {"Toy": behavior}, {}) for _ in range(times)][-1]

    yield played
    for evaluation in made:
        evaluation.close()


@pytest.mark.parametrize(("limit", "length"), [(5, 4.0), (None, 7.0)])
def test_evaluation_ends_episodes_as_training_does(play: Play, limit: int | None, length: float) -> None:
    """After five decisions, or when an agent has vanished after eight. As ML-Agents counts 4 and 7.

    The second time agents are known that had been about to vanish.
    """
    missing = {"env_settings": {"missing": "truncate", "missing_after": 2}}
    own = {"max_episode_length": limit}
    found = play(lambda worker: Vanishing(worker, ALONE), {"episodes": 4, "max_length": 50}, own, missing, times=2)
    assert (found[LENGTH].mean, found[LENGTH].count, found[CUT].value) == (length, 4, 0.0)


@pytest.mark.parametrize("episodes", [16, 6, 40])
def test_every_area_plays_its_share_however_short_its_episodes_are(play: Play, episodes: int) -> None:
    """The first 16 that ended had all return 0; 40 are two of each area and a third of the first eight.

    Ids are new with each episode: areas are found again by their order in the messages.
    """
    found = play(lambda worker: Uneven(worker, UNEVEN), {"episodes": episodes})
    assert found[REWARD].mean == pytest.approx(0.5) and found[REWARD].count == episodes
    assert (found[LENGTH].mean, found[CUT].value) == (pytest.approx((0 + 19) / 2), 0.0)


@pytest.mark.parametrize("episodes", [16, 24])
def test_an_episode_that_is_not_over_in_time_counts_with_what_it_has_earned(play: Play, episodes: int) -> None:
    """Long ones are cut after 10 decisions, with 0.5. For more of them all areas begin anew."""
    found = play(lambda worker: Uneven(worker, UNEVEN), {"episodes": episodes, "max_length": 10}, times=2)
    assert found[REWARD].mean == pytest.approx(0.25) and found[REWARD].count == episodes
    assert (found[LENGTH].mean, found[CUT].value) == (pytest.approx((0 + 9) / 2), episodes / 2)


def test_teams_of_both_sides_play_their_share(play: Play) -> None:
    """Two areas with a team of each side: six episodes are two of the first two teams and one of the others."""
    toy = ToySettings(behaviors=("Toy?team=0", "Toy?team=1"), episode_length=3, group_reward=2.0)
    found = play(lambda worker: ToyEnv(worker, toy), {"episodes": 6}, {"self_play": {}})
    assert [found[tag].count for tag in (GROUP, REWARD, LENGTH)] == [6, 12, 12]
    assert (found[GROUP].mean, found[LENGTH].mean) == (2.0, 2.0)


class Leaving(ToyEnv):
    """Nobody comes after the first episodes: of some areas until the next reset, of others for good."""

    def __init__(self, *given: Any, good: bool) -> None:
        self.good, self.over = good, False
        super().__init__(*given)

    def _begin(self, area: Any) -> None:
        super()._begin(area)
        leaves = area is self._areas["Toy?team=0"][0] if not self.good else True
        if leaves and (area.episode > 1 or self.over):
            area.members, area.finishes, self.over = [], lambda: False, self.good


def test_what_is_missing_begins_with_another_reset_or_is_told(play: Play, log: Any) -> None:
    """Two areas and four episodes."""
    found = play(lambda worker: Leaving(worker, ALONE, good=False), {"episodes": 4, "max_length": 30})
    assert (found[LENGTH].count, found[CUT].value) == (4, 0.0) and "were played" not in log.text
    found = play(lambda worker: Leaving(worker, ALONE, good=True), {"episodes": 4, "max_length": 30})
    assert (found[LENGTH].count, found[CUT].value) == (2, 0.0)
    assert "Toy: 2 of 4 evaluation episodes were played, the next one did not begin within 30 steps" in log.text


class Breaking(ToyEnv):
    """With the fourth step its first area fails, and begins anew."""

    faults: tuple[CopyFault, ...] = ()

    def _advance(self, areas: list[Any]) -> list[tuple[Any, ...]]:
        if areas[0].clock == 3 and areas[0].episode == 1:
            lost = [agent.agent_id for agent in areas[0].members]
            self._begin(areas[0])
            areas[0].clock = -1
            self.faults = (CopyFault("fell over", {"Toy?team=0": lost}),)
        return super()._advance(areas)

    def _result(self, ended: Any) -> EnvMessage:
        faults, self.faults = self.faults, ()
        return super()._result(ended)._replace(faults=faults)


def test_an_episode_that_breaks_off_is_played_again(play: Play) -> None:
    found = play(lambda worker: Breaking(worker, ALONE), {"episodes": 2, "max_length": 30})
    assert (found[CUT].value, found[LENGTH].values) == (0.0, (7.0, 7.0))


def test_agents_that_vanish_are_cut_in_time(play: Play) -> None:
    """With `missing: carry` nobody ends them. Eight decisions, of which the last has no reward."""
    found = play(lambda worker: Vanishing(worker, ALONE), {"episodes": 2, "max_length": 30})
    assert (found[CUT].value, found[LENGTH].values) == (2.0, (7.0, 7.0))


class PaidInTurns(ToyEnv):
    """Teams are paid 1 together after every second reset, and 0 after the others."""

    resets = 0

    def reset(self, *given: Any) -> EnvMessage:
        self.resets += 1
        return super().reset(*given)

    def _team_reward(self) -> float:
        return float(self.resets % 2)


def test_an_evaluation_in_which_no_team_is_paid_tells_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It told nothing, so that means over evaluations were too high, and `stop` did not see that one was bad.

    The last one is due with the decisions that end the training: step 252 of 250.
    """
    pools = partial(EnvPool, PaidInTurns, 1, inline=True, wait=False)
    monkeypatch.setattr("jaxrl.training.host.evaluation.evaluation_pool", lambda *_: pools())
    options = {"evaluation": {"interval": 50, "episodes": 2}, "stop": {GROUP: {"value": 0.5, "patience": 2}}}
    with environment("Toy?team=0") as started:
        train(configured(tmp_path, Toy={**options, "max_steps": 250}), started=started)
    found = [(int(step), float(value)) for step, tag, value in table(tmp_path, "Toy") if tag == GROUP]
    assert found == [(50, 1.0), (100, 0.0), (150, 1.0), (200, 0.0), (250, 1.0)]


def test_there_is_one_editor(tmp_path: Path) -> None:
    settings = configured(tmp_path, Toy={"evaluation": {"interval": 100}})
    expected = r"behaviors\.Toy\.evaluation: got a section, expected null with the Unity"
    with pytest.raises(SettingsError, match=expected), launched(settings):
        pass
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("stop", [{}, {REWARD_OF_TRAINING: {"value": 0.0, "patience": 4}}])
def test_a_run_that_is_resumed_is_judged_as_if_it_had_gone_on(tmp_path: Path, stop: dict[str, Any]) -> None:
    """Summaries at 50, 100 and, resumed, 150 and 200: the fourth ends it. What its checkpoint was worth stays known."""
    for steps in (100, 100, 400):
        resume = {"resume": steps == 400 or (tmp_path / "results").exists()}
        changes = {"checkpoint_settings": {"run_id": "two", "results_dir": str(tmp_path / "results"), **resume}}
        settings = configured(tmp_path, changes=changes, Toy={"max_steps": steps, "summary_freq": 50, "stop": stop})
        with environment("Toy") as started:
            train(settings, started=started)
        found = status(tmp_path, "Toy")
        assert all(item["reward"] > 0.0 for item in [*found["checkpoints"], found["final_checkpoint"]])
        if steps == 100:
            assert [rule["in_a_row"] for rule in found.get("stop", {}).values()] == [[2]] * len(stop)
    last = found["checkpoints"][-1]["steps"]
    assert (200 <= last < 250) if stop else last >= 400


def test_a_resumed_run_tells_zero_where_no_team_is_paid_any_more(tmp_path: Path) -> None:
    """As one that goes on; the tag was missing until a team was paid again."""
    for steps, paid in ((100, 1.0), (200, 0.0)):
        options = {"run_id": "two", "results_dir": str(tmp_path / "results"), "resume": steps == 200}
        toy = {"trainer_type": "ppo", "max_steps": steps, "summary_freq": 50}
        with environment("Toy", group_reward=paid) as started:
            train(configured(tmp_path, changes={"checkpoint_settings": options}, Toy=toy), started=started)
    tag = "Environment/Group Cumulative Reward"
    found = [(int(row[0]), float(row[2])) for row in table(tmp_path, "Toy") if row[1] == tag]
    assert found == [(50, 1.0), (100, 1.0), (150, 0.0), (200, 0.0)]

"""What a run hands on: resume, initialize-from, force, inference; and that saving loses nothing."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS, HYPERPARAMETER_TYPES
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.tree import to_arrays
from jaxrl.artifacts.run_folder import RunFolder, RunFolderError
from jaxrl.envs.unity.environment import UnityHostEnv
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import load_run_settings
from jaxrl.training.host.behavior import Behavior, make_behavior
from jaxrl.training.host.launch import _log_folder, launched
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.saver import Saved
from jaxrl.types import EnvMessage
from tests import trainer

pytestmark = [*trainer.MARKS, trainer.TRACED_ONCE]


@pytest.fixture(scope="module")
def finished(runs, tmp_path_factory):
    """The results folder of a run that reached its max_steps."""
    folder = tmp_path_factory.mktemp("finished")
    assert trainer.train(trainer.config(folder), folder / "results") == 0
    return folder / "results"


@pytest.fixture
def results(finished, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(finished, tmp_path / "results")
    return tmp_path / "results"


def test_resume_continues(results, tmp_path, capsys):
    before, old_steps = trainer.final_state(results), trainer.steps(results)
    assert trainer.train(trainer.config(tmp_path, {"*.max_steps": 2000}), results, "--resume") == 0
    printed = capsys.readouterr()
    assert f"resuming from {results / 'run' / 'Countdown'}/Countdown-{old_steps[-1]} at step" in printed.out
    assert "Step: 1500." in printed.out and "Step: 1200." not in printed.out
    after, new_steps = trainer.final_state(results), trainer.steps(results)
    assert len(new_steps) == 3 and new_steps[0] == old_steps[-1] and new_steps[-1] > 2000
    (count,) = (name for name in before if "optimizer" in name and name.endswith("count"))
    assert after[count] > before[count] > 0  # Adam goes on, it does not begin anew
    assert after["decisions"] > before["decisions"] and after["step"] == new_steps[-1]
    status = json.loads((results / "run" / "run_logs" / "training_status.json").read_text())
    assert [entry["steps"] for entry in status["Countdown"]["checkpoints"]] == new_steps
    assert len(list((results / "run" / "Countdown").glob("events.*"))) == 2


def test_resume_of_a_run_that_is_done_says_so_and_keeps_the_state(results, tmp_path, capsys):
    before = trainer.final_state(results)
    assert trainer.train(trainer.config(tmp_path), results, "--resume") == 0
    assert "has passed max_steps (1200) already: raise it" in capsys.readouterr().out
    changed = trainer.differing(before, trainer.final_state(results))
    assert set(changed) <= {"decisions", "train/step"}  # it acted once; the learner's step follows at an update


@pytest.mark.slow
def test_checkpoints_by_minutes_change_nothing(finished, tmp_path):
    """They come between those by steps, and show in no bit of what is learned."""
    configuration = trainer.config(tmp_path, {"*.keep_checkpoints": 1000})
    assert trainer.train(configuration, tmp_path / "results", "--checkpoint-minutes", "0.0001") == 0
    assert len(trainer.steps(tmp_path / "results")) > len(trainer.steps(finished)) + 2
    again = trainer.final_state(tmp_path / "results")
    assert trainer.differing(trainer.final_state(finished), again) == []


def other_player(folder):
    """The same behavior with one continuous action more."""
    script = folder / "other.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(trainer.ENVS)!r})\nimport countdown_player as player\n"
        "player.SPEC = player.SPEC._replace(action=player.SPEC.action._replace(continuous_size=2))\nplayer.main()\n"
    )
    return str(trainer.player(folder, str(script)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("hidden_units", "network_settings.hidden_units: 16 in the checkpoint, 32 now"),
        ("environment", "action size (continuous): 1 in the checkpoint, 2 now"),
    ],
)
def test_resume_refuses_what_does_not_fit(results, tmp_path, capsys, change, message):
    changes = {"env_settings.env_path": other_player(tmp_path)}
    if change == "hidden_units":
        changes = {"*.network_settings.hidden_units": 32}
    before = trainer.contents(results)
    assert trainer.train(trainer.config(tmp_path, changes), results, "--resume") == 1
    error = capsys.readouterr().err
    assert message in error and "--force" in error and len(error.strip().splitlines()) == 1
    assert trainer.contents(results) == before


def test_initialize_from_takes_the_weights_alone(results, tmp_path, capsys):
    configuration = trainer.config(tmp_path, {"*.max_steps": 1})  # ends before the first update
    assert trainer.train(configuration, results, "--initialize-from", "run", run_id="new") == 0
    assert "Countdown: initialized from" in capsys.readouterr().out
    old, new = trainer.final_state(results), trainer.final_state(results, "new")
    assert 0 < new["step"] < 50
    weights = ("train/policy/", "train/critic/", "train/own/max_team")
    assert not [name for name in trainer.differing(old, new) if name.startswith(weights)]
    assert not any(new[name].any() for name in new if name.startswith("train/optimizer/"))


def test_force_starts_anew(results, tmp_path, capsys):
    assert trainer.train(trainer.config(tmp_path), results) == 1
    error = capsys.readouterr().err
    assert "already holds a run" in error and "--resume" in error and "--force" in error
    first = trainer.final_state(results)
    assert trainer.train(trainer.config(tmp_path), results, "--force") == 0
    assert trainer.differing(first, trainer.final_state(results)) == []
    assert len(list((results / "run" / "Countdown").glob("events.*"))) == 1


def test_a_forced_run_that_fails_to_start_leaves_the_old_one(results, tmp_path, capsys):
    before = trainer.contents(results)
    assert trainer.train(trainer.config(tmp_path, {}, "Countdwn"), results, "--force") == 1
    assert "did you mean Countdwn?" in capsys.readouterr().err
    assert trainer.contents(results) == before


@pytest.mark.parametrize("flags", [("--initialize-from", "run"), ()], ids=["initialize-from", "init_path"])
def test_force_does_not_delete_what_behaviors_that_come_later_start_from(results, tmp_path, capsys, flags):
    """The old run goes when the first behavior has its weights; of one behavior alone that is right."""
    changes = {} if flags else {"*.init_path": str(results / "run" / "Countdown")}
    (results / "run" / "Other").mkdir()
    shutil.copy(results / "run" / "Countdown" / "checkpoint", results / "run" / "Other")
    before = trainer.contents(results)
    assert trainer.train(trainer.config(tmp_path, changes), results, "--force", *flags) == 1
    assert "--force deletes this run when its first behavior appears" in capsys.readouterr().err
    assert trainer.contents(results) == before
    if not flags:  # also of behaviors that are not listed
        given = {"checkpoint_settings": {"run_id": "run", "results_dir": str(results), "force": True}}
        settings = load_run_settings(trainer.config(tmp_path, changes), given, HYPERPARAMETER_TYPES)
        unlisted = settings.model_copy(update={"behaviors": {}, "default_settings": settings.behaviors["Countdown"]})
        with pytest.raises(RunFolderError, match="deletes this run when its first"), launched(unlisted):
            pass
    shutil.rmtree(results / "run" / "Other")
    changes |= {"*.max_steps": 1}
    assert trainer.train(trainer.config(tmp_path, changes), results, "--force", *flags) == 0
    assert "Countdown: initialized from" in capsys.readouterr().out


def test_inference_acts_and_saves_nothing(start, tmp_path):
    process = start(trainer.config(tmp_path, {"*.max_steps": 400}), "--inference")
    process.says("Step: 600.")
    process.interrupt()
    assert process.wait() == 0 and process.leaves_nothing()
    assert "It only acted (--inference), so there is nothing to save." in process.stdout
    assert "are saved" not in process.stdout and "Once more leaves at once" in process.stderr
    assert "Not Training." in process.stdout and "Mean Reward" in process.stdout and process.stderr.count("\n") <= 2
    run = tmp_path / "results" / "run"
    names = {path.split("/")[-1].split(".")[0] for path in trainer.contents(run)}
    assert names == {"configuration", "events", "manifest", "metrics", "timers", "training_status"}


def test_inference_resume_acts_with_the_saved_weights(start, results, tmp_path):
    """Evaluation leaves the run as it was: every file of it, players' logs as well, though other settings are given."""
    before = everything(results)
    last = trainer.steps(results)[-1]
    process = start(trainer.config(tmp_path, {"*.hyperparameters.beta": 0.125}), "--inference", "--resume")
    process.says("Not Training.")
    process.interrupt()
    assert process.wait() == 0 and process.leaves_nothing()
    assert f"at step {last}" in process.stdout and "has passed max_steps" not in process.stdout
    assert everything(results) == before


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_logs_of_players_that_only_acted_stay_and_are_named(tmp_path, caplog, writes, fails):
    ending = pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext()
    with caplog.at_level("INFO", "jaxrl"), ending, _log_folder(RunFolder(tmp_path, "run"), kept=False) as logs:
        if writes:
            (logs / "Player-0.log").write_text("NullReferenceException")
        if fails:
            raise KeyboardInterrupt
    told = [record.getMessage() for record in caplog.records]
    if writes:
        assert (logs / "Player-0.log").read_text() == "NullReferenceException"
        assert told == [f"The folder of the run stays as it is: logs of the players are in {logs}."]
        shutil.rmtree(logs)
    else:
        assert not logs.exists() and told == []
    assert list(tmp_path.iterdir()) == []


def everything(folder):
    """Every file and folder below a folder, and when it was last changed."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


def countdown(configuration, spec) -> Behavior:
    settings = load_run_settings(configuration, {}, HYPERPARAMETER_TYPES).behaviors["Countdown"]
    algorithm = ALGORITHMS["poca"](spec, settings)
    programs = compile_programs(algorithm, settings.time_horizon)
    return make_behavior("Countdown", spec, settings, algorithm, programs, jax.random.key(3), training=True)


def collect(behavior: Behavior, env: UnityHostEnv, result: EnvMessage) -> EnvMessage:
    """Act until the behavior is ready to learn; the result that waits for actions."""
    while not behavior.due():
        actions, _ = behavior.act({Source(0, name): steps for name, steps in result.steps.items()})
        result = env.step({name: action for (_, name, _), action in actions.items()})
    return result


def test_saving_between_acting_and_learning_changes_nothing(tmp_path):
    configuration, port = trainer.config(tmp_path), trainer.free_ports()
    env = UnityHostEnv(worker=0, file_name=str(trainer.player(tmp_path)), seed=1, base_port=port, num_areas=4)
    try:
        result = env.reset()
        (spec,) = result.new_specs.values()
        behavior = countdown(configuration, spec)
        result = collect(behavior, env, result)
        behavior.learn()
        result = collect(behavior, env, result)
    finally:
        env.close()
    saved = Saved(train=behavior.state, step=np.int64(behavior.step), decisions=np.int64(behavior.decisions))
    path = checkpoint.save(tmp_path / "Countdown", behavior.step, saved)
    twin = countdown(configuration, spec)
    restored = checkpoint.restore(path, Saved(train=twin.state, step=np.int64(0), decisions=np.int64(0)))
    assert trainer.differing(to_arrays(saved), to_arrays(restored)) == []
    twin.restore(restored.train, step=int(restored.step), decisions=int(restored.decisions))
    paged = twin.actor.paged = copy.copy(behavior.actor.paged)
    paged.slots, paged.pages = copy.deepcopy(paged.slots), copy.deepcopy(paged.pages)
    paged.slots._resize(paged.slots.rows)  # views of its arrays, which a copy of each would no longer be
    paged.buffer, twin.actor.fresh = jax.tree.map(lambda x: x.copy(), paged.buffer), behavior.actor.fresh

    assert behavior.learn() == twin.learn()
    assert trainer.differing(to_arrays(behavior.state), to_arrays(twin.state)) == []
    messages = {Source(0, name): steps for name, steps in result.steps.items()}
    (first, _), (second, _) = behavior.act(messages), twin.act(messages)
    jax.tree.map(np.testing.assert_array_equal, first, second)

"""`jaxrl import-torch` and `jaxrl export-torch`, on what ML-Agents 1.1.0 wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from jaxrl.algorithms import make_settings
from jaxrl.artifacts.checkpoint import store
from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.cli import main
from jaxrl.demonstrations import decisions
from jaxrl.torch.reading import read_torch_file
from jaxrl.torch.stand_ins import missing_demonstrations
from jaxrl.torch.writing import write_torch_file
from jaxrl.training.trained_policy import load_trained
from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec
from tests import trainer

pytestmark = trainer.MARKS
THEIRS = Path(__file__).parents[1] / "torch" / "torch_files"
NETWORK = {"normalize": True, "hidden_units": 4, "num_layers": 1}


def old_run(folder: Path, behavior: str = "Countdown", **changes) -> Path:
    """A run folder as ML-Agents leaves it."""
    run = folder / "old"
    shutil.copytree(THEIRS / "Countdown", run / behavior)
    settings = {"trainer_type": "ppo", "network_settings": {**NETWORK, **changes}, "max_steps": 2000}
    settings["hyperparameters"] = {"batch_size": 64, "buffer_size": 256}
    written = {"behaviors": {behavior: settings}, "checkpoint_settings": {"run_id": "old", "resume": True}}
    (run / "configuration.yaml").write_text(yaml.safe_dump(written))
    (run / "run_logs").mkdir()
    status = {"gravity": {"lesson_num": 2}, behavior: {"checkpoints": []}, "metadata": {"mlagents_version": "1.1.0"}}
    (run / "run_logs" / "training_status.json").write_text(json.dumps(status))
    return run


def command(capsys, name: str, *arguments) -> tuple[int, str]:
    code = main([name, *map(str, arguments)])
    read = capsys.readouterr()
    return code, read.out + read.err


@pytest.fixture(scope="module")
def imported(runs, tmp_path_factory):
    """The run made of it, and what was said."""
    folder = tmp_path_factory.mktemp("imported")
    return folder, main(["import-torch", str(old_run(folder)), "--out", str(folder / "results" / "new")])


def test_a_run_of_ml_agents_becomes_one_of_ours(imported):
    folder, code = imported
    assert code == 0
    run = folder / "results" / "new"
    files = {
        path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file() and "arrays" not in path.parts
    }
    assert {"configuration.yaml", "Countdown.onnx", "Countdown/checkpoint", "Countdown/Countdown-1000.onnx"} <= files
    assert [item.step for item in checkpoints(run / "Countdown")] == [1000]
    status = json.loads((run / "run_logs" / "training_status.json").read_text())
    assert [entry["steps"] for entry in status["Countdown"]["checkpoints"]] == [1000]
    assert status["gravity"] == {"lesson_num": 2}
    kept = yaml.safe_load((run / "configuration.yaml").read_text())["checkpoint_settings"]
    assert (kept["run_id"], kept["results_dir"], kept["resume"]) == ("new", str(folder / "results"), False)
    trained = load_trained(run)
    assert (trained.behavior, trained.step, trained.spec.action) == ("Countdown", 1000, (1, (3,)))
    contents = read_torch_file(THEIRS / "Countdown" / "checkpoint.pt")
    weight = contents["Policy"]["network_body._body_endoder.seq_layers.0.weight"]
    np.testing.assert_array_equal(trained.policy.params["params"]["body"]["layer_0"]["kernel"], weight.T)


def test_what_is_said(tmp_path, capsys):
    run = old_run(tmp_path)
    contents = read_torch_file(run / "Countdown" / "checkpoint.pt")
    write_torch_file(run / "Countdown" / "checkpoint.pt", {**contents, "Module:GAIL": {}})
    arguments = ("import-torch", run / "Countdown" / "checkpoint.pt", "--config", run / "configuration.yaml")
    code, said = command(capsys, *arguments, "--out", tmp_path / "results" / "new")
    assert code == 0
    assert "Countdown: ppo, step 1000, from " in said
    assert "observations: obs_0 5; actions: 1 continuous and branches of 3" in said
    assert "Adam: 3 updates" in said
    assert "not taken: module Module:GAIL" in said
    assert "acts as Countdown-1000.onnx does: actions differ by at most " in said
    assert f"--results-dir={tmp_path / 'results'} --run-id=new --resume" in said
    code, said = command(capsys, *arguments, "--out", tmp_path / "results" / "new")
    assert (code, said) == (1, f"--out {tmp_path / 'results' / 'new'}: is there already. Name a folder that is not, or "
                               "remove this one.\n")  # fmt: skip


def test_and_back(imported, tmp_path, capsys):
    run = imported[0] / "results" / "new"
    code, said = command(capsys, "export-torch", run, "--out", tmp_path / "back.pt")
    assert (code, said) == (0, f"Written to {tmp_path / 'back.pt'}: step 1000.\n")
    first, second = (read_torch_file(path) for path in (THEIRS / "Countdown" / "checkpoint.pt", tmp_path / "back.pt"))
    for module in ("Policy", "Optimizer:critic", "global_step"):
        assert list(first[module]) == list(second[module])
        assert all(first[module][name].tobytes() == second[module][name].tobytes() for name in first[module])
    for number, entry in first["Optimizer:value_optimizer"]["state"].items():
        found = second["Optimizer:value_optimizer"]["state"][number]
        assert all(entry[name].tobytes() == found[name].tobytes() for name in ("step", "exp_avg", "exp_avg_sq"))
    code, said = command(capsys, "export-torch", run, "--out", tmp_path / "back.pt")
    assert (code, said) == (
        1,
        f"--out {tmp_path / 'back.pt'}: is there already. Name another file, or remove this one.\n",
    )


def test_all_behaviors_of_a_run_go_back(tmp_path, capsys):
    run, new = old_run(tmp_path), tmp_path / "results" / "new"
    shutil.copytree(run / "Countdown", run / "Other")
    (run / "Other" / "Countdown-1000.onnx").rename(run / "Other" / "Other-1000.onnx")
    written = yaml.safe_load((run / "configuration.yaml").read_text())
    written["behaviors"]["Other"] = written["behaviors"]["Countdown"]
    (run / "configuration.yaml").write_text(yaml.safe_dump(written))
    assert main(["import-torch", str(run), "--out", str(new)]) == 0
    capsys.readouterr()
    said = command(capsys, "export-torch", new, "--behavior", "Othr")
    assert said == (1, f"--behavior: got Othr, expected one of Countdown, Other, which {new} holds\n")
    said = command(capsys, "export-torch", new, "--out", tmp_path / "one.pt")
    assert said == (1, f"--behavior: {new} holds Countdown, Other, and --out is one file: say whose\n")
    paths = [new / name / "checkpoint.pt" for name in ("Countdown", "Other")]
    told = "".join(f"Written to {path}: step 1000.\n" for path in paths)
    assert command(capsys, "export-torch", new) == (0, told) and paths[0].read_bytes() == paths[1].read_bytes()


def refused(folder: Path, capsys, *arguments) -> str:
    """What an import that fails says; it leaves nothing."""
    code, said = command(capsys, "import-torch", *arguments, "--out", folder / "results" / "new")
    assert code == 1
    assert not (folder / "results" / "new").exists()
    return said


def test_settings_that_do_not_fit(tmp_path, capsys):
    said = refused(tmp_path, capsys, old_run(tmp_path, hidden_units=8, normalize=False))
    assert "checkpoint.pt has 2 problems:" in said
    assert "behaviors.Countdown.network_settings.hidden_units: got 8, but the checkpoint has 4: write 4" in said
    assert "behaviors.Countdown.network_settings.normalize: got false, but the checkpoint has true: write true" in said


def test_files_that_are_missing(tmp_path, capsys):
    run = old_run(tmp_path)
    checkpoint, model = run / "Countdown" / "checkpoint.pt", run / "Countdown" / "Countdown-1000.onnx"
    assert "holds no Walker/checkpoint.pt" in refused(tmp_path, capsys, run, "--behavior", "Walker")
    assert "gone.pt: no such file" in refused(tmp_path, capsys, run / "gone.pt")
    shutil.move(model, tmp_path / "elsewhere.onnx")
    said = refused(tmp_path, capsys, checkpoint)
    assert "does not say what its observations are, and there is no Countdown-1000.onnx beside it" in said
    assert "--onnx FILE), or the environment (--env PATH)" in said
    (run / "configuration.yaml").unlink()
    said = refused(tmp_path, capsys, checkpoint)
    assert f"--config: give the YAML file of the training; {run / 'configuration.yaml'}, which would do" in said


def test_folders_of_an_earlier_run_are_left_out(tmp_path, capsys):
    """ML-Agents writes into the folder of the run before; with `--config` a default may be what trains them."""
    run = old_run(tmp_path)
    shutil.copytree(run / "Countdown", run / "Renamed")
    written = yaml.safe_load((run / "configuration.yaml").read_text())
    written["default_settings"] = written["behaviors"]["Countdown"]
    for number, default in enumerate((False, True)):
        if default:
            (run / "configuration.yaml").write_text(yaml.safe_dump(written))
        new = tmp_path / "results" / f"new{number}"
        code, said = command(capsys, "import-torch", run, "--out", new)
        assert code == 0 and f"left out: {run / 'Renamed'}, which no behavior of the configuration" in said
        assert not (new / "Renamed").exists() and (new / "Countdown").is_dir()
    shutil.copy(run / "configuration.yaml", tmp_path / "own.yaml")
    said = refused(tmp_path, capsys, run, "--config", tmp_path / "own.yaml")
    assert "there is no Renamed-1000.onnx beside it" in said
    shutil.rmtree(run / "Countdown")
    assert "holds no <Behavior>/checkpoint.pt" in refused(tmp_path, capsys, run)


def test_demonstrations_need_not_be_at_hand(tmp_path, capsys):
    """What is imported is as with them, and can be exported again without them."""
    run, new, path = old_run(tmp_path), tmp_path / "results" / "new", r"C:\Demos\walk.demo"
    written = yaml.safe_load((run / "configuration.yaml").read_text())
    written["behaviors"]["Countdown"]["behavioral_cloning"] = {"demo_path": path}
    (run / "configuration.yaml").write_text(yaml.safe_dump(written))
    code, said = command(capsys, "import-torch", run, "--out", new)
    assert code == 0, said
    missing = f"behavioral_cloning.demo_path: {path}: there is no such file or folder of demonstrations"
    assert f"not taken: {missing}; it is needed to go on" in said
    kept = yaml.safe_load((new / "configuration.yaml").read_text())["behaviors"]["Countdown"]
    assert kept["behavioral_cloning"]["demo_path"] == path
    assert load_trained(new).step == 1000
    code, said = command(capsys, "export-torch", new, "--out", tmp_path / "back.pt")
    assert code == 0, said
    first, second = (read_torch_file(path) for path in (run / "Countdown" / "checkpoint.pt", tmp_path / "back.pt"))
    assert all(first["Policy"][name].tobytes() == second["Policy"][name].tobytes() for name in first["Policy"])


def test_a_discriminator_is_made_without_demonstrations_but_not_its_statistics():
    """Arrays have the sizes that demonstrations give; a normaliser begins with what they show, and needs them."""
    spec = BehaviorSpec((ObservationSpec("eye", (3,)), ObservationSpec("camera", (3, 8, 8))), ActionSpec(1, (2, 3)))
    gail = {"demo_path": "gone.demo", "use_actions": True, "network_settings": {"normalize": False}}
    settings = make_settings("ppo", reward_signals={"extrinsic": {}, "gail": gail})
    with missing_demonstrations(settings, spec) as (whole, remarks):
        demo = whole.reward_signals["gail"].demo_path
        assert demo != "gone.demo" and decisions(demo, spec).reward.shape == (1,)
    assert remarks == ["reward_signals.gail.demo_path: gone.demo: there is no such file or folder of demonstrations; "
                       "it is needed to go on"]  # fmt: skip
    gail["network_settings"]["normalize"] = True
    settings = make_settings("ppo", reward_signals={"gail": gail})
    with missing_demonstrations(settings, spec) as (whole, remarks):
        assert whole is settings and remarks == []


def test_a_file_of_another_behavior(tmp_path, capsys):
    run = old_run(tmp_path)
    shutil.move(run / "Countdown", run / "Walker")
    said = refused(tmp_path, capsys, run / "Walker" / "checkpoint.pt")
    assert "lies in the folder Walker, and the configuration lists Countdown: say whose it is" in said


def test_an_onnx_file_of_another_training(tmp_path, capsys):
    run = old_run(tmp_path)
    contents = read_torch_file(run / "Countdown" / "checkpoint.pt")
    name = "action_model._continuous_distribution.mu.bias"
    contents["Policy"][name] = contents["Policy"][name] + np.float32(1)
    write_torch_file(run / "Countdown" / "checkpoint.pt", contents)
    said = refused(tmp_path, capsys, run)
    assert "its policy does not act as " in said
    assert "(actions differ by up to 0.333, 100% of the choices are the same)" in said


@pytest.mark.slow
def test_an_imported_run_goes_on_and_others_start_from_it(tmp_path, start, capsys):
    run = old_run(tmp_path)
    assert main(["import-torch", str(run), "--out", str(tmp_path / "results" / "run")]) == 0
    shape = {"*.network_settings.hidden_units": 4, "*.trainer_type": "ppo", "*.max_steps": 1300}
    config = trainer.config(tmp_path, shape)
    resumed = start(config, "--resume")
    assert resumed.wait(400) == 0, resumed.stderr
    assert "resuming from" in resumed.stdout
    assert "at step 1000" in resumed.stdout.replace("\n", " ")
    assert trainer.steps(tmp_path / "results")[0] == 1000
    assert trainer.steps(tmp_path / "results")[-1] > 1300
    info = store.read_info(store.require_latest(tmp_path / "results" / "run" / "Countdown"))
    assert info.step > 1300
    begun = start(config, "--initialize-from", "run", run_id="begun")
    assert begun.wait(400) == 0, begun.stderr
    assert "initialized from" in begun.stdout
    code, said = command(capsys, "export-torch", tmp_path / "results" / "run")
    assert code == 0, said
    written = read_torch_file(tmp_path / "results" / "run" / "Countdown" / "checkpoint.pt")
    (step,) = written["global_step"]["_GlobalSteps__global_step"].tolist()
    assert step == info.step
    updates = written["Optimizer:value_optimizer"]["state"][6]["step"]
    assert updates > 3

"""The command line: flags to settings, and real processes that refuse bad input before they write anything."""

import argparse
import logging
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxrl.cache import cache_folder
from jaxrl.cli import commands, device, main
from jaxrl.cli.flags import MLAGENTS_FLAGS, overrides_from, removed_flags, swallowed_flags
from jaxrl.client.policy import load
from jaxrl.compilation import enable_compilation_cache
from jaxrl.settings import RunSettings, SettingsError, with_drawn_seed
from jaxrl.training.host.run import train
from jaxrl.types import JaxrlError


def parse(*argv: str) -> argparse.Namespace:
    return commands.parse(["train", *argv])


def jaxrl(folder: Path, *argv: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "JAXRL_CACHE_DIR": str(folder.parent / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "jaxrl.cli", *argv],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_flags_left_out_override_nothing():
    assert overrides_from(parse()) == {}
    assert overrides_from(parse("run.yaml")) == {}


def test_every_flag():
    values = {
        "--env": ("env_settings", "env_path", "game"),
        "--run-id": ("checkpoint_settings", "run_id", "x"),
        "--initialize-from": ("checkpoint_settings", "initialize_from", "y"),
        "--results-dir": ("checkpoint_settings", "results_dir", "out"),
        "--checkpoint-minutes": ("checkpoint_settings", "checkpoint_minutes", 2.5),
        "--seed": ("env_settings", "seed", -1),
        "--num-envs": ("env_settings", "num_envs", 2),
        "--num-areas": ("env_settings", "num_areas", 3),
        "--base-port": ("env_settings", "base_port", 6000),
        "--listen": ("env_settings", "listen", "0.0.0.0"),
        "--timeout-wait": ("env_settings", "timeout_wait", 5.0),
        "--max-lifetime-restarts": ("env_settings", "max_lifetime_restarts", -1),
        "--restarts-rate-limit-n": ("env_settings", "restarts_rate_limit_n", 2),
        "--restarts-rate-limit-period-s": ("env_settings", "restarts_rate_limit_period_s", 9.0),
        "--mode": ("env_settings", "mode", "async"),
        "--width": ("engine_settings", "width", 1),
        "--height": ("engine_settings", "height", 2),
        "--quality-level": ("engine_settings", "quality_level", 3),
        "--time-scale": ("engine_settings", "time_scale", 4.0),
        "--target-frame-rate": ("engine_settings", "target_frame_rate", 5),
        "--capture-frame-rate": ("engine_settings", "capture_frame_rate", 6),
        "--torch-device": ("torch_settings", "device", "cpu"),
        "--device": ("torch_settings", "device", "tpu"),
    }
    switches = {
        "--resume": ("checkpoint_settings", "resume"),
        "--force": ("checkpoint_settings", "force"),
        "--inference": ("checkpoint_settings", "inference"),
        "--exact": ("checkpoint_settings", "exact"),
        "--load": ("checkpoint_settings", "load_model"),
        "--train": ("checkpoint_settings", "train_model"),
        "--no-graphics": ("engine_settings", "no_graphics"),
        "--no-graphics-monitor": ("engine_settings", "no_graphics_monitor"),
        "--inline": ("env_settings", "inline"),
    }
    for flag, (section, key, value) in values.items():
        assert overrides_from(parse(flag, str(value))) == {section: {key: value}}
    for flag, (section, key) in switches.items():
        assert overrides_from(parse("c.yaml", flag)) == {section: {key: True}}
    assert overrides_from(parse("--debug")) == {"debug": True}
    deterministic = {"behaviors": {"*": {"network_settings": {"deterministic": True}}}}
    assert overrides_from(parse("--deterministic")) == deterministic
    assert removed_flags(parse("--torch", "--tensorflow")) == ["--torch", "--tensorflow"]
    assert overrides_from(parse("--torch")) == {}
    assert swallowed_flags(parse("--seeds", "1", "--env-args", "size=3", "--run-id=a", "--level", "--seeds", "2")) == [
        "--run-id=a",
        "--seeds",
    ]
    assert swallowed_flags(parse("--run-id", "a")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian", "c.yaml"], "no such command, did you mean train? there are "),
        (["train", "c.yaml", "--nographics"], "unrecognized arguments: --nographics (did you mean --no-graphics?)"),
        (["learn", "--run-idd=x"], "unrecognized arguments: --run-idd=x (did you mean --run-id?)"),
        (["report", "a", "b", "--flims"], "unrecognized arguments: --flims (did you mean --films?)"),
        (
            ["train", "c.yaml", "--keep-checkpoints=3"],
            "--keep-checkpoints is a flag of ML-Agents before 0.18: now --set "
            "keep_checkpoints=N, or keep_checkpoints of each behavior in the file\n",
        ),
        (["learn", "c.yaml", "--curriculum", "c"], "flag of ML-Agents before 0.18: now `jaxrl upgrade-config CONFIG "),
        (["report", "a", "--sampler=b"], "unrecognized arguments: --sampler=b\n"),
        (["train", "--hosst=a:1"], "unrecognized arguments: --hosst=a:1 (did you mean --hosts?)"),
        (["train", "--xyzzy"], "unrecognized arguments: --xyzzy\n"),
    ],
)
def test_a_slip_of_the_pen_is_told_what_was_meant(capsys, words, said):
    with pytest.raises(SystemExit, match="2"):
        commands.parse(words)
    assert said in capsys.readouterr().err


def test_a_shell_learns_every_command_and_flag(capsys):
    given = commands.parse(["completion", "bash"])
    assert commands.run(given) == 0
    script = capsys.readouterr().out
    assert "--initialize-from" in script and "--films" in script and "upgrade-config" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False, timeout=20).returncode == 0


def test_python_m_jaxrl_is_the_command_and_its_help_imports_no_jax():
    program = "import runpy, sys; sys.argv = ['jaxrl', '--help']\ntry: runpy.run_module('jaxrl', run_name='__main__')\n"
    program += "except SystemExit: print(sorted({'jax', 'flax', 'shtab', 'pydantic'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=root
    )
    assert ended.stdout.startswith("usage: jaxrl ") and ended.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("name", "system", "advice"),
    [
        ("cuda", "win32", "inside WSL2 install JAX for CUDA (pip install -U 'jax[cuda12]')"),
        ("gpu", "linux", "install JAX for CUDA (pip install -U 'jax[cuda12]') and check that nvidia-smi"),
        ("cuda", "darwin", "choose cpu: JAX computes on no GPU of a Mac"),
        ("tpu", "linux", "pip install -U 'jax[tpu]'"),
    ],
)
def test_what_to_do_where_there_is_no_such_device(monkeypatch, name, system, advice):
    monkeypatch.setattr(sys, "platform", system)
    assert advice in device.advice(name)


def test_float64_is_left_aside_by_commands_and_refused_in_python(tmp_path):
    jax.config.update("jax_enable_x64", True)
    try:
        for use in (lambda: load(tmp_path), lambda: train(RunSettings())):
            with pytest.raises(JaxrlError, match="jaxrl computes in float32: leave the variable out"):
                use()
    finally:
        jax.config.update("jax_enable_x64", False)
    code = (
        "from jaxrl.cli.device import compute_on_cpu as c; c(); import jax.numpy as n; print(n.zeros(1, float).dtype)"
    )
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "float32"


def test_a_device_that_is_not_there_is_refused():
    assert jax.devices()[0].platform == "cpu", "as everywhere in the tests; it has begun"
    names = ("jax_platforms", "jax_cuda_visible_devices", "jax_cpu_enable_async_dispatch")
    before = {name: jax.config.values[name] for name in names}
    words = r"torch_settings\.device: got '{}', but JAX offers only cpu: .*, or choose cpu"
    try:
        for name in ("gpu", "cuda:1", "tpu"):
            with pytest.raises(SettingsError, match=words.format(name)):
                device.choose_device(name)
        device.choose_device("cpu")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_env_args_take_the_rest():
    overrides = overrides_from(parse("c.yaml", "--seed", "3", "--env-args", "-logFile", "--seed", "4"))
    assert overrides == {"env_settings": {"seed": 3, "env_args": ["-logFile", "--seed", "4"]}}


def test_help_shows_public_flags_with_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "(default: 5005)" in text and "(default: results)" in text and "--restarts-rate-limit-n" in text
    assert "--load " not in text and "--train " not in text
    assert text.isascii()


def test_learn_takes_and_shows_the_flags_of_the_original(capsys):
    """The public ones with ML-Agents' defaults; jaxrl's own are taken and not shown."""
    with pytest.raises(SystemExit, match="0"):
        commands.parse(["learn", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    hidden = {"--load", "--train"}
    for flag in set(MLAGENTS_FLAGS) - hidden:
        assert f" {flag} " in text.replace(",", " ").replace("[", " ").replace("]", " ") + " ", flag
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.partition("options:")[2]))
    assert shown == set(MLAGENTS_FLAGS) - hidden and "several hosts" not in text
    defaults = {
        "--run-id": "ppo",
        "--results-dir": "results",
        "--base-port": "5005",
        "--num-envs": "1",
        "--width": "84",
    }
    defaults |= {"--height": "84", "--quality-level": "5", "--time-scale": "20.0", "--target-frame-rate": "-1"}
    defaults |= {"--capture-frame-rate": "60", "--timeout-wait": "60.0", "--max-lifetime-restarts": "10"}
    options = text.partition("options:")[2]
    for flag, value in defaults.items():
        assert f"(default: {value})" in options.partition(f"{flag} ")[2].partition(" --")[0], flag
    given = commands.parse(["learn", "c.yaml", "--seeds", "2", "--run-id=x"])
    assert overrides_from(given) == {"env_settings": {"seeds": 2}, "checkpoint_settings": {"run_id": "x"}}
    assert given.command is commands.parse(["train"]).command


def test_flags_may_be_cut_short():
    """As argparse allows it to ML-Agents' flags; what only a flag of jaxrl makes ambiguous means ML-Agents'."""
    for short, flag in {
        "--ini=y": "--initialize-from=y",
        "--se=3": "--seed=3",  # not --seeds or --set
        "--w=9": "--width=9",  # not --wandb or --workers
        "--max=1": "--max-lifetime-restarts=1",  # not --mode
        "--cap=2": "--capture-frame-rate=2",
        "--resum": "--resume",
        "--l": "--load",
        "--no-graphics-": "--no-graphics-monitor",
        "--inl": "--inline",
        "--che=2": "--checkpoint-minutes=2",
    }.items():
        assert overrides_from(parse(short)) == overrides_from(parse(flag)) != {}, short
    assert removed_flags(parse("--tens")) == ["--tensorflow"]
    assert overrides_from(parse("--num-e", "4", "--env-a", "--se", "--x")) == {
        "env_settings": {"num_envs": 4, "env_args": ["--se", "--x"]}
    }


@pytest.mark.parametrize(
    ("short", "flags"),
    [
        ("--no-g", "--no-graphics, --no-graphics-monitor"),
        ("--en", "--env, --env-args"),
        ("--tor", "--torch-device, --torch"),
        ("--resu", "--results-dir, --resume"),
    ],
)
def test_what_is_ambiguous_for_the_original_is_refused_as_there(capsys, short, flags):
    with pytest.raises(SystemExit, match="2"):
        parse(short)
    assert f"ambiguous option: {short} could match {flags}" in capsys.readouterr().err


def test_other_commands_take_flags_in_full(capsys):
    for words in (["init", "--forc"], ["sweep", "--resul", "x"]):
        with pytest.raises(SystemExit, match="2"):
            commands.parse(words)
    assert "--forc" in capsys.readouterr().err


def test_seed_is_drawn_once(caplog):
    caplog.set_level(logging.INFO)
    drawn = with_drawn_seed(RunSettings())
    assert 0 <= drawn.env_settings.seed <= 9999 and str(drawn.env_settings.seed) in caplog.text
    assert with_drawn_seed(drawn) is drawn


def test_cache_folder_that_cannot_be_made_is_a_warning(tmp_path, monkeypatch, caplog):
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setenv("JAXRL_CACHE_DIR", str(file))
    assert cache_folder() == file
    kept = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_compilation_cache_dir", None)
    enabled = enable_compilation_cache()
    jax.config.update("jax_compilation_cache_dir", kept)
    assert enabled is None
    assert "JAXRL_CACHE_DIR" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="folder layout of Linux")
def test_cache_folder_of_the_platform(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXRL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "jaxrl"


def test_command_line_module_imports_no_jax():
    found = "any(name.split('.')[0] in ('jax', 'flax', 'optax') for name in sys.modules)"
    code = f"import sys, jaxrl.cli.commands; sys.exit({found})"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_version_and_usage(tmp_path):
    version = jaxrl(tmp_path, "--version")
    assert (
        version.returncode == 0 and version.stdout.startswith("jaxrl ") and "communicator API 1.5.0" in version.stdout
    )
    with pytest.raises(SystemExit, match="2"):
        parse("--num-envs", "many")


BAD = {
    "lost file": ("", ["lost.yaml"], "configuration file not found: {cwd}/lost.yaml"),
    "typo": (
        "behaviors: {A: {trainer_type: ppo, hyperparameters: {bufer_size: 1}}}",
        ["{config}"],
        "behaviors.A.hyperparameters.bufer_size: unknown key, did you mean buffer_size?",
    ),
    "areas": ("behaviors: {A: {}}", ["{config}", "--num-areas", "0"], "env_settings.num_areas: got 0, expected"),
    "editor": ("behaviors: {A: {}}", ["{config}", "--num-envs", "2"], "env_settings.num_envs: got 2, expected 1"),
    "load": ("behaviors: {A: {}}", ["{config}", "--load"], "checkpoint_settings.load_model: no longer supported"),
    "sac": (
        "behaviors: {A: {trainer_type: sac, hyperparameters: {batch_size: 9, buffer_size: 8}}}",
        ["{config}"],
        "behaviors.A.hyperparameters.batch_size: got 9, expected at most hyperparameters.buffer_size, which is 8",
    ),
    "no executable": (
        "behaviors: {A: {}}",
        ["{config}", "--env", "nowhere/Game"],
        "env_settings.env_path: no executable environment at 'nowhere/Game'",
    ),
    "device": (
        "behaviors: {A: {}}",
        ["{config}", "--torch-device", "mps"],
        "torch_settings.device: got 'mps', expected cpu, gpu, tpu, cuda or cuda:N: JAX has no released support",
    ),
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """An empty working folder beside the configuration file; the program's logger is as before afterwards."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    logger = logging.getLogger("jaxrl")
    before = logger.handlers[:], logger.level, logger.propagate
    yield folder, tmp_path / "run.yaml"
    logger.handlers[:], logger.level, logger.propagate = before


def write_case(case: str, folder: Path, config: Path) -> tuple[list[str], str]:
    text, argv, message = BAD[case]
    config.write_text(text, encoding="utf-8")
    return ["train", *(argument.format(config=config) for argument in argv)], message.format(cwd=folder)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_leaves_nothing(folders, capsys, case):
    folder, config = folders
    argv, message = write_case(case, folder, config)
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("case", ["typo", "no executable"])
def test_bad_input_in_a_real_process(folders, case):
    folder, config = folders
    argv, message = write_case(case, folder, config)
    done = jaxrl(folder, *argv)
    assert done.returncode == 1
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_debug_shows_the_traceback(folders, capsys):
    assert main(["train", "lost.yaml", "--debug", "--torch", "--env-args", "--run-id", "a"]) == 1
    printed = capsys.readouterr()
    assert "Traceback" in printed.err
    assert printed.err.strip().splitlines()[-1].startswith("configuration file not found")
    assert "--torch has no effect" in printed.out and "WARNING [train.py:" in printed.out
    assert "--run-id goes to the environment; put it before" in " ".join(printed.out.split())


@pytest.mark.skipif(os.name == "nt", reason="files have no executable bit on Windows")
def test_file_that_may_not_be_executed(folders, capsys):
    game = folders[0] / "Game.x86_64"
    game.write_text("#!/bin/sh\n")
    game.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert main(["train", "--env", "Game"]) == 1
    assert "chmod +x" in capsys.readouterr().err


def test_a_full_device_is_one_sentence(capsys):
    """JAX's own error, of an array that no machine holds; another error of JAX stays what it is."""
    import jax.numpy as jnp

    given = argparse.Namespace(command=lambda _: jnp.zeros(2**45), debug=False)
    assert commands.run(given) == 1
    told = capsys.readouterr().err
    assert told.startswith("the memory of the device is full (RESOURCE_EXHAUSTED: Out of memory allocating")
    assert told.count("\n") == 1 and "lower num_areas" in told and "XLA_PYTHON_CLIENT_PREALLOCATE" in told

    def fails(_):
        raise RuntimeError("Out of memory")

    with pytest.raises(RuntimeError):
        commands.run(argparse.Namespace(command=fails, debug=False))

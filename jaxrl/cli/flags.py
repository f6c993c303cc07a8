"""The flags of `jaxrl train`: ML-Agents' names, each standing for one key of the configuration file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

from jaxrl.settings import RunSettings
from jaxrl.settings.inheritance import EVERY_LISTED, merge
from jaxrl.settings.records import USUAL_PROJECT, USUAL_STORE
from jaxrl.settings.section import SettingsError
from jaxrl.settings.sweep import overrides_of, parsed

_VALUES: tuple[tuple[str, str, type, str], ...] = (
    ("--env", "env_settings.env_path", str, "PATH"),
    ("--run-id", "checkpoint_settings.run_id", str, "ID"),
    ("--initialize-from", "checkpoint_settings.initialize_from", str, "ID"),
    ("--results-dir", "checkpoint_settings.results_dir", str, "DIR"),
    ("--checkpoint-minutes", "checkpoint_settings.checkpoint_minutes", float, "MINUTES"),
    ("--seed", "env_settings.seed", int, "N"),
    ("--seeds", "env_settings.seeds", int, "N"),
    ("--num-envs", "env_settings.num_envs", int, "N"),
    ("--num-areas", "env_settings.num_areas", int, "N"),
    ("--base-port", "env_settings.base_port", int, "PORT"),
    ("--listen", "env_settings.listen", str, "ADDRESS"),
    ("--timeout-wait", "env_settings.timeout_wait", float, "SECONDS"),
    ("--max-lifetime-restarts", "env_settings.max_lifetime_restarts", int, "N"),
    ("--restarts-rate-limit-n", "env_settings.restarts_rate_limit_n", int, "N"),
    ("--restarts-rate-limit-period-s", "env_settings.restarts_rate_limit_period_s", float, "SECONDS"),
    ("--on-bad-data", "env_settings.on_bad_data", str, "error|restart"),
    ("--editor-wait", "env_settings.editor_wait", float, "SECONDS"),
    ("--video", "env_settings.video_every", int, "EPISODES"),
    ("--mode", "env_settings.mode", str, "lockstep|async"),
    ("--workers", "env_settings.workers", str, "processes|ray://HOST:PORT|ray://auto"),
    ("--width", "engine_settings.width", int, "PIXELS"),
    ("--height", "engine_settings.height", int, "PIXELS"),
    ("--quality-level", "engine_settings.quality_level", int, "N"),
    ("--time-scale", "engine_settings.time_scale", float, "X"),
    ("--target-frame-rate", "engine_settings.target_frame_rate", int, "N"),
    ("--capture-frame-rate", "engine_settings.capture_frame_rate", int, "N"),
    ("--torch-device", "torch_settings.device", str, "cpu|cuda|cuda:N"),
    ("--device", "torch_settings.device", str, "cpu|gpu|tpu"),
)
_SWITCHES = (
    ("--resume", "checkpoint_settings.resume"),
    ("--force", "checkpoint_settings.force"),
    ("--inference", "checkpoint_settings.inference"),
    ("--exact", "checkpoint_settings.exact"),
    ("--no-graphics", "engine_settings.no_graphics"),
    ("--no-graphics-monitor", "engine_settings.no_graphics_monitor"),
    ("--render", "env_settings.render"),
    ("--inline", "env_settings.inline"),
)
_OPTIONAL_VALUES = (  # given without a value they mean the last one
    ("--wandb", "record_settings.wandb", "PROJECT", USUAL_PROJECT),
    ("--mlflow", "record_settings.mlflow", "URI", USUAL_STORE),
)
_HIDDEN_SWITCHES = (("--load", "checkpoint_settings.load_model"), ("--train", "checkpoint_settings.train_model"))
_REMOVED = ("--torch", "--tensorflow")
_REMOVED_DEST = "removed"
MLAGENTS_FLAGS = (
    "--base-port", "--capture-frame-rate", "--debug", "--deterministic", "--env", "--env-args", "--force", "--height",
    "--help", "--inference", "--initialize-from", "--load", "--max-lifetime-restarts", "--no-graphics",
    "--no-graphics-monitor", "--num-areas", "--num-envs", "--quality-level", "--restarts-rate-limit-n",
    "--restarts-rate-limit-period-s", "--results-dir", "--resume", "--run-id", "--seed", "--target-frame-rate",
    "--tensorflow", "--time-scale", "--timeout-wait", "--torch", "--torch-device", "--train", "--width",
)  # fmt: skip
"""Flags of `mlagents-learn`, hidden ones too. They may be abbreviated."""
FORMER_FLAGS = {
    "--keep-checkpoints": "--set keep_checkpoints=N, or keep_checkpoints of each behavior in the file",
    "--save-freq": "--set checkpoint_interval=N, or checkpoint_interval of each behavior in the file",
    "--curriculum": "`jaxrl upgrade-config CONFIG CURRICULUM`, which makes lessons of environment_parameters of it",
    "--sampler": "`jaxrl upgrade-config CONFIG SAMPLER`, which makes samplers of environment_parameters of it",
    "--lesson": "leave it out: a run begins with the first lesson, and --resume goes on in its own",
    "--slow": "--time-scale 1",
    "--worker-id": "--base-port N",
    "--num-runs": "a command for each --run-id, or --seeds N",
    "--cpu": "--device cpu",
    "--multi-gpu": "leave it out: a run uses what JAX shows",
    "--docker-target-name": "--results-dir DIR",
}
"""Flags of `mlagents-learn` before 0.18, and their replacements now."""
SET = "set"
"""Attribute of the parsed arguments that holds --set."""
STRICT = "strict"
"""Attribute of the parsed arguments that holds --strict."""


def add_flags(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add all flags; `several`: --set takes several values.

    None has a default, so that only flags really given reach `overrides_from`.
    """
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    for flag, key, kind, metavar in _VALUES:
        add(flag, dest=key, type=kind, metavar=metavar, help=_help(key, with_default=True))
    for flag, key, metavar, usual in _OPTIONAL_VALUES:
        add(flag, dest=key, nargs="?", const=usual, metavar=metavar, help=_help(key))
    for flag, key in _SWITCHES:
        add(flag, dest=key, action="store_true", help=_help(key))
    for flag, key in _HIDDEN_SWITCHES:
        add(flag, dest=key, action="store_true", help=argparse.SUPPRESS)
    for flag in _REMOVED:
        add(flag, dest=_REMOVED_DEST, action="append_const", const=flag, help="(removed) has no effect")
    deterministic = f"behaviors.{EVERY_LISTED}.network_settings.deterministic"
    text = "listed behaviors act with the mean or most likely action"
    add("--deterministic", dest=deterministic, action="store_true", help=text)
    text = f"{RunSettings.model_fields['callbacks'].description}; may be given several times"
    add("--callbacks", dest="callbacks", action="append", metavar="MODULE:CLASS", help=text)
    form = "KEY=VALUE[,VALUE...]" if several else "KEY=VALUE"
    text = (
        "any setting of every behavior (hyperparameters.learning_rate=1e-3), or of the run "
        "(environment_parameters.gravity=9.8); may be given several times"
    )
    add("--set", dest=SET, action="append", metavar=form, help=text)
    text = "refuse unknown keys that ML-Agents passes over (of networks, memory, self_play, behavioral_cloning)"
    add("--strict", dest=STRICT, action="store_true", help=text)
    add("--debug", dest="debug", action="store_true", help="log in detail, show tracebacks")
    text = "takes the rest of the line for the environment's executable; must come last"
    add("--env-args", dest="env_settings.env_args", nargs=argparse.REMAINDER, metavar="...", help=text)


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of several hosts. They are no settings: they differ on each host and after a resume."""
    title = "several hosts of a compiled run (the same command on each)"  # not shown where the flags are hidden
    several = parser.add_argument_group(title)
    several.add_argument("--hosts", metavar="HOST:PORT|auto", help="where host 0 is; auto: as JAX finds them by itself")
    several.add_argument("--host-id", type=int, metavar="I", help="which one this is, from 0 on; 0 writes all files")
    several.add_argument("--host-count", type=int, metavar="N", help="how many there are")


def _help(key: str, with_default: bool = False) -> str:
    section, name = key.split(".")
    kind: Any = RunSettings.model_fields[section].annotation
    field = (get_args(kind) or (kind,))[0].model_fields[name]  # an optional section has the type `Section | None`
    default = f" (default: {'none' if field.default is None else field.default})" if with_default else ""
    return f"{field.description}{default}".replace("%", "%%")


def add_environment_arguments(parser: argparse.ArgumentParser, usual: str = "none") -> None:
    """Add `--env-args` of the commands that play an environment made by a Python function."""
    parser.add_argument(
        "--env-args", nargs="+", metavar="key=value", help=f"arguments of the environment (default: {usual})"
    )


def count(text: str) -> int:
    """Return a positive whole number, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number, at least 1")
    return int(text)


def overrides_from(given: argparse.Namespace) -> dict[str, Any]:
    """Return the flags really given, shaped like a configuration file."""
    values = {key: value for key, value in vars(given).items() if key.partition(".")[0] in RunSettings.model_fields}
    return merge(overrides_of(_values(getattr(given, SET, ()))), overrides_of(values))


def _values(written: Sequence[str]) -> dict[str, Any]:
    """Return values of --set KEY=VALUE by key. Raises SettingsError for several values, which belong to a sweep."""
    values_by_key = {}
    for text in written:
        key, values = parsed(text)
        if len(values) > 1:
            raise SettingsError(f"--set {text}: got {len(values)} values, expected one; `jaxrl sweep` takes several")
        values_by_key[key] = values[0]
    return values_by_key


def swallowed_flags(given: argparse.Namespace) -> list[str]:
    """Return flags of jaxrl behind --env-args, which takes the rest of the line: they reach the environment alone."""
    parser = argparse.ArgumentParser(add_help=False)
    add_flags(parser)
    words = getattr(given, "env_settings.env_args", None) or ()
    return [word for word in words if word.partition("=")[0] in parser._option_string_actions]


def removed_flags(given: argparse.Namespace) -> list[str]:
    """Return flags given that have no meaning any more."""
    return list(getattr(given, _REMOVED_DEST, []))

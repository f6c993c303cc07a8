"""Settings of a whole run: the eight sections of a configuration file."""

from __future__ import annotations

import ipaddress
import logging
import random
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from jaxrl.settings.behavior import BehaviorSettings
from jaxrl.settings.environment_parameters import EnvironmentParameter, judged_behaviors
from jaxrl.settings.records import RecordSettings
from jaxrl.settings.section import (
    Boolean,
    Count,
    Integer,
    Location,
    NonNegative,
    Positive,
    Section,
    Text,
    expected,
    nearest,
    unwritten,
)

_LAST_PORT = 65535
_SEEDS = 10000
LARGEST_SEED = 2**31 - 1

logger = logging.getLogger(__name__)

Limit = Annotated[Integer, Field(ge=-1)]


PROCESSES = "processes"


def _place(value: str) -> str:
    if value != PROCESSES and not re.fullmatch(r"ray://(auto|[^\s:/]+:[0-9]+)", value):
        raise expected(f"{PROCESSES}, ray://HOST:PORT (Ray's client port, 10001) or ray://auto")
    return value


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise expected("an IP address of this machine, such as 192.168.1.5, or 0.0.0.0 or :: for all of them") from None


class EnvironmentSettings(Section):
    """Environment of a run: which, how many, and what happens when it fails."""

    env_path: Text | None = Field(
        default=None,
        description="executable of the environment, or player:NAME for one of jaxrl's own; jax:NAME, jaxmarl:NAME, "
        "gymnax:NAME, or FILE.py:FUNCTION that makes one: compiled together with the learner; gymnasium:ID, "
        "pettingzoo:MODULE, rllib:MODULE:CLASS; null: the Unity Editor",
    )
    env_args: tuple[Text, ...] | None = Field(
        default=None,
        description="appended to the executable's command line; key=value for environments made by a Python function, "
        "such as gymnasium:, jaxmarl: and jax:",
    )
    base_port: Integer = Field(
        default=5005, ge=1, le=_LAST_PORT, description="port of worker 0; worker i uses base_port + i"
    )
    listen: Annotated[Text, AfterValidator(_address)] | None = Field(
        default=None,
        description="IP address of this machine at which players of a container or of another machine call, 0.0.0.0 "
        "for all; whoever is first is served. null: loopback, for the player that was started, or the Editor",
    )
    message_megabytes: Annotated[Count, Field(le=2047)] = Field(default=256, description="a player may send at once")
    num_envs: Count = Field(default=1, description="environment processes")
    num_areas: Count = Field(default=1, description="training areas in each process, or of each seed")
    seeds: Count = Field(default=1, description="runs side by side, with seed, seed + 1 ...; jax: environments only")
    timeout_wait: Positive = Field(default=60.0, description="seconds to wait for an environment's answer")
    seed: Limit = Field(
        default=-1, le=LARGEST_SEED, description="seed of the run; worker i gets seed + i; -1: drawn from 0 to 9999"
    )
    max_lifetime_restarts: Limit = Field(default=10, description="restarts of a worker in the whole run; -1: no limit")
    restarts_rate_limit_n: Limit = Field(
        default=1, description="restarts within restarts_rate_limit_period_s; -1: no limit"
    )
    restarts_rate_limit_period_s: NonNegative = Field(default=60.0, description="seconds")
    on_bad_data: Literal["error", "restart"] = Field(
        default="error",
        description="what unusable data of an agent do (not finite, wrong shape, broken PNG): end the run, or restart",
    )
    editor_wait: NonNegative = Field(
        default=60.0, description="seconds to wait for Play after a stop in the Unity Editor; 0: the run ends there"
    )
    mode: Literal["lockstep", "async"] = Field(
        default="lockstep",
        description="lockstep: workers in fixed order, reproducible; async: whichever is ready first",
    )
    workers: Annotated[Text, AfterValidator(_place)] = Field(
        default=PROCESSES,
        description="where environments run: processes of this machine, or a Ray cluster: ray://HOST:PORT or ray://auto",
    )
    render: Boolean = Field(
        default=False, description="show the first area of worker 0 in a window (gymnasium: and pettingzoo:)"
    )
    video_every: Annotated[Integer, Field(ge=0)] = Field(
        default=0,
        description="film every n-th episode of the first area of worker 0 (gymnasium: and pettingzoo:) into the run's "
        "folder videos; 0: none",
    )
    time_statistics: Boolean = Field(
        default=False, description="write Time/...: smoothed milliseconds of an environment step, by phase and worker"
    )
    outside_actions: Literal["train", "leave_out"] = Field(
        default="train",
        description="decisions that the environment took itself: train: learned from as if the policy had chosen so; "
        "leave_out: not learned from",
    )
    missing: Literal["carry", "truncate"] = Field(
        default="carry",
        description="agents that are silent without an ending: carry: they are waited for, unless hundreds are silent "
        "for longer than any that came back; truncate: interrupted after missing_after messages",
    )
    missing_after: Count = Field(
        default=1000, description="messages of its environment without an agent after which missing: truncate ends it"
    )
    inline: Boolean = Field(default=False, description="environments in the trainer's own process, for debugging")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield problems: several Editors, ports above 65535, environments in two places."""
        if self.workers != PROCESSES and self.inline:
            yield ("workers",), f"got {self.workers}, expected {PROCESSES} with inline: environments are in one place"
        if self.workers != PROCESSES and self.env_path is None:
            text = f"got {self.workers}, expected {PROCESSES} without env_path: the Editor is on this machine"
            yield ("workers",), text
        if self.num_envs > 1 and self.env_path is None:
            text = f"got {self.num_envs}, expected 1 without env_path: several environments need an executable (--env)"
            yield ("num_envs",), text
        if self.base_port + self.num_envs - 1 > _LAST_PORT:
            text = f"got {self.base_port}, expected a port that leaves {self.num_envs} up to {_LAST_PORT}"
            yield ("base_port",), text


class EngineSettings(Section):
    """Screen and clock of the Unity engine."""

    width: Count = Field(default=84, description="window width in pixels")
    height: Count = Field(default=84, description="window height in pixels")
    quality_level: Integer = Field(default=5, ge=0, description="Unity's quality level")
    time_scale: Positive = Field(default=20.0, description="engine time per real time")
    target_frame_rate: Limit = Field(default=-1, description="frames per second; -1: the engine's default")
    capture_frame_rate: Integer = Field(default=60, ge=0, description="engine frames per engine second; 0: off")
    no_graphics: Boolean = Field(default=False, description="no rendering")
    no_graphics_monitor: Boolean = Field(default=False, description="rendering in worker 0 alone")


class CheckpointSettings(Section):
    """Folder of a run and the weights that it starts from."""

    run_id: Text = Field(default="ppo", min_length=1, description="name of the run and of its folder")
    initialize_from: Text | None = Field(
        default=None, description="run id in results_dir to take the first weights from"
    )
    load_model: Boolean = Field(default=False, description="gone: use resume")
    resume: Boolean = Field(default=False, description="continue the run of this run_id")
    force: Boolean = Field(default=False, description="overwrite the run of this run_id")
    train_model: Boolean = Field(default=False, description="deprecated, has no effect: training is the default")
    inference: Boolean = Field(default=False, description="act only: no training and no checkpoints")
    exact: Boolean = Field(
        default=False,
        description="at each checkpoint, made after an update, seed the environments anew and begin new episodes, "
        "so that a resumed run equals one that was never stopped",
    )
    checkpoint_minutes: Positive | None = Field(
        default=None, description="a checkpoint also when the last one is so many minutes old; null: by steps alone"
    )
    results_dir: Text = Field(default="results", min_length=1, description="folder that holds the folders of all runs")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield a problem for load_model, which the original accepts without loading anything: that loses a run."""
        if self.load_model:
            yield ("load_model",), "no longer supported, use resume: true or --resume"


def _device(value: str) -> str:
    if value == "mps":
        raise expected(
            "cpu, gpu, tpu, cuda or cuda:N: JAX has no released support for Apple's GPUs, on a Mac choose cpu"
        )
    if not re.fullmatch(r"cpu|gpu|tpu|cuda(:[0-9]+)?", value):
        raise expected("cpu, gpu, tpu, cuda or cuda:N")
    return value


class TorchSettings(Section):
    """The accelerator, under the name that configuration files give it."""

    device: Annotated[Text, AfterValidator(_device)] | None = Field(
        default=None, description="cpu, gpu, tpu, cuda or cuda:N; null: what JAX prefers"
    )


class RunSettings(Section):
    """Everything that one run needs to know, under the names of ML-Agents' configuration files."""

    default_settings: BehaviorSettings | None = Field(default=None, description="for behaviors that are not listed")
    behaviors: dict[str, BehaviorSettings] = Field(default={}, description="settings by behavior name")
    env_settings: EnvironmentSettings = Field(default=EnvironmentSettings(), description="the environment")
    engine_settings: EngineSettings = Field(default=EngineSettings(), description="the Unity engine")
    environment_parameters: dict[str, EnvironmentParameter] | None = Field(
        default=None, description="values sent to the environment"
    )
    checkpoint_settings: CheckpointSettings = Field(default=CheckpointSettings(), description="the results folder")
    torch_settings: TorchSettings = Field(default=TorchSettings(), description="the accelerator")
    callbacks: tuple[Text, ...] | None = Field(
        default=None, description="own code on the episodes of the run: module:Class of subclasses of jaxrl.Callbacks"
    )
    record_settings: RecordSettings | None = unwritten(None, "where statistics go beside event files and metrics.csv")
    debug: Boolean = Field(default=False, description="log in detail")

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield problems of names of parameters and behaviors, and of lessons judged by no behavior."""
        for name in self.behaviors:
            if "?" in name:
                text = f"got {name!r}, expected {name.partition('?')[0]!r}: all teams of a behavior share its settings"
                yield ("behaviors", name), text
        for name in self.environment_parameters or {}:
            if not name or not name.isascii():
                text = f"got {name!r}, expected a name of ASCII characters: an environment can be sent no other"
                yield ("environment_parameters", name), text
        if self.default_settings is not None:  # stands for behaviors of every name
            return
        for location, criteria in judged_behaviors(self.environment_parameters):
            behavior = criteria.behavior
            if behavior in self.behaviors:
                if criteria.measure == "elo" and self.behaviors[behavior].self_play is None:
                    text = f"got elo, which is a rating in self-play: behaviors.{behavior} has no self_play"
                    yield ("environment_parameters", *location, "measure"), text
            else:
                near = nearest(behavior, self.behaviors)
                named = f"did you mean {near}?" if near else f"named there: {', '.join(self.behaviors) or 'none'}"
                text = f"got {behavior!r}, expected a behavior that stands below behaviors, {named}"
                yield ("environment_parameters", *location, "behavior"), text

    def every_behavior(self) -> Iterator[tuple[str, BehaviorSettings]]:
        """Yield path and settings of every section that describes a behavior."""
        if self.default_settings is not None:
            yield "default_settings", self.default_settings
        for name, behavior in self.behaviors.items():
            yield f"behaviors.{name}", behavior


def with_drawn_seed(settings: RunSettings) -> RunSettings:
    """Return settings with a definite seed: -1 draws one from 0 to 9999 and logs it."""
    if settings.env_settings.seed >= 0:
        return settings
    seed = random.SystemRandom().randrange(_SEEDS)
    logger.info("env_settings.seed: -1, drew %d", seed)
    return with_seed(settings, seed)


def with_seed(settings: RunSettings, seed: int) -> RunSettings:
    """Return settings with another `env_settings.seed`."""
    return settings.model_copy(update={"env_settings": settings.env_settings.model_copy(update={"seed": seed})})

"""Settings of statistics: where they are recorded, when they stop a run, which checkpoint they keep. jaxrl's own keys.

All of it is optional, and a file without it reads and is written as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from jaxrl.settings.section import Count, Integer, Number, Section, Text, expected, unwritten

GROUP = "Evaluation/"
"""Prefix of the tags of evaluation episodes."""
EVALUATED = tuple(f"{GROUP}{name}" for name in ("Cumulative Reward", "Group Cumulative Reward", "Episode Length"))
"""Means over evaluation episodes."""
CUT = f"{GROUP}Cut Episodes"
"""Tag of the number of evaluation episodes that were not over within `max_length`."""


ELO = "Self-play/ELO"
"""Tag of the rating of a behavior with self_play."""
TRAINERS_FOLDERS = ("Policy/", "Losses/", "Time/", "Self-play/", "League/", GROUP, "Episode/")
"""Prefixes of the tags of the trainer's own statistics, beside single ones in Environment/."""


class EvaluationSettings(Section):
    """Episodes that the deterministic policy plays beside the training, which does not notice them."""

    interval: Count = Field(description="trainer steps between two evaluations")
    episodes: Count = Field(default=10, description="episodes of an evaluation")
    seed: Integer = Field(
        default=0, ge=0, le=2**31 - 1, description="of their environments: a compiled run plays the same ones each time"
    )
    max_length: Count = Field(
        default=10_000,
        description="steps of the environment after which an episode that is not over is cut: it counts with what it "
        "had earned",
    )


class StopRule(Section):
    """A statistic that ends the training once it is high enough."""

    value: Number = Field(description="the least value that counts as reached")
    patience: Count = Field(default=1, description="times in a row that it must be reached")


def _rule(written: Any) -> Any:
    return written if isinstance(written, Mapping | StopRule) else {"value": written}


def _without_nulls(written: Any) -> Any:
    """Drop rules that are null, which take back a rule of `default_settings`."""
    if written is None:
        return {}
    return {tag: rule for tag, rule in written.items() if rule is not None} if isinstance(written, Mapping) else written


StopRules = Annotated[dict[Text, Annotated[StopRule, BeforeValidator(_rule)]], BeforeValidator(_without_nulls)]
"""Stop rules by tag; a number stands for `{value: number}`."""


def _project(value: str) -> str:
    if not value or value.endswith((".yaml", ".yml")) or set(value) & set('/\\#?%:"'):
        raise expected("the name of a project; CONFIG stands before --wandb, or write --wandb=PROJECT")
    return value


def _uri(value: str) -> str:
    if not value or value.endswith((".yaml", ".yml")):
        raise expected("an address such as http://HOST:5000; CONFIG stands before --mlflow, or write --mlflow=URI")
    return value


USUAL_PROJECT = "jaxrl"
"""Project of W&B if none is named; also the experiment in MLflow."""
USUAL_STORE = "default"
"""Stands for MLflow's own choice: MLFLOW_TRACKING_URI, or else its usual place."""


def _none(written: Any) -> Any:
    return () if written is None else [written] if isinstance(written, str) else written


class RecordSettings(Section):
    """Targets of statistics beside TensorBoard's event files and metrics.csv."""

    wandb: Annotated[Text, AfterValidator(_project)] | None = Field(
        default=None, description="project of Weights & Biases (extra wandb), usually jaxrl; null: off"
    )
    mlflow: Annotated[Text, AfterValidator(_uri)] | None = Field(
        default=None,
        description="tracking address of MLflow (extra mlflow), default: as MLFLOW_TRACKING_URI says; null: off",
    )
    writers: Annotated[tuple[Text, ...], BeforeValidator(_none)] = unwritten(
        (),
        "writers of your own: my_file.py:make_writer, my_package.module:make_writer, or the name of one "
        "that a package offers",
    )

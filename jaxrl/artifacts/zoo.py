"""Trained policies that come with jaxrl: folders `zoo/NAME` with a checkpoint, an ONNX file and a card. No JAX.

    zoo/NAME/card.json                         its task, command and returns
    zoo/NAME/<Behavior>.onnx                   for Unity, or any runtime
    zoo/NAME/<Behavior>/<Behavior>-<step>/     a checkpoint that holds the policy alone, no optimizer and no critic

A folder reads as the results folder of a run, so whatever plays the policy of a run plays these: `zoo:NAME` stands for
its path. `python benchmarks/make_zoo.py` makes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from jaxrl.artifacts import files
from jaxrl.artifacts.files import ArtifactError, carried
from jaxrl.envs.address import unknown
from jaxrl.types import JaxrlError

PREFIX = "zoo:"
CARD = "card.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Curve(_Part):
    """Statistic of the training."""

    tag: str  # of TensorBoard
    steps: tuple[int, ...]  # ascending
    values: tuple[float, ...]


class Evaluation(_Part):
    """Returns of episodes that the training has not seen: of a team, its group reward and its members' own together."""

    episodes: int
    seed: int  # it and the episode's number decide all chance in it
    deterministic: bool
    mean: float  # over episodes and teams
    std: float
    random: float  # mean return of random allowed actions

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / self.episodes**0.5


class Card(_Part):
    """Description of a policy."""

    name: str
    about: str  # the task in one sentence
    environment: str  # as for --env
    behavior: str
    algorithm: str
    steps: int  # agent decisions it was trained with
    command: str  # that made it
    curve: Curve
    evaluation: Evaluation
    versions: dict[str, str]

    @property
    def folder(self) -> Path:
        """Folder of the policy; reads as the results folder of a run."""
        return carried("zoo") / self.name

    @property
    def onnx(self) -> Path:
        """ONNX file of the policy."""
        return self.folder / f"{self.behavior}.onnx"

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def cards() -> list[Card]:
    """Read all cards, by name. Raises ArtifactError for an installation without them, or a card that cannot be read."""
    return [_read(path) for path in sorted(carried("zoo").glob(f"*/{CARD}"))]


def card(name: str) -> Card:
    """Read the card called `name`. Raises JaxrlError, with the nearest names, and as `cards`."""
    path = carried("zoo") / name / CARD
    names = [file.parent.name for file in carried("zoo").glob(f"*/{CARD}")]
    if name not in names:
        raise JaxrlError(unknown(name, name, names, what="no policy of jaxrl's has that name"))
    return _read(path)


def run_path(run: str | Path) -> Path:
    """Return a run's results folder: that of a policy for `zoo:NAME`, else the path itself. Raises as `card`."""
    text = str(run)
    return card(text.removeprefix(PREFIX)).folder if text.startswith(PREFIX) else Path(run)


def _read(path: Path) -> Card:
    written: Any = files.read_json(path)
    try:
        return Card.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{path}: no card of a policy ({where}: {first['msg'].lower()}); install jaxrl again."
        ) from None

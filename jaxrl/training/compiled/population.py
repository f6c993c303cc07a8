"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846): members of one program learn from each other.

Every `every` trainer steps the members of the worst quarter get networks, optimizer and settings of a member of the
best quarter, each setting changed a little: times 0.8 or 1.25 within its space, or with probability 1/4 drawn anew.
Environments go on, but their agents' memory is reset, because only the old network can read it. Until it has its own
episodes, such a member is judged by its parent's. `population.csv` records every member's parents.
"""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxrl.artifacts.files import ArtifactError, write_text
from jaxrl.artifacts.metrics.step_clock import crossed_multiple
from jaxrl.artifacts.run_folder import POPULATION
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.scene import scene_of
from jaxrl.masks import trailing
from jaxrl.regular_files import read_regular
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for
from jaxrl.settings.sweep import Space
from jaxrl.training.compiled.checks import refuse_curricula
from jaxrl.training.compiled.loop import JittedLoop
from jaxrl.training.compiled.play import Play
from jaxrl.training.compiled.recent_returns import inherited
from jaxrl.training.compiled.run import train_together
from jaxrl.training.compiled.search import traced
from jaxrl.training.compiled.state import Report, SceneState
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)

SHARE = 4
"""One member in SHARE is replaced by a copy, and one in SHARE is copied from."""
FACTORS = (0.8, 1.25)
DRAWN_ANEW = 0.25
_LARGEST = 2**28  # bytes; largest table that is read


class Generation(NamedTuple):
    """Parents and settings of the next generation of a population."""

    parents: np.ndarray  # int [S], for each member the member whose learner it continues with; itself for most
    values: dict[str, np.ndarray]  # float32 [S], by key


def next_generation(
    scores: np.ndarray, values: Mapping[str, np.ndarray], spaces: Mapping[str, Space], rng: np.random.Generator
) -> Generation:
    """Choose each member's parent and settings in the next generation.

    Args:
      scores: float [S], higher is better; NaN is worst, and never a parent. At least one is finite. A member as good as
        the worst parent keeps its learner.
      values: float [S] by key, each member's present settings.
    """
    count = max(len(scores) // SHARE, 1)
    order = np.argsort(np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    winners = [winner for winner in order[len(scores) - count :] if np.isfinite(scores[winner])]
    losers = [loser for loser in order[:count] if not scores[loser] >= scores[winners[0]]]
    parents = np.arange(len(scores))
    new_values = {key: np.array(numbers, np.float32) for key, numbers in values.items()}
    for loser in losers:
        parents[loser] = rng.choice(winners)
        for key, space in spaces.items():
            before = float(values[key][parents[loser]])
            new_values[key][loser] = _drawn(space, rng) if rng.random() < DRAWN_ANEW else _changed(before, space, rng)
    return Generation(parents, new_values)


def first_generation(
    spaces: Mapping[str, Space], members: int, rng: np.random.Generator
) -> dict[str, tuple[float, ...]]:
    """Draw a value for each member from each key's space."""
    return {key: tuple(_drawn(space, rng) for _ in range(members)) for key, space in spaces.items()}


def train_population(
    settings: RunSettings, spaces: Mapping[str, Space], every: int, console: Console, interrupt: Interrupt
) -> None:
    """Train one run whose seeds are the members of a population. Ends and raises as `run.train`."""
    options = settings.env_settings
    env = environment_in(options)
    refuse_curricula(settings, "members of a population")
    _refuse_self_play(settings)
    targets = traced(list(spaces), settings, env)
    for key in spaces:
        if key not in targets:
            raise SettingsError(
                f"--search {key}: members of a population differ in what they learn with, not in what they are judged "
                "by: give every member this parameter, a number or a sampler, in the configuration"
            )
    drawn = first_generation(spaces, options.seeds, np.random.default_rng(options.seed))
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    for key, numbers in drawn.items():
        for name, setting in targets[key]:
            values.setdefault(name, {})[setting] = numbers
    steps = [behavior_settings_for(settings, part.name).max_steps for part in scene_of(env).parts]
    every = every or max(min(steps) // 20, 1)
    loop = partial(PopulationLoop, spaces=spaces, targets=targets, every=every, seed=options.seed)
    train_together([settings], console, interrupt, values=values, loop=loop)


def _refuse_self_play(settings: RunSettings) -> None:
    for path, behavior in settings.every_behavior():
        if behavior.self_play is not None:
            raise SettingsError(
                f"{path}.self_play: members of a population are compared by their returns, which depend on their "
                "opponents: remove it, or search with runs (jaxrl search without --population)"
            )


class PopulationLoop(JittedLoop):
    """Loop over one run whose seeds are the members."""

    def __init__(
        self,
        *loop: Any,
        spaces: Mapping[str, Space],
        targets: Mapping[str, Sequence[tuple[str, str]]],
        every: int,
        seed: int,
    ) -> None:
        """Make the loop. `loop`: arguments of `JittedLoop`. `targets`: by searched key its (behavior, setting)s."""
        super().__init__(*loop)
        self.spaces, self.targets, self.every, self.seed = spaces, targets, every, seed
        (self.members,) = self.runs

    def room(self) -> int:
        """Compute how many iterations can run until, at the earliest, the next generation is due."""
        left = self.every - self.members.step % self.every
        return max(min(super().room(), *(left // part.largest for part in self.members.parts)), 1)

    def look(self, state: SceneState, reports: Mapping[str, Report]) -> SceneState:
        """Book the progress as `JittedLoop`, then make the next generation if it is due."""
        before = self.members.step
        state = super().look(state, reports)
        label = crossed_multiple(before, self.members.step - before, self.every)
        return state if label is None or self.members.over else self.evolved(state, reports, label)

    def evolved(self, state: SceneState, reports: Mapping[str, Report], step: int) -> SceneState:
        """Return the state of the next generation: a member gets all learners of its parent."""
        parts = self.members.parts
        scores = np.mean([part.recorder.statistics.recent_reward() for part in parts], axis=0)
        if np.isnan(scores).all():
            return state  # no episode has ended yet
        now = {key: reports[name].values[setting] for key, ((name, setting), *_) in self.targets.items()}
        found = next_generation(scores, now, self.spaces, np.random.default_rng([self.seed, step]))
        values = {target: found.values[key] for key, targets in self.targets.items() for target in targets}
        new_parts = {}
        for name, part in state.parts.items():
            train = jax.tree.map(lambda x: x[found.parents], part.train)
            new_parts[name] = part.replace(
                train=train.replace(key=part.train.key),  # each member keeps its own random draws
                play=forgotten(part.play, found.parents != np.arange(len(scores))),
                frozen=part.frozen[found.parents],
                values={key: jnp.asarray(values[name, key]) for key in part.values},
                recent=inherited(part.recent, found.parents),
            )
        for part in parts:  # members that are no longer frozen report statistics again
            part.recorder.statistics.frozen &= reports[part.name].frozen[found.parents]
        self._tell(step, scores, found)
        return self.trainer.place(state.replace(parts=new_parts))

    def _tell(self, step: int, scores: np.ndarray, found: Generation) -> None:
        recorder = self.members.recorder
        seeds, path = recorder.subject.seeds, recorder.folder.path / POPULATION
        rows = [
            {"step": step, "member": seed, "parent": seeds[parent], "score": float(scores[i])}
            | {key: float(numbers[i]) for key, numbers in found.values.items()}
            for i, (seed, parent) in enumerate(zip(seeds, found.parents, strict=True))
        ]
        copies = ", ".join(f"{row['member']} from {row['parent']}" for row in rows if row["member"] != row["parent"])
        log.info("Population at step %d: best score %.4g; %s.", step, np.nanmax(scores), copies)
        _append(path, rows)


def forgotten(play: Play, which: np.ndarray) -> Play:
    """Reset members' memory in the seeds where `which` [S] is True, because it is another network's."""
    carry = jax.tree.map(lambda x: jnp.where(trailing(which, x), 0.0, x), play.carry)
    return play._replace(carry=carry)


def _append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append a generation to the table; rows of its step and later ones, from before a resume, are replaced."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows([*_before(path, rows[0]), *rows])
    write_text(path, text.getvalue())


def _before(path: Path, row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of a table that are older than `row`, and of the same columns. Raises ArtifactError."""
    if not path.exists():
        return []
    try:
        old = list(csv.DictReader(read_regular(path, _LARGEST).decode("utf-8").splitlines()))
        return [each for each in old if int(each["step"]) < row["step"] and each.keys() == row.keys()]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ArtifactError(
            f"{path}: cannot be read ({error}). Restore the file from a backup or delete it."
        ) from error


def _drawn(space: Space, rng: np.random.Generator) -> float:
    if space.choices:
        return float(rng.choice(np.array(space.choices, float)))
    low, high = (np.log(space.low), np.log(space.high)) if space.log else (space.low, space.high)
    value = rng.uniform(low, high)
    return _whole(float(np.exp(value) if space.log else value), space)


def _changed(value: float, space: Space, rng: np.random.Generator) -> float:
    factor = float(rng.choice(FACTORS))
    if space.choices:
        choices = sorted(map(float, space.choices))
        at = int(np.argmin(np.abs(np.array(choices) - value))) + (1 if factor > 1.0 else -1)
        return choices[min(max(at, 0), len(choices) - 1)]
    return _whole(min(max(value * factor, space.low), space.high), space)


def _whole(value: float, space: Space) -> float:
    return float(round(value)) if space.whole else value

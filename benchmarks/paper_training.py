"""Trains one trainer on one task, all seeds side by side, and keeps what came out as a JSON file.

A point of a curve is a chunk of iterations, some `POINTS` in a run: how many agent steps each seed has learned from,
and number and sum of the group returns of the team episodes that ended in the chunk. Chunks have a fixed length, so
that the same seeds give the same file however fast the machine is (but for `seconds`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from paper_tasks import TASKS, TRAINERS, Task, environment_for, settings_for

from jaxrl import make_jitted_trainer
from jaxrl.algorithms import ALGORITHMS
from jaxrl.tools.report.events import Curve

POINTS = 200
PROGRESS_SECONDS = 10.0


class Outcome(NamedTuple):
    """What one trainer did on one task. Letters: S seeds, K points."""

    step: np.ndarray  # int64 [S, K], agent steps
    episodes: np.ndarray  # float64 [S, K], team episodes that ended since the point before
    total: np.ndarray  # float64 [S, K], the sum of their group returns
    limit: int  # agent steps of a seed: max_steps
    seconds: float  # without compilation
    compile_seconds: float

    def curve(self, seed: int) -> Curve:
        """Mean group return at the points of one seed at which episodes ended, to the first one past `limit`.

        Raises SystemExit when there are none.
        """
        step, episodes, total = self.until_limit(seed)
        ended = episodes > 0
        if not ended.any():
            raise SystemExit(f"Seed {seed} ended no episode within {self.limit:,} agent steps: give more with --steps.")
        return Curve(step[ended], total[ended] / episodes[ended])

    def until_limit(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """step, episodes and total of one seed, [K'], to the first point past `limit`: nothing is learned after it."""
        upto = int(np.searchsorted(self.step[seed], self.limit, side="right")) + 1
        return self.step[seed, :upto], self.episodes[seed, :upto], self.total[seed, :upto]


def trained(task: str, trainer: str, seeds: int, folder: Path, changes: dict[str, Any]) -> Outcome:
    """The outcome kept in `folder`, or a new one, which is then kept there. `changes` replaces fields of the task.

    Raises SystemExit when the file there is of another experiment.
    """
    chosen = TASKS[task]._replace(**changes)
    made_with = {"task": task, "trainer": trainer, "seeds": seeds, **chosen._asdict()}
    found = kept(folder / f"{task}-{trainer}.json", made_with, lambda: _plain(train(task, chosen, trainer, seeds)))
    arrays = {"step": np.int64, "episodes": np.float64, "total": np.float64}
    fields: dict[str, Any] = {name: np.asarray(found[name], kind) for name, kind in arrays.items()}
    return Outcome(**{**found, **fields})


def kept(path: Path, made_with: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the file holds, or what `make` gives, which is then kept there; plain numbers and lists.

    All or nothing: an experiment that is killed leaves no half file. Raises SystemExit when the file there was not
    `made_with` the same.
    """
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        _check_same(path, found.pop("made_with"), made_with)
        print(f"kept: {path}", flush=True)
        return found
    found = make()
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"made_with": made_with, **found}), encoding="utf-8")
    os.replace(partial, path)
    return found


def _check_same(path: Path, was: dict[str, Any], now: dict[str, Any]) -> None:
    different = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
    if different:
        told = ", ".join(f"{key} = {was.get(key)} there, {now.get(key)} now" for key in different)
        raise SystemExit(f"{path} is of another experiment ({told}). Remove it, or give another folder with --out.")


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in outcome._asdict().items()}


def train(name: str, task: Task, trainer: str, seeds: int) -> Outcome:
    """Train seeds 0 .. S - 1 until the slowest has passed `task.steps`; prints progress."""
    env = environment_for(name, trainer)
    settings = settings_for(task, trainer, env)
    begun = time.perf_counter()
    algorithm = ALGORITHMS[trainer](env.spec, settings)
    loop = make_jitted_trainer(env, algorithm, settings, areas=task.areas, seeds=seeds)
    state = jax.block_until_ready(loop.init(range(seeds)))
    compiled = time.perf_counter()
    chunk, points, told = max(task.steps // (task.buffer * POINTS), 1), [], compiled
    while not points or points[-1][0].min() <= task.steps:
        state, log = loop.run(state, chunk)
        log = jax.device_get(log)
        _check(log.fault, f"{name} {trainer}")
        points.append((np.asarray(state.train.step), log.episodes.group_reward.count, log.episodes.group_reward.total))
        if time.perf_counter() - told > PROGRESS_SECONDS:
            told = time.perf_counter()
            print(_progress(name, trainer, task, points[-1], told - compiled), flush=True)
    now = time.perf_counter()
    print(_progress(name, trainer, task, points[-1], now - compiled), f"done, compiled in {compiled - begun:.0f} s")
    step, episodes, total = (np.stack(column, axis=1).astype(np.float64) for column in zip(*points, strict=True))
    return Outcome(step.astype(np.int64), episodes, total, task.steps, now - compiled, compiled - begun)


def _check(fault: np.ndarray, who: str) -> None:
    bad = np.flatnonzero(fault[:, 0] >= 0)
    if len(bad):
        raise SystemExit(f"{who}: a number of the environment is not finite, seed {bad[0]}, {fault[bad[0]].tolist()}")


def _progress(name: str, trainer: str, task: Task, point: tuple[Any, ...], seconds: float) -> str:
    step, episodes, total = point
    with np.errstate(invalid="ignore"):
        mean = np.float64(total.sum()) / np.float64(episodes.sum())
    return (
        f"{name:14} {TRAINERS[trainer]:8} {step.min():>9,} of {task.steps:,} agent steps, "
        f"group return {mean:7.2f}, {step.sum() / seconds:>9,.0f} steps/s in all seeds, {seconds:4.0f} s."
    )

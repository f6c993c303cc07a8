"""Makes the demonstrations that come with jaxrl, `demo:NAME`: trains an expert, records it, keeps its good episodes.

    python benchmarks/make_demonstrations.py                        # all, a minute or two each
    python benchmarks/make_demonstrations.py hallway --results results   # one; a run that is there is not trained again

An expert is a policy of the zoo, or what a shipped configuration learns. The same command on the same kind of machine
makes the same files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxrl.cli.device import choose_device
from jaxrl.client.recording import record
from jaxrl.demonstrations import write
from jaxrl.demonstrations.episodes import Episode, episodes, pairs_of
from jaxrl.demonstrations.records import kind_of
from jaxrl.types import Action

EXPERTS = Path(__file__).resolve().parents[1] / "jaxrl" / "demonstrations" / "experts"


class Entry(NamedTuple):
    """One file."""

    expert: str  # `zoo:NAME`, or a shipped configuration
    environment: str
    episodes: int  # that are kept, the first that are good
    least: float  # return of a good episode
    stochastic: bool = False  # as in training: where the likeliest action runs in circles
    played: int = 2  # times as many episodes are played
    decisions: int | None = None  # of each episode that are kept, where its beginning is what there is to learn from


ENTRIES = {
    "pyramids": Entry("ppo/pyramids", "jax:pyramids", 20, 1.5, stochastic=True),
    "hallway": Entry("ppo/hallway", "jax:hallway", 30, 0.99),
    "push_block": Entry("ppo/push_block_alone", "jax:push_block_alone", 30, 0.8),
    "crawler": Entry("ppo/crawler", "jax:crawler", 6, 100.0),
    "ball3d": Entry("zoo:ball3d", "jax:ball3d", 30, 99.0, played=1, decisions=60),
}


def expert(name: str, results: Path) -> str:
    """The run that plays, trained now unless it is there."""
    entry = ENTRIES[name]
    if entry.expert.startswith("zoo:"):
        return entry.expert
    if not (results / name / "configuration.yaml").is_file():
        words = ["train", entry.expert, "--seed", "1", f"--run-id={name}", "--results-dir", str(results), "--force"]
        command = [sys.executable, "-m", "jaxrl.cli", *words]
        subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True, timeout=3600)
    return str(results / name)


def beginning(episode: Episode, count: int | None) -> Episode:
    """Its first decisions, cut off behind them; the whole where it has no more, or `count` is None."""
    if count is None or len(episode.reward) <= count:
        return episode
    return Episode(
        obs=tuple(x[: count + 1] for x in episode.obs),
        action=Action(*(x[:count] for x in episode.action)),
        reward=episode.reward[:count],
        group_reward=episode.group_reward[:count],
        terminated=False,
        truncated=True,
    )


def make(name: str, results: Path) -> str:
    """Write the file; a line about it."""
    entry = ENTRIES[name]
    with tempfile.TemporaryDirectory() as scratch:
        played = Path(scratch) / f"{name}.demo"
        many = {"episodes": entry.played * entry.episodes, "deterministic": not entry.stochastic}
        record(expert(name, results), entry.environment, played, **many)
        found = list(episodes([played]))
        good = [one for one in found if one.reward.sum() + one.group_reward.sum() >= entry.least]
        if len(good) < entry.episodes:
            raise SystemExit(f"{name}: {len(good)} of {len(found)} episodes are good, {entry.episodes} are wanted")
        kind, kept = kind_of(played), [beginning(one, entry.decisions) for one in good[: entry.episodes]]
    EXPERTS.mkdir(exist_ok=True)
    path = EXPERTS / f"{name}.demo"
    steps = write(path, kind.behavior, kind.spec, pairs_of(kept))
    returns = np.array([one.reward.sum() + one.group_reward.sum() for one in kept])
    share = f"{len(good)} of {len(found)} episodes good"
    return (
        f"{name}: {len(kept)} episodes, {steps} pairs, mean return {returns.mean():.3f} "
        f"({returns.min():.3f} to {returns.max():.3f}), {share}; {path.stat().st_size:,} bytes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ENTRIES), metavar="NAME", help="files (default: all)")
    parser.add_argument("--results", type=Path, help="where the runs are kept (default: nowhere)")
    given = parser.parse_args()
    unknown = sorted({*given.names} - {*ENTRIES})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ENTRIES)}")
    choose_device("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names:
            print(make(name, given.results or Path(scratch)), flush=True)


if __name__ == "__main__":
    main()

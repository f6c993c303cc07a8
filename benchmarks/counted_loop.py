"""The host loop, which also counts what becomes of every agent decision: for benchmarks of long runs.

    python -c "from benchmarks.counted_loop import main; main()" train CONFIG ...

is `jaxrl train CONFIG ...`, and says the counts at the end. As -c, because a spawned worker imports a file again, and
this one imports JAX.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.cli import main as command
from jaxrl.envs.workers.restarts import Loss
from jaxrl.rollout.buffer.trajectory_state import TrajectoryState, rollout_of
from jaxrl.settings import RunSettings, load_run_settings
from jaxrl.training.host import run as host_run
from jaxrl.training.host.behavior import Behavior
from jaxrl.training.host.launch import launched
from jaxrl.training.host.loop import HostLoop
from jaxrl.training.host.open_episodes import OpenEpisodes
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.updates import Updates
from jaxrl.types import EnvMessage

LINE = "counts: "  # what the last line of `main` begins with; JSON follows


@dataclasses.dataclass
class Counts:
    """Agent decisions of a whole run."""

    asked: int = 0  # in messages that were answered
    trained: int = 0  # counted in the buffers that were learned from
    left: int = 0  # in the buffer at the end, or forgotten because nobody learned any more
    dropped: int = 0  # as the log says
    in_flight: int = 0  # open at the end
    restarts: int = 0

    def as_dict(self) -> dict[str, int]:
        """With `unaccounted`: asked for, and nobody knows what became of them."""
        unaccounted = self.asked - self.trained - self.left - self.dropped - self.in_flight
        return {**dataclasses.asdict(self), "unaccounted": unaccounted}


@jax.jit
def decisions_in(buffer: TrajectoryState) -> jax.Array:
    """Those whose reward has arrived, int32."""
    return rollout_of(buffer).acted.sum()


class CountedRecorder(HostRecorder):
    """Counts what the log says is dropped."""

    counts = Counts()

    def lost(self, name: str, loss: Loss, dropped: int) -> None:
        self.counts.dropped += dropped
        super().lost(name, loss, dropped)


class CountedUpdates(Updates):
    """Counts what stands in the buffers, not what the actors say."""

    counts = Counts()

    def use_up(self, behavior: Behavior) -> None:
        assert behavior.actor.buffer is not None
        held = int(decisions_in(behavior.actor.buffer))
        learns = behavior.training and behavior.unfinished() and behavior.actor.held > 0
        super().use_up(behavior)  # or it is interrupted, and the buffer stays as it was
        if learns:
            self.counts.trained += held
        else:
            self.counts.left += held


class CountedEpisodes(OpenEpisodes):
    """Counts lost processes."""

    counts = Counts()

    def lose(self, loss: Loss) -> None:
        self.counts.restarts += 1
        super().lose(loss)


class CountedLoop(HostLoop):
    """Counts what is asked for. Not for `threaded: true`."""

    def __init__(self, settings: RunSettings, recorder: HostRecorder, *others: Any, **more: Any) -> None:
        super().__init__(settings, recorder, *others, **more)
        assert isinstance(recorder, CountedRecorder)
        self.counts = recorder.counts = Counts()
        self.updates = CountedUpdates(recorder, self.interrupt)
        self.episodes = CountedEpisodes(settings, recorder, self.behaviors, self.hooks)
        self.updates.counts = self.episodes.counts = self.counts

    def run(self) -> None:
        try:
            super().run()
        finally:
            print(f"{LINE}{json.dumps(self.close_books().as_dict())}", file=sys.stderr, flush=True)

    def advance(self, results: Sequence[EnvMessage]) -> bool:
        self.counts.asked += sum(len(s.deciding.agent_id) for result in results for s in result.steps.values())
        return super().advance(results)

    def close_books(self) -> Counts:
        """With what was not trained on: call it once, at the end."""
        for behavior in self.behaviors.values():
            buffer = behavior.actor.buffer
            assert buffer is not None
            self.counts.left += int(decisions_in(buffer))
            self.counts.in_flight += int((buffer.open_at >= 0).sum())
        return self.counts


@contextlib.contextmanager
def counted_loop(configuration: Path, folder: Path) -> Iterator[CountedLoop]:
    """A loop whose environments are ready. Its results and its output go to the folder."""
    overrides = {"checkpoint_settings": {"run_id": "soak", "results_dir": str(folder)}}
    settings = load_run_settings(configuration, overrides, HYPERPARAMETER_TYPES)
    options = settings.checkpoint_settings
    with (folder / "console.txt").open("w") as file, launched(settings) as (interrupt, pool):
        progress = ProgressBar(Console(file=file))
        with progress, CountedRecorder(settings, RunFolder(options.results_dir, options.run_id), progress) as recorder:
            pool.ready()
            yield CountedLoop(settings, recorder, interrupt, pool)


def main() -> None:
    """`jaxrl` with a host loop that counts."""
    host_run.HostLoop, host_run.HostRecorder = CountedLoop, CountedRecorder
    sys.exit(command(sys.argv[1:]))

"""Workers and players that are killed while a run learns: what a death costs, and whether anything is left over.

    python benchmarks/chaos.py                                # a minute of chaos
    python benchmarks/chaos.py --seconds 600 --every 3
    python benchmarks/chaos.py --crashes --rounds 3 --json FILE    # throughput, one of 4 workers crashing every 10 s

Trains player:basic with PPO and several workers. Chaos: every --every seconds a random worker or player gets SIGKILL;
then Ctrl-C. Passes (exit code 0) when the run ends in order, the mean reward of its last summary is at least --least
(optimum 0.93), the trainer's files are as many as in the beginning, no process and no shared memory is left, and
decisions that were asked for = trained + left in the buffer + dropped (as the log says) + still open.
`back` is the time from a death that was noticed to the first new decision (the log's "answers again"). --crashes:
agent steps per second with one of the workers killed every 10 s against none, alternated, and the share that is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKER, PLAYER = "spawn_main", "served.serve"  # words of their command lines
_COUNTED = "from benchmarks.counted_loop import main; main()"  # `jaxrl`, with an account at the end
_SHARED = Path("/dev/shm")
_START_SECONDS, _END_SECONDS = 240.0, 60.0
_STEP = re.compile(r"Step: (\d+)\. Time Elapsed: (\d+\.\d+) s\. Mean Reward: (-?\d+\.\d+)")


class Summary(NamedTuple):
    """One line of the console."""

    step: int
    seconds: float
    reward: float


class Run:
    """A trainer in a session of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.output = folder / "output.txt"
        settings = yaml.safe_load((ROOT / "configs" / "ppo" / "basic.yaml").read_text())
        behavior = settings["behaviors"]["Basic"]
        # Surely the far goal (0.93), also within a minute: with less entropy and a shorter horizon some seeds, and in
        # async mode some runs, stay with the near one (0.07), whether anybody dies or not.
        behavior["hyperparameters"] |= {"learning_rate_schedule": "constant", "learning_rate": 0.001, "beta": 0.03}
        behavior["reward_signals"]["extrinsic"]["gamma"] = 0.99
        behavior |= {"max_steps": 10**9, "summary_freq": 1000, "checkpoint_interval": 20_000, "time_horizon": 32}
        settings["env_settings"] = {
            "env_path": "player:basic", "num_areas": options.areas, "num_envs": options.workers, "seed": 1,
            "mode": options.mode, "base_port": options.base_port, "max_lifetime_restarts": -1,
            "restarts_rate_limit_n": -1,
        }  # fmt: skip
        configuration = folder / "chaos.yaml"
        configuration.write_text(yaml.safe_dump(settings))
        words = ["train", str(configuration), "--run-id", "chaos", "--results-dir", str(folder)]
        with self.output.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _COUNTED, *words], stdout=out, stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.output.read_text()

    def summaries(self) -> list[Summary]:
        found = _STEP.findall(" ".join(self.text().split()))
        return [Summary(int(step), float(seconds), float(reward)) for step, seconds, reward in found]

    def await_summaries(self, count: int) -> None:
        """Raises SystemExit, with what the run said, if they do not come."""
        deadline = time.monotonic() + _START_SECONDS
        while len(self.summaries()) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the run does not learn:\n{self.text()}")
            time.sleep(0.2)

    def family(self, word: str = "") -> list[psutil.Process]:
        """Living descendants whose command line contains the word."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def files(self) -> int:
        """Open files of the trainer."""
        return psutil.Process(self.process.pid).num_fds()

    def end(self) -> tuple[int, list[psutil.Process]]:
        """Ctrl-C: the exit code, and who is left 10 s later."""
        family = self.family()
        os.kill(self.process.pid, signal.SIGINT)
        code = self.process.wait(_END_SECONDS)
        return code, psutil.wait_procs(family, timeout=10.0)[1]

    def counts(self) -> dict[str, int]:
        """What became of the decisions, said at the end; see `counted_loop.Counts`."""
        return json.loads(self.text().rpartition("counts: ")[2].partition("\n")[0])

    def kill_all(self) -> None:
        """Whatever went wrong, nothing stays."""
        if self.process.poll() is None:
            for process in [*self.family(), psutil.Process(self.process.pid)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self.process.wait()


def main() -> int:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos, or of one run with --crashes")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two deaths")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--areas", type=int, default=4)
    parser.add_argument("--mode", choices=("async", "lockstep"), default="async")
    parser.add_argument("--base-port", type=int, default=7005)
    parser.add_argument("--seed", type=int, default=0, help="of who is killed")
    parser.add_argument("--least", type=float, default=0.8, help="mean reward of the last summary")
    parser.add_argument("--crashes", action="store_true", help="measure throughput instead")
    parser.add_argument("--rounds", type=int, default=2, help="with --crashes")
    parser.add_argument("--json", help="append the numbers to this file")
    options = parser.parse_args()
    figures, problems = crashes(options) if options.crashes else chaos(options)
    for name, value in figures.items():
        print(f"{name:<28}{value:>10.3f}")
    for problem in problems:
        print(f"FAILED: {problem}")
    if options.json:
        with Path(options.json).open("a") as file:
            file.write(json.dumps({"benchmark": "chaos", **figures}) + "\n")
    return int(bool(problems))


def chaos(options: argparse.Namespace) -> tuple[dict[str, float], list[str]]:
    """Deaths of all kinds until the time is over, then the end of the run."""
    rng, shared = random.Random(options.seed), _shared()
    with started(options) as run:
        files, kills = run.files(), 0
        stop = time.monotonic() + options.seconds
        while time.monotonic() < stop:
            time.sleep(options.every)
            if run.process.poll() is not None:
                raise SystemExit(f"FAILED: the run has ended after {kills} deaths:\n{run.text()[-5000:]}")
            kills += _kill_one(rng, run, rng.choice((WORKER, PLAYER)))
        whole = _await_family(run, options.workers)
        grown, last = run.files() - files, run.summaries()[-1]
        code, left = run.end()
        text, counts = " ".join(run.text().split()), run.counts()
    dropped = [int(n) for n in re.findall(r"their (\d+) open decisions are dropped", text)]
    figures = {
        "kills": kills, **_back(text), **counts,
        "last mean reward": last.reward, "agent steps": last.step, "files more": grown,
    }  # fmt: skip
    checks = {
        f"exit code {code}": code != 0,
        "a traceback": "Traceback" in text,
        f"mean reward {last.reward} < {options.least}": last.reward < options.least,
        f"{counts['restarts']} restarts after {kills} deaths": not 0 < counts["restarts"] <= kills,
        "not all workers came back": not whole,
        f"{sum(dropped)} dropped decisions by the log, {counts['dropped']} by count": sum(dropped) != counts["dropped"],
        f"{counts['unaccounted']} decisions are unaccounted for": counts["unaccounted"] != 0,
        f"{grown} files more": grown > options.workers,  # a connection may just be opening
        f"left: {left}": bool(left),
        f"shared memory: {_shared() - shared}": bool(_shared() - shared),
    }
    return figures, [text for text, wrong in checks.items() if wrong]


def crashes(options: argparse.Namespace) -> tuple[dict[str, float], list[str]]:
    """Throughput with one worker killed every 10 s against none, alternated."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    told: list[str] = []
    for _ in range(options.rounds):
        for dies in (False, True):
            with started(options) as run:
                run.await_summaries(5)
                begin, stop = run.summaries()[-1], time.monotonic() + options.seconds
                while time.monotonic() < stop:
                    if dies:
                        _kill_one(random.Random(options.seed), run, WORKER)
                    time.sleep(10.0)
                end = run.summaries()[-1]
                rates[dies].append((end.step - begin.step) / (end.seconds - begin.seconds))
                run.end()
                told.append(run.text())
    healthy, dying = (float(np.median(rates[dies])) for dies in (False, True))
    figures = {"steps/s": healthy, "steps/s with deaths": dying, "share lost": 1.0 - dying / healthy}
    return figures | _back(" ".join(" ".join(told).split())), []


@contextlib.contextmanager
def started(options: argparse.Namespace) -> Iterator[Run]:
    """A run that learns already; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="jaxrl-chaos-") as folder:
        run = Run(Path(folder), options)
        try:
            run.await_summaries(2)
            yield run
        finally:
            run.kill_all()


def _kill_one(rng: random.Random, run: Run, word: str) -> int:
    """How many were killed: none while all of that kind just start."""
    found = run.family(word)
    if not found:
        return 0
    with contextlib.suppress(psutil.NoSuchProcess):
        rng.choice(found).kill()
    return 1


def _await_family(run: Run, workers: int) -> bool:
    """Whether every worker has its player again within 60 s."""
    deadline = time.monotonic() + 60.0
    while not (whole := len(run.family(WORKER)) == len(run.family(PLAYER)) == workers):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return whole


def _back(text: str) -> dict[str, float]:
    """Seconds until a worker was back."""
    seconds = [float(value) for value in re.findall(r"answers again, ([\d.]+) s", text)]
    return {"back, median s": float(np.median(seconds)), "back, longest s": max(seconds)} if seconds else {}


def _shared() -> set[str]:
    """Names in the shared memory of the machine, less other programs' that come and go."""
    return {path.name for path in _SHARED.glob("*jaxrl*")} if _SHARED.is_dir() else set()


if __name__ == "__main__":
    sys.exit(main())

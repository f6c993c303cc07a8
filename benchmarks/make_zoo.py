"""Makes the trained policies of `jaxrl zoo`: trains each with the command of its card and puts what is needed in zoo/.

    python benchmarks/make_zoo.py                            # all, minutes each
    python benchmarks/make_zoo.py basic ball3d               # these alone
    python benchmarks/make_zoo.py --results results          # keeps the runs; one that is there is not trained again

Of a run are kept: the policy of the last checkpoint (no optimizer, no critic), its ONNX file and a card with the curve
and the returns of evaluation episodes. The same command on the same kind of machine learns the same numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.artifacts.checkpoint import manifest, store
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.artifacts.versions import versions
from jaxrl.artifacts.zoo import CARD, Card, Curve, Evaluation
from jaxrl.cli.device import choose_device
from jaxrl.client.policy import evaluate
from jaxrl.jax_envs import make_environment
from jaxrl.tools.report.events import read_folder
from jaxrl.tools.watch import film
from jaxrl.training.trained_policy import load_trained

ZOO = Path(__file__).resolve().parents[1] / "zoo"
EPISODES, SEED = 256, 1000  # of the evaluation
POINTS = 30  # of a curve, at most
RANDOM_STEPS = 20_000  # decisions of random play
TAGS = ("Environment/Group Cumulative Reward", "Environment/Cumulative Reward")


class Entry(NamedTuple):
    """One policy."""

    config: str  # shipped, by name
    environment: str
    about: str
    seed: int = 1
    tag: str = TAGS[0]
    deterministic: bool = False

    def command(self, run_id: str) -> str:
        """That trains it."""
        return f"jaxrl train {self.config} --env {self.environment} --seed {self.seed} --run-id={run_id}"


ENTRIES = {
    "ball3d": Entry("ball3d", "jax:ball3d", "Keep a ball on a tilting plate; 100 at most.", tag=TAGS[1]),
    "basic": Entry("basic", "jax:basic", "Pass the near goal by for the far one; 0.93 at most.", seed=3, tag=TAGS[1]),
    "ball3d_sac": Entry(
        "sac/ball3d", "jax:ball3d", "Keep a ball on a tilting plate, learned by SAC; 100 at most.", tag=TAGS[1]
    ),
    "basic_sac": Entry(
        "sac/basic", "jax:basic", "Pass the near goal by for the far one, learned by SAC; 0.93 at most.", tag=TAGS[1]
    ),
    "baton_pass": Entry("baton_pass", "jax:baton_pass", "Runners who hand a baton on and drop out."),
    "dungeon_escape": Entry(
        "dungeon_escape", "jax:dungeon_escape", "One slays the dragon and dies, another takes the key out; 1 at most."
    ),
    "food_collector": Entry(
        "ppo/food_collector",
        "jax:food_collector",
        "Five that gather food and shun poison, seen by a grid.",
        tag=TAGS[1],
    ),
    "grid_world": Entry(
        "grid_world", "jax:grid_world", "Go to the goal of the colour that is asked for, seen by a camera.", tag=TAGS[1]
    ),
    "push_block": Entry("push_block", "jax:push_block", "Push blocks home, the heavy ones together."),
    "simple_spread": Entry("mappo/simple_spread", "jax:simple_spread", "Three that cover three landmarks."),
}


def trained(name: str, results: Path) -> Path:
    """The results folder, trained now unless it is there."""
    folder = results / name
    if not (folder / "configuration.yaml").is_file():
        _, *words = shlex.split(ENTRIES[name].command(name))
        command = [sys.executable, "-m", "jaxrl.cli", *words, "--results-dir", str(results), "--force"]
        subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True, timeout=7200)
    return folder


def keep(name: str, run: Path) -> Card:
    """Write zoo/NAME from a run; what was there is replaced."""
    entry, env = ENTRIES[name], make_environment(ENTRIES[name].environment)
    folder = RunFolder(run.parent, run.name)
    info = store.read_info(store.require_latest(folder.behavior(env.name)))
    target = ZOO / name
    shutil.rmtree(target, ignore_errors=True)
    policy = load_trained(run, env.spec).policy.replace(critic=())
    state = {"train": {"policy": policy, "step": np.int32(info.step)}}
    path = store.save(target / env.name, info.step, state, spec=env.spec, settings=info.settings)
    (path / "arrays" / "commit_success.txt").unlink(missing_ok=True)  # names the folder that it was first written to
    (path / manifest.MANIFEST).unlink()
    manifest.write(path)
    shutil.copyfile(folder.final_onnx(env.name), target / f"{env.name}.onnx")
    card = Card(
        name=name,
        about=entry.about,
        environment=entry.environment,
        behavior=env.name,
        algorithm=str(info.settings["trainer_type"]),
        steps=info.step,
        command=entry.command(name),
        curve=_curve(folder.behavior(env.name), entry.tag),
        evaluation=_evaluation(entry, target),
        versions={key: value for key, value in versions().items() if key in ("jaxrl_version", "jax_version")},
    )
    text = json.dumps(card.model_dump(mode="json"), indent=1, ensure_ascii=False)
    (target / CARD).write_text(text + "\n", encoding="utf-8")
    return card


def _curve(folder: Path, tag: str) -> Curve:
    found = read_folder(folder).curves[tag]
    picked = np.unique(np.linspace(0, len(found.step) - 1, POINTS).round().astype(int))
    values = tuple(float(f"{value:.4g}") for value in found.value[picked])
    return Curve(tag=tag, steps=tuple(int(step) for step in found.step[picked]), values=values)


def _evaluation(entry: Entry, run: Path) -> Evaluation:
    sizes: dict[str, Any] = {"episodes": EPISODES, "seed": SEED, "deterministic": entry.deterministic}
    returns = evaluate(run, entry.environment, **sizes)
    mean, std = statistics.fmean(returns), statistics.pstdev(returns)
    return Evaluation(**sizes, mean=round(mean, 6), std=round(std, 6), random=round(_random_return(entry), 6))


def _random_return(entry: Entry) -> float:
    """The mean over the episodes that end within RANDOM_STEPS decisions of random play."""
    env = make_environment(entry.environment)
    game = film.play(env, film.cast(env, None), jax.random.key(SEED), dict(env.parameters), steps=RANDOM_STEPS)
    ends = np.flatnonzero(game.over) + 1
    rewards = film.team_rewards(env, game)[: ends[-1]]
    return float(np.mean([part.sum(axis=0).mean() for part in np.split(rewards, ends[:-1])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ENTRIES), metavar="NAME", help="policies (default: all)")
    parser.add_argument("--results", type=Path, help="where the runs are kept (default: nowhere)")
    given = parser.parse_args()
    unknown = sorted({*given.names} - {*ENTRIES})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ENTRIES)}")
    choose_device("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names:
            card = keep(name, trained(name, given.results or Path(scratch)))
            found = card.evaluation
            print(
                f"{name}: {found.mean:.3f} ± {found.error:.3f}, random {found.random:.3f}; {card.size:,} bytes",
                flush=True,
            )
    print(
        f"{sum(path.stat().st_size for path in ZOO.rglob('*') if path.is_file()):,} bytes in all, jax {jax.__version__}"
    )


if __name__ == "__main__":
    main()

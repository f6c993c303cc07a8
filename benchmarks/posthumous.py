"""What the dead are credited with: V of the survivors' next state, or the λ-return of what their team went on to earn.

    python benchmarks/posthumous.py                                  # all tasks, both forms, 10 seeds
    python benchmarks/posthumous.py --tasks dark dungeon_escape --lambd 0.8 0.95 0.99 --seeds 10
    python benchmarks/posthumous.py --draw benchmarks/posthumous.png

Each cell is one `jaxrl train` of all its seeds (`hyperparameters.posthumous_credit`), kept in the folder `--out` and
reused there. The table has means over seeds with 95 % bootstrap intervals: the score over the last tenth of training,
and the mean over training (area under the curve). P is the probability that a random seed of `return` beats one of
`value` in the second. Tasks are those of configs/poca, and:

    gone            the lock whose seer leaves before the group is paid
    dark            the same, where no survivor sees what the seer did
    random_deaths   a team in which who dies is chance and tells nothing
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl import read_metrics
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, team_step, vector_sensor
from jaxrl.tools.report import statistics
from jaxrl.tools.report.events import Curve, final_score
from jaxrl.types import ActionSpec, BehaviorSpec

ROOT = Path(__file__).resolve().parents[1]
TAG = "Environment/Group Cumulative Reward"
FORMS = ("value", "return")


class Task(NamedTuple):
    """A configuration and how long to train it."""

    config: str
    behavior: str
    steps: int
    summary: int
    env: str | None = None
    env_args: tuple[str, ...] = ()


TASKS = {
    "dungeon_escape": Task("poca/dungeon_escape", "DungeonEscape", 200_000, 4_000, "jax:dungeon_escape"),
    "baton_pass": Task("poca/baton_pass", "BatonPass", 200_000, 4_000),
    "push_block": Task("poca/push_block", "PushBlockCollab", 800_000, 20_000),
    "simple_spread": Task("poca/simple_spread_jax", "SimpleSpread", 300_000, 15_000),
    "lock": Task("poca/lock", "Runner", 60_000, 2_000),
    "gone": Task("poca/lock", "Runner", 60_000, 2_000, env_args=("seer_leaves=True",)),
    "dark": Task("poca/lock", "Runner", 60_000, 2_000, env_args=("seer_leaves=True", "dark=True")),
    "random_deaths": Task(
        "poca/dungeon_escape", "RandomDeaths", 100_000, 4_000, f"{Path(__file__).resolve()}:make_random_deaths"
    ),
}

MEMBERS, CHOICES, LENGTH, DEATH = 6, 4, 20, 0.1


class DeathsState(NamedTuple):
    """One area of `random_deaths`."""

    digit: Array  # int32 [A], the right choice of each member now
    alive: Array  # bool [A]
    clock: Array  # int32 []


def make_random_deaths() -> JaxEnv:
    """Make a team of six whose members die by chance alone.

    Each member sees a digit and the group earns the share of the living that chose theirs; then each of the living dies
    with probability 0.1, whatever it did. An episode ends after 20 decisions, or with the last member. The best return
    is the number of decisions, 18 on average.
    """

    def view(state: DeathsState) -> TeamView:
        shown = jax.nn.one_hot(state.digit, CHOICES) * state.alive[:, None]
        return TeamView(obs=(shown,), action_mask=jnp.ones((MEMBERS, CHOICES), bool), alive=state.alive)

    def reset(key: Array, _: EnvParams) -> tuple[DeathsState, TeamView]:
        digit = jax.random.randint(key, (MEMBERS,), 0, CHOICES)
        state = DeathsState(digit, jnp.ones(MEMBERS, bool), jnp.int32(0))
        return state, view(state)

    def step(key: Array, state: DeathsState, actions: TeamActions) -> tuple[DeathsState, TeamStep]:
        digit_key, death_key = jax.random.split(key)
        right = (actions.discrete[:, 0] == state.digit) & state.alive
        earned = right.sum() / jnp.maximum(state.alive.sum(), 1)
        dies = state.alive & (jax.random.uniform(death_key, (MEMBERS,)) < DEATH)
        last = state.clock + 1 == LENGTH
        ended = state.alive & (dies | last)
        after = DeathsState(
            jax.random.randint(digit_key, (MEMBERS,), 0, CHOICES), state.alive & ~ended, state.clock + 1
        )
        outcome = team_step(
            view(after),
            group_reward=jnp.where(state.alive, earned, 0.0),
            terminated=ended,
            over=~after.alive.any(),
            figures={"Right": earned},
        )
        return after, outcome

    return JaxEnv(
        name="RandomDeaths",
        spec=BehaviorSpec((vector_sensor(CHOICES),), ActionSpec(0, (CHOICES,))),
        members=MEMBERS,
        parameters={},
        reset=reset,
        step=step,
    )


def trained(name: str, form: str, lambd: float, seeds: int, out: Path) -> dict[str, Curve]:
    """Train one cell unless its folder is there, and return the group reward of each seed along training."""
    task, run = TASKS[name], f"{name}-{form}-{lambd:g}-{seeds}"
    if not (out / run / "done").exists():
        command = [sys.executable, "-m", "jaxrl.cli", "train", str(ROOT / "configs" / f"{task.config}.yaml")]
        command += [f"--run-id={run}", f"--results-dir={out}", f"--seeds={seeds}", "--seed=0", "--force"]
        values = {
            "hyperparameters.posthumous_credit": form,
            "hyperparameters.lambd": lambd,
            "max_steps": task.steps,
            "summary_freq": task.summary,
            "checkpoint_interval": task.steps,
        }
        config = _config(task, values, out / f"{run}.yaml")
        command[4] = str(config)
        command += [f"--env={task.env}"] if task.env else []
        command += ["--env-args", *task.env_args] if task.env_args else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (out / run / "done").touch()
    return dict(read_metrics(out / run).by_seed(TAG, task.behavior))


def _config(task: Task, values: dict[str, object], path: Path) -> Path:
    """Write the task's configuration with these values in every behavior, and return its path."""
    import yaml

    document = yaml.safe_load((ROOT / "configs" / f"{task.config}.yaml").read_text(encoding="utf-8"))
    sections = (
        [document["default_settings"]] if "default_settings" in document else list(document["behaviors"].values())
    )
    if task.behavior not in document["behaviors"]:
        document["behaviors"] = {task.behavior: sections[0]}
    for section in sections:
        for key, value in values.items():
            *parents, leaf = key.split(".")
            target = section
            for parent in parents:
                target = target.setdefault(parent, {})
            target[leaf] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def scores(curves: dict[str, Curve], steps: int) -> tuple[list[float], list[float]]:
    """Return the final score and the mean over training of each seed."""
    return (
        [final_score(curve) for curve in curves.values()],
        [statistics.area_under_curve(curve, 0, steps) for curve in curves.values()],
    )


def shown(estimate: statistics.Estimate) -> str:
    """Write an estimate as a table shows it."""
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def draw(curves: dict[tuple[str, str], dict[str, Curve]], path: Path) -> None:
    """Draw mean and interval of both forms for each task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for name, _ in curves))
    figure, axes = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.0), dpi=110, squeeze=False)
    for name, ax in zip(names, axes[0], strict=True):
        for form, color in zip(FORMS, ("#90a4ae", "#1565c0"), strict=True):
            band = statistics.band(list(curves[name, form].values()))
            ax.plot(band.step, band.mean, color=color, label=form)
            ax.fill_between(band.step, band.low, band.high, color=color, alpha=0.2, linewidth=0)
        ax.set(title=name.replace("_", " "), xlabel="decisions")
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("mean group reward")
    axes[0][0].legend(frameon=False, title="posthumous_credit")
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--lambd", nargs="+", type=float, default=[0.95])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results", "posthumous"))
    parser.add_argument("--draw", type=Path, help="write the curves of the first lambda to this .png")
    options = parser.parse_args(arguments)
    print("| task | λ | value: last tenth | return: last tenth | value: mean | return: mean | P(return better) |")
    print("|---|---|---|---|---|---|---|")
    drawn: dict[tuple[str, str], dict[str, Curve]] = {}
    for name in options.tasks:
        for lambd in options.lambd:
            curves = {form: trained(name, form, lambd, options.seeds, options.out) for form in FORMS}
            finals, means = zip(*(scores(curves[form], TASKS[name].steps) for form in FORMS), strict=True)
            cells = [shown(statistics.mean(values)) for values in (*finals, *means)]
            better = statistics.probability_of_improvement([means[1]], [means[0]])
            print(f"| {name} | {lambd:g} | {' | '.join(cells)} | {shown(better)} |", flush=True)
            if lambd == options.lambd[0]:
                drawn |= {(name, form): curve for form, curve in curves.items()}
    if options.draw:
        draw(drawn, options.draw)


if __name__ == "__main__":
    main()

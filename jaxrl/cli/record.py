"""`jaxrl record`: records demonstrations of a trained policy. JAX is imported inside `run` alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxrl.cli.device import compute_on_cpu
from jaxrl.cli.flags import add_environment_arguments, count


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `jaxrl record`."""
    parser.description = (
        "Play a trained policy and write what it saw, did and earned as demonstrations, a .demo file as Unity's "
        "Demonstration Recorder writes it. A person at a scene is recorded by that recorder, without jaxrl."
    )
    parser.add_argument("run", metavar="RUN", help="results folder whose policy acts, or zoo:NAME, one of `jaxrl zoo`")
    parser.add_argument(
        "--env", required=True, metavar="PATH", help="a Unity build, jax:NAME, player:NAME, gymnasium:ID, ..."
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.demo", help="the file")
    parser.add_argument("--behavior", metavar="NAME", help="whose agents, where several behaviors play")
    parser.add_argument(
        "--episodes", type=count, default=10, metavar="N", help="whole episodes of single agents (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=count, default=10_000, metavar="N", help="no episode is longer (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all chance (default: %(default)s)")
    parser.add_argument(
        "--stochastic", action="store_true", help="act with samples, as in training, not with the mean or likeliest"
    )
    parser.add_argument("--force", action="store_true", help="in the place of a file that is there")
    parser.add_argument("--trust", action="store_true", help="import code that the folder of the run names")
    add_environment_arguments(parser, "those of the run")


def run(given: argparse.Namespace) -> None:
    """Play, write the file and print the returns."""
    compute_on_cpu()
    from jaxrl.client.recording import record

    result = record(
        given.run,
        given.env,
        given.out,
        behavior=given.behavior,
        episodes=given.episodes,
        seed=given.seed,
        deterministic=not given.stochastic,
        steps=given.steps,
        env_args=given.env_args,
        force=given.force,
        trust=given.trust,
    )
    returns = result.returns
    counts = f"{len(returns)} episodes of {sum(result.lengths)} decisions"
    print(f"{result.behavior}, {result.origin}: {counts}, mean return {sum(returns) / len(returns):.3f}")
    print(" ".join(f"{value:.3f}" for value in returns))
    print(given.out)

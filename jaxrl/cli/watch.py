"""`jaxrl watch`: makes a film of an environment. JAX is imported inside `run` alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxrl.cli.device import compute_on_cpu
from jaxrl.cli.flags import add_environment_arguments


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `jaxrl watch`."""
    parser.add_argument(
        "environment",
        nargs="?",
        metavar="ENVIRONMENT",
        help="jax:NAME, player:NAME, gymnasium:ID, pettingzoo:MODULE or FILE.py:FUNCTION (default: that of the run)",
    )
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="results folder whose policy acts, or an .onnx file, or zoo:NAME, one of `jaxrl zoo` (default: none, "
        "random actions)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="an .onnx file that acts, anybody's that Unity runs; of several behaviors for the one that it is called "
        "after, to be given once for each",
    )
    parser.add_argument(
        "--opponent",
        metavar="RUN",
        help="results folder or .onnx file whose policy plays the other teams, or the other behaviors of one team each "
        "(default: the run's own)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("episode.gif"),
        metavar="FILE",
        help="a film (.gif) or a sheet of stills (.png) (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all chance (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="stop after N (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=300, metavar="N", help="stop after N decisions (default: %(default)s)"
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="act with the mean or most likely action, not with a sample"
    )
    add_environment_arguments(parser, "those of the run")
    parser.add_argument("--trust", action="store_true", help="import code that the folder of the run names")


def run(given: argparse.Namespace) -> None:
    """Play, write the film and print what it shows."""
    compute_on_cpu()
    from jaxrl.artifacts.zoo import run_path
    from jaxrl.tools.watch.film import watch

    summary = watch(
        given.environment,
        run=None if given.run is None else run_path(given.run),
        opponent=None if given.opponent is None else run_path(given.opponent),
        out=given.out,
        seed=given.seed,
        episodes=given.episodes,
        steps=given.steps,
        deterministic=given.deterministic,
        env_args=given.env_args,
        trust=given.trust,
        models=given.model,
    )
    returns = ", ".join(" : ".join(f"{team:.2f}" for team in episode) for episode in summary.returns)
    cut = "" if summary.finished else ", cut there by --steps"
    print(f"{summary.behavior}, {summary.policy}: reward {returns} in {summary.steps} steps{cut}")
    print(summary.out)

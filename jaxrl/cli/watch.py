"""`jaxrl watch`: a film of a JAX environment. JAX is imported inside `run` alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxrl.cli.device import choose_device
from jaxrl.compilation import enable_compilation_cache


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `jaxrl watch`."""
    parser.add_argument("environment", metavar="jax:NAME", help="the environment, such as jax:dungeon_escape")
    parser.add_argument(
        "--run", type=Path, metavar="RUN", help="results folder whose policy acts (default: none, random actions)"
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
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(given: argparse.Namespace) -> None:
    """Play, write the film and print what it shows. On the CPU: an accelerator may be busy with training."""
    choose_device("cpu")
    enable_compilation_cache()
    from jaxrl.watch.film import watch

    summary = watch(
        given.environment,
        run=given.run,
        out=given.out,
        seed=given.seed,
        episodes=given.episodes,
        steps=given.steps,
        deterministic=given.deterministic,
    )
    returns = ", ".join(" : ".join(f"{team:.2f}" for team in episode) for episode in summary.returns)
    cut = "" if summary.finished else ", cut there by --steps"
    print(f"{summary.behavior}, {summary.policy}: reward {returns} in {summary.steps} steps{cut}")
    print(summary.out)

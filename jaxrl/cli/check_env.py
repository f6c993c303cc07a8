"""`jaxrl check-env`: whether an environment in JAX keeps its contract. JAX is imported inside `run` alone."""

from __future__ import annotations

import argparse

from jaxrl.cli.device import compute_on_cpu
from jaxrl.cli.flags import add_environment_arguments, count
from jaxrl.envs.foreign.arguments import keyword_arguments


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Which environment, and how long it is played."""
    parser.add_argument("environment", metavar="ENV", help="FILE.py:FUNCTION, package.module:FUNCTION or jax:NAME")
    parser.add_argument("--steps", type=count, default=200, metavar="N", help="decisions (default: %(default)s)")
    parser.add_argument("--areas", type=count, default=16, metavar="N", help="played at once (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all chance (default: %(default)s)")
    add_environment_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Print what is wrong, a line each; 1 if something is. Raises JaxrlError where it cannot even be traced."""
    compute_on_cpu()
    from jaxrl.jax_envs import environment_of
    from jaxrl.jax_envs.contract import check_environment

    env = environment_of(given.environment, **keyword_arguments(given.env_args))
    found = check_environment(env, areas=given.areas, steps=given.steps, seed=given.seed)
    for text in found.problems:
        print(f"problem: {text}")
    for text in found.remarks:
        print(f"remark: {text}")
    played = f"{given.steps} decisions of {given.areas} areas at random, {found.episodes} episodes"
    print(f"{given.environment}: {len(found.problems)} problem(s) in {played}")
    return 1 if found.problems else 0

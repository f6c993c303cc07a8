"""`jaxrl check-env`: checks that an environment keeps its contract. JAX is imported inside `_compiled` alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxrl.cli.device import compute_on_cpu
from jaxrl.cli.flags import add_environment_arguments, count
from jaxrl.envs.address import Kind, parse_address
from jaxrl.envs.foreign.arguments import keyword_arguments


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the environment and the length of the check."""
    parser.add_argument(
        "environment",
        metavar="ENV",
        help="FILE.py:FUNCTION, package.module:FUNCTION, jax:NAME, gymnasium:ID, pettingzoo:MODULE, "
        "rllib:MODULE:CLASS, player:NAME or the path of a Unity build",
    )
    parser.add_argument("--steps", type=count, default=200, metavar="N", help="decisions (default: %(default)s)")
    parser.add_argument(
        "--areas", type=count, metavar="N", help="played at once (default: 16 in JAX, else 2 in each of two processes)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all chance (default: %(default)s)")
    add_environment_arguments(parser)


def run(given: argparse.Namespace) -> int:
    """Print a line for each problem; return 1 if there is one. Raises JaxrlError where it cannot be traced or made."""
    kind = parse_address(given.environment).kind
    stepped = kind is Kind.UNITY and Path(given.environment).exists()
    played = _stepped if stepped or (kind is not Kind.UNITY and not kind.compiled) else _compiled
    problems, remarks, behaviors, extent = played(given)
    for text in behaviors:
        print(f"behavior: {text}")
    for text in problems:
        print(f"problem: {text}")
    for text in remarks:
        print(f"remark: {text}")
    print(f"{given.environment}: {len(problems)} problem(s) in {extent}")
    return 1 if problems else 0


_Played = tuple[list[str], list[str], Sequence[str], str]  # problems, remarks, behaviors, extent of the check


def _compiled(given: argparse.Namespace) -> _Played:
    compute_on_cpu()
    from jaxrl.jax_envs import environment_of
    from jaxrl.jax_envs.contract import check_environment

    areas = given.areas or 16
    env = environment_of(given.environment, **keyword_arguments(given.env_args))
    result = check_environment(env, areas=areas, steps=given.steps, seed=given.seed)
    extent = f"{given.steps} decisions of {areas} areas at random, {result.episodes} episodes"
    return result.problems, result.remarks, (), extent


def _stepped(given: argparse.Namespace) -> _Played:
    from jaxrl.tools.check_host import check_host

    areas = given.areas or 2
    result = check_host(given.environment, given.env_args, areas=areas, steps=given.steps, seed=given.seed)
    extent = f"{given.steps} steps of {areas} copies in each of two processes, {result.episodes} episodes of agents"
    return result.problems, result.remarks, result.behaviors, extent

"""`jaxrl demo`: what is in demonstrations, as lines, tables and films, and in other formats."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.cli.device import compute_on_cpu
from jaxrl.cli.flags import add_environment_arguments
from jaxrl.demonstrations import Demonstration, DemonstrationError, read
from jaxrl.demonstrations.reading import files


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What to do, and with which files."""
    parser.description = (
        "Look at demonstrations, .demo files of Unity's Demonstration Recorder or of `jaxrl record`, or say what is "
        "wrong with them. info: a line for each file, and what its agent sees and does. view: a table of the episodes, "
        "with --episode of the decisions of one, and with --out a film of what its camera saw, or with --env of the "
        "scene, in which the actions are played again and have to show what was recorded. convert: FILE|DIR OUT, "
        "each a .demo file, a .npz file or minari:ID."
    )
    parser.add_argument("what", choices=("info", "view", "convert"), help="see above")
    parser.add_argument("paths", metavar="FILE|DIR", nargs="+", help=".demo files, or folders of them")
    parser.add_argument("--episode", type=int, metavar="N", help="view: that episode alone, from 1 on")
    parser.add_argument("--out", type=Path, metavar="FILE", help="view: a film (.gif) or a sheet of stills (.png)")
    parser.add_argument("--env", metavar="jax:NAME", help="view: the scene of `jaxrl record` that --out draws")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="view: that of the recording (default: 0)")
    add_environment_arguments(parser)
    parser.add_argument("--behavior", metavar="NAME", help="convert: another name of the behavior")
    parser.add_argument("--force", action="store_true", help="convert: in the place of a file that is there")


def run(given: argparse.Namespace) -> None:
    """Print the lines, write the files. Raises JaxrlError for the first file that cannot be used."""
    {"info": _info, "view": _view, "convert": _convert}[given.what](given)


def _info(given: argparse.Namespace) -> None:
    for path in given.paths:
        for file in files(path):
            found = read(file)
            print(f"{file}: {_line(found)}")
            for i, sensor in enumerate(found.spec.observations):
                print(f"  observation {i}: {sensor.name or 'without a name'}, shape {sensor.shape}")
            action = found.spec.action
            print(f"  actions: {action.continuous_size} numbers, branches {list(action.discrete_branches)}")


def _line(found: Demonstration) -> str:
    decided = ~found.terminal
    episodes = np.cumsum(found.terminal)  # of the end of one on, rows belong to the next
    returns = np.bincount(episodes[decided], weights=found.reward[decided])[: found.done.sum()]
    lengths = np.bincount(episodes[decided])[: found.done.sum()]
    return (
        f"behavior {found.behavior!r}, {decided.sum()} decisions, {found.done.sum()} whole episodes of "
        f"{lengths.mean():.1f} decisions, mean reward {returns.mean():.3f} ({returns.min():.3f} to {returns.max():.3f})"
        f", {found.interrupted.sum()} interrupted"
    )


def _view(given: argparse.Namespace) -> None:
    from jaxrl.tools.demonstrations import film, table

    if given.env is not None and given.out is None:
        raise DemonstrationError(f"--env {given.env} is what --out draws: name a film, such as --out film.gif")
    found = [file for path in given.paths for file in files(path)]
    for line in table(found, given.episode):
        print(line)
    if given.out is not None:
        film(found, given.episode, given.out, None if given.env is None else _scene(given))
        print(given.out)


def _scene(given: argparse.Namespace) -> Any:
    """What draws it. JAX is imported here alone, for the CPU: an accelerator may be busy with training."""
    compute_on_cpu()
    from jaxrl.tools.watch.recorded import Place, recorded_frames

    return partial(recorded_frames, Place(given.env, given.seed, given.env_args))


def _convert(given: argparse.Namespace) -> None:
    from jaxrl.client.converting import convert

    if len(given.paths) != 2:
        raise DemonstrationError(f"jaxrl demo convert FROM TO: got {len(given.paths)} names, expected two")
    done = convert(*given.paths, behavior=given.behavior, force=given.force)
    print(f"{given.paths[1]}: behavior {done.behavior!r}, {done.episodes} episodes of {done.decisions} decisions")

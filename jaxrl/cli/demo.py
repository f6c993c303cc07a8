"""`jaxrl demo`: shows demonstrations as lines, tables and films, and converts them to other formats."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.cli.device import compute_on_cpu
from jaxrl.cli.flags import add_environment_arguments
from jaxrl.demonstrations import Demonstration, DemonstrationError, read
from jaxrl.demonstrations.reading import is_late, recordings
from jaxrl.demonstrations.records import kind_of
from jaxrl.settings.demonstrations import AS_RECORDED, DETECT, NEXT_RECORD


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the action, the files and its flags."""
    parser.description = (
        "Look at demonstrations, .demo files of Unity's Demonstration Recorder or of `jaxrl record`, or say what is "
        "wrong with them. info: a line for each file, what its agent sees and does, and who wrote it. check: whether "
        "actions stand beside their observations or one record late. view: a table of the episodes, "
        "with --episode of the decisions of one, and with --out a film of what its camera saw, or with --env of the "
        "scene, in which the actions are played again and have to show what was recorded. convert: FILE|DIR OUT, "
        "each a .demo file, a .npz file or minari:ID."
    )
    parser.add_argument("what", choices=("info", "check", "view", "convert"), help="see above")
    parser.add_argument("paths", metavar="FILE|DIR", nargs="+", help=".demo files, or folders of them")
    parser.add_argument("--episode", type=int, metavar="N", help="view: that episode alone, from 1 on")
    parser.add_argument("--out", type=Path, metavar="FILE", help="view: a film (.gif) or a sheet of stills (.png)")
    parser.add_argument("--env", metavar="jax:NAME", help="view: the scene of `jaxrl record` that --out draws")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="view: that of the recording (default: 0)")
    add_environment_arguments(parser)
    choices = (DETECT, AS_RECORDED, NEXT_RECORD)
    parser.add_argument(
        "--demo-actions",
        choices=choices,
        default=DETECT,
        help="info, view, convert: where files have the action of an observation, as the key of the settings (default: "
        f"{DETECT})",
    )
    parser.add_argument("--behavior", metavar="NAME", help="convert: another name of the behavior")
    parser.add_argument("--force", action="store_true", help="convert: in the place of a file that is there")


def run(given: argparse.Namespace) -> None:
    """Print the lines, write the files. Raises JaxrlError for the first file that cannot be used."""
    {"info": _info, "check": _check, "view": _view, "convert": _convert}[given.what](given)


def _info(given: argparse.Namespace) -> None:
    for path in given.paths:
        for file in recordings(path):
            demonstration = read(file, given.demo_actions)
            print(f"{file}: {_line(demonstration)}")
            for i, sensor in enumerate(demonstration.spec.observations):
                print(f"  observation {i}: {sensor.name or 'without a name'}, shape {sensor.shape}")
            action = demonstration.spec.action
            print(f"  actions: {action.continuous_size} numbers, branches {list(action.discrete_branches)}")
            kind = kind_of(file)
            record = "the next record" if is_late(kind, given.demo_actions) else "the record of the observation"
            print(f"  {kind.recorder}; actions are read from {record}")


def _line(demonstration: Demonstration) -> str:
    """Return a summary of a file: decisions, finished episodes, and the returns of these."""
    decided = ~demonstration.terminal
    episode = np.cumsum(demonstration.terminal | np.append(False, demonstration.last[:-1]))[decided]
    whole = episode[demonstration.done[decided]]
    lengths = np.bincount(episode)[whole]
    returns = np.bincount(episode, weights=demonstration.reward[decided])[whole]
    line = f"behavior {demonstration.behavior!r}, {decided.sum()} decisions, {len(whole)} whole episodes"
    if len(whole):
        line += f" of {lengths.mean():.1f} decisions, mean reward {returns.mean():.3f} "
        line += f"({returns.min():.3f} to {returns.max():.3f})"
    return f"{line}, {demonstration.interrupted.sum()} interrupted"


def _check(given: argparse.Namespace) -> None:
    from jaxrl.demonstrations.lags import lag_lines

    for path in given.paths:
        for file in recordings(path):
            for line in lag_lines(file):
                print(line)


def _view(given: argparse.Namespace) -> None:
    from jaxrl.tools.demonstrations import film, table

    if given.env is not None and given.out is None:
        raise DemonstrationError(f"--env {given.env} is what --out draws: name a film, such as --out film.gif")
    files = [file for path in given.paths for file in recordings(path)]
    for line in table(files, given.episode, given.demo_actions):
        print(line)
    if given.out is not None:
        scene = None if given.env is None else _scene(given)
        film(files, given.episode, given.out, scene, given.demo_actions)
        print(given.out)


def _scene(given: argparse.Namespace) -> Any:
    """Return the function that draws the scene. JAX is imported here alone, for the CPU: training may use the GPU."""
    compute_on_cpu()
    from jaxrl.tools.watch.recorded import Place, recorded_frames

    return partial(recorded_frames, Place(given.env, given.seed, given.env_args))


def _convert(given: argparse.Namespace) -> None:
    from jaxrl.client.converting import convert

    if len(given.paths) != 2:
        raise DemonstrationError(f"jaxrl demo convert FROM TO: got {len(given.paths)} names, expected two")
    result = convert(*given.paths, behavior=given.behavior, force=given.force, demo_actions=given.demo_actions)
    print(f"{given.paths[1]}: behavior {result.behavior!r}, {result.episodes} episodes of {result.decisions} decisions")

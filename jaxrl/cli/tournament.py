"""`jaxrl tournament`: lets policies play against each other. JAX is imported inside `run` alone."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl.cli.device import compute_on_cpu

if TYPE_CHECKING:
    from jaxrl.tools.tournament.tournament import Standings


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `jaxrl tournament`."""
    parser.add_argument(
        "players",
        nargs="+",
        metavar="PLAYER",
        help="results folder of a run (its newest policy; alone: with its self-play pool), RUN@STEP, RUN@pool, "
        "RUN@checkpoints, zoo:NAME, a model FILE.onnx, random, or a scripted player as FILE.py:NAME or module:NAME",
    )
    parser.add_argument(
        "--env",
        metavar="ENVIRONMENT",
        help="jax:NAME, FILE.py:FUNCTION, pettingzoo:NAME or rllib:NAME (default: of the first run)",
    )
    parser.add_argument(
        "--games", type=int, default=100, metavar="N", help="of each pair, half with exchanged sides (default: 100)"
    )
    parser.add_argument(
        "--longest", type=int, default=2000, metavar="N", help="decisions after which it is a draw (default: 2000)"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=10,
        metavar="N",
        help="earlier policies of a run, at most, evenly spread (default: 10)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all chance (default: %(default)s)")
    parser.add_argument(
        "--deterministic", action="store_true", help="act with the mean or most likely action, not with a sample"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("tournament"), metavar="FOLDER", help="for its files (default: tournament)"
    )
    parser.add_argument("--trust", action="store_true", help="import code that the folders of the runs name")


def run(given: argparse.Namespace) -> None:
    """Play, print the table and write the files."""
    compute_on_cpu()
    from jaxrl.tools.tournament.tournament import tournament, write

    standings = tournament(
        given.players,
        environment=given.env,
        games=given.games,
        longest=given.longest,
        seed=given.seed,
        most=given.most,
        deterministic=given.deterministic,
        trust=given.trust,
        told=lambda first, second, record: print(
            f"{first} : {second}  {record.won} : {record.lost}, {record.drawn} drawn"
            + (f", {record.cut} of them cut after {given.longest} decisions" if record.cut else ""),
            flush=True,
        ),
    )
    print(f"\n{_table(standings)}\n")
    print("\n".join(map(str, write(standings, given.out))))


def _table(standings: Standings) -> str:
    """Return a row per player, best first: rating with half its interval, games, share of decided ones, by opponent."""
    order, shares = standings.order, standings.shares()
    rows = [
        ("", "player", "rating", "won", "drawn", "lost", "won of decided", *(str(i + 1) for i in range(len(order))))
    ]
    for place, player in enumerate(order):
        rating, record = standings.ratings[player], standings.record(player)
        mean = f"{rating.mean:.1f} ± {rating.interval[1] - rating.mean:.1f}"
        against = (_percent(shares[player, other]) for other in order)
        games = str(record.won), str(record.drawn), str(record.lost)
        rows.append((str(place + 1), standings.players[player], mean, *games, _percent(record.share), *against))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{w}}" if at == 1 else f"{cell:>{w}}" for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"

"""Plays a round-robin between all players, rates them, and writes files of both."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl import trust as trusted
from jaxrl.algorithms import HYPERPARAMETER_TYPES
from jaxrl.artifacts import files
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.envs.address import Kind, parse_address
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene, parts_of
from jaxrl.settings import load_run_settings
from jaxrl.tools.report.figures import COLORS, plain, style
from jaxrl.tools.tournament.host_matches import HostEntry, HostTable
from jaxrl.tools.tournament.matches import Match, Player, Record, Table
from jaxrl.tools.tournament.players import CHECKPOINTS, POOL, Entry, Word, read
from jaxrl.tools.tournament.ratings import Rating, rate
from jaxrl.tools.watch.film import address_of, arguments_of, compiled
from jaxrl.types import JaxrlError

Told = Callable[[str, str, Record], None]
"""Called after every match with both players and their record."""


class Standings(NamedTuple):
    """Results of a tournament. Players are numbered in the order in which they were given."""

    environment: str
    games: int  # of a match
    seed: int
    players: tuple[str, ...]
    matches: dict[tuple[int, int], Match]  # by first and second, first < second
    ratings: list[Rating]

    @property
    def order(self) -> list[int]:
        """Players, the best first."""
        return sorted(range(len(self.players)), key=lambda player: -self.ratings[player].mean)

    def record(self, player: int, opponent: int | None = None) -> Record:
        """Return the record of a player against one or all others."""
        total = Record(0, 0, 0)
        for (first, second), match in self.matches.items():
            if player in (first, second) and opponent in (None, first, second):
                total = total.plus(match.total if player == first else match.total.turned())
        return total

    def shares(self) -> np.ndarray:
        """Return [P, P]: share of decided games that the row's player won against the column's; NaN without any."""
        every = range(len(self.players))
        return np.array(
            [[math.nan if row == column else self.record(row, column).share for column in every] for row in every]
        )


def tournament(
    words: Sequence[str],
    *,
    environment: str | None = None,
    games: int = 100,
    longest: int = 2000,
    seed: int = 0,
    most: int = 10,
    deterministic: bool = False,
    trust: bool = False,
    told: Told = lambda first, second, record: None,
) -> Standings:
    """Play all matches between the players that the words name (`players.py`). Writes nothing.

    A run alone stands for its pool, or for its checkpoints without a pool, and its newest policy. The environment has
    its usual parameters, and the arguments of the first run, whose `self_play.result` says how a game is decided.

    Args:
      environment: `jax:NAME`, `player:NAME` (the same, compiled), `FILE.py:FUNCTION`, `pettingzoo:NAME`, `rllib:NAME`;
        None: that of the first run.
      games, longest, seed: of a match, see `Table`.
      most: earlier policies of a run, at most.
      trust: import code that the folders of the runs name, see `jaxrl.trust`.

    Raises JaxrlError where players or environment do not fit together, or a run cannot be used.
    """
    if games < 2:
        raise JaxrlError(f"games = {games}, expected at least 2 games, one on each side")
    for name, number in (("longest", longest), ("most", most)):
        if number < 1:
            raise JaxrlError(f"{name} = {number}, expected at least 1")
    named = read(words)
    runs = [word.run for word in named if word.run is not None]
    for run in runs if trust else ():
        trusted.accept(run)
    trusted.ours(*words, environment)
    where = environment or _address_of(runs)
    match = {"games": games, "longest": longest, "seed": seed, "returns": bool(runs) and _by_return(runs[0])}
    if parse_address(where).kind in (Kind.PETTINGZOO, Kind.RLLIB):
        table = HostTable(where, runs[0] if runs else None, **match)
        entry = HostEntry(table.parts, where, most=most, deterministic=deterministic)
    else:
        env = _environment(where, runs)
        table = Table(env, **match)
        entry = Entry(parts_of(env), where, most=most, deterministic=deterministic)
    players = _players(entry, named)
    matches = {}
    for first, second in combinations(range(len(players)), 2):
        matches[first, second] = match = table.play(players[first], players[second])
        told(players[first].name, players[second].name, match.total)
    ratings = rate(len(players), {pair: match.total for pair, match in matches.items()}, seed)
    return Standings(where, games, seed, tuple(player.name for player in players), matches, ratings)


def write(standings: Standings, folder: Path) -> list[Path]:
    """Write tournament.json, games.csv and, with matplotlib, tournament.png; return the files. Raises ArtifactError."""
    paths = [folder / "tournament.json", folder / "games.csv"]
    files.write_json(paths[0], _document(standings))
    files.write_text(paths[1], _csv(standings))
    picture = _png(standings.players, standings.ratings, standings.shares(), standings.order)
    if picture is not None:
        paths.append(folder / "tournament.png")
        with files.writing(paths[-1]) as file:
            file.write(picture)
    return paths


def _address_of(runs: Sequence[Path]) -> str:
    if not runs:
        raise JaxrlError("--env: missing, and no run tells which environment is played: such as --env jax:pong")
    return address_of(runs[0])


def _environment(where: str, runs: Sequence[Path]) -> JaxEnv | JaxScene:
    kind = parse_address(where).kind
    if kind is not Kind.PLAYER and not kind.compiled:
        raise JaxrlError(
            f"{where}: is no environment in which a tournament is played: expected jax:NAME, player:NAME, "
            "FILE.py:FUNCTION, pettingzoo:NAME or rllib:NAME with --env"
        )
    return compiled(where, arguments_of(runs[0], where) if runs else {})


def _by_return(run: Path) -> bool:
    """Return whether a run's self-play judges a game by its return (`self_play.result`)."""
    path = RunFolder(run.parent, run.name).configuration
    if not path.is_file():
        return False
    settings = load_run_settings(path, {}, HYPERPARAMETER_TYPES, of_folder=True)
    return any(b.self_play is not None and b.self_play.result == "return" for _, b in settings.every_behavior())


def _players(entry: Entry, words: Sequence[Word]) -> list[Player]:
    players = [player for word in words for player in entry.players(word)]
    if len(players) < 2:
        raise JaxrlError(
            f"{players[0].name}: plays alone, expected two players or more: name another run, RUN@{POOL} or "
            f"RUN@{CHECKPOINTS} for earlier policies, random, or a scripted player as FILE.py:NAME"
        )
    names = [player.name for player in players]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise JaxrlError(f"{twice}: is there twice: runs need names of their own, and each word is given once")
    return players


def _document(standings: Standings) -> dict[str, Any]:
    players = [
        {
            "name": standings.players[player],
            "rating": standings.ratings[player].mean,
            "low": standings.ratings[player].interval[0],
            "high": standings.ratings[player].interval[1],
            **standings.record(player)._asdict(),
        }
        for player in standings.order
    ]
    matches = [
        {
            "first": standings.players[first],
            "second": standings.players[second],
            **match.total._asdict(),
            "on_first_side": match.on_first_side._asdict(),
            "on_second_side": match.on_second_side._asdict(),
        }
        for (first, second), match in standings.matches.items()
    ]
    summary = {"environment": standings.environment, "games_of_a_match": standings.games, "seed": standings.seed}
    return {**summary, "players": players, "matches": matches}


def _csv(standings: Standings) -> str:
    """Return a row for each match and side of its first player."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["player", "opponent", "side", "won", "drawn", "lost", "cut"])
    for (first, second), match in standings.matches.items():
        for side, record in enumerate((match.on_first_side, match.on_second_side)):
            rows.writerow([standings.players[first], standings.players[second], side, *record])
    return text.getvalue()


def _png(players: Sequence[str], ratings: Sequence[Rating], shares: np.ndarray, order: Sequence[int]) -> bytes | None:
    """Draw ratings with intervals, and a heat map of won games, players in `order`. None without matplotlib.

    `shares` [P, P]: share of the games that the row's player won.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    side = 1.6 + 0.42 * len(order)
    names = [plain(players[player]) for player in order]
    with style():
        figure = Figure(figsize=(2 * side + 2.5, side + 0.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_ratings(left, names, [ratings[player] for player in order])
        _draw_shares(right, names, shares[np.ix_(order, order)])
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=120, facecolor="white")
    return file.getvalue()


def _draw_ratings(panel: Any, names: Sequence[str], ratings: Sequence[Rating]) -> None:
    means, ends = [rating.mean for rating in ratings], np.array([rating.interval for rating in ratings])
    reach = np.abs(ends.T - means)
    panel.errorbar(means, range(len(names)), xerr=reach, fmt="o", color=COLORS[0], capsize=3, markersize=4)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_title("rating, 95 % interval", loc="left")


def _draw_shares(panel: Any, names: Sequence[str], shares: np.ndarray) -> None:
    panel.imshow(shares, vmin=0.0, vmax=1.0, cmap="RdYlGn")
    for row, column in np.ndindex(shares.shape):
        if not math.isnan(shares[row, column]):
            panel.text(column, row, f"{100 * shares[row, column]:.0f}", ha="center", va="center", fontsize=7)
    panel.set_xticks(range(len(names)), names, rotation=90)
    panel.set_yticks(range(len(names)), names)
    panel.grid(visible=False)
    panel.set_title("% of decided games won, row against column", loc="left")

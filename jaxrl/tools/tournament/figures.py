"""The picture of a tournament: ratings with intervals, and who beats whom as a heat map. Needs matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl.tools.report.figures import COLORS, plain, style
from jaxrl.tools.tournament.ratings import Rating


def png(players: Sequence[str], ratings: Sequence[Rating], shares: np.ndarray, order: Sequence[int]) -> bytes | None:
    """Both, players in `order`; `shares` [P, P] of the games that the row's player won. None without matplotlib."""
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
    means, ends = [of.mean for of in ratings], np.array([of.interval for of in ratings])
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

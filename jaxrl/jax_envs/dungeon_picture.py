"""What Dungeon Escape looks like: stone walls with a door, the portal, the dragon, the key and the team."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxrl.jax_envs.drawing import Box, Disc, Line, Point, Polygon, Scene, Shape

_BORDER = 0.7  # thickness of the wall, in cells
_WALL, _FLOORS, _DOOR, _STONE = "#5b5750", ("#ece6d8", "#e4ddcc"), "#8a5a2b", "#a39e94"
_GOLD, _DRAGON, _WINGS, _PORTAL = "#e0aa1e", "#b8352f", "#8f2722", ("#6d4aa8", "#9a7bd0", "#c9b6ec")
_TEAM = ("#2f6db3", "#23876d", "#a3519f", "#c46a1b", "#4a6670")


def draw_dungeon(size: int, state: Any) -> Scene:
    """The dungeon of `size` x `size` cells with walls around it; `state` is a `DungeonState` of numpy arrays.

    The portal's row is on top. Agents wear the number of their row, from 1. Where one died stands a gravestone.
    """

    def middle(cell: np.ndarray) -> Point:
        return float(cell[0]) + _BORDER + 0.5, size + _BORDER - 0.5 - float(cell[1])

    side = size + 2.0 * _BORDER
    cells = [(x, y) for x in range(size) for y in range(size)]
    shapes: list[Shape] = [
        Box((x + _BORDER + 0.5, y + _BORDER + 0.5), (1.0, 1.0), _FLOORS[(x + y) % 2]) for x, y in cells
    ]
    shapes += _door(middle(state.door), -1.0 if state.door[0] == 0 else 1.0)
    shapes += [
        Disc(middle(state.portal), radius, colour) for radius, colour in zip((0.44, 0.32, 0.18), _PORTAL, strict=True)
    ]
    for place in np.flatnonzero(state.started & ~state.alive):
        shapes += _grave(middle(state.position[place]), str(place + 1))
    if state.dragon_alive:
        shapes += _dragon(middle(state.dragon))
    elif state.carrier < 0:
        shapes += _key(middle(state.dragon), 1.0)
    for place in np.flatnonzero(state.alive):
        here = np.flatnonzero(state.alive & (state.position == state.position[place]).all(axis=1))
        shapes += _agent(middle(state.position[place]), int(place), here.tolist(), bool(place == state.carrier))
    return Scene(size=(side, side), shapes=tuple(shapes), background=_WALL)


def tell_dungeon(state: Any, over: bool) -> str:
    """What has happened, in a few words; `state` as above. An end that is neither lost nor late is an escape."""
    living = state.alive.any()
    if state.dragon_alive:
        if (state.dragon == state.portal).all():
            return "lost: the dragon is gone"
        if over:
            return "held out until help came" if living else "lost: nobody is left"
        near = np.abs(state.position - state.dragon).max(axis=1) <= 1
        return "the dragon is held" if (near & state.alive).any() else "the dragon makes for the portal"
    if not living:
        return "lost: nobody is left to carry the key"
    opens = state.carrier >= 0 and bool((state.position[state.carrier] == state.door).all())
    if over:
        return "the door opens: escaped!" if opens else "lost: too late"
    if state.carrier >= 0:
        return f"{state.carrier + 1} carries the key to the door"
    fallen = " and ".join(str(place + 1) for place in np.flatnonzero(state.started & ~state.alive))
    return f"{fallen} slew the dragon and died: the key drops"


def _door(beside: Point, side: float) -> list[Shape]:
    """In the wall to the left (`side` -1) or right of its cell, with a golden lock."""
    x, y = beside[0] + 0.78 * side, beside[1]
    return [Box((x, y), (0.56, 0.92), _DOOR), Box((x, y), (0.44, 0.8), "#a8743c"), Disc((x, y), 0.1, _GOLD)]


def _grave(middle: Point, label: str) -> list[Shape]:
    x, y = middle
    stone = Box((x, y - 0.1), (0.5, 0.44), _STONE, label=label)
    return [Box((x, y - 0.34), (0.7, 0.08), "#857f74"), Disc((x, y + 0.1), 0.25, _STONE), stone]


def _dragon(middle: Point) -> list[Shape]:
    """From above: wings, a body with a spiked back, two eyes."""
    x, y = middle
    wings = [
        Polygon(
            ((x, y + 0.2), (x + s * 0.48, y + 0.4), (x + s * 0.4, y), (x + s * 0.46, y - 0.34), (x, y - 0.12)), _WINGS
        )
        for s in (-1, 1)
    ]
    horns = [
        Polygon(((x + s * 0.06, y + 0.2), (x + s * 0.2, y + 0.46), (x + s * 0.22, y + 0.1)), _DRAGON) for s in (-1, 1)
    ]
    eyes = [
        Disc((x + s * 0.1, y + 0.1), radius, colour)
        for s in (-1, 1)
        for radius, colour in ((0.07, "#ffe9a8"), (0.03, "#2f3136"))
    ]
    return [
        *wings,
        *horns,
        Disc((x, y), 0.28, _DRAGON),
        *eyes,
        Line((x - 0.1, y - 0.12), (x + 0.1, y - 0.12), 0.04, "#5e1512"),
    ]


def _key(middle: Point, scale: float) -> list[Shape]:
    x, y = middle
    bits = [Line((x + at * scale, y), (x + at * scale, y - 0.13 * scale), 0.07 * scale, _GOLD) for at in (0.16, 0.27)]
    ring = [Disc((x - 0.17 * scale, y), 0.15 * scale, _GOLD), Disc((x - 0.17 * scale, y), 0.07 * scale, _FLOORS[0])]
    return [Line((x - 0.1 * scale, y), (x + 0.27 * scale, y), 0.07 * scale, _GOLD), *bits, *ring]


def _agent(middle: Point, place: int, here: list[int], carries: bool) -> list[Shape]:
    """A numbered disc; those who share a cell stand in a ring. The carrier holds the key."""
    radius, away = (0.3, 0.0) if len(here) == 1 else (0.19, 0.25)
    angle = 2.0 * math.pi * here.index(place) / len(here) + 0.5 * math.pi
    x, y = middle[0] + away * math.cos(angle), middle[1] + away * math.sin(angle)
    body = Disc((x, y), radius, _TEAM[place % len(_TEAM)], label=str(place + 1))
    return [body, *_key((x + 0.8 * radius, y + 0.9 * radius), 0.6)] if carries else [body]

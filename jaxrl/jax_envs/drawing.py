"""Shapes that make a picture of an environment: flat, in the environment's own units, back to front.

An environment's `draw(state)` gives a `Scene` of one area from its state as numpy arrays; `watch/painter.py` paints it.
Colours are CSS names or "#rrggbb". Positions are (x, y) with y upwards and (0, 0) at the lower left corner.
"""

from __future__ import annotations

from typing import NamedTuple

Point = tuple[float, float]


class Disc(NamedTuple):
    """Filled circle."""

    centre: Point
    radius: float
    colour: str
    label: str = ""  # written in its middle


class Box(NamedTuple):
    """A filled rectangle, turned by `angle` radians counter-clockwise around its centre."""

    centre: Point
    size: Point  # width, height
    colour: str
    angle: float = 0.0
    label: str = ""


class Line(NamedTuple):
    """A line of a width in the environment's units."""

    start: Point
    end: Point
    width: float
    colour: str


class Polygon(NamedTuple):
    """A filled polygon: its corners in order."""

    corners: tuple[Point, ...]
    colour: str


Shape = Disc | Box | Line | Polygon


class Scene(NamedTuple):
    """Picture of one area."""

    size: Point  # width, height of what is shown
    shapes: tuple[Shape, ...]
    background: str = "#f4f1ea"

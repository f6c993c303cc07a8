"""What agents see and do in ML-Agents' example scenes, by behavior, as its page "Example Learning Environments" says.

Where that page counts actions without the one that does nothing, or numbers of one moment where the scene stacks
several, the sizes are those that arrive on the wire.
"""

from __future__ import annotations

from jaxrl.envs.sensors import IMAGE_PROPERTIES
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

NONE = DimensionProperty.NONE
GOAL = ObservationType.GOAL_SIGNAL
ROWS, COLUMNS, KINDS = 8, 8, 6
"""Of Match 3."""


def numbers(size: int, name: str = "VectorSensor", kind: ObservationType = ObservationType.DEFAULT) -> ObservationSpec:
    return ObservationSpec(name, (size,), (NONE,), kind)


def rays(*sizes: int) -> tuple[ObservationSpec, ...]:
    return tuple(numbers(size, f"RayPerceptionSensor{i}") for i, size in enumerate(sizes))


def image(channels: int, height: int, width: int, name: str = "CameraSensor") -> ObservationSpec:
    return ObservationSpec(name, (channels, height, width), IMAGE_PROPERTIES, dtype="uint8")


def table(rows: int, columns: int) -> ObservationSpec:
    return ObservationSpec("BufferSensor", (rows, columns), (DimensionProperty.VARIABLE_SIZE, NONE))


def spec(*sensors: ObservationSpec, continuous: int = 0, branches: tuple[int, ...] = ()) -> BehaviorSpec:
    return BehaviorSpec(sensors, ActionSpec(continuous, branches))


_MOVES = (3, 3, 3)  # forward, sideways, turning
_SWAPS = (ROWS * (COLUMNS - 1) + (ROWS - 1) * COLUMNS,)
_WALL = spec(numbers(4), *rays(70), branches=(*_MOVES, 2))
_BOARD = spec(numbers(ROWS * COLUMNS * KINDS, "Match3Sensor"), branches=_SWAPS)

SCENES: dict[str, BehaviorSpec] = {
    "3DBall": spec(numbers(8), continuous=2),
    "3DBallHard": spec(numbers(45), continuous=2),  # 5 numbers of nine moments
    "Visual3DBall": spec(image(3, 84, 84), continuous=2),
    "Basic": spec(numbers(20), branches=(3,)),
    "Crawler": spec(numbers(172), continuous=20),
    "Walker": spec(numbers(243), continuous=39),
    "Worm": spec(numbers(64), continuous=9),
    "GridFoodCollector": spec(numbers(4), image(6, 40, 40, "GridSensor"), continuous=3, branches=(2,)),
    "VisualFoodCollector": spec(numbers(1), image(3, 84, 84), continuous=3, branches=(2,)),
    "GridWorld": spec(image(3, 64, 84), numbers(2, "GoalSensor", GOAL), branches=(5,)),
    "Hallway": spec(numbers(1), *rays(30), branches=(5,)),
    "Match3VectorObs": _BOARD,
    "Match3VisualObs": spec(image(KINDS, ROWS, COLUMNS, "Match3Sensor"), branches=_SWAPS),
    "Match3SimpleHeuristic": _BOARD,
    "Match3SmartHeuristic": _BOARD,
    "PushBlock": spec(*rays(105, 105), branches=(7,)),  # 70 numbers of three moments
    "Pyramids": spec(numbers(4), *rays(144), branches=(5,)),
    "Sorter": spec(table(20, 23), numbers(4), branches=_MOVES),
    "BigWallJump": _WALL,
    "SmallWallJump": _WALL,
    "DungeonEscape": spec(numbers(1), *rays(360), branches=(7,)),
    "PushBlockCollab": spec(image(6, 20, 20, "GridSensor"), branches=(7,)),
    "SoccerTwos": spec(*rays(264, 72), branches=_MOVES),
    "Striker": spec(*rays(231, 63), branches=_MOVES),
    "Goalie": spec(*rays(738), branches=_MOVES),
}
TEAMS = frozenset(("DungeonEscape", "PushBlockCollab", "SoccerTwos", "Striker", "Goalie"))
"""Behaviors whose agents are a group."""

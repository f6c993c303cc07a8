"""Where the lessons of a run stand, in its training_status.json: `lesson_num` of every parameter, as ML-Agents has it.

Beside it stands what an exact continuation needs: what is smoothed, and below each behavior `lessons`, its newest
episodes. ML-Agents leaves keys that it does not know as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl.artifacts import status
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.status import LESSON
from jaxrl.training.lessons import Lessons

EPISODES = "lessons"
"""Entry of a behavior that lessons are measured by."""


def entries_of(lessons: Lessons) -> dict[str, dict[str, Any]]:
    """What the status is to hold of them, by parameter and behavior."""
    state = lessons.state()
    entries = {name: dict(noted) for name, noted in state["parameters"].items()}
    for name, episodes in state["behaviors"].items():
        entries.setdefault(name, {})[EPISODES] = episodes
    return entries


def read_lessons(path: Path) -> dict[str, Any]:
    """What `Lessons.restore` takes; nothing where there is no status that can be read, which whoever loads it says."""
    try:
        values = status.read(path)
    except ArtifactError:
        return {}
    parameters = {name: entries for name, entries in values.items() if isinstance(entries.get(LESSON), int)}
    behaviors = {name: entries[EPISODES] for name, entries in values.items() if EPISODES in entries}
    return {"parameters": parameters, "behaviors": behaviors}

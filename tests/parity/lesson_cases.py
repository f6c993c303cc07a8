"""Family l: lessons under scripted returns and steps, what environments are sent, and faulty settings."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel
from pydantic import TypeAdapter, ValidationError

from jaxrl.envs.unity.side_channels import send_parameter
from jaxrl.settings import EnvironmentParameter
from jaxrl.training.lessons import LessonChange, Lessons
from tests.parity.cases import Case
from tests.parity.compare import Comparison

PARAMETERS = TypeAdapter(dict[str, EnvironmentParameter])
STRICTER = ("interval with three numbers", "an empty curriculum", "gaussian with negative deviation")
"""Settings that the original accepts: it drops the third number, fails later, or draws as if it were positive."""
BEYOND = ("unknown measure",)
"""Settings that the original refuses: its lessons cannot wait for `elo`."""


def run_lessons(case: Case) -> Comparison:
    """Compare lessons, smoothed measures and buffers after each event, and the message of each lesson."""
    comparison, behaviors = Comparison(), case.meta["behaviors"]
    lessons = Lessons(PARAMETERS.validate_python(case.meta["environment_parameters"]), case.meta["run_seed"])
    restored = case.meta["restored_lessons"] or {}
    lessons.restore({"parameters": {name: {"lesson_num": number} for name, number in restored.items()}})
    sizes = {name: max(lessons.kept(name), 1) for name in behaviors}
    assert sizes == case.meta["reward_buffer_sizes"]
    rows = [_state(lessons, behaviors, [])]
    for event in case.meta["events"]:
        for name in behaviors:
            lessons.episodes(name, event["new_returns"][name])
        progress = {name: event["steps"][name] / case.meta["max_steps"][name] for name in behaviors}
        rows.append(_state(lessons, behaviors, lessons.advance(progress)))
    for name in rows[0]:
        comparison.add_exact(f"state/{name}", [row[name] for row in rows], case.arrays[f"state/{name}"])
    for name, values in lessons.possible().items():
        for number, value in enumerate(values):
            place = f"message/{name}/{number}"
            comparison.add_exact(place, np.frombuffer(_sent(name, value), np.uint8), case.arrays[place])
    return comparison


def _state(lessons: Lessons, behaviors: list[str], changes: list[LessonChange]) -> dict[str, Any]:
    state = lessons.state()
    episodes = [state["behaviors"].get(name, {"returns": ()})["returns"] for name in behaviors]
    return {
        "lesson": list(lessons.numbers.values()),
        "smoothed": [parameter["smoothed"] for parameter in state["parameters"].values()],
        "updated": bool(changes),
        "must_reset": any(change.require_reset for change in changes),
        "buffer_length": [len(returns) for returns in episodes],
    }


def _sent(name: str, value: Any) -> bytes:
    channel = EnvironmentParametersChannel()
    send_parameter(channel, name, value)
    (message,) = channel.message_queue
    return bytes(message)


def run_faulty(case: Case) -> Comparison:
    """Compare which settings are accepted; those that differ on purpose count as the original has them."""
    accepted = []
    for one in case.meta["cases"]:
        differs = one["what"] in (*STRICTER, *BEYOND)
        try:
            PARAMETERS.validate_python(one["environment_parameters"])
        except ValidationError:
            accepted.append(differs)
        else:
            accepted.append(not differs)
    comparison = Comparison()
    comparison.add_exact("accepted", accepted, case.arrays["accepted"])
    return comparison

"""Which action of a demonstration belongs to an observation: a key of GAIL and of behavioral cloning."""

from __future__ import annotations

from typing import Literal

DemoActions = Literal["detect", "as_recorded", "next_record"]
DETECT, AS_RECORDED, NEXT_RECORD = "detect", "as_recorded", "next_record"
DEMO_ACTIONS = (
    "where files have the action of an observation; detect: in the agent's next record if Unity recorded them, beside "
    "it if jaxrl wrote them; as_recorded: beside it, as ML-Agents reads all files; next_record: in the next record"
)
"""Description of the key."""

"""Which action of a demonstration belongs to an observation: a key of GAIL and of behavioral cloning."""

from __future__ import annotations

from typing import Literal

DemoActions = Literal["detect", "as_recorded", "next_record"]
DETECT, AS_RECORDED, NEXT_RECORD = "detect", "as_recorded", "next_record"

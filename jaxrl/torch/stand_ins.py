"""Replaces demonstrations that are missing when a run is imported by a stand-in of equal agents.

A learner is made with its demonstrations, but none of its arrays depends on their contents, and a checkpoint of
ML-Agents does not hold them either. Only `gail` keeps statistics of them; it is not imported without demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from jaxrl.demonstrations.reading import files
from jaxrl.demonstrations.records import DemonstrationError
from jaxrl.demonstrations.writing import Pair, write
from jaxrl.settings import BehaviorSettings
from jaxrl.settings.rewards import GAILSettings
from jaxrl.types import BehaviorSpec


@contextmanager
def missing_demonstrations(
    settings: BehaviorSettings, spec: BehaviorSpec
) -> Iterator[tuple[BehaviorSettings, list[str]]]:
    """Yield settings in which a demonstration of one decision replaces missing ones, and a remark on each of them."""
    with TemporaryDirectory(prefix="jaxrl-demo-") as folder:
        path = Path(folder, "nothing.demo")
        shapes = [sensor.shape for sensor in spec.observations]
        obs = [np.zeros(shape, np.uint8 if len(shape) == 3 else np.float32) for shape in shapes]
        nothing = Pair(obs, [0.0] * spec.action.continuous_size, [0] * len(spec.action.discrete_branches))
        write(path, "Nothing", spec, [nothing, nothing._replace(done=True)])
        there, remarks = {"demo_path": str(path)}, []
        cloning, signals = settings.behavioral_cloning, dict(settings.reward_signals)
        if cloning is not None and (error := _missing(cloning.demo_path)):
            cloning = cloning.model_copy(update=there)
            remarks.append(f"behavioral_cloning.demo_path: {error}")
        for name, signal in signals.items():
            if not isinstance(signal, GAILSettings) or signal.network_settings.normalize:
                continue
            if error := _missing(signal.demo_path):
                signals[name] = signal.model_copy(update=there)
                remarks.append(f"reward_signals.{name}.demo_path: {error}")
        changed = {"behavioral_cloning": cloning, "reward_signals": signals}
        yield settings.model_copy(update=changed) if remarks else settings, remarks


def _missing(path: str) -> str | None:
    try:
        files(path)
    except DemonstrationError as error:
        return f"{error}; it is needed to go on"
    return None

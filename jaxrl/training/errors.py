"""What goes wrong in either loop."""

from __future__ import annotations

from jaxrl.types import JaxrlError


class DivergedError(JaxrlError):
    """Training has produced numbers that are not finite; what was saved before is good."""

    def __init__(self, behavior: str, what: str, learning_rate: float) -> None:
        super().__init__(
            f"{behavior}: {what}: training has diverged. Lower hyperparameters.learning_rate (now {learning_rate:g}), "
            "or set network_settings.normalize: true if observations are large, or scale down large rewards; then "
            "continue from the last checkpoint, which is good, with --resume."
        )

"""Which behaviors each environment has shown so far: the statistics that it sends belong to all of them."""

from __future__ import annotations

from jaxrl.artifacts.names import behavior_name
from jaxrl.types import EnvMessage


class ShownBehaviors:
    """Names by worker, in the order of their first message."""

    def __init__(self) -> None:
        self._names: dict[int, dict[str, None]] = {}

    def of(self, result: EnvMessage) -> list[str]:
        """Names, without a team, of all behaviors that this worker has shown up to this message.

        Also of those that have no agent in it: ML-Agents gives an environment's statistics to every behavior it knows.
        """
        names = self._names.setdefault(result.worker, {})
        names |= dict.fromkeys(behavior_name(behavior_id) for behavior_id in (*result.new_specs, *result.steps))
        return list(names)

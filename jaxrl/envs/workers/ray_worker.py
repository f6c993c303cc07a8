"""What one environment does on a machine of a Ray cluster: the same commands as in a process of this machine.

The object lives in a process of Ray's, which calls one method after the other. An exception of the environment is the
answer to the command that met it, as in `worker.py`; the loss of the process or of its machine is noticed by Ray.
"""

from __future__ import annotations

import pickle
import signal
from importlib import metadata

from jaxrl.envs.interface import EnvironmentFailure, HostEnv
from jaxrl.envs.workers.incarnation import INCARNATION
from jaxrl.envs.workers.transport import from_bytes, to_bytes
from jaxrl.envs.workers.worker import execute, failure_message, ready_message
from jaxrl.log_lines import log_as_worker


class RayWorker:
    """One environment. Messages are bytes (`transport.to_bytes`)."""

    def __init__(self) -> None:
        self._environment: HostEnv | None = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, also with a cluster on this machine

    def start(self, pickled_factory: bytes, worker: int, incarnation: int, version: str, level: int) -> bytes:
        """Build the environment; the answer to a process's start-up.

        Args:
            pickled_factory: `factory(worker)` returns the environment.
            worker: index of this worker.
            incarnation: how often it was started before.
            version: the trainer's version of jaxrl, which must be the one of this machine: messages may differ.
            level: from which it logs, the trainer's; Ray shows what it writes to standard error.
        """
        log_as_worker(worker, level)
        INCARNATION.set(incarnation)
        try:
            here = metadata.version("jaxrl")
            if here != version:
                raise EnvironmentFailure(
                    f"jaxrl {here} is installed there and {version} here: install one version on all machines"
                )
            environment = self._environment = pickle.loads(pickled_factory)(worker)
            return to_bytes(ready_message(f"{environment.about or 'Environment'} on {_node()}"))
        except Exception as error:
            return to_bytes(failure_message(error, "start-up"))

    def execute(self, command: bytes) -> bytes | None:
        """Carry out one command; None: it has no answer. After a failure the environment is closed."""
        message = from_bytes(command)
        try:
            if self._environment is None:
                raise RuntimeError("there is no environment: it has failed before")
            answer = execute(self._environment, message)
            return None if answer is None else to_bytes(answer)
        except Exception as error:
            self.close()
            return to_bytes(failure_message(error, message.kind))

    def close(self) -> None:
        """Close the environment, if there is one."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()


def _node() -> str:
    """Which machine this is, as Ray's own tools call it."""
    import ray

    return f"node {ray.util.get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:8]})"

"""Where a worker runs: in a process of this machine, on a cluster, or in the trainer's own process."""

from __future__ import annotations

from collections.abc import Callable

from jaxrl.envs.workers.handles import EnvFactory, InlineHandle, ProcessHandle, WorkerHandle, pickle_factory


def launcher(
    factory: EnvFactory, patience: float, *, inline: bool, cluster: str | None
) -> Callable[[int, int], WorkerHandle]:
    """(worker, incarnation) → its process, which starts, here or on a cluster, or the environment in this process."""
    if inline:
        return lambda worker, incarnation: InlineHandle(factory, worker, incarnation)
    pickled = pickle_factory(factory)
    if cluster is None:
        return lambda worker, incarnation: ProcessHandle(pickled, worker, patience, incarnation)
    from jaxrl.envs.workers import ray_handle  # Ray takes a second to import

    ray_handle.connect(cluster)
    return lambda worker, incarnation: ray_handle.RayHandle(pickled, worker, incarnation)

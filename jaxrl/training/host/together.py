"""One learner over several hosts, each with environments and workers of its own: data-parallel, and synchronous.

Each host collects its share of `buffer_size`, then waits for the others. The rollouts of all, side by side as rows of
one, are spread over a mesh with one device of each host; every minibatch is drawn from all of them, each device
computes the gradient of its part, the sums go over the network, and all hold the same parameters, bit for bit.
Normaliser, advantages and statistics of the update are those of all rows.

Before an update the hosts tell each other how large their rollouts are and whether one of them has come to an end.
Whoever has ended says so in the place of its next update, and so all end at the same one. A host that is gone or fails
ends the others (`training.hosts`). Which decisions an update learns from depends on no clock: in lockstep a run with
the same number of hosts repeats bit for bit.

Parity. ML-Agents trains on one machine. With one host all numbers are those of a run without hosts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl.algorithms.interface import Algorithm, TrainState, replays
from jaxrl.artifacts.checkpoint.tree import is_key
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import RunSettings
from jaxrl.training.host.collector import Collector
from jaxrl.training.host.learner import Learner
from jaxrl.training.hosts import HostsError
from jaxrl.training.interrupt import await_telling
from jaxrl.training.spread import of_first, over_all, told, writes

HOSTS = "hosts"  # the axis of the mesh
ROWS = PartitionSpec(None, HOSTS)
"""Where the arrays of a rollout [T, B, A, ...] lie."""


class Gathered(NamedTuple):
    """What all hosts have come to an update with."""

    finished: int  # decisions of all since the last update
    shape: tuple[int, int, int]  # [T, B, A] in which the rollout of each has room


class Together:
    """The hosts of a run, as the loop and the learner of one of them see them."""

    def __init__(self, settings: RunSettings) -> None:
        options = settings.checkpoint_settings
        inits = any(behavior.init_path for _, behavior in settings.every_behavior())
        self.starts_elsewhere = options.resume or options.initialize_from is not None or inits  # host 0 alone has that
        self.index, self.count = jax.process_index(), jax.process_count()
        firsts = {device.process_index: device for device in reversed(jax.devices())}
        devices = np.array([firsts[index] for index in range(self.count)])
        self.mesh = Mesh(devices, (HOSTS,), axis_types=(AxisType.Auto,))
        self.over = False  # somebody has ended, and so has everybody

    def gather(self, finished: int, shape: tuple[int, int, int] = (0, 0, 0), *, ends: bool = False) -> Gathered:
        """What all hosts come to an update with, or to their end. Waits for them, as long as it takes.

        Args:
          finished: decisions since the last update.
          shape: [T, B, A] of the rollout.
        """
        mine = np.array([ends, finished, *shape], np.int32)
        with ThreadPoolExecutor(1, "jaxrl-together") as thread:
            found = thread.submit(multihost_utils.process_allgather, mine)
            await_telling(found, lambda: "the other hosts to come to this update")
        every = np.asarray(found.result()).reshape(self.count, -1)
        self.over = bool(every[:, 0].any())
        t, b, a = every[:, 2:].max(0).tolist()
        return Gathered(int(every[:, 1].sum()), (t, b, a))

    def leave(self, learner: Learner | None) -> None:
        """This host is at its end; the others end where they would have learned next. Nothing if they have."""
        if self.over:
            return
        if isinstance(learner, JoinedLearner):
            learner.count(self.gather(learner.finished, ends=True), at_once=True)
        else:
            self.gather(0, ends=True)

    def share(self, state: TrainState, step: int, decisions: int) -> tuple[TrainState, int, int]:
        """What host 0 begins with, in all. Raises KeyboardInterrupt where one has ended before it began."""
        self.gather(0)
        if self.over:
            raise KeyboardInterrupt
        step, decisions = told(lambda: [step, decisions])
        return jax.device_put(of_first(state)), step, decisions

    def share_of(self, algorithm: Algorithm) -> Algorithm:
        """An algorithm whose updates are due when this host has its share of the decisions. Raises HostsError."""
        if replays(algorithm):
            raise HostsError("--hosts: got an algorithm that replays, expected one that learns on-policy (ppo, poca)")
        return algorithm._replace(collect_size=-(-algorithm.collect_size // self.count))

    def alike(self, tree: Any) -> Any:
        """Arrays that all hosts have alike, as ones of all."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        return over_all(tree, jax.tree.map(lambda _: whole, tree))

    def side_by_side(self, rollout: Rollout, shape: tuple[int, int, int]) -> Rollout:
        """This host's rollout, with nobody in what it lacks of `shape` [T, B, A], as its rows of one of all."""
        lacks = [(0, new - old) for new, old in zip(shape, rollout.acted.shape, strict=True)]
        (t, rows, members), place = shape, NamedSharding(self.mesh, ROWS)

        def padded(x: jax.Array) -> jax.Array:
            whole = np.pad(np.asarray(x), lacks + [(0, 0)] * (x.ndim - 3))
            of_all = t, rows * self.count, members, *x.shape[3:]
            return jax.make_array_from_process_local_data(place, whole, of_all)

        return jax.tree.map(padded, rollout)


def _own(x: jax.Array) -> jax.Array:
    """The part of a global array that lies here."""
    if is_key(x):
        return jax.random.wrap_key_data(_own(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return x.addressable_data(0)


class JoinedLearner(Learner):
    """The learner of all hosts: `learn` waits for the others. With each update its step counts the decisions of all."""

    def __init__(self, together: Together, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._together = together
        self.finished = 0  # decisions of this host since the last update
        self._counted = 0  # the step at the last update, the same on all hosts
        self._owed = 0  # the others' decisions up to it, which the next message counts: what they reach is due then
        self._learn: dict[Any, Any] = {}  # compiled, by the sizes of a rollout
        if together.index:  # other noise than host 0's
            key = jax.random.wrap_key_data(jnp.array(self.run_key, jnp.uint32), impl="threefry2x32")
            self.run_key = np.asarray(jax.random.key_data(jax.random.fold_in(key, together.index))).tolist()

    def decided(self, finished: int) -> None:
        """So many more decisions of this host have their reward."""
        self.finished += finished
        super().decided(finished + self._owed)
        self._owed = 0

    def count(self, gathered: Gathered, *, at_once: bool = False) -> None:
        """Let the step be that of all hosts, with the next message or `at_once`."""
        self.finished, self._counted = 0, self._counted + gathered.finished
        self._owed = self._counted - self.step
        if at_once:
            self.decided(0)

    def begin_at(self, step: int) -> None:
        """All hosts go on from this step."""
        self.step = self._counted = step

    def compile_for(self, actor: Collector, *, at_once: bool = False) -> None:
        """Nothing: how large a rollout is, all hosts together know when they come to learn from it."""

    def await_program(self, actor: Collector) -> None:
        """Nothing, see `compile_for`."""

    def learn(self, actor: Collector) -> dict[str, float]:
        """One update from what the actors of all hosts have collected; nothing, and the end, where one has ended."""
        if not self._prepared(actor):
            return {}
        take = self._programs.take
        shape = jax.eval_shape(take, actor.buffer, *actor.begin)[0].acted.shape
        found = self._together.gather(self.finished, shape)
        self.count(found, at_once=self._together.over)
        if self._together.over:
            self.stopped = True
            return {}
        rows = actor.rows
        rollout, buffer = take(actor.buffer, *actor.begin)
        actor.taken(buffer)
        spread = self._together.side_by_side(rollout, found.shape)
        state, store = self._together.alike((self.state, self.store))
        state, store, metrics = self._program(state, store, spread)(state, store, spread)
        self.fresh = 0
        state, store, metrics = jax.tree.map(_own, (state, store, metrics))
        return self._learned(state, store, metrics, rows)

    def _program(self, state: TrainState, store: Any, rollout: Rollout) -> Any:
        """`learn_from` over all hosts, compiled once for these sizes."""
        sizes = rollout.acted.shape
        if sizes not in self._learn:
            assert self._programs.of_hosts is not None
            self._learn[sizes] = self._programs.of_hosts(self._together.mesh, ROWS, state, store, rollout)
        return self._learn[sizes]


@contextmanager
def settings_here(settings: RunSettings) -> Iterator[RunSettings]:
    """The settings of this host: host 0's are those of the run, and what the others write goes nowhere."""
    if writes():
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="jaxrl-host-", ignore_cleanup_errors=True) as folder:
        nowhere = {"results_dir": folder, "resume": False, "force": False, "initialize_from": None}
        quiet = {"evaluation": None, "stop": {}, "keep_best": None, "init_path": None}
        yield settings.model_copy(
            update={
                "checkpoint_settings": settings.checkpoint_settings.model_copy(update=nowhere),
                "behaviors": {name: one.model_copy(update=quiet) for name, one in settings.behaviors.items()},
                "default_settings": settings.default_settings and settings.default_settings.model_copy(update=quiet),
            }
        )

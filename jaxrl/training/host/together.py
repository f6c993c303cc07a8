"""Learners of several hosts, each with environments and workers of its own: data-parallel, and synchronous.

Each host collects its share of `buffer_size`, then waits for the others (`meetings`). The rollouts of all, side by side
as rows of one, are spread over a mesh with one device of each host; every minibatch is drawn from all of them, each
device computes the gradient of its part, the sums go over the network, and all hold the same parameters, bit for bit.
Normaliser, advantages and statistics of the update are those of all rows.

Parity. ML-Agents trains on one machine. With one host all numbers are those of a run without hosts, of a replay to
rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl.algorithms.interface import Algorithm, Counts, TrainState
from jaxrl.artifacts.checkpoint.tree import is_key
from jaxrl.rollout.rollout import Rollout
from jaxrl.settings import RunSettings
from jaxrl.training.host.collector import Collector
from jaxrl.training.host.learner import Learner
from jaxrl.training.host.team_learner import KindLearner
from jaxrl.training.interrupt import await_telling
from jaxrl.training.spread import of_each, of_first, over_all, told, writes

HOSTS = "hosts"  # the axis of the mesh
ROWS = PartitionSpec(None, HOSTS)
"""Where the arrays of a rollout [T, B, A, ...] lie."""


class Together:
    """The hosts of a run, as one of them sees them: what they tell each other, and arrays of all."""

    def __init__(self, settings: RunSettings) -> None:
        options = settings.checkpoint_settings
        inits = any(behavior.init_path for _, behavior in settings.every_behavior())
        self.starts_elsewhere = options.resume or options.initialize_from is not None or inits  # host 0 alone has that
        self.index, self.count = jax.process_index(), jax.process_count()
        firsts = {device.process_index: device for device in reversed(jax.devices())}
        devices = np.array([firsts[index] for index in range(self.count)])
        self.mesh = Mesh(devices, (HOSTS,), axis_types=(AxisType.Auto,))

    def every(self, mine: Any) -> list[Any]:
        """What each host says, plain JSON values, by its number. Waits until all have come, as long as it takes."""
        with ThreadPoolExecutor(1, "jaxrl-together") as thread:
            found = thread.submit(of_each, mine)
            await_telling(found, lambda: "the other hosts to come to a meeting")
        return found.result()

    def share(self, state: TrainState, step: int, decisions: int) -> tuple[TrainState, int, int]:
        """What host 0 begins with, in all."""
        step, decisions = told(lambda: [step, decisions])
        return jax.device_put(of_first(state)), step, decisions

    def share_of(self, algorithm: Algorithm) -> Algorithm:
        """An algorithm whose updates are due when this host has its share of the decisions."""
        storage = algorithm.storage
        return algorithm._replace(
            collect_size=-(-algorithm.collect_size // self.count),
            storage=storage._replace(
                can_sample=lambda store, counts: storage.can_sample(_here(store), counts),
                saved=False,  # host 0's checkpoint would be all that has it
            ),
        )

    def alike(self, tree: Any) -> Any:
        """Arrays that all hosts have alike, as ones of all."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        return over_all(tree, jax.tree.map(lambda _: whole, tree))

    def side_by_side(self, rollout: Rollout, shape: tuple[int, ...]) -> Rollout:
        """This host's rollout, with nobody in what it lacks of `shape` [T, B, A], as its rows of one of all."""
        lacks = [(0, new - old) for new, old in zip(shape, rollout.acted.shape, strict=True)]
        (t, rows, members), place = shape, NamedSharding(self.mesh, ROWS)

        def padded(x: jax.Array) -> jax.Array:
            whole = np.pad(np.asarray(x), lacks + [(0, 0)] * (x.ndim - 3))
            of_all = t, rows * self.count, members, *x.shape[3:]
            return jax.make_array_from_process_local_data(place, whole, of_all)

        return jax.tree.map(padded, rollout)


def _here(tree: Any) -> Any:
    """The parts of global arrays that lie here, of what all have alike the whole."""
    return jax.tree.map(_own, tree)


def _own(x: jax.Array) -> jax.Array:
    """The part of a global array that lies here."""
    if is_key(x):
        return jax.random.wrap_key_data(_own(jax.random.key_data(x)), impl=jax.random.key_impl(x))
    return x.addressable_data(0)


class JoinedLearner(Learner):
    """The learner of all hosts: `learn` waits for the others. At each meeting its step counts the decisions of all."""

    def __init__(self, hosts: Together, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._hosts = hosts
        self.finished = 0  # decisions of this host since the last meeting
        self.counted = 0  # the step at the last meeting, the same on all hosts
        self.ended = False  # by one of the settings' `stop`, as all hosts know
        self.shapes: list[tuple[int, ...]] = []  # [T, B, A] in which each rollout of the next update has room
        self.brought = 0  # decisions of all hosts that go into the store now
        self.owed = 0  # the others' decisions up to it, which the next message counts: what they reach is due then
        self._known_shapes: tuple[Any, list[tuple[int, ...]]] = None, []  # by the sizes of a buffer
        self._learn: dict[Any, Any] = {}  # compiled, by whether there is an update, and the sizes of rollouts
        if hosts.index:  # other noise than host 0's
            key = jax.random.wrap_key_data(jnp.array(self.run_key, jnp.uint32), impl="threefry2x32")
            self.run_key = np.asarray(jax.random.key_data(jax.random.fold_in(key, hosts.index))).tolist()

    def decided(self, finished: int) -> None:
        """So many more decisions of this host have their reward."""
        self.finished += finished
        super().decided(finished + self.owed)
        self.owed = 0

    def count(self, finished: int, *, at_once: bool = False) -> None:
        """All hosts have finished so many since the last meeting: its step with the next message, or `at_once`."""
        self.finished, self.counted = 0, self.counted + finished
        self.owed = self.counted - self.step
        if at_once:
            self.decided(0)

    def begin_at(self, step: int) -> None:
        """All hosts go on from this step."""
        self.step, self.counted, self.finished = step, step, 0

    def goes_on(self) -> bool:
        """As of `Learner`, by what all hosts know."""
        return not self.training or (self.counted <= self.settings.last_step and not self.ended)

    @property
    def passing(self) -> bool:
        """Whether this host has something to say of the end: if the others are like it, the last step is reached."""
        reached = self.counted + self.finished * self._hosts.count > self.settings.last_step
        return self.goes_on() and (reached or self.stopped)

    def compile_for(self, actor: Collector, *, at_once: bool = False) -> None:
        """Nothing: how large a rollout is, all hosts together know when they come to learn from it."""

    def _warn_of_few(self, decisions: int) -> None:
        """Nothing: the agents of a behavior may stand in the games of another host."""

    def shapes_of(self, actor: Collector) -> list[tuple[int, ...]]:
        """[T, B, A] of what would be taken from an actor now, of a team by kind; nothing before its first message."""
        if actor.buffer is None:
            return []
        if self._known_shapes[0] != actor.buffer.sizes:
            taken = jax.eval_shape(self._programs.take, actor.buffer, *actor.begin)[0]
            self._known_shapes = actor.buffer.sizes, [rollout.acted.shape for rollout in _each(taken)]
        return self._known_shapes[1]

    def learn(self, actor: Collector) -> dict[str, float]:
        """One update from what the actors of all hosts have collected, which all begin now, with rooms of `shapes`.

        With a replay all hosts hold the same, decisions of every one of them, as arrays of all from the first on.
        """
        learns, rows = self._due(actor), actor.rows
        taken, buffer = self._programs.take(actor.buffer, *actor.begin)
        actor.taken(buffer)
        spread = [self._hosts.side_by_side(*of) for of in zip(_each(taken), self.shapes, strict=True)]
        state, store = self._hosts.alike(self._known)
        given = state, store, spread[0] if isinstance(taken, Rollout) else tuple(spread)
        state, store, metrics = self._program(learns, *given)(*given)
        state, metrics = _here((state, metrics))
        if learns:
            self.fresh = 0
            return self._learned(state, store, metrics, rows)
        self.state, self.store = state, store
        self.earned.add(metrics, rows)
        return {}

    def _counts(self, actor: Collector) -> Counts:
        """As of `Learner`, of all hosts."""
        return Counts(fresh=self.fresh + self.brought, total=self.counted)

    def _program(self, learns: bool, *given: Any) -> Any:
        """`learn_from`, or `keep_from`, over all hosts, compiled once for these sizes."""
        which = learns, tuple(self.shapes)
        if which not in self._learn:
            assert self._programs.of_hosts is not None
            self._learn[which] = self._programs.of_hosts(self._hosts.mesh, ROWS, learns, *given)
        return self._learn[which]


class JoinedKindLearner(JoinedLearner, KindLearner):
    """The part of one behavior in a team that all hosts learn."""


def _each(taken: Any) -> tuple[Rollout, ...]:
    """The rollouts of an update: one, or of a team one of each kind."""
    return (taken,) if isinstance(taken, Rollout) else taken


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

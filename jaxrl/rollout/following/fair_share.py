"""Choose the episodes that count when a number of them is wanted: every place plays its share.

A place is a sequence of episodes: those of an agent's id or a group's. In a scene that gives new ids, an episode that
begins continues the place that has been empty for the longest time. If the first episodes to end counted, they would be
short ones, and if areas differ those of the area that ends most often.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(eq=False)
class _Place:
    """Sequence of episodes."""

    number: int
    kind: Hashable  # kind of its episodes: others never take its place
    played: int = 0  # episodes that have begun


@dataclass(order=True)
class _Entry(Generic[Item]):
    """Episode, in the order in which episodes count: the first of every place, then the second of every place."""

    turn: int
    number: int  # number of the place
    item: Item = field(compare=False)
    done: bool = field(default=False, compare=False)


class FairShare(Generic[Item]):
    """Choice of `count` episodes, the same number of every place or one more of the first places."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._places: list[_Place] = []
        self._by_key: dict[Hashable, _Place] = {}
        self._occupied: dict[Item, tuple[_Place, Hashable]] = {}  # place and key of each running episode
        self._empty: list[tuple[_Place, Hashable]] = []  # empty places and their last keys, longest empty first
        self._entries: list[_Entry[Item]] = []  # at most `count`, in their order

    @property
    def chosen(self) -> list[Item]:
        """Episodes that count so far, in their order."""
        return [entry.item for entry in self._entries]

    @property
    def running(self) -> list[Item]:
        """Episodes that count and are not done."""
        return [entry.item for entry in self._entries if not entry.done]

    @property
    def complete(self) -> bool:
        """True if all chosen episodes are done, and no later one would count in place of one of them."""
        if len(self._entries) < self._count or self.running:
            return False
        last = self._entries[-1]
        return all((place.played + 1, place.number) > (last.turn, last.number) for place in self._places)

    def is_certain(self, item: Item) -> bool:
        """Return whether an episode counts whatever else begins in the existing places."""
        match = next(((index, entry) for index, entry in enumerate(self._entries) if entry.item == item), None)
        if match is None:
            return False
        index, entry = match
        turns = ((place, entry.turn - (place.number >= entry.number)) for place in self._places)
        return index + sum(max(turn - place.played, 0) for place, turn in turns) < self._count

    @property
    def has_empty(self) -> bool:
        """True if there is a place without a running episode."""
        return bool(self._empty)

    def begin(self, item: Item, key: Hashable, kind: Hashable = None) -> bool:
        """Begin an episode of the agent or group `key`. Return whether it counts, until another takes its turn."""
        place = self._by_key.get(key) or self._take_empty(kind) or self._new(kind)
        self._empty = [other for other in self._empty if other[0] is not place]
        self._by_key[key], self._occupied[item] = place, (place, key)
        place.played += 1
        entry = _Entry(place.played, place.number, item)
        insort(self._entries, entry)
        del self._entries[self._count :]
        return entry in self._entries

    def end(self, item: Item) -> None:
        """End an episode and empty its place."""
        self.finish(item)
        if item in self._occupied:
            self._empty.append(self._occupied.pop(item))

    def finish(self, item: Item) -> None:
        """Mark an episode as done that goes on, but whose further steps do not count."""
        for entry in self._entries:
            entry.done |= entry.item == item

    def lose(self, item: Item) -> None:
        """Remove an episode that broke off: it does not count, and the next one in its place takes its turn."""
        place, key = self._occupied.pop(item)
        place.played -= 1
        self._entries = [entry for entry in self._entries if entry.item != item]
        self._empty.append((place, key))

    def begin_anew(self) -> None:
        """End all episodes and empty all places."""
        for item in list(self._occupied):
            self.end(item)
        self._empty.sort(key=lambda other: other[0].number)

    def _take_empty(self, kind: Hashable) -> _Place | None:
        """Return the place of this kind that has been empty for the longest time, and forget its key; None: no such."""
        place, key = next(((place, key) for place, key in self._empty if place.kind == kind), (None, None))
        if place is not None:
            del self._by_key[key]
        return place

    def _new(self, kind: Hashable) -> _Place:
        self._places.append(_Place(len(self._places), kind))
        return self._places[-1]

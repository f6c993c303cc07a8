"""Registry of entries that a configuration can name; modules are imported when their entry is asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, TypeVar

_Name = TypeVar("_Name", bound=Hashable)
_Entry = TypeVar("_Entry")


class Registry(MutableMapping[_Name, _Entry]):
    """jaxrl's own entries, which are counted and listed, and entries of others, which are made when they are asked for.

    Args:
      entries: entries by name; or text, "module" or "module:name", which is imported when it is asked for.
      offers: returns whether an unknown name is an entry of others; may raise an error that says why it cannot be used.
      own: makes the entry of such a name.
    """

    def __init__(
        self,
        entries: Mapping[_Name, _Entry | str],
        offers: Callable[[object], bool] = lambda name: False,
        own: Callable[[Any], _Entry] | None = None,
    ) -> None:
        self._entries, self._offers, self._own = dict(entries), offers, own

    def __getitem__(self, name: _Name) -> _Entry:
        if name not in self._entries:
            if self._own is None or name not in self:
                raise KeyError(name)
            return self._own(name)
        entry = self._entries[name]
        if not isinstance(entry, str):
            return entry
        module, _, attribute = entry.partition(":")
        home: Any = import_module(module)
        return getattr(home, attribute) if attribute else home

    def __contains__(self, name: object) -> bool:
        return name in self._entries or self._offers(name)

    def __iter__(self) -> Iterator[_Name]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __setitem__(self, name: _Name, entry: _Entry) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: _Name) -> None:
        del self._entries[name]

"""A user's own writers: `record_settings: {writers: [my_file.py:make_writer]}`, or the name of an installed one.

    def make_writer(place):                                # told of one behavior, or one seed: see `Place`
        return MyWriter(place.title)                       # which has a method summaries(step, summaries)

It may have `hyperparameters(settings, step)`, `images(step, images)` and `close()` as well, see `StatisticsWriter`. It
is made and called in a thread of its own. A failure there is reported once, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl.artifacts.metrics.writers.background import ADVICE, BackgroundWriter
from jaxrl.artifacts.metrics.writers.interface import Place, RecordError
from jaxrl.own_code import OwnCodeError
from jaxrl.plugins import Kind, load


def check(index: int, name: str) -> Callable[[Place], Any]:
    """Return the function behind entry `index` of `record_settings.writers`. Raises RecordError if there is none."""
    where = f"record_settings.writers[{index}]: "
    try:
        make = load(Kind.WRITER, name, where=where)
    except OwnCodeError as error:
        raise RecordError(str(error)) from error
    if not callable(make):
        raise RecordError(f"{where}{name} is a {type(make).__name__}, expected a function (place)")
    return make


def open_writer(index: int, name: str, place: Place) -> BackgroundWriter:
    """Make the writer of entry `index` for this place."""
    make = check(index, name)
    return BackgroundWriter(name, lambda: OwnWriter(make(place)), ADVICE, place.told)


class OwnWriter:
    """Passes on the calls that the user's writer has a method for."""

    def __init__(self, writer: Any) -> None:
        if not callable(getattr(writer, "summaries", None)):
            raise RecordError(f"a {type(writer).__name__} was made, which has no method summaries(step, summaries)")
        self._writer = writer

    def __getattr__(self, method: str) -> Any:
        return getattr(self._writer, method, lambda *_: None)

"""Puts films into a report: the last one of each run, in the page where it is small enough, else as a link."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from jaxrl.regular_files import read_regular
from jaxrl.tools.report.runs import Experiment

FOLDER = "videos"
TYPES = {".mp4": "video/mp4", ".gif": "image/gif"}
LARGEST, ALL = 3 * 2**20, 16 * 2**20
"""Largest sizes in bytes of one film, and of all films, in a page."""


class Film(NamedTuple):
    """Film and the text below it."""

    path: Path
    caption: str
    stays: bool = True  # False: a temporary file for this page, which nothing can refer to later


def films_of(experiments: Sequence[Experiment], made: Mapping[Path, Film]) -> list[Film]:
    """Return one film of each run that has any: the one `made` for its folder, else the last in its videos/."""
    films = []
    for run in (run for e in experiments for run in e.runs):
        last = last_film(run.folder)
        if run.folder in made:
            films.append(made[run.folder])
        elif last is not None:
            films.append(Film(last, f"{run.name}: {last.stem}"))
    return films


def last_film(run: Path) -> Path | None:
    """Return the film of the latest episode in a results folder, or None. An unfinished film is hidden (".")."""
    films = [path for path in (run / FOLDER).glob("*") if path.suffix in TYPES and not path.name.startswith(".")]
    return max(films, key=lambda path: path.name, default=None)


def films_html(films: Sequence[Film], beside: Path) -> str:
    """Return the section of the page, which is written into the folder `beside`; nothing without films."""
    if not films:
        return ""
    room, shown, links = ALL, [], []
    for film in films:
        try:
            small = film.path.stat().st_size <= min(LARGEST, room)
            content = read_regular(film.path, LARGEST) if small else None
        except OSError:  # deleted meanwhile
            continue
        caption = escape(film.caption)
        if content is None and not film.stays:
            links.append(f"<p>{caption}, too large for this page: `jaxrl watch --run` makes it again.</p>")
            continue
        if content is None:
            address = quote(os.path.relpath(film.path, beside).replace(os.sep, "/"))
            links.append(f'<p>{caption}, too large for this page: <a href="{address}">{escape(film.path.name)}</a></p>')
            continue
        room -= len(content)
        shown.append(f"<figure>{_element(film, content)}<figcaption>{caption}</figcaption></figure>")
    return f'<h2>Films</h2>\n<div class="films">{"".join(shown)}</div>' + "".join(links)


def _element(film: Film, content: bytes) -> str:
    kind = TYPES[film.path.suffix]
    address = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if kind.startswith("video"):
        return f'<video src="{address}" controls loop muted playsinline></video>'
    return f'<img src="{address}" alt="{escape(film.caption)}">'

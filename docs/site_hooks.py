"""What mkdocs does beside its plugins: equations, the list of public names, pictures that lie elsewhere.

Equations become MathML when the site is built, so that a page needs neither a script nor the network to show them.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from math_core import LatexToMathML
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import jaxrl

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ("benchmarks/paper.png", "benchmarks/dungeon_escape.png", "benchmarks/scale.png")
PUBLIC_NAMES = "<!-- public names -->"

GROUPS = {
    "Algorithms and training": ("jaxrl.algorithms", "jaxrl.settings", "jaxrl.training"),
    "Environments in JAX": ("jaxrl.jax_envs", "jaxrl.types"),
    "Trained policies and their numbers": (
        "jaxrl.client.episodes",
        "jaxrl.client.policy",
        "jaxrl.client.policy_inputs",
        "jaxrl.report",
    ),
    "A Unity build in your own loop": ("jaxrl.client",),
    "Callbacks": ("jaxrl.callbacks", "jaxrl.rollout"),
    "Everything else": ("jaxrl",),
}
"""Headings of the reference, with the packages whose names stand below each; the first that fits takes a name."""

_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_CONVERTER = LatexToMathML()


def on_files(files: Files, config: Any) -> Files:
    """Pictures of the benchmarks lie beside the pages that show them."""
    for picture in PICTURES:
        path = ROOT / picture
        files.append(File.generated(config, path.name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The reference is made of `jaxrl.__all__`."""
    return markdown.replace(PUBLIC_NAMES, "\n\n".join(_sections()))


def on_page_content(html_text: str, page: Page, **_: Any) -> str:
    """Every equation as MathML. Raises math_core.LatexError for one that cannot be read, which ends the build."""
    return _EQUATION.sub(_mathml, html_text)


def _mathml(found: re.Match[str]) -> str:
    tag, latex = found.groups()
    block = tag == "div"
    text = _CONVERTER.convert_with_local_state(html.unescape(latex), displaystyle=block)
    return f'<div class="equation">{text}</div>' if block else text


def _sections() -> list[str]:
    left = {name: getattr(jaxrl, name).__module__ for name in jaxrl.__all__}
    parts = []
    for title, packages in GROUPS.items():
        names = [name for name, home in left.items() if _within(home, packages)]
        if names:
            parts += [f"## {title}", *(f"::: jaxrl.{name}" for name in names)]
        left = {name: home for name, home in left.items() if name not in names}
    return parts


def _within(home: str, packages: tuple[str, ...]) -> bool:
    return any(home == package or home.startswith(f"{package}.") for package in packages)

"""Names of a user's own code in settings: `my_file.py:name` or `package.module:name`. Nothing is imported here."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(.+\.py|[A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)", re.DOTALL)


def split_address(name: object) -> tuple[str, str] | None:
    """FILE.py or module, and the object in it; None for everything that is no such name."""
    match = _ADDRESS.fullmatch(name) if isinstance(name, str) else None
    return None if match is None else (match.group(1), match.group(2))

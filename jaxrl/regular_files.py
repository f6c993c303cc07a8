"""Safe reading in somebody else's folder: only regular files are opened, and they are read only up to a size.

A named pipe under the name of a configuration would be waited for without end, and a file with a hole of gigabytes
costs nobody a byte but its reader.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_TEXT = 16 * 2**20
"""Bytes of a configuration or a JSON document; those of long runs with many behaviors have some hundred thousand."""


def open_regular(path: Path, largest: int | None = None) -> BinaryIO:
    """Open the file at `path` for reading. Raises OSError, at once, for a pipe, a device, a folder or a larger file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        if largest is not None and status.st_size > largest:
            text = f"it has {status.st_size:,} bytes, more than the {largest:,} that such a file may have"
            raise OSError(errno.EFBIG, text, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """Read a whole file. Raises as `open_regular`."""
    with open_regular(path, largest) as file:
        return file.read(largest + 1)

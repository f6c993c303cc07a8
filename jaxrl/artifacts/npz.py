"""Read `.npz` files of others within bounds: NumPy's own reader allocates what a zip and its headers claim. No JAX."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from typing import BinaryIO

import numpy as np

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError, OverflowError)
"""Exceptions of the zip's reader for damaged, encrypted or unknown entries."""


def read_npz(file: BinaryIO, largest: int) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz` file by name; they cannot be written to.

    Args:
      largest: bytes that all arrays together may have.

    Raises ValueError, in a few words, for a file of another kind, a damaged one, or one that claims more.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            claimed = sum(entry.file_size for entry in entries)
            if claimed > largest:
                raise ValueError(f"its arrays have {claimed:,} bytes, more than {largest:,}")
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}
    except _BROKEN as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Return the array of one entry, after comparing its header with the bytes that the entry has."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{entry.filename} is of version {version} of NumPy's format")
        shape, is_fortran, dtype = _HEADERS[version](file)
        count = math.prod(shape)
        if dtype.hasobject or min(shape, default=0) < 0 or count * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} claims {count:,} numbers of {dtype}")
        content = file.read()
    if len(content) != count * dtype.itemsize:
        raise ValueError(f"{entry.filename} has {len(content):,} bytes for {count:,} numbers of {dtype}")
    if not count:
        return np.zeros(shape, dtype)
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")

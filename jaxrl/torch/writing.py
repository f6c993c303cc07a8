"""Writes files for `torch.load`, also with weights_only: the layout that stands in `reading`."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.artifacts import files

_STORAGES = {"f4": "FloatStorage", "f8": "DoubleStorage", "i8": "LongStorage", "i4": "IntStorage", "b1": "BoolStorage"}
_FOLDER = "archive"
_VERSION = b"3\n"
_NO_TIME = (1980, 1, 1, 0, 0, 0)


class Ordered(dict[str, Any]):
    """A dictionary that PyTorch gets as an OrderedDict: the state of a module."""


def write_torch_file(path: Path, contents: Mapping[str, Any]) -> None:
    """Write dictionaries, lists, tuples, texts, numbers and numpy arrays as `torch.save` does, atomically.

    An array object that stands in several places is written once and shared there, as a module's tensors with two names
    are. Raises ArtifactError when the file cannot be written, TypeError for a value of another kind.
    """
    pickled = _Pickle(contents)
    with files.writing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:

        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"{_FOLDER}/{name}", _NO_TIME), data)

        add("data.pkl", pickled.out.getvalue())
        add("byteorder", b"little")
        for key, array in enumerate(pickled.storages):
            add(f"data/{key}", array.astype(array.dtype.newbyteorder("<")).tobytes())
        add("version", _VERSION)


class _Pickle:
    """A pickle of protocol 2, and the arrays that it names by their number."""

    def __init__(self, value: Any) -> None:
        self.storages: list[np.ndarray] = []
        self.out = io.BytesIO()
        self._keys: dict[int, int] = {}  # number of a storage by the identity of its array
        self.out.write(b"\x80\x02")
        self._add(value)
        self.out.write(b".")

    def _add(self, value: Any) -> None:
        write = self.out.write
        if value is None or isinstance(value, bool):
            write({None: b"N", True: b"\x88", False: b"\x89"}[value])
        elif isinstance(value, int):
            write(b"J" + struct.pack("<i", value) if -(2**31) <= value < 2**31 else _long(value))
        elif isinstance(value, float):
            write(b"G" + struct.pack(">d", value))
        elif isinstance(value, str):
            data = value.encode()
            write(b"X" + struct.pack("<I", len(data)) + data)
        elif isinstance(value, np.ndarray):
            self._tensor(value)
        elif isinstance(value, tuple):
            write(b"(")
            self._each(value)
            write(b"t")
        elif isinstance(value, list):
            write(b"](")
            self._each(value)
            write(b"e")
        elif isinstance(value, Mapping):
            write(b"ccollections\nOrderedDict\n)R(" if isinstance(value, Ordered) else b"}(")
            self._each(part for item in value.items() for part in item)
            write(b"u")
        else:
            raise TypeError(f"a {type(value).__name__} has no place in a checkpoint")

    def _each(self, values: Any) -> None:
        for value in values:
            self._add(value)

    def _tensor(self, array: np.ndarray) -> None:
        """Write _rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks)."""
        kind = _STORAGES[array.dtype.str[1:]]
        key = self._keys.setdefault(id(array), len(self.storages))
        if key == len(self.storages):
            self.storages.append(array)
        stride = tuple(math.prod(max(size, 1) for size in array.shape[i + 1 :]) for i in range(array.ndim))
        self.out.write(b"ctorch._utils\n_rebuild_tensor_v2\n((")
        self._add("storage")
        self.out.write(f"ctorch\n{kind}\n".encode())
        self._each((str(key), "cpu", array.size))
        self.out.write(b"tQ")
        self._each((0, tuple(array.shape), stride, False, Ordered()))
        self.out.write(b"tR")


def _long(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data

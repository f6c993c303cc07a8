"""Reads a file of `torch.save`: a zip with a pickle that describes arrays, and their bytes one file each.

<any name>/data.pkl    the description, see `pickled`
<any name>/data/<key>  bytes of an array, or of several
<any name>/byteorder   "little" or "big"; missing in files of old versions, which are little
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrl.artifacts.files import ArtifactError
from jaxrl.regular_files import open_regular

ORDERED = "collections OrderedDict"
TENSOR = "torch._utils _rebuild_tensor_v2"
PARAMETER = "torch._utils _rebuild_parameter"

_PUSHED = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
    )
)
"""Opcodes whose argument is the value."""
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()
_KEYS = (str, int, float, type(None))
"""Types of keys. The hash of a tuple of tuples of tuples, each twice, takes for ever, though its file is short."""
_DIGITS = 64
"""Largest number of bits of an integer: an offset, a size, a step of a trainer."""
LARGEST = 2**24
"""Largest size of a pickle in bytes (some hundred thousand for large networks), and number of operations and copies."""


def refused(path: Path, name: str) -> ArtifactError:
    """Return the error of a file that names something else than arrays. Nothing of it has been run."""
    return ArtifactError(
        f"{path}: asks for {name}, which is not an array; nothing of it was run. Expected a checkpoint (.pt) that "
        "ML-Agents wrote: arrays and numbers alone"
    )


def damaged(path: Path, why: str) -> ArtifactError:
    """Return the error of a file with contents that do not fit."""
    return ArtifactError(
        f"{path}: the file is damaged ({why}). Copy it anew, or take another: ML-Agents keeps several "
        "<Behavior>-<step>.pt in the behavior's folder"
    )


_DTYPES = {
    "torch FloatStorage": "f4",
    "torch DoubleStorage": "f8",
    "torch HalfStorage": "f2",
    "torch LongStorage": "i8",
    "torch IntStorage": "i4",
    "torch ShortStorage": "i2",
    "torch CharStorage": "i1",
    "torch ByteStorage": "u1",
    "torch BoolStorage": "?",
}
_ORDERS: dict[bytes, Literal["<", ">"]] = {b"little": "<", b"big": ">"}
_BROKEN = (
    *(ValueError, IndexError, KeyError, TypeError, AttributeError, StopIteration),
    *(NotImplementedError, EOFError, OverflowError, RuntimeError),  # of zipfile: encrypted, cut off
)
"""Errors of reading a damaged file."""
_DEEPEST = 8
"""Largest depth of nested containers. Checkpoints have 4."""
_DIMENSIONS = 8
_SHARED = 16
"""Largest number of names of one array: tied layers have two or three."""
_PICKLE = "/data.pkl"
_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of a file of PyTorch before 1.6."""


def read_torch_file(path: Path) -> Any:
    """Return the contents of a file of `torch.save`: containers, texts, numbers, and numpy arrays for tensors.

    Nothing in the file is run: names of anything but arrays are refused. Arrays that share bytes in the file do here.

    Raises ArtifactError for a file that is missing, damaged, in the format before 1.6, or holds more than arrays.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return _Reader(path, archive).read()
    except zipfile.BadZipFile as error:
        raise _no_zip(path, str(error)) from error
    except ForeignNameError as error:
        raise refused(path, str(error)) from error
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror or error})") from error
    except _BROKEN as error:
        raise damaged(path, f"{type(error).__name__}: {error}"[:200]) from error


def read_torch_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays and numbers of a file by their keys, joined by "/". Raises as `read_torch_file`."""
    return dict(_leaves(read_torch_file(path), ""))


def _leaves(value: Any, key: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, (np.ndarray, bool, int, float)):
        yield key, np.asarray(value)
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _leaves(item, f"{key}/{name}" if key else str(name))


class _Reader:
    """Archive that is open for reading."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        names = [name for name in archive.namelist() if name.endswith(_PICKLE)]
        if len(names) != 1:
            raise ArtifactError(f"{path}: is a zip, but none of PyTorch's: expected one data.pkl, found {len(names)}")
        self._folder = names[0].removesuffix(_PICKLE)
        self._storages: dict[str, np.ndarray] = {}
        self._filled_ones: dict[int, Any] = {}  # by the identity of the value before
        self._sizes: dict[int, int] = {}  # likewise: number of values in it
        self._room = path.stat().st_size  # bytes that are still to be read
        self._numbers = 0  # of all arrays
        self._order: Literal["<", ">"] = "<"
        if f"{self._folder}/byteorder" in archive.namelist():
            self._order = _ORDERS[self._bytes("byteorder")]

    def read(self) -> Any:
        return self._filled(interpret(self._bytes("data.pkl"), self._storage))

    def _bytes(self, name: str) -> bytes:
        """Return one file. PyTorch does not compress its files, so that they are no larger than the zip."""
        info = self._archive.getinfo(f"{self._folder}/{name}")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed, which PyTorch never does")
        self._room -= info.file_size
        if self._room < 0:
            raise ValueError("its parts have more bytes than the file: they lie in each other")
        return self._archive.read(info)

    def _storage(self, named: Any) -> np.ndarray:
        """Return the array [elements] of a persistent id ("storage", its type, key, device, elements)."""
        what, kind, key, _, _ = named
        if what != "storage" or not isinstance(kind, Name) or kind.text not in _DTYPES:
            word = repr(what)[:50] if isinstance(what, str) else type(what).__name__
            raise ForeignNameError(kind.text.replace(" ", ".") if isinstance(kind, Name) else word)
        if not isinstance(key, str):
            raise TypeError("an array whose bytes have no name")
        if key not in self._storages:
            dtype = np.dtype(_DTYPES[kind.text])
            read = np.frombuffer(self._bytes(f"data/{key}"), dtype.newbyteorder(self._order))
            self._storages[key] = read.astype(dtype)
        return self._storages[key]

    def _filled(self, value: Any, depth: int = 0) -> Any:
        """Return `value` with arrays for tensors, in dictionaries and lists. A shared object is filled once."""
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} containers in each other")
        if isinstance(value, Tensor):
            return self._array(value)
        if not isinstance(value, (dict, list, tuple)) or isinstance(value, Name):
            return value
        if id(value) not in self._filled_ones:
            items = value.values() if isinstance(value, dict) else value
            filled = [self._filled(item, depth + 1) for item in items]
            self._sizes[id(value)] = 1 + sum(self._sizes.get(id(item), 1) for item in items)
            if self._sizes[id(value)] > LARGEST:
                raise ValueError(f"more than {LARGEST:,} values, counting what stands in several places")
            filled_value = dict(zip(value, filled, strict=True)) if isinstance(value, dict) else type(value)(filled)
            self._filled_ones[id(value)] = filled_value
        return self._filled_ones[id(value)]

    def _array(self, tensor: Tensor) -> np.ndarray:
        """Return the array of a tensor. Limits the numbers of all arrays to some times those in the file."""
        if id(tensor) not in self._filled_ones:
            self._filled_ones[id(tensor)] = array = _array(tensor)
            self._numbers += array.size
            if self._numbers > _SHARED * sum(storage.size for storage in self._storages.values()):
                raise ValueError(f"arrays of {self._numbers:,} numbers, many times what the file holds")
        return self._filled_ones[id(tensor)]


def _array(tensor: Tensor) -> np.ndarray:
    """Return a view of the tensor's storage."""
    storage, offset, shape, stride = tensor
    if not isinstance(shape, tuple) or not isinstance(stride, tuple) or max(len(shape), len(stride)) > _DIMENSIONS:
        raise TypeError("an array without a shape")
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, np.ndarray) or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise TypeError("an array without shape or bytes")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    count = math.prod(shape)
    if count > storage.size or (count and last >= storage.size):
        raise ValueError(f"an array of {count} numbers in {storage.size}")
    if not count:
        return np.zeros(shape, storage.dtype)
    return np.lib.stride_tricks.as_strided(
        storage[offset:], shape, [step * storage.itemsize for step in stride], writeable=False
    )


def _no_zip(path: Path, why: str) -> ArtifactError:
    """Return the error of a file that cannot be opened as a zip."""
    with open_regular(path) as file:
        start = file.read(len(_OLD_MAGIC))
    if start == _OLD_MAGIC:
        return ArtifactError(
            f"{path}: is in PyTorch's format before 1.6, which jaxrl does not read: load it with PyTorch and save it "
            "again (torch.save(torch.load(FILE), NEW))"
        )
    if start[:2] == b"PK":
        return damaged(path, why)
    return ArtifactError(f"{path}: is no file of PyTorch. Expected a checkpoint (.pt) that ML-Agents wrote")


class ForeignNameError(Exception):
    """The pickle names or does something that arrays do not need."""


class Name(NamedTuple):
    """A name in the pickle, "module attribute". It stays a text."""

    text: str


class Tensor(NamedTuple):
    """Description of one array in a pickle."""

    storage: Any  # as returned by `persistent`
    offset: int  # elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # elements


def interpret(data: bytes, persistent: Callable[[Any], Any]) -> Any:
    """Return the value that a pickle describes: dictionaries, lists, tuples, texts, numbers and `Tensor`s.

    `persistent` returns the value of a persistent id, with which PyTorch names the bytes of an array.

    Raises ForeignNameError for unknown names and operations, and ValueError, IndexError, KeyError or TypeError for a
    broken pickle.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    if len(data) > LARGEST:
        raise ValueError(f"a description of {len(data):,} bytes")
    work = 0
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "REDUCE" and stack and isinstance(stack[-1], tuple):
            work += sum(len(item) for item in stack[-1] if isinstance(item, (dict, list, tuple)))  # copied
        if isinstance(argument, int) and argument.bit_length() > _DIGITS:
            raise ValueError(f"a number of {argument.bit_length()} bits")
        if work > LARGEST:
            raise ValueError(f"more than {LARGEST:,} operations")
        if opcode.name == "STOP":
            return stack[-1]
        if opcode.name in ("PROTO", "FRAME"):
            continue
        _do(opcode.name, argument, stack, memo, persistent)
    raise ValueError("the pickle has no end")


def _do(name: str, argument: Any, stack: list[Any], memo: dict[int, Any], persistent: Callable[[Any], Any]) -> None:
    """Execute one opcode."""
    if name in _PUSHED:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
        memo[argument] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET", "GET"):
        stack.append(memo[argument])
    elif name == "BINPERSID":
        stack.append(persistent(stack.pop()))
    elif name == "GLOBAL":
        stack.append(_named(argument))
    elif name == "STACK_GLOBAL":
        attribute, module = _of(str, stack.pop()), _of(str, stack.pop())
        stack.append(_named(f"{module} {attribute}"))
    elif name == "REDUCE":
        arguments = stack.pop()
        stack.append(_made(stack.pop(), arguments))
    elif name == "BUILD":
        stack.pop()  # attributes of an ordered dictionary: versions of modules, which say nothing about arrays
        if not isinstance(stack[-1], dict):
            raise ForeignNameError(f"attributes of a {type(stack[-1]).__name__}")
    else:
        _contain(name, stack)


def _contain(name: str, stack: list[Any]) -> None:
    """Execute an opcode of containers."""
    if name == "MARK":
        stack.append(_MARK)
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name in _TUPLES:
        count = _TUPLES[name]
        stack[-count:] = [tuple(stack[-count:])]
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        _of(list, stack[-1]).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        _of(dict, stack[-1]).update((_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))
    else:
        raise ForeignNameError(f"the operation {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    """Remove the last mark and return everything above it."""
    at = next(i for i in range(len(stack) - 1, -1, -1) if stack[i] is _MARK)
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _key(value: Any) -> Any:
    if not isinstance(value, _KEYS):
        raise TypeError(f"a {type(value).__name__} as a key")
    return value


def _named(text: str) -> Name:
    module, _, attribute = text.partition(" ")
    if text in (ORDERED, TENSOR, PARAMETER) or (module == "torch" and attribute.endswith("Storage")):
        return Name(text)
    raise ForeignNameError(text.replace(" ", "."))


def _made(what: Any, arguments: Any) -> Any:
    """Return the result of a call of one of the known names."""
    name = what.text if isinstance(what, Name) else type(what).__name__
    if name == ORDERED:
        pairs = arguments[0] if arguments else ()
        return {_key(key): value for key, value in (pairs.items() if isinstance(pairs, dict) else pairs)}
    if name == TENSOR:
        storage, offset, shape, stride = arguments[:4]
        return Tensor(storage, offset, shape, stride)
    if name == PARAMETER:
        return arguments[0]
    raise ForeignNameError(f"a call of {name.replace(' ', '.')}")

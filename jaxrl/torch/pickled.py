"""The few pickle opcodes that describe arrays, interpreted here: nothing is imported, and nothing is called.

A pickle is a program for a machine with a stack. Python's own machine imports what the program names and calls it, so
that a file can do anything. This one knows numbers, texts, containers, and three names: those of an ordered dictionary,
of a tensor and of a parameter. Whatever else a file names is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

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
"""Types of keys. A tuple of tuples of tuples, each twice, is short in a file, and its hash takes for ever."""
_DIGITS = 64
"""Bits of a number: an offset, a size, a step of a trainer."""
LARGEST = 2**24
"""Bytes of a pickle; those of large networks have some hundred thousand. Also operations, copied items among them."""


class ForeignNameError(Exception):
    """The pickle names or does something that arrays do not need."""


class Name(NamedTuple):
    """Something that the pickle names: "module attribute". It stays a text."""

    text: str


class Tensor(NamedTuple):
    """What a pickle says about one array."""

    storage: Any  # as `persistent` gave it
    offset: int  # elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # elements


def interpret(data: bytes, persistent: Callable[[Any], Any]) -> Any:
    """The value that a pickle describes: dictionaries, lists, tuples, texts, numbers and `Tensor`s.

    `persistent`: what stands for a persistent id, which is how PyTorch names the bytes of an array.

    Raises ForeignNameError for what this machine does not know, and ValueError, IndexError, KeyError or TypeError for
    a pickle that is broken.
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
    """One opcode."""
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
    """Opcodes of containers."""
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
    """Everything above the last mark, which goes."""
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
    """What a call of one of the known names would give."""
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

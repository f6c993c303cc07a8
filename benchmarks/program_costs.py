"""What a compiled program consists of, and what it should take: by the rates of an accelerator, or measured on a CPU.

XLA counts a loop's body once, so programs are given in parts whose loops run once (`accelerator.py`).
"""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call"}
"""Instructions that start nothing of their own."""
WIDTH = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s64": 8, "u64": 8, "f64": 8}
"""Bytes of a number; of all others 4."""
_WRITES = re.compile(r"\s*(?:ROOT )?(%[\w.\-]+) = \(?(\w+)\[([\d,]*)\].*? ([\w\-]+)\(")
_DOT = re.compile(r" dot\((%[\w.\-]+), (%[\w.\-]+)\)(.*)")
_AXES = re.compile(r"(\w+_dims)={([\d,]*)}")


class Product(NamedTuple):
    """A matrix product as `jax.lax.dot_general` takes it."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimensions: Any


EMPTY = Product((1, 1), (1, 1), (((1,), (0,)), ((), ())))


def clock_of(device: Any) -> Callable[[], float]:
    """CPU-seconds of the process on a CPU, which others may share; on an accelerator the wall's."""
    return time.process_time if device.platform == "cpu" else time.perf_counter


def seconds_of(call: Callable[[], Any], repeats: int) -> float:
    """Median of calls after one that compiles, by `clock_of`."""
    clock = clock_of(jax.devices()[0])
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        begun = clock()
        jax.block_until_ready(call())
        seconds.append(clock() - begun)
    return statistics.median(seconds)


def written(text: str) -> list[int]:
    """Bytes that each instruction writes that a device starts: those of the program and of its loops, not of fusions.

    Of one that writes several arrays, the bytes of the first.
    """
    started = set(re.findall(r"body=(%[\w.\-]+)", text)) | set(re.findall(r" call\(.*to_apply=(%[\w.\-]+)", text))
    found, inside = [], False
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            name = line.split(" ")[0]
            inside = name == "ENTRY" or name in started
        elif inside and (match := _WRITES.match(line)) and match[4] not in FREE:
            found.append(_size(match[3]) * WIDTH.get(match[2], 4))
    return found


def products(text: str) -> Counter[Product]:
    """Matrix products of a program, those inside fusions as well, and how often each stands there."""
    shapes = {match[1]: _numbers(match[3]) for match in map(_WRITES.match, text.splitlines()) if match}
    found: Counter[Product] = Counter()
    for left, right, rest in _DOT.findall(text):
        axes = {name: _numbers(numbers) for name, numbers in _AXES.findall(rest)}
        contracted, batch = (tuple(axes.get(f"{side}_{kind}_dims", ()) for side in ("lhs", "rhs")) for kind in KINDS)
        found[Product(shapes[left], shapes[right], (contracted, batch))] += 1
    return found


KINDS = ("contracting", "batch")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _size(text: str) -> int:
    return int(np.prod(_numbers(text), dtype=np.int64))


class Rates(NamedTuple):
    """Of an accelerator, as its maker tells them."""

    flops: float  # operations per second of matrix products
    bandwidth: float  # bytes per second
    launch: float = 1.2e-6  # seconds of a small kernel: 6,200 of them in 16.4 ms, an H100

    def seconds(self, program: Any) -> float:
        """A roofline: the larger of operations and bytes over their rates, and a launch for each kernel."""
        found = program.cost_analysis() or {}
        work = max(found.get("flops", 0.0) / self.flops, found.get("bytes accessed", 0.0) / self.bandwidth)
        return work + self.launch * len(written(program.as_text()))

    def __str__(self) -> str:
        return f"{self.flops / 1e9:,.0f} GFLOP/s, {self.bandwidth / 1e9:,.0f} GB/s, told by its maker"


class Processor:
    """One core of this machine, measured: it multiplies, moves and takes exponentials one after the other.

    Each product is timed alone at its own shape, as small ones are far from the rate of large ones; bytes move at the
    rate of arrays as large as those that the program's instructions write, as large ones leave the caches.
    """

    def __init__(self) -> None:
        self.sizes = 2 ** np.arange(16, 27, 2)  # bytes of an array
        self.bandwidth = np.array([self._bandwidth(size // 4) for size in self.sizes])
        self.transcendentals = self._transcendentals()
        self._product = functools.cache(_seconds_of_product)

    def seconds(self, program: Any) -> float:
        """Products, bytes and transcendentals, added up."""
        text, found = program.as_text(), program.cost_analysis() or {}
        multiplied = sum(times * self._product(product) for product, times in products(text).items())
        moved = found.get("bytes accessed", 0.0) / self._rate(written(text))
        return multiplied + moved + found.get("transcendentals", 0.0) / self.transcendentals

    def _rate(self, sizes: list[int]) -> float:
        """Bytes per second of instructions that write these bytes: the harmonic mean, weighted by bytes."""
        each = np.interp(np.log(np.maximum(sizes, 1)), np.log(self.sizes), self.bandwidth)
        return float(np.sum(sizes) / np.sum(np.asarray(sizes) / each))

    @staticmethod
    def _bandwidth(numbers: int) -> float:
        """Bytes per CPU-second of x / 2 + y."""
        y, inner = jnp.ones(numbers), max(2, 2**23 // numbers)
        add = jax.jit(lambda y: jax.lax.fori_loop(0, inner, lambda _, x: x * 0.5 + y, y))
        return 3.0 * y.nbytes * inner / seconds_of(lambda: add(y), 5)

    @staticmethod
    def _transcendentals() -> float:
        x, inner = jnp.ones(2**16), 50
        repeated = jax.jit(lambda x: jax.lax.fori_loop(0, inner, lambda _, x: jnp.tanh(x), x))
        return x.size * inner / seconds_of(lambda: repeated(x), 5)

    def __str__(self) -> str:
        slowest, fastest = self.bandwidth.min() / 1e9, self.bandwidth.max() / 1e9
        rate = self.transcendentals / 1e9
        return f"measured: {slowest:.0f} to {fastest:.0f} GB/s by size, {rate:.1f} G tanh/s, each product by itself"


def _seconds_of_product(product: Product) -> float:
    """CPU-seconds of one inside a program: without what it takes to start a program, which is that of 1 x 1."""
    return max(_seconds_alone(product) - _seconds_alone(EMPTY), 0.0)


def _seconds_alone(product: Product) -> float:
    """CPU-seconds of one as a program, from enough of them to be measured."""
    left, right = jnp.ones(product.left), jnp.ones(product.right)
    multiply = jax.jit(functools.partial(jax.lax.dot_general, dimension_numbers=product.dimensions))
    contracted = np.prod([product.left[axis] for axis in product.dimensions[0][0]], dtype=float)
    batch = np.prod([product.left[axis] for axis in product.dimensions[1][0]], dtype=float)
    operations = 2.0 * np.prod(product.left, dtype=float) * np.prod(product.right, dtype=float) / contracted / batch
    inner = int(np.clip(2e9 / operations, 3, 500))

    def repeated() -> Iterator[Any]:
        return [multiply(left, right) for _ in range(inner)][-1]

    return seconds_of(repeated, 3) / inner

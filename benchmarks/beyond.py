"""Costs that can be measured on one machine, in a model of what is larger: checked here, and what it says of there.

    python benchmarks/beyond.py                  # measure, check against 1, 2 and 4 processes, and predict
    python benchmarks/beyond.py --quick --json FILE

Compiled loop: PPO in Simple Spread, 2 x 64 units, 64 areas over all processes (`--hosts`), 4 epochs of 4 minibatches.
With P processes on C cores, each held to one of them, an iteration of W seconds on one core is predicted to take

    T(P) = W / min(P, C) + n a(P) + k c(P) + m b(P)

n sums of one number and k of arrays in an iteration, counted in the compiled program (gloo adds up each array of a
collective for itself), and m bytes, those of the rollout, which every process gathers; a(P) the seconds of a sum of one
number over all processes, c(P) of 1,000 numbers, b(P) those of each further byte, measured beside it (the median). What
follows for machines that nobody has run is in docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

AREAS, UNITS, EPOCHS, MINIBATCHES, STEPS = 64, 64, 4, 4, 32
MEMBERS, BYTES = 3, 150  # of Simple Spread; what a rollout holds of an agent step
SIZES = (1, 1_000, 250_000)
"""Numbers in a sum over all processes."""
REPEATS = 50
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def settings_of(members: int) -> dict[str, Any]:
    """Of the compiled loop's case."""
    agents = AREAS * STEPS * members
    sizes = {"buffer_size": agents, "batch_size": agents // MINIBATCHES, "num_epoch": EPOCHS}
    return {
        "max_steps": 10**9,
        "hyperparameters": {**sizes, "learning_rate_schedule": "constant"},
        "network_settings": {"hidden_units": UNITS, "num_layers": 2},
    }


def worker(index: int, count: int, address: str, seconds: float) -> dict[str, Any]:
    """One of `count` processes: seconds of an iteration and of sums, by turns."""
    from jaxrl.training.hosts import Hosts, Place

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[index % cores()]})
    hosts = Hosts(Place(address, index, count), "alike")
    if count > 1:
        hosts.start_jax()
    import jax

    from jaxrl import make_algorithm, make_environment, make_jitted_trainer, make_settings

    env = make_environment("jax:simple_spread")
    settings = make_settings("ppo", **settings_of(env.members))
    trainer = make_jitted_trainer(env, make_algorithm(env.spec, settings), settings, areas=AREAS)
    state, _ = jax.block_until_ready(trainer.run(trainer.init([0]), 2))
    sums = {size: summed(size, count) for size in SIZES}
    spent: dict[str, list[float]] = {"iteration": [], **{str(size): [] for size in SIZES}}
    for _ in range(max(round(seconds / 0.5), 3)):  # as many everywhere: each turn is a collective
        begun = time.perf_counter()
        state, _ = jax.block_until_ready(trainer.run(state, 4))
        spent["iteration"].append((time.perf_counter() - begun) / 4)
        for size, run in sums.items():
            begun = time.perf_counter()
            run()
            spent[str(size)].append((time.perf_counter() - begun) / REPEATS)
    return {name: statistics.median(of) for name, of in spent.items()}


def summed(size: int, count: int) -> Any:
    """A call that adds up `size` numbers over all processes REPEATS times."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("all",))
    spread = PartitionSpec("all")

    def add(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, REPEATS, lambda _, y: jax.lax.psum(y, "all") / count, x)

    program = jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False))
    rows = np.ones((count, size), np.float32)
    given = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, spread), lambda index: rows[index])
    jax.block_until_ready(program(given))
    return lambda: jax.block_until_ready(program(given))


def counted() -> dict[str, list[int]]:
    """`collectives` of an iteration of the compiled loop over two devices."""
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    import numpy as np

    from jaxrl import make_algorithm, make_environment, make_settings
    from jaxrl.training.compiled.placing import mesh_of, shardings
    from jaxrl.training.compiled.planning import plan_of
    from jaxrl.training.compiled.starting import start
    from jaxrl.training.compiled.trainer import trace_program

    env = make_environment("jax:simple_spread")
    settings = make_settings("ppo", **settings_of(env.members))
    given = {env.name: make_algorithm(env.spec, settings)}, {env.name: settings}
    plan = plan_of(env, *given, areas=AREAS, seeds=1)
    mesh = mesh_of(jax.devices(), 1, AREAS)
    shapes = jax.eval_shape(lambda numbers: start(plan, numbers), jax.ShapeDtypeStruct((1,), np.uint32))
    text = trace_program(plan, mesh, shapes, shardings(mesh, shapes)).lower().compile().as_text()
    return collectives(text)


def collectives(text: str) -> dict[str, list[int]]:
    """Of a compiled program: sums of one number and of arrays in a minibatch step, in a step of the environment, else.

    They stand in the computation of their loop: that with the gradient's sum is a minibatch step, one with nothing but
    a sum of a truth value looks whether an episode is over. Each other one is counted once.
    """
    found: dict[str, list[list[str]]] = {}
    computation = ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            computation = line.split()[0]
        match = re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})\(", line)
        if match:
            found.setdefault(computation, []).append(re.findall(r"\w+\[[\d,]*\]", match[1]))
    kernel = f"f32[{UNITS},{UNITS}]"
    counts = {"minibatch": [0, 0], "step": [0, 0], "rest": [0, 0]}
    for of in found.values():
        where = "minibatch" if any(kernel in each for each in of) else "step" if of == [["pred[]"]] else "rest"
        shapes = [shape for each in of for shape in each]
        numbers = sum(shape.endswith("[]") for shape in shapes)
        counts[where] = [counts[where][0] + numbers, counts[where][1] + len(shapes) - numbers]
    return counts


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def together(count: int, seconds: float) -> dict[str, Any]:
    """What `worker` tells of `count` processes; of their medians the largest."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [sys.executable, __file__, "--count", str(count), "--address", address, "--seconds", str(seconds)]
    place = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    started = [
        subprocess.Popen([*words, "--worker", str(index)], stdout=subprocess.PIPE, text=True, env=place)
        for index in range(count)
    ]
    told = [process.communicate(timeout=900)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{count} processes: exit codes {[process.returncode for process in started]}")
    found = [json.loads(text.splitlines()[-1]) for text in told]
    return {name: max(of[name] for of in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 and 2 processes, short windows")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--collectives", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.collectives:
        print(json.dumps(counted()))
        return
    if given.worker is not None:
        print(json.dumps(worker(given.worker, given.count, given.address, given.seconds)), flush=True)
        os._exit(0)
    command = [sys.executable, __file__, "--collectives"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    each = json.loads(ended.stdout.splitlines()[-1])
    times = {"minibatch": EPOCHS * MINIBATCHES, "step": STEPS, "rest": 1}
    numbers, arrays = (sum(each[where][i] * times[where] for where in times) for i in range(2))
    print(f"sums of one number and of arrays: {each} ({times}), {numbers} and {arrays} in an iteration")
    rows = [
        {"processes": count, **together(count, 2.0 if given.quick else given.seconds)}
        for count in ((1, 2) if given.quick else (1, 2, 4))
    ]
    print(
        "| processes | 1 number, us | 1,000, us | 1 MB more, us | predicted, ms | measured, ms | predicted / measured |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        row |= {"numbers": numbers, "arrays": arrays}
        row["predicted"] = predicted(rows[0]["iteration"], row)
        one, some, large = (1e6 * row[str(size)] for size in SIZES)
        print(
            f"| {row['processes']} | {one:.0f} | {some:.0f} | {large - some:.0f} | {1e3 * row['predicted']:.1f} | "
            f"{1e3 * row['iteration']:.1f} | {row['predicted'] / row['iteration']:.2f} |"
        )
    if given.json:
        with given.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def predicted(alone: float, row: dict[str, Any]) -> float:
    """T(P) of the head of this file, in seconds. Each byte of an agent step's observations travels once."""
    if row["processes"] == 1:
        return alone
    one, some, large = (row[str(size)] for size in SIZES)
    moved = AREAS * STEPS * MEMBERS * BYTES
    each_byte = (large - some) / (4 * SIZES[-1])
    return alone / min(row["processes"], cores()) + row["numbers"] * one + row["arrays"] * some + moved * each_byte


if __name__ == "__main__":
    main()

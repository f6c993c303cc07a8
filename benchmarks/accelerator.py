"""What a GPU or TPU does with jaxrl, beside what its rates and XLA's own counts predict; on a CPU a check of that.

    jaxrl bench --accelerator                     # this and the latency of a decision, and the table of both
    python benchmarks/accelerator.py --quick      # few and small cases
    python benchmarks/accelerator.py --seeds 1 --areas 256 4096 --compute-dtype bfloat16

Updates: PPO and MA-POCA (teams of 3) over 10,304 agent steps of 32 numbers, 256 x 2 units; `nature_cnn` over 512 steps
of 84 x 84 x 3. Loop: PPO in Simple Spread, one iteration of E areas and S seeds as one program, 2 x 64 units; 4 epochs
of 4 minibatches.

`predicted` is a roofline (`program_costs.py`): each part of a program takes the larger of its operations over the
device's rate and its bytes over the device's bandwidth, and a launch for each kernel. XLA counts a loop's body once, so
parts are counted apart and multiplied. Rates are the makers' for matrix products as JAX does them by default (TF32 on
newer GPUs, bfloat16 passes on TPUs), which small networks do not reach: such a prediction is no promise. On
a CPU rates are measured here, by the shape of each product and the size of arrays, and added up; all times there are
CPU-seconds of the process.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from phases import Phases, counted, phases_of
from program_costs import Processor, Rates, seconds_of
from sensors import SENSORS
from update_phase import QUICK_STEPS, SPEC, STEPS, behavior_settings, full_buffer

from jaxrl import make_environment, make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import acting, nothing_remembered
from jaxrl.rollout.buffer import trajectory
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.planning import plan_of
from jaxrl.training.compiled.play import remembered
from jaxrl.training.compiled.stacking import stack
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.types import BehaviorSpec

EPOCHS, MINIBATCHES, UNITS, LONGEST = 4, 4, 64, 128
ITERATION = 20.0
"""Seconds; no larger case is tried after an iteration that took longer."""


RATES = {
    "H200": Rates(495e12, 4.8e12),
    "H100": Rates(495e12, 3.35e12),
    "A100": Rates(156e12, 1.56e12),
    "L40S": Rates(183e12, 0.86e12),
    "L4": Rates(60e12, 0.30e12),
    "T4": Rates(8.1e12, 0.32e12),
    "V100": Rates(15.7e12, 0.90e12),
    "RTX 4090": Rates(82.6e12, 1.01e12),
    "RTX 3090": Rates(35.6e12, 0.94e12),
    "TPU v4": Rates(275e12, 1.23e12, 1e-6),
    "TPU v5 lite": Rates(197e12, 0.82e12, 1e-6),
    "TPU v5": Rates(459e12, 2.77e12, 1e-6),
    "TPU v6 lite": Rates(918e12, 1.64e12, 1e-6),
}
"""By a part of JAX's name of the device; the first that fits."""


Device = Rates | Processor


class Part(NamedTuple):
    """A piece of a program whose loops run once, and how often it runs."""

    program: Any  # compiled
    times: float

    def seconds(self, device: Device) -> float:
        """As the device's rates predict."""
        return self.times * device.seconds(self.program)


def rates_of(device: Any) -> Device | None:
    """From the table, or measured on a CPU; None for a device that is not known."""
    if device.platform == "cpu":
        return Processor()
    return next((rates for name, rates in RATES.items() if name.lower() in device.device_kind.lower()), None)


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """The program for these arguments."""
    return jax.jit(function).lower(*arguments).compile()


class Row(NamedTuple):
    """What is printed and written."""

    what: str
    measured_ms: float | None
    predicted_ms: float | None
    agent_steps: float  # that are learned from

    def told(self) -> dict[str, Any]:
        """As JSON."""
        found = {"what": self.what, "measured_ms": self.measured_ms, "predicted_ms": self.predicted_ms}
        if self.measured_ms:
            found["agent_steps_per_second"] = 1000.0 * self.agent_steps / self.measured_ms
            if self.predicted_ms:
                found["predicted_over_measured"] = self.predicted_ms / self.measured_ms
        return found


def loop_settings(agents: int, steps: int, compute_dtype: str) -> BehaviorSettings:
    """Of PPO that learns from so many agent steps, `steps` of each agent."""
    return make_settings(
        "ppo",
        max_steps=2**31 - 1,
        hyperparameters={
            "buffer_size": agents, "batch_size": agents // MINIBATCHES, "num_epoch": EPOCHS,
            "learning_rate_schedule": "constant",
        },
        network_settings={"hidden_units": UNITS, "num_layers": 2, "normalize": False, "compute_dtype": compute_dtype},
        time_horizon=steps,
    )  # fmt: skip


def update(
    what: str,
    spec: BehaviorSpec,
    settings: BehaviorSettings,
    members: int,
    steps: int,
    rates: Device | None,
    repeats: int,
) -> Row:
    """Both phases of an update."""
    algorithm, phases = (
        ALGORITHMS[settings.trainer_type](spec, settings),
        phases_of(settings.trainer_type, spec, settings),
    )
    state = jax.jit(algorithm.init)(jax.random.key(0))
    buffer = full_buffer(members, steps, spec=spec, memory=nothing_remembered(algorithm))

    def take_and_prepare(state: Any, buffer: Any) -> Any:
        return phases.prepare(state, trajectory.take(buffer)[0])

    prepare = compiled(take_and_prepare, state, buffer)
    prepared, batch, _ = prepare(state, buffer)
    learn = compiled(phases.update, prepared, batch)
    seconds = seconds_of(partial(prepare, state, buffer), repeats)
    seconds += seconds_of(partial(learn, prepared, batch), repeats)
    minibatches = steps / settings.hyperparameters.batch_size * settings.hyperparameters.num_epoch
    parts = [
        Part(counted(take_and_prepare, state, buffer), 1.0),
        Part(counted(phases.update, prepared, batch), minibatches),
    ]
    return Row(what, 1000.0 * seconds, _predicted(parts, rates), steps)


def _predicted(parts: Sequence[Part], rates: Device | None) -> float | None:
    return None if rates is None else 1000.0 * sum(part.seconds(rates) for part in parts)


def loop(areas: int, seeds: int, rates: Device | None, repeats: int, compute_dtype: str) -> Row:
    """One iteration of PPO in Simple Spread."""
    env = make_environment("jax:simple_spread")
    steps = max(8, min(LONGEST, 2**20 // areas))
    agents = areas * steps * env.members
    settings = loop_settings(agents, steps, compute_dtype)
    algorithm = ALGORITHMS["ppo"](env.spec, settings)
    predicted = None if rates is None else _predicted(_of_loop(env, algorithm, settings, areas, seeds, steps), rates)
    what = f"loop, {areas} areas, {seeds} seeds"
    try:
        trainer = make_jitted_trainer(env, algorithm, settings, areas=areas, seeds=seeds, devices=jax.devices()[:1])
        state = trainer.init(range(seeds))
    except SettingsError as error:  # it does not fit, which is said before anything is allocated
        print(f"{what}: {error}", flush=True)
        return Row(what, None, predicted, agents * seeds)

    def once() -> Any:
        nonlocal state
        state, logs = trainer.run(state, 1)
        return logs

    return Row(what, 1000.0 * seconds_of(once, repeats), predicted, agents * seeds)


def _of_loop(env: Any, algorithm: Any, settings: BehaviorSettings, areas: int, seeds: int, steps: int) -> list[Part]:
    """The parts of an iteration, counted for one seed: a decision, what is made of a rollout, a minibatch."""
    name = env.name
    plan = plan_of(env, {name: algorithm}, {name: settings}, areas=areas, seeds=1)
    state = jax.eval_shape(partial(start, plan), jax.ShapeDtypeStruct((1,), np.uint32))
    phases: Phases = phases_of("ppo", env.spec, settings)

    def collected(state: Any) -> Any:
        part = state.parts[name]
        keys = jax.vmap(lambda key: jax.random.split(key, plan.steps))(part.key).T
        given = {name: acting(algorithm, part.train)}, state.world, {name: keys}, state.parameters
        (_, plays), made = collect(plan.scene, plan.algorithms, *given)
        return plays, made

    def prepared(state: Any, collected: Any) -> Any:
        plays, made = collected
        first, last = jax.tree.map(lambda x: x[:, 0], made[name]), jax.tree.map(lambda x: x[0], plays[name])
        memory = remembered(last) if algorithm.memories else ()
        rollout = stack(
            env, first, last.view, memory, team_rows=algorithm.team_rows, time_horizon=settings.time_horizon
        )
        return phases.prepare(jax.tree.map(lambda x: x[0], state.parts[name].train), rollout)

    played = jax.eval_shape(collected, state)
    train, batch, _ = jax.eval_shape(prepared, state, played)
    return [
        Part(compiled(collected, state), float(seeds * steps)),
        Part(compiled(prepared, state, played), float(seeds)),
        Part(compiled(phases.update, train, batch), float(seeds * EPOCHS * MINIBATCHES)),
    ]


def rows(rates: Device | None, given: argparse.Namespace, largest: int) -> Any:
    """One after the other, as they are measured."""
    quick, repeats = given.quick, 2 if given.quick else given.repeats
    steps, case, dtype = QUICK_STEPS if quick else STEPS, SENSORS["nature_cnn"], {"compute_dtype": given.compute_dtype}

    def computing(settings: BehaviorSettings) -> BehaviorSettings:
        network = settings.network_settings.model_copy(update=dtype)
        return settings.model_copy(update={"network_settings": network})

    images = make_settings(
        "ppo", network_settings=dict(case.network), hyperparameters={"batch_size": case.batch, "num_epoch": 3}
    )
    for trainer, members in (("ppo", 1), ("poca", 3)):
        settings = computing(behavior_settings(trainer))
        yield update(f"update, {trainer}", SPEC, settings, members, steps, rates, repeats)
    seen = SPEC._replace(observations=case.observations)
    yield update("update, nature_cnn", seen, computing(images), 1, case.batch if quick else case.steps, rates, repeats)
    for seeds in (1,) if quick else given.seeds:
        for areas in (16,) if quick else given.areas:
            if areas * seeds > largest:
                continue
            row = loop(areas, seeds, rates, repeats, given.compute_dtype)
            yield row
            if row.measured_ms is None or row.measured_ms > 1000.0 * ITERATION:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small updates, 16 areas, two repeats")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--areas", type=int, nargs="+", default=[16, 256, 4096, 65536], help="of the loop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8, 64], help="of the loop")
    parser.add_argument("--compute-dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--largest", type=int, help="areas of all seeds at most (default: 4096 on a CPU, else 2^22)")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    given = parser.parse_args()
    if min(*given.areas, *given.seeds) < 1:
        parser.error(f"--areas {given.areas}, --seeds {given.seeds}: expected numbers of 1 or more")
    device = jax.devices()[0]
    largest = given.largest or (4096 if device.platform == "cpu" else 2**22)
    rates = rates_of(device)
    told = "not known, no prediction" if rates is None else rates
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}; rates: {told}")
    print("what                          measured ms  predicted ms  predicted / measured  agent steps/s")
    for row in rows(rates, given, largest):
        measured, predicted = (math.nan if x is None else x for x in (row.measured_ms, row.predicted_ms))
        speed = 1000.0 * row.agent_steps / measured
        print(f"{row.what:<30}{measured:11.2f}{predicted:14.2f}{predicted / measured:22.2f}{speed:15,.0f}", flush=True)
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.told()) + "\n")


if __name__ == "__main__":
    main()

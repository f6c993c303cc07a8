"""Every program of both loops is one for CUDA, ROCm and TPU too: lowered for all three, on a machine that has none.

Lowering is what JAX does before a platform's own compiler gets the program, and shows what that could not take: a
custom call that only CPUs have, a number of 64 bits where it is not asked for, a call back to the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.stages import Lowered, Traced

from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.interface import Algorithm, acting, nothing_remembered
from jaxrl.jax_envs import environment_of
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.rollout.booking.records import RowsMessage
from jaxrl.rollout.buffer import trajectory
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled.placing import mesh_of, shardings
from jaxrl.training.compiled.planning import plan_of
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.trainer import trace_program
from jaxrl.training.host import connectors
from jaxrl.training.host.learner import start as start_learner
from jaxrl.training.host.programs import compile_programs
from tests.helpers import settings_of
from tests.jax_envs.probe_scene import make_probe_scene
from tests.jax_envs.sensor_toy import make_sensor_toy
from tests.jax_envs.toy_jax_env import make_toy

pytestmark = pytest.mark.timeout(600)  # tracing on a machine that does much else
PLATFORMS = ("cuda", "rocm", "tpu")
SMALL = {
    "hyperparameters__batch_size": 8, "hyperparameters__buffer_size": 32,
    "network_settings__hidden_units": 8, "network_settings__num_layers": 1,
}  # fmt: skip
MEMORY = {"network_settings__memory": {"memory_size": 8, "sequence_length": 4}}
GRU = {"network_settings__memory": {"memory_type": "gru", "memory_size": 8, "sequence_length": 4}}
CONNECTORS = {"connectors": [{"type": "normalize"}, {"type": "frame_stack", "frames": 2}, {"type": "previous_action"}]}
SIGNALS = {"reward_signals__curiosity": {"strength": 0.1}, "reward_signals__rnd": {"strength": 0.1}}
SELF_PLAY = {"self_play": {"save_steps": 100, "window": 2}}


@pytest.fixture(autouse=True)
def traced_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.mesh.on_accelerator", lambda: True)


class Case(NamedTuple):
    """What is trained, and by what."""

    env: JaxEnv | JaxScene
    trainer: str
    changes: Mapping[str, Any] = MappingProxyType({})
    seeds: int = 1

    def parts(self) -> dict[str, tuple[Algorithm, BehaviorSettings]]:
        """By behavior its algorithm and settings."""
        settings = settings_of(self.trainer, SMALL | dict(self.changes))
        return {
            part.name: (ALGORITHMS[self.trainer](part.spec, settings), settings) for part in scene_of(self.env).parts
        }


def compiled_loop(case: Case) -> dict[str, Traced]:
    """The program of some iterations."""
    algorithms = {name: algorithm for name, (algorithm, _) in case.parts().items()}
    settings = {name: of for name, (_, of) in case.parts().items()}
    plan = plan_of(case.env, algorithms, settings, areas=4, seeds=case.seeds)
    shapes = jax.eval_shape(partial(start, plan), jax.ShapeDtypeStruct((case.seeds,), np.uint32))
    mesh = mesh_of(jax.devices()[:1], case.seeds, 4)
    return {"iterations": trace_program(plan, mesh, shapes, shardings(mesh, shapes))}


def host_loop(case: Case) -> dict[str, Traced]:
    """What acts and what learns, of the first behavior."""
    part = scene_of(case.env).parts[0]
    algorithm, settings = case.parts()[part.name]
    programs, chain = compile_programs(algorithm, settings.time_horizon), algorithm.connectors
    rows, members = (2, part.members) if algorithm.team_rows else (2 * part.members, 1)
    state, store, _ = jax.eval_shape(partial(start_learner, algorithm), jax.random.key(0))
    spec = part.spec if chain is None else chain.spec
    buffer = jax.eval_shape(
        partial(trajectory.init, spec, algorithm.extras, capacity=12, rows=rows, members=members),
        jax.eval_shape(lambda: nothing_remembered(algorithm)),
    )
    policy = jax.eval_shape(partial(acting, algorithm), state)
    connected = ()
    if chain is not None:
        begun = partial(connectors.start, chain, lead=(rows, members))
        connected = jax.eval_shape(begun, jax.eval_shape(lambda policy: policy.connectors, policy))
    steps, key = message(part.spec, rows, members), jax.ShapeDtypeStruct((4,), np.uint32)
    return {
        "decide": programs.actor.decide.trace(policy, buffer, steps, key, connected),
        "learn": programs.learner.learn.trace(state, store, buffer),
    }


def message(spec: Any, rows: int, members: int) -> RowsMessage:
    """Shapes of one."""

    def of(*shape: int, dtype: Any = bool) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    return RowsMessage(
        obs=tuple(of(2, rows, members, *sensor.shape, dtype=sensor.dtype) for sensor in spec.observations),
        action_mask=of(rows, members, spec.action.mask_size),
        reward=of(rows, members, 2, dtype=np.float32),
        earned=of(rows, members, dtype=np.float32),
        ending=of(rows, members, dtype=np.uint8),
        present=of(2, rows, members),
        deciding=of(rows, members),
    )


def faults(traced: Traced, program: str = "") -> list[str]:
    """What an accelerator would not take of a program. Raises NotImplementedError where it calls the host."""
    lowered = traced.lower(lowering_platforms=PLATFORMS)
    text = lowered.as_text()
    found = [f"custom call: {name}" for name in set(re.findall(r"custom_call @([\w.$]+)", text))]
    if re.search(r"\bf64\b|xf64>", text):
        found.append("float64")
    for index in GIVEN_AWAY.get(program, ()):
        if not all(x.donated for x in jax.tree.leaves(lowered.args_info[0][index])):
            found.append(f"argument {index} is not donated")
    lost = donated(traced, lowered) - text.count("tf.aliasing_output")
    return found + ([f"{lost} donated arrays are not updated in place"] if lost else [])


def donated(traced: Traced, lowered: Lowered) -> int:
    """Arrays that are given away, of those that the program reads."""
    jaxpr = traced.jaxpr.jaxpr
    read = {id(x) for eqn in jaxpr.eqns for x in eqn.invars} | {id(x) for x in jaxpr.outvars}
    given = [x.donated for x in jax.tree.leaves(lowered.args_info)]
    return sum(is_given and id(x) in read for x, is_given in zip(jaxpr.invars, given, strict=True))


GIVEN_AWAY = {"iterations": (0,), "learn": (0, 1, 2), "decide": (1, 4)}
"""By program the arguments that it updates in place."""
TEAMS = {"hyperparameters__team_capacity": 2}
SENSORS = {"network_settings__vis_encode_type": "match3", "network_settings__goal_conditioning_type": "hyper"}
CASES = {
    "poca, memory, two seeds": Case(make_toy(), "poca", MEMORY, seeds=2),
    "sac": Case(make_toy(), "sac"),
    "ppo, every sensor": Case(make_sensor_toy(), "ppo", SENSORS),
    "mappo, connectors": Case(make_toy(), "mappo", TEAMS | CONNECTORS),
    "coma, two seeds": Case(make_toy(), "coma", TEAMS, seeds=2),
    "sac, memory": Case(make_toy(), "sac", MEMORY),
    "sac, sensors, two seeds": Case(make_sensor_toy(), "sac", SENSORS, seeds=2),
    "ppo, gru, connectors": Case(make_toy(), "ppo", CONNECTORS | GRU),
    "ppo, bfloat16": Case(make_toy(), "ppo", {"network_settings__compute_dtype": "bfloat16"}),
    "ppo, pictures": Case(
        environment_of("jax:grid_world", cell_pixels=8), "ppo", {"network_settings__vis_encode_type": "nature_cnn"}
    ),
    "ppo, resnet": Case(environment_of("jax:grid_world"), "ppo", {"network_settings__vis_encode_type": "resnet"}),
    "scene, signals": Case(make_probe_scene(), "ppo", SIGNALS),
    "self-play": Case(environment_of("jax:soccer_twos"), "poca", SELF_PLAY),
}
QUICK = {
    compiled_loop: ("poca, memory, two seeds",),
    host_loop: ("sac", "ppo, every sensor", "mappo, connectors"),
}
"""Which of them the ordinary suite looks at."""


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        pytest.param(loop, name, marks=() if name in quick else pytest.mark.slow, id=f"{loop.__name__}: {name}")
        for loop, quick in QUICK.items()
        for name in CASES
    ],
)
def test_programs_are_ones_for_accelerators(
    loop: Callable[[Case], dict[str, Traced]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.mesh.on_accelerator", lambda: True)
    found = {program: faults(traced, program) for program, traced in loop(CASES[name]).items()}
    assert found == {name: [] for name in found}


def test_what_an_accelerator_cannot_take_is_seen() -> None:
    x = np.ones((3, 3), np.float32)
    with jax.enable_x64(True):
        assert faults(jax.jit(lambda x: x.astype(jnp.float64).sum().astype(jnp.float32)).trace(x)) == ["float64"]
    assert "custom call: Qr" in faults(jax.jit(jnp.linalg.qr).trace(x))
    with pytest.warns(UserWarning, match="donated"):
        lost = faults(jax.jit(lambda x: x[0], donate_argnums=0).trace(x))
    assert lost == ["1 donated arrays are not updated in place"]
    with pytest.raises(NotImplementedError, match="callback"):
        faults(jax.jit(lambda x: jax.pure_callback(np.sin, x, x)).trace(x))

"""The loop inside one compiled program: rollout, returns, losses and updates of many seeds, environment included.

Uses the same `Algorithm` as the host loop (`host/loop.py`). `make_jitted_trainer` gives two compiled functions, all
that a notebook needs; `run.py` puts the files of a run around them.

Seeds never mix: they are a leading axis S of every array of the state. With several devices each takes some of the
seeds; a single seed spreads its areas, and the rows of its minibatches, instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl.algorithms.interface import Algorithm
from jaxrl.compilation import cache_by_default, quick_options
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution, of_episode, of_first_seed
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled import kept
from jaxrl.training.compiled.arguments import (
    UNFITTING,
    check_acting,
    check_arguments,
    check_fit,
    check_values,
    seed_numbers,
)
from jaxrl.training.compiled.checks import check_memory
from jaxrl.training.compiled.evaluation import Evaluate, evaluate
from jaxrl.training.compiled.iteration import (
    IterationLog,
    JittedState,
    JittedTrainer,
    Plan,
    begin_anew,
    iterate_several,
    start,
)
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.deterministic import deterministic

SEEDS, AREAS = "seeds", "areas"


def make_jitted_trainer(
    env: JaxEnv,
    algorithm: Algorithm,
    settings: BehaviorSettings,
    *,
    areas: int = 16,
    seeds: int = 1,
    parameters: Mapping[str, float | Sequence[float] | Distribution] | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    newest: int = 0,
    devices: Sequence[Any] | None = None,
) -> JittedTrainer:
    """Environment and learner as one program.

    An iteration is T decisions in each of the E areas and one update; T is buffer_size over the agents that begin an
    episode in all areas, so that an iteration holds about buffer_size agent steps.

    Args:
      env: what is played.
      algorithm: made for the spec of `env`, or for what its connectors make of it.
      settings: of the behavior; buffer_size, time_horizon and max_steps are used here, the rest by the algorithm.
      areas: E, environments of each seed.
      seeds: S, independent runs side by side.
      parameters: of the environment, where they differ from the usual ones: a number, or one for each seed, or what
        each episode draws it from (`jax_envs.sampling.of_seeds`).
      values: settings in which the seeds differ, by dotted key a number for each seed, such as
        {"hyperparameters.learning_rate": (1e-3, 3e-4)} for two. They are traced: other numbers are the same program.
        Those of `settings` do not count then.
      newest: how many of the last episodes of an iteration `JittedState.newest` tells one by one, at most.
      devices: where to run, by default all that JAX shows. As many are used as divide the seeds (or, with one seed,
        its areas).

    Memory. What the compiler has planned stands in `bytes`. To plan ahead: on a CPU, where one seed learns after the
    other, a run of S seeds takes about
        S state + max(1.8 S Q, (P + 2.9) Q, (P + 1.4) Q + 4 k h n) + 10^6 bytes, P = S, or 0 if S = 1:
    all seeds' decisions beside what is made of them, one seed's returns beside all decisions, or one seed's minibatch.
    Q = T E A (4 (observation numbers + 2 (C + D) + 6) + M) bytes are a seed's decisions (observations twice where the
    environment truncates; a quarter of that for images of dtype uint8), h the hidden units, n the rows of a minibatch
    (PPO: batch_size; MA-POCA: batch_size (1 + A)) and k what is kept of a row (12; 9). Within 6 % of the plan for PPO
    and MA-POCA on Dungeon Escape with 1 to 8 seeds, 16 to 256 areas, 64 and 256 units. On accelerators all seeds learn
    at once: the last two terms count S times. `init` refuses what does not fit into the memory that is free.

    Programs are kept on disk (`jaxrl.compilation`), unless JAX has a cache folder already or JAXRL_COMPILATION_CACHE=0.

    Raises SettingsError for settings that are not trained yet, or that only a run with files or the host loop could
    follow; JaxEnvError if the environment breaks its contract.
    """
    check_arguments(env, algorithm, settings, {"areas": areas, "seeds": seeds, "newest": newest}, parameters or {})
    check_jax_env(env)
    check_values(algorithm, settings, seeds, values or {})
    check_acting(env, algorithm, values or {})
    cache_by_default()
    usual = {**env.parameters, **(parameters or {})}
    each = 1 if settings.count_by == "env_steps" else agents_at_start(env, usual)
    steps = math.ceil(algorithm.period / (areas * each))
    mesh = mesh_of(list(devices or jax.devices()), seeds, areas)
    accelerated = mesh.devices.flat[0].platform != "cpu"
    sizes = (areas, steps, settings.time_horizon, settings.last_step)
    told = min(newest, steps * areas * env.teams * env.members)
    plan = Plan(env, algorithm, usual, *sizes, accelerated, values or {}, told)
    begin = jax.jit(partial(start, plan), compiler_options=quick_options(mesh.devices.flat[0].platform))
    numbers = jax.ShapeDtypeStruct((seeds,), np.uint32)
    try:
        shapes = jax.eval_shape(begin, numbers)
        places = shardings(mesh, shapes)
        program = compile_program(partial(iterate_several, plan), mesh, shapes, places)
    except UNFITTING:
        check_fit(env, algorithm)
        raise
    memory, replaced, begun_anew = program.memory_analysis(), jax.jit(_replaced), jax.jit(partial(begin_anew, plan))
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    subject, place = Subject(env.name, env.spec, settings, tuple(range(seeds)), areas), partial(_place, mesh)

    def init(numbers: Sequence[int]) -> JittedState:
        check_memory(seeds, areas, needed, mesh.size)
        return _place(mesh, begin(seed_numbers(numbers, seeds)))

    def run(state: JittedState, count: int) -> tuple[JittedState, IterationLog]:
        return program(jax.tree.map(_empty_to, state, places), np.int32(count))

    return JittedTrainer(
        init=init,
        run=run,
        place=place,
        save=partial(kept.save, subject),
        restore=partial(kept.restore, subject, shapes, init, place),
        take=jax.jit(_taken, static_argnums=2),
        put=lambda state, some, first: place(replaced(state, some, first)),
        begin_anew=lambda state, which: place(begun_anew(state, which)),
        seeds=seeds,
        areas=areas,
        steps=steps,
        agents=env.teams * env.members,
        devices=mesh.size,
        bytes=needed,
    )


def compile_program(several: Callable[..., Any], mesh: Mesh, shapes: Any, places: Any) -> Any:
    """The program of some iterations; nothing is allocated yet, so that its memory can be judged first."""
    if mesh.axis_names == (SEEDS,):
        spec = PartitionSpec(SEEDS)
        several = jax.shard_map(several, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False)
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, places)
    count = jax.ShapeDtypeStruct((), np.int32, sharding=everywhere)
    with jax.set_mesh(mesh):
        return jax.jit(several, donate_argnums=0).lower(state, count).compile()


def agents_at_start(env: JaxEnv, parameters: Mapping[str, float | Sequence[float] | Distribution]) -> int:
    """How many agents an episode begins with, at least 1; of an episode drawn from key 0, for the first seed."""
    _, view = jax.jit(env.reset)(jax.random.key(0), of_episode(of_first_seed(parameters), jax.random.key(0)))
    return max(int(view.alive.sum()), 1)


def mesh_of(devices: list[Any], seeds: int, areas: int) -> Mesh:
    """The devices that share the work: as many as divide the seeds, or one seed's areas."""
    whole, axis = (seeds, SEEDS) if seeds > 1 else (areas, AREAS)
    count = max(n for n in range(1, len(devices) + 1) if whole % n == 0)
    return Mesh(np.array(devices[:count]), (axis,))


def shardings(mesh: Mesh, state: JittedState) -> JittedState:
    """Where each array lies: seeds over devices, or the areas of the one seed."""
    if mesh.axis_names == (SEEDS,):
        return jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(SEEDS)), state)
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(None, AREAS))
    return jax.tree.map(lambda _: everywhere, state).replace(play=jax.tree.map(lambda _: split, state.play))


def evaluator(env: JaxEnv, settings: BehaviorSettings) -> Evaluate | None:
    """The program of evaluations, if there are any, compiled with the first one."""
    if settings.evaluation is None:
        return None
    program = jax.jit(partial(evaluate, env, deterministic(env.spec, settings), settings.evaluation))
    return lambda state: program(state.train.policy, state.parameters)


def _taken(state: JittedState, first: Array, count: int) -> JittedState:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, count), state)


def _replaced(state: JittedState, some: JittedState, first: Array) -> JittedState:
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, 0), state, some)


def _place(mesh: Mesh, state: JittedState) -> JittedState:
    return jax.device_put(state, shardings(mesh, state))


def _empty_to(x: Array, place: NamedSharding) -> Array:
    """Arrays without a number come out of a program on all devices, wherever they are asked for."""
    return x if x.size else jax.device_put(x, place)

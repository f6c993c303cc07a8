"""The loop inside one compiled program: rollout, returns, losses and updates of many seeds, environment included.

It uses the same `Algorithm` as the host loop (`host/loop.py`). `make_jitted_trainer` returns the compiled functions
that a notebook needs; `run.py` adds the files of a run.

Seeds never mix: they are a leading axis S of every array of the state. With several devices each takes some of the
seeds; a single seed spreads its areas, and the rows of its minibatches, instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Traced

from jaxrl.algorithms.connected import deterministic
from jaxrl.algorithms.interface import Algorithm
from jaxrl.compilation import cache_by_default, quick_options, require_float32
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.settings import BehaviorSettings
from jaxrl.settings.teams import teams_of
from jaxrl.training.compiled import trainer_checkpoint
from jaxrl.training.compiled.arguments import UNFITTING, check_arguments, check_fit, iterations, seed_numbers
from jaxrl.training.compiled.checks import check_memory
from jaxrl.training.compiled.evaluation import Evaluate, evaluate
from jaxrl.training.compiled.iteration import begin_anew, iterate_several
from jaxrl.training.compiled.placing import AREAS, SEEDS, empty_to, mesh_of, shardings
from jaxrl.training.compiled.plan import JittedTrainer, Plan, SceneTrainer
from jaxrl.training.compiled.planning import plan_of
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.state import IterationLog, JittedState, Report, SceneState
from jaxrl.training.spread import here, over_all


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
    """Make one program of environment and learner.

    An iteration is T decisions in each of the E areas and one update; T is buffer_size over the agents that begin an
    episode in all areas, so that an iteration holds about buffer_size agent steps.

    Args:
      env: environment.
      algorithm: made for the spec of `env`, or for that spec as its connectors transform it.
      settings: of the behavior; buffer_size, time_horizon and max_steps are used here, the rest by the algorithm.
      areas: E, environments of each seed.
      seeds: S, independent runs side by side.
      parameters: environment parameters that differ from the defaults: a number, one for each seed, or a distribution
        that each episode draws from (`jax_envs.sampling.of_seeds`).
      values: settings in which the seeds differ, by dotted key a number for each seed, such as
        {"hyperparameters.learning_rate": (1e-3, 3e-4)} for two. They are traced: other numbers are the same program.
        Those of `settings` do not count then.
      newest: largest number of an iteration's last episodes that `JittedState.newest` reports one by one.
      devices: devices to run on, by default all of JAX's. As many are used as divide the seeds (or, with one seed,
        its areas).

    Memory. `bytes` is the compiler's plan. To estimate it before: on a CPU, where one seed learns after the other, a
    run of S seeds takes about
        S state + max(1.8 S Q, (P + 2.9) Q, (P + 1.4) Q + 4 k h n) + 10^6 bytes, P = S, or 0 if S = 1:
    all seeds' decisions and their rollouts, one seed's returns beside all decisions, or one seed's minibatch.
    Q = T E A (4 (observation numbers + 2 (C + D) + 6) + M) bytes are a seed's decisions (observations twice if the
    environment truncates; a quarter of that for images of dtype uint8), h the hidden units, n the rows of a minibatch
    (PPO: batch_size; MA-POCA: batch_size (1 + A)) and k the arrays stored per row (12; 9). Within 6 % of the plan for
    PPO and MA-POCA on Dungeon Escape with 1 to 8 seeds, 16 to 256 areas, 64 and 256 units. On accelerators all seeds
    learn at once: the last two terms count S times. `init` raises SettingsError if the free memory is too small.

    Programs are cached on disk (`jaxrl.compilation`) unless JAX has a cache folder or JAXRL_COMPILATION_CACHE=0.

    Raises SettingsError for settings that are not supported, or only in a run with files or in the host loop;
    JaxEnvError if the environment breaks its contract.
    """
    check_arguments(env, algorithm, settings, {"areas": areas, "seeds": seeds, "newest": newest}, parameters or {})
    name = env.name
    trainer = make_scene_trainer(
        env,
        {name: algorithm},
        {name: settings},
        areas=areas,
        seeds=seeds,
        parameters=parameters,
        values={name: values or {}},
        newest={name: newest},
        devices=devices,
    )
    subject = Subject(name, env.spec, settings, tuple(range(seeds)), areas, algorithm=algorithm)

    def within(change: Callable[..., SceneState]) -> Callable[..., JittedState]:
        return lambda state, *rest: change(SceneState.made_of({name: state}), *rest).of(name)

    def init(numbers: Sequence[int]) -> JittedState:
        return trainer.init(numbers).of(name)

    def run(state: JittedState, count: int) -> tuple[JittedState, IterationLog]:
        new_state, logs = trainer.run(SceneState.made_of({name: state}), count)
        return new_state.of(name), logs[name]

    def put(state: JittedState, some: JittedState, first: int) -> JittedState:
        return within(trainer.put)(state, SceneState.made_of({name: some}), first)

    place = within(trainer.place)
    return JittedTrainer(
        init=init,
        run=run,
        place=place,
        save=partial(trainer_checkpoint.save, subject),
        restore=partial(trainer_checkpoint.restore, subject, trainer.shapes.of(name), init, place),
        take=within(trainer.take),
        put=put,
        begin_anew=within(trainer.begin_anew),
        seeds=seeds,
        areas=areas,
        steps=trainer.steps,
        agents=trainer.agents[name],
        devices=trainer.devices,
        bytes=trainer.bytes,
    )


def make_scene_trainer(
    env: JaxEnv | JaxScene,
    algorithms: Mapping[str, Algorithm],
    settings: Mapping[str, BehaviorSettings],
    *,
    areas: int = 16,
    seeds: int = 1,
    parameters: Mapping[str, float | Sequence[float] | Distribution] | None = None,
    values: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    newest: Mapping[str, int] | None = None,
    devices: Sequence[Any] | None = None,
) -> SceneTrainer:
    """Make one program of an environment of several behaviors and their learners, like `make_jitted_trainer`.

    `algorithms`, `settings`, `values` and `newest` are by behavior; the first two have an entry for each behavior of
    the scene. The newest episodes are those of a rollout, reported in the iteration that completes it.

    A rollout of a behavior holds about buffer_size of its agent steps; agents are counted at beginnings of episodes.
    All rollouts are multiples of T decisions, with T such that each is within 5 % of its length if possible.

    Raises SettingsError and JaxEnvError as `make_jitted_trainer`.
    """
    games = [behavior.self_play for behavior in settings.values()]
    size = max(1 if game is None else game.league_size for game in games)
    mesh = mesh_of(list(devices or jax.devices()), seeds, areas, together=size)
    require_float32()
    cache_by_default()
    plan = plan_of(
        env, algorithms, settings, areas=areas, seeds=seeds, parameters=parameters, values=values, newest=newest
    )
    learners = plan.learners
    begin = jax.jit(partial(start, plan), compiler_options=quick_options(mesh.devices.flat[0].platform))
    try:
        shapes = jax.eval_shape(begin, jax.ShapeDtypeStruct((seeds,), np.uint32))
        places = shardings(mesh, shapes)
        program: Any = trace_program(plan, mesh, shapes, places).lower().compile()
    except UNFITTING:
        for name, learner in learners.items():
            check_fit(learner.env, algorithms[name])
        raise
    memory, replaced, begun_anew = program.memory_analysis(), jax.jit(_replaced), jax.jit(partial(begin_anew, plan))
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes

    def place(state: SceneState) -> SceneState:
        where = shardings(mesh, state)
        return over_all(state, where) if jax.process_count() > 1 else jax.device_put(state, where)

    def init(numbers: Sequence[int], parameters: Mapping[str, Any] | None = None) -> SceneState:
        check_memory(seeds, areas, needed, min(mesh.size, jax.local_device_count()))
        return place(begin(seed_numbers(numbers, seeds), parameters))

    def run(state: SceneState, count: int) -> tuple[SceneState, dict[str, IterationLog]]:
        counted = iterations(state, count)
        if jax.process_count() > 1:
            counted = over_all(counted, NamedSharding(mesh, PartitionSpec()))
        return program(jax.tree.map(empty_to, state, places), counted)

    everywhere = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def read(found: Any) -> Any:
        return jax.device_get(everywhere(found) if mesh.size > 1 else found)

    def report(state: SceneState, logs: Mapping[str, IterationLog] = MappingProxyType({})) -> dict[str, Report]:
        reports = {
            name: Report(
                part.train.step, part.frozen, part.iteration, part.values, part.recent, part.newest, logs.get(name, ())
            )
            for name, part in state.parts.items()
        }
        return read(reports)

    return SceneTrainer(
        init=init,
        run=run,
        place=place,
        take=jax.jit(_taken, static_argnums=2),
        put=lambda state, some, first: place(replaced(state, some, first)),
        begin_anew=lambda state, which: place(begun_anew(state, which)),
        read=read,
        here=partial(here, everywhere) if jax.process_count() > 1 else lambda state: state,
        report=report,
        seeds=seeds,
        areas=areas,
        steps=plan.steps,
        every={name: learner.every for name, learner in learners.items()},
        agents={name: learner.env.teams * learner.env.members for name, learner in learners.items()},
        algorithms=algorithms,
        devices=mesh.size,
        bytes=needed,
        shapes=shapes,
    )


def trace_program(plan: Plan, mesh: Mesh, shapes: SceneState, places: SceneState) -> Traced:
    """Trace the program of several iterations, (state, count) → (state, logs); the state is donated.

    `shapes` and `places` are a state's. Nothing is compiled or allocated, so that its memory can be checked first.
    """
    several: Callable[..., Any] = partial(iterate_several, plan)
    if len(next(iter(shapes.parts.values())).key) > 1:
        spec = PartitionSpec(SEEDS)
        several = jax.shard_map(
            several,
            mesh=mesh,
            in_specs=(spec, PartitionSpec()),
            out_specs=spec,
            axis_names={SEEDS} if mesh.shape[AREAS] > 1 else set(),
            check_vma=False,
        )
    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, places)
    count = jax.ShapeDtypeStruct((), np.int32, sharding=everywhere)
    # If areas are spread, XLA would choose shardings of the results, but the next call needs those of its arguments.
    out: dict[str, Any] = {"out_shardings": (places, None)} if mesh.shape[AREAS] > 1 else {}
    with jax.set_mesh(mesh):
        return jax.jit(several, donate_argnums=0, **out).trace(state, count)


def evaluators(env: JaxEnv | JaxScene, settings: Mapping[str, BehaviorSettings]) -> dict[str, Evaluate]:
    """Return the evaluation programs, by behavior with an evaluation; each is compiled at its first call."""
    scene = scene_of(env)
    if not any(behavior.evaluation for behavior in settings.values()):
        return {}
    algorithms = {part.name: deterministic(part.spec, settings[part.name]) for part in scene.parts}
    teams = list(teams_of({part.name: settings[part.name] for part in scene.parts}).values())
    programs = {
        name: jax.jit(partial(evaluate, scene, algorithms, behavior.evaluation, name, teams=teams))
        for name, behavior in settings.items()
        if behavior.evaluation is not None
    }

    def of_state(program: Any, state: SceneState) -> Any:
        return program({name: part.train.policy for name, part in state.parts.items()}, state.parameters)

    return {name: partial(of_state, program) for name, program in programs.items()}


def _taken(state: SceneState, first: Array, count: int) -> SceneState:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, count), state)


def _replaced(state: SceneState, some: SceneState, first: Array) -> SceneState:
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, 0), state, some)

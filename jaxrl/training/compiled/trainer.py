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
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Traced

from jaxrl.algorithms.interface import Algorithm
from jaxrl.compilation import cache_by_default, quick_options
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution, of_episode, of_first_seed
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.teams import check_places
from jaxrl.training.compiled import trainer_checkpoint
from jaxrl.training.compiled.arguments import (
    UNFITTING,
    check_acting,
    check_arguments,
    check_fit,
    check_values,
    seed_numbers,
)
from jaxrl.training.compiled.checks import check_memory, check_sides, check_teams, check_trainer, with_teams
from jaxrl.training.compiled.contest import contest, rivals_of
from jaxrl.training.compiled.evaluation import Evaluate, evaluate
from jaxrl.training.compiled.iteration import (
    IterationLog,
    JittedState,
    JittedTrainer,
    Learner,
    Plan,
    Report,
    SceneState,
    SceneTrainer,
    begin_anew,
    iterate_several,
    start,
)
from jaxrl.training.compiled.opponents import Rivals, groups_of, rival_algorithm
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.deterministic import deterministic
from jaxrl.training.memory import check_store
from jaxrl.training.spread import here, over_all

SEEDS, AREAS = "seeds", "areas"
_DRAWN = 256
"""Episodes that tell how many agents of each of several behaviors there are."""
_PIECES, _CLOSE = 8, 0.05
"""A rollout is cut into at most so many pieces; and how far its length may be from the one that was asked for."""


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
        after, logs = trainer.run(SceneState.made_of({name: state}), count)
        return after.of(name), logs[name]

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
    """As `make_jitted_trainer`, of an environment of several behaviors: environment and learners as one program.

    `algorithms`, `settings`, `values` and `newest` are by behavior; the first two have one for each of the scene's. The
    newest episodes are of each rollout, told in the iteration that completes it.

    A rollout of a behavior holds about buffer_size of its agent steps, as far as the beginnings of episodes tell how
    many agents it has. All rollouts are whole numbers of pieces of T decisions, T such that each is within 5 % of its
    length where that can be.

    Raises SettingsError and JaxEnvError as `make_jitted_trainer`.
    """
    mesh = mesh_of(list(devices or jax.devices()), seeds, areas)
    platform = mesh.devices.flat[0].platform
    cache_by_default()
    plan = plan_of(
        env,
        algorithms,
        settings,
        areas=areas,
        seeds=seeds,
        parameters=parameters,
        values=values,
        newest=newest,
        platform=platform,
    )
    learners = plan.learners
    begin = jax.jit(partial(start, plan), compiler_options=quick_options(platform))
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

    def init(numbers: Sequence[int]) -> SceneState:
        check_memory(seeds, areas, needed, min(mesh.size, jax.local_device_count()))
        return place(begin(seed_numbers(numbers, seeds)))

    def run(state: SceneState, count: int) -> tuple[SceneState, dict[str, IterationLog]]:
        return program(jax.tree.map(_empty_to, state, places), counted(count))

    def counted(count: int) -> Any:
        whole = NamedSharding(mesh, PartitionSpec())
        return np.int32(count) if jax.process_count() == 1 else over_all(np.int32(count), whole)

    everywhere = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def read(found: Any) -> Any:
        return jax.device_get(everywhere(found) if mesh.size > 1 else found)

    def here_alone(state: SceneState) -> SceneState:
        return here(everywhere, state) if jax.process_count() > 1 else state

    def report(state: SceneState, logs: Mapping[str, IterationLog] = MappingProxyType({})) -> dict[str, Report]:
        found = {
            name: Report(
                part.train.step, part.frozen, part.iteration, part.values, part.recent, part.newest, logs.get(name, ())
            )
            for name, part in state.parts.items()
        }
        return read(found)

    return SceneTrainer(
        init=init,
        run=run,
        place=place,
        take=jax.jit(_taken, static_argnums=2),
        put=lambda state, some, first: place(replaced(state, some, first)),
        begin_anew=lambda state, which: place(begun_anew(state, which)),
        read=read,
        here=here_alone,
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


def plan_of(
    env: JaxEnv | JaxScene,
    algorithms: Mapping[str, Algorithm],
    settings: Mapping[str, BehaviorSettings],
    *,
    areas: int,
    seeds: int,
    platform: str,
    parameters: Mapping[str, float | Sequence[float] | Distribution] | None = None,
    values: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    newest: Mapping[str, int] | None = None,
) -> Plan:
    """What an iteration of `make_scene_trainer` is bound to, on this platform ("cpu", "cuda", "tpu").

    Raises SettingsError and JaxEnvError.
    """
    original, differing = scene_of(env), values or {}
    check_jax_env(env)
    sides = check_sides(original, algorithms, settings)
    scene = contest(original, sides) if sides else original
    teams = check_teams(scene, algorithms, settings, differing)
    algorithms = {**algorithms, **{name: of for team in teams.values() for name, of in team.kinds.items()}}
    scene = with_teams(scene, teams)
    trained = [part for part in scene.parts if part.name in settings]
    for part in trained:
        check_trainer(part.name, settings[part.name])
        check_places(part.name, algorithms[part.name].places, part.members)
        given = algorithms[part.name], differing.get(part.name, {})
        check_values(given[0], settings[part.name], seeds, given[1])
        check_acting(part, *given)
        check_store(part.name, given[0], settings[part.name], seeds)
    usual = {**scene.parameters, **(parameters or {})}
    agents = {
        name: count / (sides[name].teams if name in sides else 1)
        for name, count in agents_at_start(original, usual).items()
    }
    lengths, mates = {}, {name: list(team.kinds) for team in teams.values() for name in team.kinds}
    for name in agents:
        count = sum(agents[mate] for mate in mates.get(name, [name]))
        each = 1.0 if settings[name].count_by == "env_steps" else count
        lengths[name] = math.ceil(algorithms[name].collect_size / (areas * each))
    steps, every = pieces(lengths)
    learners = {}
    for part in trained:
        name, alone = part.name, len(trained) == 1
        learners[name] = Learner(
            part,
            algorithms[name] if alone else _met_somebody(algorithms[name]),
            settings[name].time_horizon,
            settings[name].last_step,
            differing.get(name, {}),
            min((newest or {}).get(name, 0), every[name] * steps * areas * part.teams * part.members),
            every[name],
            side_by_side=platform != "cpu",
            alone=alone,
            by_turns=name in sides and len(sides) > 1,
        )
    rivals, groups = {}, groups_of(areas)
    for name, of in sides.items():
        acts = rival_algorithm(algorithms[name], groups, of.slots)
        own = settings[name].self_play
        assert own is not None
        rivals[name] = Rivals(scene.part(rivals_of(name)), acts, of, groups, own)
    return Plan(scene, learners, usual, areas, steps, rivals, teams)


def trace_program(plan: Plan, mesh: Mesh, shapes: SceneState, places: SceneState) -> Traced:
    """The program of some iterations, (state, count) → (state, logs); the state is donated.

    `shapes` and `places` of a state. Nothing is compiled or allocated yet, so that its memory can be judged first.
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
    with jax.set_mesh(mesh):
        return jax.jit(several, donate_argnums=0).trace(state, count)


def agents_at_start(
    env: JaxEnv | JaxScene, parameters: Mapping[str, float | Sequence[float] | Distribution]
) -> dict[str, float]:
    """By behavior, how many agents an episode begins with, for the first seed; 1 if there are none.

    Of one behavior in an episode drawn from key 0. Of several, which may be absent from an episode, the mean over some.
    """
    scene, values, key = scene_of(env), of_first_seed(parameters), jax.random.key(0)
    keys = key[None] if len(scene.parts) == 1 else jax.random.split(key, _DRAWN)
    _, views = jax.jit(jax.vmap(lambda key: scene.reset(key, of_episode(values, key))))(keys)
    return {name: float(view.alive.sum(-1).mean()) or 1.0 for name, view in views.items()}


def pieces(lengths: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """T, and by behavior how many times T its rollout has: as few as leave each within 5 % of its length."""
    shortest, best = min(lengths.values()), None
    for count in range(1, _PIECES + 1):
        steps = math.ceil(shortest / count)
        every = {name: max(round(length / steps), 1) for name, length in lengths.items()}
        away = max(abs(every[name] * steps / length - 1.0) for name, length in lengths.items())
        if best is None or away < best[0] - 1e-9:
            best = away, steps, every
        if away <= _CLOSE:
            break
    assert best is not None
    return best[1], best[2]


def _met_somebody(algorithm: Algorithm) -> Algorithm:
    """Who was absent all along has nothing to learn from."""
    due = algorithm.storage.can_sample
    met = algorithm.storage._replace(can_sample=lambda store, counts: due(store, counts) & (counts.fresh > 0))
    return algorithm._replace(storage=met)


def mesh_of(devices: list[Any], seeds: int, areas: int) -> Mesh:
    """The devices that share the work, with the axes seeds and areas: as many as can, the same number of each host.

    Each takes some of the seeds; what devices are left over share the areas of a seed. On one host several seeds are
    not spread further than over the seeds. Raises SettingsError where some host would have nothing to do.
    """
    hosts: dict[int, list[Any]] = {}
    for device in devices:
        hosts.setdefault(device.process_index, []).append(device)
    for each in range(min(map(len, hosts.values())), 0, -1):
        count = each * len(hosts)
        of_seeds = math.gcd(count, seeds)
        of_areas = count // of_seeds
        if of_areas == 1 or (areas % of_areas == 0 and (seeds == 1 or len(hosts) > 1)):
            chosen = [device for own in hosts.values() for device in own[:each]]
            return Mesh(np.array(chosen).reshape(of_seeds, of_areas), (SEEDS, AREAS))
    raise SettingsError(
        f"env_settings.seeds: {seeds} seed(s) of {areas} areas (num_areas) cannot be spread over {len(hosts)} hosts "
        "alike: choose a number of seeds or of areas that the number of hosts divides"
    )


def shardings(mesh: Mesh, state: SceneState) -> SceneState:
    """Where each array lies: seeds over devices, and the areas of a seed."""
    of_seeds, of_areas = NamedSharding(mesh, PartitionSpec(SEEDS)), NamedSharding(mesh, PartitionSpec(SEEDS, AREAS))
    split = {name: jax.tree.map(lambda _: of_areas, play) for name, play in state.world[1].items()}
    everything = jax.tree.map(lambda _: of_seeds, state)
    parts = {name: part.replace(play=split[name]) for name, part in everything.parts.items()}
    for name, of in everything.rivals.items():
        parts[name] = parts[name].replace(rivals=of.replace(play=split[rivals_of(name)]))
    return everything.replace(areas=jax.tree.map(lambda _: of_areas, state.areas), parts=parts)


def evaluators(env: JaxEnv | JaxScene, settings: Mapping[str, BehaviorSettings]) -> dict[str, Evaluate]:
    """The programs of evaluations, by behavior that has them, each compiled with its first one."""
    scene = scene_of(env)
    if not any(of.evaluation for of in settings.values()):
        return {}
    algorithms = {part.name: deterministic(part.spec, settings[part.name]) for part in scene.parts}
    programs = {
        name: jax.jit(partial(evaluate, scene, algorithms, of.evaluation, name))
        for name, of in settings.items()
        if of.evaluation is not None
    }

    def of_state(program: Any, state: SceneState) -> Any:
        return program({name: part.train.policy for name, part in state.parts.items()}, state.parameters)

    return {name: partial(of_state, program) for name, program in programs.items()}


def _taken(state: SceneState, first: Array, count: int) -> SceneState:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, count), state)


def _replaced(state: SceneState, some: SceneState, first: Array) -> SceneState:
    return jax.tree.map(lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, first, 0), state, some)


def _empty_to(x: Array, place: NamedSharding) -> Array:
    """Arrays without a number come out of a program on all devices, wherever they are asked for."""
    return x if x.size else jax.device_put(x, place)

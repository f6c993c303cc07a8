"""Several learners and their environment as one compiled program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxrl.algorithms.interface import Algorithm
from jaxrl.compilation import cache_by_default, quick_options
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.sampling import Distribution, of_episode, of_first_seed
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.settings import BehaviorSettings
from jaxrl.training.compiled.checks import check_memory, check_trainer
from jaxrl.training.compiled.iteration import IterationLog, Plan
from jaxrl.training.compiled.scene.evaluation import evaluate_scene
from jaxrl.training.compiled.scene.iteration import Learner, ScenePlan, SceneState, iterate_several, start
from jaxrl.training.compiled.stacking import EpisodeFigures
from jaxrl.training.compiled.trainer import compile_program, mesh_of, shardings
from jaxrl.training.deterministic import deterministic

EvaluateScene = Callable[[SceneState], EpisodeFigures]
"""The figures of the episodes that the policies of a state play, each with the leading axis S."""

_DRAWN = 256
"""Episodes that tell how many agents of each behavior there are."""
_PIECES, _CLOSE = 8, 0.05
"""A rollout is cut into at most so many pieces; and how far its length may be from the one that was asked for."""


class SceneTrainer(NamedTuple):
    """As `JittedTrainer`, with a `SceneState` and a log for each behavior."""

    init: Callable[[Sequence[int]], SceneState]
    run: Callable[[SceneState, int], tuple[SceneState, dict[str, IterationLog]]]
    place: Callable[[SceneState], SceneState]
    seeds: int  # S
    areas: int  # E
    steps: int  # T, decisions in each area per iteration
    every: Mapping[str, int]  # by behavior, iterations from one update to the next
    agents: Mapping[str, int]  # by behavior, of one area, at most
    devices: int
    bytes: int  # memory that a run takes on each device


def make_scene_trainer(
    scene: JaxScene,
    algorithms: Mapping[str, Algorithm],
    settings: Mapping[str, BehaviorSettings],
    *,
    areas: int = 16,
    seeds: int = 1,
    parameters: Mapping[str, float | Sequence[float] | Distribution] | None = None,
    newest: Mapping[str, int] | None = None,
    devices: Sequence[Any] | None = None,
) -> SceneTrainer:
    """As `make_jitted_trainer`; `algorithms` and `settings` by behavior, one for each of the scene's.

    `newest` by behavior as well: of each rollout, told in the iteration that completes it.

    A rollout of a behavior holds about buffer_size of its agent steps, as far as the beginnings of episodes tell how
    many agents it has. All rollouts are whole numbers of pieces of T decisions, T such that each is within 5 % of its
    length where that can be.

    Raises SettingsError and JaxEnvError as `make_jitted_trainer`.
    """
    for name, behavior in settings.items():
        check_trainer(name, behavior)
    check_jax_env(scene)
    cache_by_default()
    usual = {**scene.parameters, **(parameters or {})}
    agents = agents_at_starts(scene, usual)
    names = [part.name for part in scene.parts]
    lengths = {name: _decisions(algorithms[name], settings[name], areas, agents[name]) for name in names}
    steps, every = pieces(lengths)
    mesh = mesh_of(list(devices or jax.devices()), seeds, areas)
    platform = mesh.devices.flat[0].platform
    learners = {}
    for part in scene.parts:
        algorithm, of_part, env = algorithms[part.name], settings[part.name], part
        sizes: Any = (areas, steps, of_part.time_horizon, of_part.last_step)
        most = every[part.name] * steps * areas * part.teams * part.members
        told = min((newest or {}).get(part.name, 0), most)
        plan = Plan(env, _met_somebody(algorithm), {}, *sizes, platform != "cpu", newest=told, goes_on=True)  # pyright: ignore
        learners[part.name] = Learner(part, plan, every[part.name])
    plan = ScenePlan(scene, learners, usual, areas, steps)
    begin = jax.jit(partial(start, plan), compiler_options=quick_options(platform))
    shapes = jax.eval_shape(begin, jax.ShapeDtypeStruct((seeds,), np.uint32))
    program = compile_program(partial(iterate_several, plan), mesh, shapes, scene_shardings(mesh, shapes))
    memory = program.memory_analysis()
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes

    def place(state: SceneState) -> SceneState:
        return jax.device_put(state, scene_shardings(mesh, state))

    places = scene_shardings(mesh, shapes)

    def run(state: SceneState, count: int) -> tuple[SceneState, dict[str, IterationLog]]:
        after, logs = program(state, np.int32(count))
        # XLA spreads arrays without numbers, such as the continuous actions of who has none, over no devices.
        return jax.tree.map(lambda x, at: x if x.size else jax.device_put(x, at), after, places), logs

    def init(numbers: Sequence[int]) -> SceneState:
        check_memory(seeds, areas, needed, mesh.size)
        return place(begin(np.asarray(numbers, np.uint32)))

    return SceneTrainer(
        init=init,
        run=run,
        place=place,
        seeds=seeds,
        areas=areas,
        steps=steps,
        every=every,
        agents={part.name: part.teams * part.members for part in scene.parts},
        devices=mesh.size,
        bytes=needed,
    )


def evaluators(scene: JaxScene, behaviors: Mapping[str, BehaviorSettings]) -> dict[str, EvaluateScene]:
    """The programs of evaluations, by behavior that has them, each compiled with its first one."""
    algorithms = {part.name: deterministic(part.spec, behaviors[part.name]) for part in scene.parts}
    return {
        name: jax.jit(partial(evaluate_scene, scene, algorithms, behavior.evaluation, name))
        for name, behavior in behaviors.items()
        if behavior.evaluation is not None
    }


def scene_shardings(mesh: Mesh, state: SceneState) -> SceneState:
    """Where each array lies: seeds over devices, or the areas of the one seed."""
    parts = {name: shardings(mesh, part) for name, part in state.parts.items()}
    first = next(iter(state.parts.values()))
    areas = shardings(mesh, first.replace(play=first.play._replace(areas=state.areas))).play.areas
    rest = shardings(mesh, first.replace(parameters=state.parameters, values=state.last_step))
    return state.replace(areas=areas, parts=parts, parameters=rest.parameters, last_step=rest.values)


def agents_at_starts(
    scene: JaxScene, parameters: Mapping[str, float | Sequence[float] | Distribution]
) -> dict[str, float]:
    """By behavior, how many agents an episode begins with: the mean over some, for the first seed; 1 if there are none.

    A behavior may be absent from an episode.
    """
    values = of_first_seed(parameters)
    reset = jax.jit(jax.vmap(lambda key: scene.reset(key, of_episode(values, key))))
    _, views = reset(jax.random.split(jax.random.key(0), _DRAWN))
    return {name: float(view.alive.sum(-1).mean()) or 1.0 for name, view in views.items()}


def _decisions(algorithm: Algorithm, settings: BehaviorSettings, areas: int, agents: float) -> int:
    """Of each area, in one rollout."""
    return math.ceil(algorithm.period / (areas * (1.0 if settings.count_by == "env_steps" else agents)))


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

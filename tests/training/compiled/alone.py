"""Functions of the compiled loop for a `JaxEnv`: one behavior without its name and the mappings."""

from __future__ import annotations

from typing import Any

from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.scene import scene_of
from jaxrl.training.compiled import collect as compiled
from jaxrl.training.compiled import evaluation, play
from jaxrl.training.compiled.plan import Learner, Plan
from jaxrl.training.compiled.play import Play, Transitions
from jaxrl.training.compiled.starting import start
from jaxrl.training.compiled.state import JittedState


def start_play(env: JaxEnv, algorithm: Any, keys: Any, areas: int, parameters: Any) -> Play:
    """The play, in which the areas stand."""
    begun, plays = play.start_play(scene_of(env), {env.name: algorithm}, keys, areas, parameters)
    return plays[env.name]._replace(areas=begun)


def collect(
    env: JaxEnv, algorithm: Any, policy: Any, play: Play, keys: Any, parameters: Any
) -> tuple[Play, Transitions]:
    """The play after it and what happened, [T, S, ...]."""
    name = env.name
    world = play.areas, {name: play._replace(areas=())}
    given = scene_of(env), {name: algorithm}, {name: policy}, world, {name: keys}, parameters
    (areas, plays), steps = compiled.collect(*given)
    return plays[name]._replace(areas=areas), steps[name]


def fresh_states(env: JaxEnv, algorithm: Any, settings: Any, areas: int, steps: int, numbers: Any) -> JittedState:
    """How a run of one behavior begins, in `jax.jit` or `jax.eval_shape` too."""
    scene = scene_of(env)
    learner = Learner(scene.parts[0], algorithm, settings.time_horizon, settings.last_step)
    return start(Plan(scene, {env.name: learner}, dict(env.parameters), areas, steps), numbers).of(env.name)


def evaluate(env: JaxEnv, algorithm: Any, options: Any, policy: Any, parameters: Any) -> evaluation.Evaluated:
    """What episodes beside the training bring."""
    name = env.name
    return evaluation.evaluate(scene_of(env), {name: algorithm}, options, name, {name: policy}, parameters)

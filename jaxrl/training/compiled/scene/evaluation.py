"""Episodes of a whole scene beside the training: the deterministic policies of all behaviors play, one of them counts.

As `compiled/evaluation.py`, for one behavior's `evaluation` settings.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, nothing_remembered
from jaxrl.jax_envs.scene import JaxScene, start_scene
from jaxrl.settings import EvaluationSettings
from jaxrl.training.compiled.collect import Play, begin_play
from jaxrl.training.compiled.evaluation import Trial, of_first_episodes
from jaxrl.training.compiled.iteration import Plan
from jaxrl.training.compiled.scene.iteration import Learner, ScenePlan, SceneState, collect_scene
from jaxrl.training.compiled.stacking import EpisodeFigures, figures, together


def evaluate_scene(
    scene: JaxScene, algorithms: Mapping[str, Algorithm], options: EvaluationSettings, name: str, state: SceneState
) -> EpisodeFigures:
    """Of N = `options.episodes` episodes of each seed, float32 [S], of the behavior `name`; as `evaluate`.

    Args:
      algorithms: from `training.deterministic`, by behavior.
      state: of the training, whose policies and environment parameters are taken.
    """
    number = options.episodes
    learners = {
        part.name: Learner(part, Plan(part, algorithms[part.name], {}, number, 1, 1, 0), 1)  # pyright: ignore
        for part in scene.parts
    }
    plan = ScenePlan(scene, learners, {}, number, 1)
    seeds = next(iter(state.parts.values())).key.shape[0]

    def once(clock: Array, trial: SceneState, over: Array) -> tuple[SceneState, Array, EpisodeFigures]:
        parts = {n: part.replace(iteration=jnp.broadcast_to(clock, (seeds,))) for n, part in trial.parts.items()}
        (areas, plays), steps = collect_scene(plan, trial.replace(parts=parts))
        parts = {n: part.replace(play=_between(algorithms[n], plays[n])) for n, part in trial.parts.items()}
        ended = jax.vmap(lambda of_seed: figures(scene.part(name), of_seed))(of_first_episodes(steps[name], over))
        return trial.replace(areas=areas, parts=parts), over | steps[name].over[:, 0], ended

    def step(trial: Trial) -> Trial:
        played, over, ended = once(trial.steps, trial.play, trial.over)
        return Trial(trial.steps + 1, played, over, together(trial.found, ended))

    def goes_on(trial: Trial) -> Array:
        return (trial.steps < options.max_length) & ~trial.over.all()

    begun = jnp.int32(0), _begun(plan, options, state), jnp.zeros((seeds, number), bool)
    _, _, shapes = jax.eval_shape(once, *begun)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.while_loop(goes_on, step, Trial(*begun, nothing)).found


def _begun(plan: ScenePlan, options: EvaluationSettings, state: SceneState) -> SceneState:
    """The policies of the training in areas of their own, with keys that are the same for every seed and evaluation."""
    seeds = next(iter(state.parts.values())).key.shape[0]
    begin, noise = jax.random.split(jax.random.key(options.seed))
    values = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (seeds, plan.areas, *x.shape[1:])), state.parameters)
    areas, views = jax.vmap(lambda of_seed: start_scene(plan.scene, begin, plan.areas, of_seed))(values)
    parts = {}
    for index, (name, part) in enumerate(state.parts.items()):
        learner = plan.learners[name]
        algorithm = learner.plan.algorithm
        play = begin_play(learner.part, nothing_remembered(algorithm), (), views[name], algorithm.connectors)
        key = jnp.broadcast_to(jax.random.fold_in(noise, index), (seeds,))
        parts[name] = part.replace(play=play, key=key, store=(), iteration=jnp.zeros(seeds, jnp.int32))
    return state.replace(areas=areas, parts=parts)


def _between(algorithm: Algorithm, play: Play) -> Play:
    """As it is between two decisions."""
    return play if algorithm.connectors is None else play._replace(connectors=play.connectors.slots)

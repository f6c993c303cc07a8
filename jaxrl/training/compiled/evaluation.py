"""Episodes that the deterministic policies of all seeds play beside the training, as a compiled program of its own.

They begin in areas of their own with keys of their own, the same ones at each evaluation and for each seed, so that two
values differ by what was learned alone. Nothing of the training's state is used up or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.jax_envs.sampling import Value
from jaxrl.jax_envs.scene import JaxScene
from jaxrl.settings import EvaluationSettings
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.play import Transitions, World, start_play
from jaxrl.training.compiled.stacking import EpisodeFigures, figures, teams_over, together
from jaxrl.training.compiled.state import SceneState

Evaluate = Callable[[SceneState], EpisodeFigures]
"""The figures of the episodes that the policies of a state play, each with the leading axis S."""


class Trial(NamedTuple):
    """N episodes of each seed on their way."""

    steps: Array  # int32 [], decisions so far
    world: World  # [S, N, ...]
    over: Array  # bool [S, N], the first episode of this area
    found: EpisodeFigures  # of what has ended in first episodes, [S]


def evaluate(
    scene: JaxScene,
    algorithms: Mapping[str, Algorithm],
    options: EvaluationSettings,
    name: str,
    policies: Mapping[str, PolicyState],
    parameters: Mapping[str, Value],
    teams: Sequence[Sequence[str]] = (),
) -> EpisodeFigures:
    """Of N = `options.episodes` episodes of each seed, float32 [S], of the behavior `name`; all behaviors play.

    An agent or a team counts if it ends before its area's first episode is over, or with it, within
    `options.max_length` decisions.

    Args:
      algorithms: `connected.deterministic`, by behavior.
      policies: by behavior, one per seed, leading axis S.
      parameters: of the environment, float32 [S] by name.
      teams: behaviors whose members are mates of each other: each is told what the whole team got.
    """
    mates = {of: scene.part(of) for of in next((names for names in teams if name in names), (name,))}
    seeds = jax.tree.leaves(policies)[0].shape[0]
    begin, noise = jax.random.split(jax.random.key(options.seed))
    world = start_play(scene, algorithms, jnp.broadcast_to(begin, (seeds,)), options.episodes, parameters)

    def once(number: Array, world: World, over: Array) -> tuple[World, Array, EpisodeFigures]:
        key = jax.random.fold_in(noise, number)
        own = {of: key if i == 0 else jax.random.fold_in(key, i) for i, of in enumerate(algorithms)}
        keys = {of: jnp.broadcast_to(one, (1, seeds)) for of, one in own.items()}
        (areas, plays), steps = collect(scene, algorithms, policies, world, keys, parameters, teams=teams)
        for of, play in plays.items():
            if algorithms[of].connectors is not None:
                plays[of] = play._replace(connectors=play.connectors.slots)
        first = {of: of_first_episodes(steps[of], over) for of in mates}
        ended = jax.vmap(lambda of: figures(mates[name], of[name], teams_over(mates, of)), in_axes=1)(first)
        return (areas, plays), over | steps[name].over[0], ended

    def step(trial: Trial) -> Trial:
        played, over, ended = once(trial.steps, trial.world, trial.over)
        return Trial(trial.steps + 1, played, over, together(trial.found, ended))

    def goes_on(trial: Trial) -> Array:
        return (trial.steps < options.max_length) & ~trial.over.all()

    begun = jnp.int32(0), world, jnp.zeros((seeds, options.episodes), bool)
    _, _, shapes = jax.eval_shape(once, *begun)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.while_loop(goes_on, step, Trial(*begun, nothing)).found


def of_first_episodes(steps: Transitions, over: Array) -> Transitions:
    """One step [1, S, N, A], in which nothing ends where the first episode was over before."""
    counts = ~over.reshape(steps.over.shape)
    return steps._replace(
        terminated=steps.terminated & counts[..., None],
        truncated=steps.truncated & counts[..., None],
        over=steps.over & counts,
    )

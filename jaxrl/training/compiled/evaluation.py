"""Episodes that the deterministic policies of all seeds play beside the training, as a compiled program of its own.

They begin in areas of their own with keys of their own, the same ones at each evaluation and for each seed, so that two
values differ by what was learned alone. Nothing of the training's state is used up or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, PolicyState, nothing_remembered
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.settings import EvaluationSettings
from jaxrl.training.compiled.collect import Play, Transitions, collect, start_play
from jaxrl.training.compiled.iteration import JittedState
from jaxrl.training.compiled.stacking import EpisodeFigures, figures, together

Evaluate = Callable[[JittedState], EpisodeFigures]
"""The figures of the episodes that the policies of a state play, each with the leading axis S."""


class Trial(NamedTuple):
    """N episodes of each seed on their way."""

    steps: Array  # int32 [], decisions so far
    play: Any  # [S, N, ...]; of several behaviors, the state of the scene
    over: Array  # bool [S, N], the first episode of this area
    found: EpisodeFigures  # of what has ended in first episodes, [S]


def evaluate(
    env: JaxEnv, algorithm: Algorithm, options: EvaluationSettings, policy: PolicyState, parameters: dict[str, Array]
) -> EpisodeFigures:
    """Of N = `options.episodes` episodes of each seed, float32 [S].

    An agent or a team counts if it ends before its area's first episode is over, or with it, within
    `options.max_length` decisions.

    Args:
      algorithm: from `training.deterministic`.
      policy: one per seed, leading axis S.
      parameters: of the environment, float32 [S] by name.
    """
    seeds = jax.tree.leaves(policy)[0].shape[0]
    begin, noise = jax.random.split(jax.random.key(options.seed))
    play = start_play(
        env,
        nothing_remembered(algorithm),
        jnp.broadcast_to(begin, (seeds,)),
        options.episodes,
        parameters,
        algorithm.connectors,
    )

    def once(number: Array, play: Play, over: Array) -> tuple[Play, Array, EpisodeFigures]:
        keys = jnp.broadcast_to(jax.random.fold_in(noise, number), (1, seeds))
        play, steps = collect(env, algorithm, policy, play, keys, parameters)
        play = play if algorithm.connectors is None else play._replace(connectors=play.connectors.slots)
        ended = jax.vmap(partial(figures, env), in_axes=1)(of_first_episodes(steps, over))
        return play, over | steps.over[0], ended

    def step(trial: Trial) -> Trial:
        play, over, ended = once(trial.steps, trial.play, trial.over)
        return Trial(trial.steps + 1, play, over, together(trial.found, ended))

    def goes_on(trial: Trial) -> Array:
        return (trial.steps < options.max_length) & ~trial.over.all()

    begun = jnp.int32(0), play, jnp.zeros((seeds, options.episodes), bool)
    _, _, shapes = jax.eval_shape(once, *begun)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.while_loop(goes_on, step, Trial(*begun, nothing)).found


def of_first_episodes(steps: Transitions, over: Array) -> Transitions:
    """One step [1, S, N, A] or [S, 1, N, A], in which nothing ends where the first episode was over before."""
    counts = ~over.reshape(steps.over.shape)
    return steps._replace(
        terminated=steps.terminated & counts[..., None],
        truncated=steps.truncated & counts[..., None],
        over=steps.over & counts,
    )

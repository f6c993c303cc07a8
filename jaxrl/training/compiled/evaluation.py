"""Play evaluation episodes with the deterministic policies of all seeds, as a separate compiled program.

They have their own areas and keys, equal at each evaluation and for each seed, so that values differ only by what was
learned. The training's state is neither donated nor changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxrl.algorithms.interface import Algorithm, PolicyState
from jaxrl.jax_envs.sampling import Value
from jaxrl.jax_envs.scene import JaxScene, Sizes
from jaxrl.settings import EvaluationSettings
from jaxrl.training.compiled.collect import collect
from jaxrl.training.compiled.play import Play, Transitions, World, by_team, start_play
from jaxrl.training.compiled.stacking import EpisodeFigures, figures, moments, teams_over, together
from jaxrl.training.compiled.state import SceneState


class Evaluated(NamedTuple):
    """Result of N episodes of each of S seeds."""

    episodes: EpisodeFigures  # [S]
    cut: Any  # int32 [S], number of episodes that were not over in time


Evaluate = Callable[[SceneState], Evaluated]
"""Function that plays the episodes with the policies of a state."""


class Trial(NamedTuple):
    """N running episodes of each seed."""

    steps: Array  # int32 [], decisions so far
    world: World  # [S, N, ...]
    over: Array  # bool [S, N], whether the area's first episode is over
    found: EpisodeFigures  # [S], figures of agents and teams whose first episode has ended


def evaluate(
    scene: JaxScene,
    algorithms: Mapping[str, Algorithm],
    options: EvaluationSettings,
    name: str,
    policies: Mapping[str, PolicyState],
    parameters: Mapping[str, Value],
    teams: Sequence[Sequence[str]] = (),
) -> Evaluated:
    """Play N = `options.episodes` episodes of each seed; return the figures of the behavior `name`. All behaviors play.

    The agents and teams of an area's first episode count; if it is not over within `options.max_length` decisions,
    with their returns until then.

    Args:
      algorithms: `connected.deterministic`, by behavior.
      policies: by behavior, one per seed, leading axis S.
      parameters: of the environment, float32 [S] by name.
      teams: behaviors whose members are mates of each other: each gets the group return of the whole team.
    """
    mates = {of: scene.part(of) for of in next((names for names in teams if name in names), (name,))}
    seeds = jax.tree.leaves(policies)[0].shape[0]
    begin, noise = jax.random.split(jax.random.key(options.seed))
    world = start_play(scene, algorithms, jnp.broadcast_to(begin, (seeds,)), options.episodes, parameters)

    def once(number: Array, world: World, over: Array) -> tuple[World, Array, EpisodeFigures]:
        key = jax.random.fold_in(noise, number)
        subkeys = {of: key if i == 0 else jax.random.fold_in(key, i) for i, of in enumerate(algorithms)}
        keys = {of: jnp.broadcast_to(subkey, (1, seeds)) for of, subkey in subkeys.items()}
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
    trial = jax.lax.while_loop(goes_on, step, Trial(*begun, nothing))
    sizes, plays = {of: scene.part(of) for of in mates}, {of: trial.world[1][of] for of in mates}
    rest = jax.vmap(lambda plays, over: unfinished(sizes, plays, name, over))(plays, trial.over)
    episodes = together(trial.found._replace(stats={}), rest)
    return Evaluated(episodes, jnp.sum(~trial.over, axis=-1, dtype=jnp.int32))


def of_first_episodes(steps: Transitions, over: Array) -> Transitions:
    """Remove the ends of agents and episodes from one step [1, S, N, A] where the first episode was over before."""
    counts = ~over.reshape(steps.over.shape)
    return steps._replace(
        terminated=steps.terminated & counts[..., None],
        truncated=steps.truncated & counts[..., None],
        over=steps.over & counts,
    )


def unfinished(sizes: Mapping[str, Sizes], plays: Mapping[str, Play], name: str, over: Array) -> EpisodeFigures:
    """Compute one seed's figures of agents of `name`, and their teams, in areas that are not `over`, bool [N].

    Their episodes count as if truncated after the last step. `sizes` and `plays` are of all behaviors of these teams.
    """
    play, sums = plays[name], plays[name].sums
    acted = (play.view.alive | play.open.waits) & (sums.length > 0) & ~over[:, None]
    lives = (by_team(sizes[of], mate.view.alive | mate.open.waits).any(-1) for of, mate in plays.items())
    team = reduce(jnp.logical_or, lives) & ~over[:, None]
    return EpisodeFigures(
        reward=moments(sums.reward, acted),
        length=moments(sums.length.astype(jnp.float32) - 1.0, acted),
        group_reward=moments(sums.group_reward, team),
        received=jnp.where(acted, sums.received, 0.0).sum(),
        mates_reward=jnp.where(acted, sums.mates_reward, 0.0).sum(),
        stats={},
    )

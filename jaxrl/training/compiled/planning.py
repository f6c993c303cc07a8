"""Make the plan of a compiled loop: checks, lengths of rollouts, learners and rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax

from jaxrl.algorithms.interface import Algorithm
from jaxrl.jax_envs.contract import check_jax_env
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.sampling import Distribution, of_episode, of_first_seed
from jaxrl.jax_envs.scene import JaxScene, scene_of
from jaxrl.settings import BehaviorSettings
from jaxrl.settings.teams import check_places
from jaxrl.training.compiled.arguments import check_acting, check_values
from jaxrl.training.compiled.checks import check_sides, check_teams, check_trainer, with_teams
from jaxrl.training.compiled.contest import contest, rivals_of
from jaxrl.training.compiled.opponents import Rivals, groups_of, rival_algorithm
from jaxrl.training.compiled.plan import Learner, Plan
from jaxrl.training.memory import check_store

_DRAWN = 256
"""Number of episodes over which the agents of several behaviors are counted."""

_PIECES, _CLOSE = 8, 0.05
"""Largest number of pieces of a rollout, and largest relative deviation of its length from the requested one."""


def plan_of(
    env: JaxEnv | JaxScene,
    algorithms: Mapping[str, Algorithm],
    settings: Mapping[str, BehaviorSettings],
    *,
    areas: int,
    seeds: int,
    parameters: Mapping[str, float | Sequence[float] | Distribution] | None = None,
    values: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    newest: Mapping[str, int] | None = None,
) -> Plan:
    """Make the static arguments of `make_scene_trainer`'s iteration. Raises SettingsError and JaxEnvError."""
    original, differing = scene_of(env), values or {}
    check_jax_env(env)
    sides = check_sides(original, algorithms, settings, seeds)
    scene = contest(original, sides) if sides else original
    teams = check_teams(scene, algorithms, settings, differing)
    algorithms = dict(algorithms)
    for team in teams.values():
        algorithms |= team.kinds
    scene = with_teams(scene, teams)
    trained = [part for part in scene.parts if part.name in settings]
    for part in trained:
        check_trainer(part.name, settings[part.name])
        check_places(part.name, algorithms[part.name].places, part.members)
        algorithm, by_seed = algorithms[part.name], differing.get(part.name, {})
        check_values(algorithm, settings[part.name], seeds, by_seed)
        check_acting(part, algorithm, by_seed)
        check_store(part.name, algorithm, settings[part.name], seeds)
    usual = {**scene.parameters, **(parameters or {})}
    agents = {
        name: count / (sides[name].teams if name in sides else 1)
        for name, count in agents_at_start(original, usual).items()
    }
    lengths, mates = {}, {name: list(team.kinds) for team in teams.values() for name in team.kinds}
    for name in agents:
        count = sum(agents[mate] for mate in mates.get(name, [name]))
        per_step = 1.0 if settings[name].count_by == "env_steps" else count
        lengths[name] = math.ceil(algorithms[name].collect_size / (areas * per_step))
    steps, every = pieces(lengths)
    learners = {}
    for part in trained:
        name, alone = part.name, len(trained) == 1
        learners[name] = Learner(
            part,
            algorithms[name],
            settings[name].time_horizon,
            settings[name].last_step,
            differing.get(name, {}),
            min((newest or {}).get(name, 0), every[name] * steps * areas * part.teams * part.members),
            every[name],
            alone=alone,
            by_turns=name in sides and len(sides) > 1,
        )
    rivals, groups = {}, groups_of(areas)
    for name, side in sides.items():
        acts = rival_algorithm(algorithms[name], groups, side.slots)
        game = settings[name].self_play
        assert game is not None
        rivals[name] = Rivals(scene.part(rivals_of(name)), acts, side, groups, game)
    return Plan(scene, learners, usual, areas, steps, rivals, teams)


def agents_at_start(
    env: JaxEnv | JaxScene, parameters: Mapping[str, float | Sequence[float] | Distribution]
) -> dict[str, float]:
    """Count the agents of each behavior at the beginning of the first seed's episodes; 1 if there are none.

    With one behavior, count one episode drawn from key 0; with several, which an episode may lack, the mean over many.
    """
    scene, values, key = scene_of(env), of_first_seed(parameters), jax.random.key(0)
    keys = key[None] if len(scene.parts) == 1 else jax.random.split(key, _DRAWN)
    _, views = jax.jit(jax.vmap(lambda key: scene.reset(key, of_episode(values, key))))(keys)
    return {name: float(view.alive.sum(-1).mean()) or 1.0 for name, view in views.items()}


def pieces(lengths: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Return T, and each behavior's rollout length in multiples of T: as few as keep each within 5 % of its length."""
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

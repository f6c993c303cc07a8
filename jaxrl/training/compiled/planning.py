"""What a compiled loop is bound to: checks, lengths of rollouts, learners and rivals."""

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
"""Episodes that tell how many agents of each of several behaviors there are."""

_PIECES, _CLOSE = 8, 0.05
"""A rollout is cut into at most so many pieces; and how far its length may be from the one that was asked for."""


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
    """What an iteration of `make_scene_trainer` is bound to.

    Raises SettingsError and JaxEnvError.
    """
    original, differing = scene_of(env), values or {}
    check_jax_env(env)
    sides = check_sides(original, algorithms, settings, seeds)
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
    for name, of in sides.items():
        acts = rival_algorithm(algorithms[name], groups, of.slots)
        own = settings[name].self_play
        assert own is not None
        rivals[name] = Rivals(scene.part(rivals_of(name)), acts, of, groups, own)
    return Plan(scene, learners, usual, areas, steps, rivals, teams)


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

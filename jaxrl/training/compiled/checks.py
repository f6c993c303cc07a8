"""Checks of a compiled run: unknown parameters, endless lessons, settings of the host loop, memory, finite numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.interface import Algorithm
from jaxrl.algorithms.team import TeamAlgorithm, make_team
from jaxrl.artifacts.metrics.statistics import scene_tag
from jaxrl.envs.address import unknown
from jaxrl.jax_envs.contract import JaxEnvError
from jaxrl.jax_envs.interface import JaxEnv, TeamActions
from jaxrl.jax_envs.scene import JaxScene, Sizes, parts_of, scene_of
from jaxrl.settings import BehaviorSettings, Curriculum, RunSettings, SettingsError
from jaxrl.settings.environment_parameters import MEASURES, CompletionCriteria
from jaxrl.settings.teams import teams_of
from jaxrl.training.compiled.contest import Sides, sides_of
from jaxrl.training.compiled.saver import Subject
from jaxrl.training.compiled.state import IterationLog
from jaxrl.training.compiled.updates import METRIC, PARAMETERS
from jaxrl.training.errors import DivergedError
from jaxrl.training.memory import free_bytes
from jaxrl.training.self_play.league import check_copies
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


def check_parameters(settings: RunSettings, env: JaxEnv | JaxScene) -> None:
    """Check that environment parameters have an effect, and that lessons can end.

    Raises SettingsError for a parameter that the environment lacks, and for criteria that name an unknown behavior or
    a statistic that the environment does not report.
    """
    stats: dict[str, Any] | None = None
    for name, parameter in (settings.environment_parameters or {}).items():
        path = f"environment_parameters.{name}"
        if name not in env.parameters:
            raise SettingsError(unknown(path, name, env.parameters, what=f"{env.name} has no such parameter"))
        for index, lesson in enumerate(parameter.curriculum if isinstance(parameter, Curriculum) else ()):
            criteria = lesson.completion_criteria
            if criteria is None:
                continue
            place = f"{path}.curriculum[{index}].completion_criteria"
            _check_behavior(place, criteria, env)
            if criteria.measure not in MEASURES:
                stats = statistics_of(env) if stats is None else stats
                if criteria.measure not in stats:
                    known = ", ".join([*MEASURES, *stats])
                    raise SettingsError(f"{place}.measure: got {criteria.measure!r}, expected one of {known}")


def _check_behavior(place: str, criteria: CompletionCriteria, env: JaxEnv | JaxScene) -> None:
    names = [part.name for part in parts_of(env)]
    if criteria.behavior not in names:
        expected = f"{names[0]}, which is trained" if len(names) == 1 else f"one of {', '.join(names)}"
        raise SettingsError(f"{place}.behavior: got {criteria.behavior!r}, expected {expected}")


def refuse_curricula(settings: RunSettings, who: str) -> None:
    """Raise SettingsError for a curriculum; `who` names, for the message, what is compared by returns."""
    for name, parameter in (settings.environment_parameters or {}).items():
        if isinstance(parameter, Curriculum) and len(parameter.curriculum) > 1:
            raise SettingsError(
                f"environment_parameters.{name}.curriculum: {who} are compared by their returns, which lessons change: "
                "write a number or a sampler"
            )


def statistics_of(env: JaxEnv | JaxScene) -> dict[str, Any]:
    """Return the shapes of the environment's episode statistics by tag, without computing anything."""
    key, parameters = jax.random.key(0), {name: np.float32(value) for name, value in env.parameters.items()}
    scene = scene_of(env)
    state, _ = jax.eval_shape(scene.reset, key, parameters)
    actions = {part.name: _no_actions(part) for part in scene.parts}
    figures = jax.eval_shape(scene.step, key, state, actions)[1].stats
    return {scene_tag(name): figure for name, figure in figures.items()}


def _no_actions(sizes: Sizes) -> TeamActions:
    action, count = sizes.spec.action, sizes.teams * sizes.members
    return TeamActions(
        continuous=jnp.zeros((count, action.continuous_size)),
        discrete=jnp.zeros((count, len(action.discrete_branches)), jnp.int32),
    )


def check_sampling(name: str, behavior: BehaviorSettings) -> None:
    """Raise SettingsError for settings of the host loop: in a compiled run all rows have one fixed length."""
    path = f"behaviors.{name}"
    problems = []
    if behavior.batch_mode != "fragments":
        problems.append(f"{path}.batch_mode: got {behavior.batch_mode}, expected fragments in a compiled run")
    if behavior.max_episode_length is not None:
        problems.append(
            f"{path}.max_episode_length: got {behavior.max_episode_length}, expected null in a compiled run, whose "
            "environments end their episodes themselves"
        )
    if problems:
        raise SettingsError([f"{text}; player:NAME runs the same environment in the host loop" for text in problems])
    if behavior.threaded:
        log.warning("%s.threaded: has no effect in a compiled run, which acts and learns in one program", path)


def check_sides(
    scene: JaxScene, algorithms: Mapping[str, Algorithm], settings: Mapping[str, BehaviorSettings], seeds: int = 1
) -> dict[str, Sides]:
    """Return the sides of the contest between the behaviors with self-play; empty if there are none.

    Raises SettingsError if there is no opponent, for two behaviors of several teams each, if `seeds` do not make whole
    leagues, and for connectors, whose statistics belong to one policy.
    """
    sides = sides_of(scene, [part.name for part in scene.parts if settings[part.name].self_play is not None])
    if len(sides) == 1 and next(iter(sides.values())).teams == 1:
        (name,) = sides
        raise SettingsError(
            f"behaviors.{name}.self_play: {scene.name} has one team of {name} and no other behavior with self_play: "
            "there is nobody to play against: remove it"
        )
    several = [name for name, side in sides.items() if side.teams > 1]
    if len(several) > 1:
        raise SettingsError(
            f"self_play: {' and '.join(several)} of {scene.name} have several teams each, and a compiled run cannot "
            "know which of them play together: serve it as player:NAME, where behaviors of one Team Id learn together"
        )
    sizes = {name: game.league_size for name in sides if (game := settings[name].self_play) is not None}
    if len(set(sizes.values())) > 1:
        text = ", ".join(f"{size - 1} of {name}" for name, size in sizes.items())
        raise SettingsError(
            f"self_play.league: got exploiters: {text}: a seed is a main agent or an exploiter with all its behaviors: "
            "write the same number for each"
        )
    size = next(iter(sizes.values()), 1)
    check_copies("seeds", seeds, size)
    for name in sides:
        if algorithms[name].connectors is not None:
            raise SettingsError(
                f"behaviors.{name}.connectors: not together with self_play in a compiled run, where statistics of "
                "connectors are those of one policy: remove one of the two; network_settings.normalize is part of "
                "each policy"
            )
    return sides


def check_teams(
    scene: JaxScene,
    algorithms: Mapping[str, Algorithm],
    settings: Mapping[str, BehaviorSettings],
    values: Mapping[str, Mapping[str, Any]],
) -> dict[str, TeamAlgorithm]:
    """Return the teams of several behaviors, by name; empty if no behavior has a `team`.

    Raises SettingsError for a behavior that is alone in its team, for behaviors that cannot learn together, and for
    settings in which the seeds of a team would differ.
    """
    teams = {}
    for team, names in teams_of(
        {part.name: settings[part.name] for part in scene.parts if part.name in settings}
    ).items():
        path = f"behaviors.{names[0]}.team"
        if len(names) == 1:
            raise SettingsError(f"{path}: got {team}, which no other behavior of {scene.name} has: remove it")
        counts = {name: scene.part(name).teams for name in names}
        if len(set(counts.values())) > 1:
            raise SettingsError(f"{path}: an area of {scene.name} has other numbers of teams of each: {counts}")
        for name in names:
            if values.get(name):
                key = next(iter(values[name]))
                raise SettingsError(
                    f"behaviors.{name}.{key}: seeds of one program cannot differ in settings of a team ({team}): make "
                    "a program for each value (jaxrl sweep --parallel 1)"
                )
        members = {name: algorithms[name] for name in names}
        teams[team] = make_team(team, members, {name: settings[name] for name in names})
    return teams


def with_teams(scene: JaxScene, teams: Mapping[str, TeamAlgorithm]) -> JaxScene:
    """Return the scene in which a whole team truncates if any of its behaviors does: their rows share states."""
    cut = {name for team in teams.values() for name in team.kinds if any(scene.part(n).truncates for n in team.kinds)}
    parts = (part._replace(truncates=part.truncates or part.name in cut) for part in scene.parts)
    return scene._replace(parts=tuple(parts))


def check_trainer(name: str, settings: BehaviorSettings) -> None:
    """Raise SettingsError for settings that a trainer made in Python could only ignore."""
    problems = []
    if settings.init_path is not None:
        problems.append(f"init_path: got {settings.init_path}, expected null: load a state with JittedTrainer.restore")
    if settings.episode_window is not None:
        problems.append(f"episode_window: got {settings.episode_window}, expected null: IterationLog has all episodes")
    if problems:
        raise SettingsError(problems, "make_jitted_trainer")
    check_sampling(name, settings)


def check_memory(seeds: int, areas: int, needed: int, devices: int) -> None:
    """Compare the compiled program's memory with the free memory, before anything is allocated.

    `needed`: bytes on each of `devices`. Raises SettingsError if it does not fit. A device that does not report its
    free memory is not checked.
    """
    free = free_bytes(devices)
    if free is None or needed <= free:
        if jax.default_backend() != "cpu":
            room = "" if free is None else f", {free / 2**30:.2f} GiB are free"
            log.info("%d seed(s) of %d areas take %.2f GiB on each device%s.", seeds, areas, needed / 2**30, room)
        return
    fitting = int(seeds * free / needed)
    advice = f"at most {fitting} fit" if fitting else "lower num_areas, buffer_size or hidden_units"
    raise SettingsError(
        f"env_settings.seeds: {seeds} seed(s) of {areas} areas need {needed / 2**30:.2f} GiB on each of "
        f"{devices} device(s), {free / 2**30:.2f} GiB are free: {advice}"
    )


def faults(subject: Subject, chunk: IterationLog) -> dict[int, JaxrlError]:
    """Return, by index of a seed, an error for its first number that was not finite.

    It is a JaxEnvError with area and step if the environment made the number, else a DivergedError.
    """
    by_seed = enumerate(np.asarray(chunk.fault).tolist())
    return {index: _fault(subject, subject.seeds[index], chunk, *fault) for index, fault in by_seed if fault[0] >= 0}


def _fault(
    subject: Subject, seed: int, chunk: IterationLog, iteration: int, step: int, area: int, kind: int
) -> JaxrlError:
    if kind in (METRIC, PARAMETERS):
        name = sorted(chunk.metric_sums)[step]
        what = f"{name} is {('nan', 'inf', '-inf')[area]}" if kind == METRIC else "its parameters are not finite"
        return DivergedError(f"{subject.name}, seed {seed}", f"{what} in iteration {iteration}", subject.settings)
    what = ("an observation", "a reward")[kind]
    return JaxEnvError(
        f"{subject.name}: the environment gave {what} that is not finite: seed {seed}, area {area}, "
        f"decision {step} of iteration {iteration}. Mend its step or reset; what was saved before is good."
    )

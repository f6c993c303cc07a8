"""Check the settings of a whole run before anything is written or started, from the command line or Python.

Imports no JAX: the command line checks before environments start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from jaxrl import plugins
from jaxrl.artifacts.checkpoint.loop import require_loop_of_run
from jaxrl.envs import simulator
from jaxrl.envs.address import Kind, is_compiled, parse_address
from jaxrl.envs.foreign.arguments import ArgumentsError, keyword_arguments
from jaxrl.envs.foreign.options import take_options
from jaxrl.settings import PROCESSES, EnvironmentSettings, RunSettings, SettingsError
from jaxrl.settings.behavior import BehavioralCloningSettings
from jaxrl.settings.networks import ENCODERS
from jaxrl.settings.rewards import GAILSettings
from jaxrl.settings.teams import differences, teams_of
from jaxrl.training.registries import warn_of_hidden
from jaxrl.training.self_play.league import check_copies
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)


def check_run(settings: RunSettings, source: str = "") -> None:
    """Run all checks below that concern these settings. `source`: file that they come from.

    Raises SettingsError, or CheckpointError for a run that only the other loop can resume.
    """
    refuse_undemonstrated(settings, source)
    check_environment_settings(settings.env_settings)
    check_connectors(settings)
    check_exact(settings)
    check_resume(settings)
    check_own_networks(settings)
    check_teams(settings)
    check_leagues(settings)
    check_sides(settings)
    warn_of_hidden()
    if is_compiled(settings.env_settings.env_path):
        check_compiled(settings)


def refuse_undemonstrated(settings: RunSettings, source: str = "") -> None:
    """Raise SettingsError if demonstrations cannot be read; `source`: file that the settings come from."""
    problems = undemonstrated(settings)
    if problems:
        raise SettingsError(problems, source)


def undemonstrated(settings: RunSettings) -> list[str]:
    """Return one text, path first, for each `demo_path` whose files cannot be read."""
    problems = []
    for path, behavior in settings.every_behavior():
        sections = {f"reward_signals.{name}": signal for name, signal in behavior.reward_signals.items()}
        for key, section in {**sections, "behavioral_cloning": behavior.behavioral_cloning}.items():
            if isinstance(section, GAILSettings | BehavioralCloningSettings):
                from jaxrl.demonstrations import DemonstrationError, remembered  # needs the protocol's messages
                from jaxrl.demonstrations.columns import keep_in

                keep_in(settings.checkpoint_settings.results_dir)
                try:
                    actions = not isinstance(section, GAILSettings) or section.use_actions
                    remembered(section.demo_path, section.demo_actions, actions)
                except DemonstrationError as error:
                    problems.append(f"{path}.{key}.demo_path: {error}")
    return problems


def check_environment_settings(settings: EnvironmentSettings) -> None:
    """Raise SettingsError if `env_path` names an unknown kind of environment, or one that its simulator lacks.

    Also if settings do not belong to the env_path's kind of environment. Names of compiled environments are looked up
    when they are made, since that imports JAX.
    """
    try:
        kind, name = parse_address(settings.env_path)
    except JaxrlError as error:
        raise SettingsError(f"env_settings.env_path: {error}") from None
    problems = list(_misplaced(settings, kind))
    if problems:
        raise SettingsError("\n".join(problems))
    if kind.compiled:
        return
    try:
        simulator(kind).check(name)
    except JaxrlError as error:
        raise SettingsError(f"env_settings.env_path: {error}") from None


def check_compiled(settings: RunSettings) -> None:
    """Raise SettingsError for settings that need single episodes on the host, as compiled environments have none."""
    if settings.checkpoint_settings.inference:
        raise SettingsError("checkpoint_settings.inference: a compiled environment is watched with `jaxrl watch`")
    path = settings.env_settings.env_path
    instead = f"with env_path {path}, whose episodes never leave the learner's program; serve it as player:NAME"
    if settings.callbacks:
        raise SettingsError(f"callbacks: got {', '.join(settings.callbacks)}, expected none {instead}")
    for where, behavior in settings.every_behavior():
        if behavior.episode_window is not None:
            raise SettingsError(f"{where}.episode_window: got {behavior.episode_window}, expected null {instead}")


def check_hosts(settings: RunSettings) -> None:
    """Raise SettingsError if --hosts is given with an environment of the host loop, whose learner is one process."""
    path = settings.env_settings.env_path
    if not is_compiled(path):
        raise SettingsError(
            f"--hosts: got {'the Unity Editor' if path is None else f'--env {path}'}, expected an environment that is "
            "compiled with the learner (--env jax:NAME). Leave --hosts out, and start more environments on this "
            "machine (--num-envs) or on several (--workers ray://HOST:PORT); see docs/clusters.md"
        )


def check_resume(settings: RunSettings) -> None:
    """Raise CheckpointError if --resume asks one training loop to continue a run of the other."""
    options = settings.checkpoint_settings
    if options.resume and options.run_id:
        compiled = is_compiled(settings.env_settings.env_path)
        require_loop_of_run(Path(options.results_dir, options.run_id), compiled=compiled)


def check_exact(settings: RunSettings) -> None:
    """Raise SettingsError if checkpoint_settings.exact is set and the run cannot be resumed exactly."""
    environment = settings.env_settings
    kind, _ = parse_address(environment.env_path)
    if not settings.checkpoint_settings.exact or kind.compiled:  # compiled runs save their environments
        return
    problem = next(_not_exact(settings), None)
    if problem is None and not simulator(kind).reseeds:
        problem = (
            f"env_path {environment.env_path}: a Unity player takes a seed at its start alone, so a resumed run begins "
            "other episodes"
        )
    if problem is not None:
        raise SettingsError(f"checkpoint_settings.exact: got true, expected false with {problem}")


def _not_exact(settings: RunSettings) -> Iterator[str]:
    """Yield the settings with which a resumed run could differ from one that was never stopped."""
    if settings.env_settings.mode != "lockstep":
        yield f"env_settings.mode: {settings.env_settings.mode}, where the order of the workers depends on their speed"
    if settings.checkpoint_settings.checkpoint_minutes is not None:
        yield "checkpoint_settings.checkpoint_minutes: checkpoints by the clock fall on other steps in every run"
    if settings.callbacks:
        yield f"callbacks: what {', '.join(settings.callbacks)} remember is not saved"
    for path, behavior in settings.every_behavior():
        if behavior.threaded:
            yield f"{path}.threaded: true, where it depends on the speed which policy decides"


def warn_of_cloning(settings: RunSettings) -> None:
    """Warn of behaviors that end before their cloning has faded out."""
    for path, behavior in settings.every_behavior():
        cloning = behavior.behavioral_cloning
        if cloning is not None and cloning.steps > behavior.max_steps:
            log.warning(
                "%s.behavioral_cloning.steps: got %d, expected at most max_steps, which is %d: the run ends before "
                "cloning has faded out; lower it, or write 0 if it never should.",
                path, cloning.steps, behavior.max_steps,
            )  # fmt: skip


def check_teams(settings: RunSettings) -> None:
    """Raise SettingsError for behaviors of one `team` that cannot learn together, as far as settings tell."""
    default, problems = settings.default_settings, []
    if default is not None and default.team is not None and not settings.behaviors:
        text = "a team names its behaviors: list them below `behaviors:`"
        problems.append(f"default_settings.team: got {default.team}, expected null, {text}")
    for team, names in teams_of(settings.behaviors).items():
        if len(names) == 1:
            problems.append(f"behaviors.{names[0]}.team: got {team}, which no other behavior has: remove it")
        problems += differences({name: settings.behaviors[name] for name in names})
    if problems:
        raise SettingsError(problems)


def check_leagues(settings: RunSettings) -> None:
    """Raise SettingsError if copies of the game do not make whole leagues, and for settings exploiters cannot have.

    Copies are the seeds of a compiled run, and the workers of the host loop, where all playing behaviors have leagues
    of one size.
    """
    environment = settings.env_settings
    compiled = is_compiled(environment.env_path)
    playing = [(path, item, item.self_play) for path, item in settings.every_behavior() if item.self_play is not None]
    for path, behavior, game in playing:
        if game.league is None:
            continue
        if compiled:
            check_copies("env_settings.seeds", environment.seeds, game.league_size)
            continue
        check_copies("env_settings.num_envs", environment.num_envs, game.league_size)
        for other, _, theirs in playing:
            if theirs.league_size != game.league_size:
                raise SettingsError(
                    f"{other}.self_play.league: got {theirs.league_size - 1} exploiter(s), expected "
                    f"{game.league.exploiters}, as {path}: a worker is the main agents' or one exploiter's"
                )
        for key, usual in (("threaded", False), ("count_by", "agent_steps"), ("team", None)):
            if getattr(behavior, key) != usual:
                got, expected = (json.dumps(x) for x in (getattr(behavior, key), usual))
                raise SettingsError(f"{path}.{key}: got {got}, expected {expected} with self_play.league")


def check_sides(settings: RunSettings) -> None:
    """Raise SettingsError for self-play in an environment of others that does not say who plays against whom."""
    environment = settings.env_settings
    kind = parse_address(environment.env_path).kind
    playing = [path for path, of in settings.every_behavior() if of.self_play is not None]
    if not playing or kind not in (Kind.GYMNASIUM, Kind.PETTINGZOO, Kind.RLLIB):
        return
    if kind is Kind.GYMNASIUM:
        raise SettingsError(
            f"{playing[0]}.self_play: got a section, expected null with {environment.env_path}, where one agent plays"
        )
    try:
        options, _ = take_options(keyword_arguments(environment.env_args), one_agent=False)
    except ArgumentsError as error:
        raise SettingsError(str(error)) from None
    if not options.sides:
        raise SettingsError(
            f"{playing[0]}.self_play: got a section, but {environment.env_path} does not tell who plays against whom: "
            "add --env-args 'teams={player_0: 0, player_1: 1}' with the names of its agents, or remove self_play"
        )


def check_own_networks(settings: RunSettings) -> None:
    """Raise OwnCodeError for custom network parts that cannot be imported; importing them imports JAX."""
    for path, behavior in settings.every_behavior():
        for key, kind in (("vis_encode_type", plugins.Kind.ENCODER), ("body_type", plugins.Kind.BODY)):
            name = getattr(behavior.network_settings, key)
            if name not in (None, *ENCODERS):
                plugins.load(kind, name, what="class", where=f"{path}.network_settings.{key}: ")


def check_connectors(settings: RunSettings) -> None:
    """Raise SettingsError for connectors with memory in a Unity run, because a build only gets the ONNX file."""
    if parse_address(settings.env_settings.env_path).kind is not Kind.UNITY:
        return
    problems = [
        f"{path}.connectors[{i}].type: {connector.type} remembers earlier decisions, which Unity does not give to a "
        "model: remove it, and let the sensor or the agent's script observe them (Stacked Vectors for frames)"
        for path, behavior in settings.every_behavior()
        for i, connector in enumerate(behavior.connectors)
        if connector.remembers
    ]
    if problems:
        raise SettingsError(problems)


def _misplaced(settings: EnvironmentSettings, kind: Kind) -> Iterator[str]:
    """Yield one text for each setting that has no meaning with this kind of environment."""
    path = settings.env_path
    drawn = ("render", settings.render, False), ("video_every", settings.video_every, 0)
    for key, value, usual in drawn:
        if value and kind not in (Kind.GYMNASIUM, Kind.PETTINGZOO):
            got = f"got {str(value).lower()}, expected {str(usual).lower()}"
            yield f"env_settings.{key}: {got} with env_path {path}: only gymnasium: and pettingzoo: are drawn by jaxrl"
    if settings.listen is not None and kind not in (Kind.UNITY, Kind.PLAYER):
        yield (
            f"env_settings.listen: got {settings.listen}, expected null with env_path {path}: only Unity builds, the "
            "Editor and player:NAME call at a port"
        )
    if not kind.compiled:
        if settings.seeds > 1:
            *others, last = [f"{other}:NAME" for other in Kind if other.compiled]
            kinds = f"{', '.join(others)} or {last}"
            yield (
                f"env_settings.seeds: got {settings.seeds}, expected 1 with env_path {path}: only environments "
                f"compiled together with the learner ({kinds}) run many seeds at once; start one run per --seed"
            )
        return
    instead = f"with env_path {path}, which runs inside the learner's own program"
    if settings.num_envs > 1:
        yield f"env_settings.num_envs: got {settings.num_envs}, expected 1 {instead}: raise num_areas instead"
    try:
        keyword_arguments(settings.env_args)
    except ArgumentsError as error:
        yield str(error)
    if settings.inline:
        yield f"env_settings.inline: got true, expected false {instead}"
    if settings.workers != PROCESSES:
        yield f"env_settings.workers: got {settings.workers}, expected {PROCESSES} {instead}"
    if settings.mode != "lockstep":
        yield f"env_settings.mode: got {settings.mode}, expected lockstep {instead}"

"""What can be found wrong before anything is written or started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jaxrl.algorithms import ALGORITHMS
from jaxrl.artifacts.checkpoint.loop import require_loop_of_run
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.unity.launch import check_executable
from jaxrl.jax_envs import is_jax_environment
from jaxrl.rewards import REWARD_SIGNALS
from jaxrl.settings import BehaviorSettings, Curriculum, EnvironmentSettings, RunSettings, Sampler, SettingsError
from jaxrl.settings.environment_parameters import ConstantSampler

PLAYER = "player:"
"""Prefix of env_path for one of jaxrl's own environments."""


def refuse_unsupported(settings: RunSettings, source: str) -> None:
    """Raise SettingsError if a feature is in use that jaxrl does not train yet; `source` is where it was written."""
    problems = unsupported(settings)
    if problems:
        raise SettingsError(problems, source)


def unsupported(settings: RunSettings) -> list[str]:
    """One text, path first, for each feature in use that jaxrl does not train yet; empty if it trains all of them."""
    texts = [text for path, behavior in settings.every_behavior() for text in _untrained(path, behavior)]
    for name, parameter in (settings.environment_parameters or {}).items():
        path = f"environment_parameters.{name}"
        if isinstance(parameter, Curriculum):
            texts.append(f"{path}.curriculum: curricula are not supported yet: write a number")
        elif isinstance(parameter, Sampler) and not isinstance(parameter.sampler_parameters, ConstantSampler):
            kind = parameter.sampler_type
            texts.append(f"{path}.sampler_type: {kind} samplers are not supported yet: write a number")
    return texts


def _untrained(path: str, behavior: BehaviorSettings) -> Iterator[str]:
    if behavior.trainer_type not in ALGORITHMS:
        *others, last = ALGORITHMS
        yield f"{path}.trainer_type: {behavior.trainer_type} is not supported yet: write {', '.join(others)} or {last}"
    if behavior.network_settings.memory is not None:
        yield f"{path}.network_settings.memory: recurrent memory is not supported yet: remove it"
    for signal in behavior.reward_signals:
        if signal not in REWARD_SIGNALS:
            yield f"{path}.reward_signals.{signal}: this signal is not supported yet: remove it"
    if behavior.behavioral_cloning is not None:
        yield f"{path}.behavioral_cloning: not supported yet: remove it"
    if behavior.self_play is not None:
        yield f"{path}.self_play: not supported yet: remove it"


def check_environment_settings(settings: EnvironmentSettings) -> None:
    """Raise SettingsError if `env_path` names no executable; the Editor and jaxrl's own environments need none.

    Also if settings of one kind of environment stand beside an env_path of the other kind.
    """
    problems = list(_misplaced(settings))
    if problems:
        raise SettingsError("\n".join(problems))
    if is_jax_environment(settings.env_path):
        return
    if settings.env_path is None or settings.env_path.startswith(PLAYER):
        return
    try:
        check_executable(settings.env_path)
    except EnvironmentFailure as error:
        raise SettingsError(f"env_settings.env_path: {error}") from None


def check_resume(settings: RunSettings) -> None:
    """Raise CheckpointError if --resume asks one training loop to continue a run of the other."""
    options = settings.checkpoint_settings
    if options.resume and options.run_id:
        compiled = is_jax_environment(settings.env_settings.env_path)
        require_loop_of_run(Path(options.results_dir, options.run_id), compiled=compiled)


def _misplaced(settings: EnvironmentSettings) -> Iterator[str]:
    """What has no meaning with this kind of environment, one text each."""
    path = settings.env_path
    if not is_jax_environment(path):
        if settings.seeds > 1:
            kinds = "jax:NAME, jaxmarl:NAME or gymnax:NAME"
            yield (
                f"env_settings.seeds: got {settings.seeds}, expected 1 with env_path {path}: only environments "
                f"compiled together with the learner ({kinds}) run many seeds at once; start one run per --seed"
            )
        return
    instead = f"with env_path {path}, which runs inside the learner's own program"
    if settings.num_envs > 1:
        yield f"env_settings.num_envs: got {settings.num_envs}, expected 1 {instead}: raise num_areas instead"
    if settings.env_args:
        yield f"env_settings.env_args: got {' '.join(settings.env_args)}, expected none {instead}"
    if settings.inline:
        yield f"env_settings.inline: got true, expected false {instead}"
    if settings.mode != "lockstep":
        yield f"env_settings.mode: got {settings.mode}, expected lockstep {instead}"

"""What is odd but usable in settings."""

from __future__ import annotations

from collections.abc import Iterator

from jaxrl.settings.behavior import BehaviorSettings
from jaxrl.settings.environment_parameters import Curriculum
from jaxrl.settings.run import RunSettings

_LEAST_EPSILON = 0.1
_RATES = ("restarts_rate_limit_n", "restarts_rate_limit_period_s")


def remarks(settings: RunSettings) -> list[str]:
    """One text, path first, for everything that is allowed but probably not meant."""
    texts = [text for path, behavior in settings.every_behavior() for text in _behavior_remarks(path, behavior)]
    for name, parameter in (settings.environment_parameters or {}).items():
        if isinstance(parameter, Curriculum) and parameter.curriculum[-1].completion_criteria is not None:
            path = f"environment_parameters.{name}.curriculum[{len(parameter.curriculum) - 1}]"
            texts.append(f"{path}.completion_criteria: the last lesson never ends, this has no effect")
    options, usual = settings.env_settings, type(settings.env_settings)()
    changed = [name for name in _RATES if getattr(options, name) != getattr(usual, name)]
    if changed and not options.max_lifetime_restarts:
        names = ", ".join(f"env_settings.{name}" for name in changed)
        texts.append(f"{names}: no effect beside env_settings.max_lifetime_restarts: 0, which allows no restart")
    if options.editor_wait != usual.editor_wait and options.env_path is not None:
        texts.append(f"env_settings.editor_wait: no effect with env_path {options.env_path}: it is for the Editor")
    if settings.checkpoint_settings.train_model:
        texts.append("checkpoint_settings.train_model: deprecated, has no effect: training is the default")
    return texts


def _behavior_remarks(path: str, behavior: BehaviorSettings) -> Iterator[str]:
    hyperparameters, self_play = behavior.hyperparameters, behavior.self_play
    if hyperparameters.batch_size > hyperparameters.buffer_size:
        yield (
            f"{path}.hyperparameters.batch_size: {hyperparameters.batch_size} is more than buffer_size, "
            f"which is {hyperparameters.buffer_size}: a minibatch cannot be filled"
        )
    epsilon = getattr(hyperparameters, "epsilon", _LEAST_EPSILON)
    if epsilon < _LEAST_EPSILON and getattr(hyperparameters, "epsilon_schedule", "constant") == "linear":
        yield (
            f"{path}.hyperparameters.epsilon: {epsilon} grows under epsilon_schedule: linear, "
            f"which ends at {_LEAST_EPSILON}; write epsilon_schedule: constant"
        )
    if behavior.trainer_type == "poca":
        for signal in behavior.reward_signals:
            if signal != "extrinsic":
                yield f"{path}.reward_signals.{signal}: made for single agents, under trainer_type: poca it is untested"
    if self_play is not None and not 0 <= self_play.play_against_latest_model_ratio <= 1:
        ratio = self_play.play_against_latest_model_ratio
        yield f"{path}.self_play.play_against_latest_model_ratio: {ratio} is not within 0 to 1"
    if self_play is not None and self_play.team_change > behavior.max_steps:
        yield f"{path}.self_play.team_change: more than max_steps, so the learning team never changes"

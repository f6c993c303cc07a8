"""YAML and flags to frozen, strict, typed settings, under the names of ML-Agents' configuration files. No JAX here."""

from jaxrl.settings.behavior import LARGEST_STEP, BehaviorSettings, Hyperparameters, ScheduleType, SelfPlaySettings
from jaxrl.settings.environment_parameters import Curriculum, EnvironmentParameter, Lesson, Sampler, constants
from jaxrl.settings.loading import behavior_settings_for, load_run_settings, remarks, to_yaml
from jaxrl.settings.networks import MemorySettings, NetworkSettings
from jaxrl.settings.records import EVALUATED, EvaluationSettings, RecordSettings, StopRule
from jaxrl.settings.run import (
    PROCESSES,
    CheckpointSettings,
    EngineSettings,
    EnvironmentSettings,
    RunSettings,
    TorchSettings,
    with_drawn_seed,
    with_seed,
)
from jaxrl.settings.section import SettingsError

__all__ = [
    "EVALUATED",
    "LARGEST_STEP",
    "PROCESSES",
    "BehaviorSettings",
    "CheckpointSettings",
    "Curriculum",
    "EngineSettings",
    "EnvironmentParameter",
    "EnvironmentSettings",
    "EvaluationSettings",
    "Hyperparameters",
    "Lesson",
    "MemorySettings",
    "NetworkSettings",
    "RecordSettings",
    "RunSettings",
    "Sampler",
    "ScheduleType",
    "SelfPlaySettings",
    "SettingsError",
    "StopRule",
    "TorchSettings",
    "behavior_settings_for",
    "constants",
    "load_run_settings",
    "remarks",
    "to_yaml",
    "with_drawn_seed",
    "with_seed",
]

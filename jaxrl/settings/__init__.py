"""YAML and flags to frozen, strict, typed settings, under the names of ML-Agents' configuration files. No JAX here."""

from jaxrl.settings.behavior import (
    BehavioralCloningSettings,
    BehaviorSettings,
    Hyperparameters,
    Schedule,
    SelfPlaySettings,
)
from jaxrl.settings.environment_parameters import Curriculum, EnvironmentParameter, Lesson, Sampler, constants
from jaxrl.settings.loading import behavior_settings_for, load_run_settings, to_yaml
from jaxrl.settings.networks import MemorySettings, NetworkSettings
from jaxrl.settings.remarks import TRAINED_TYPES, remarks, unsupported
from jaxrl.settings.rewards import (
    CuriositySettings,
    ExtrinsicSettings,
    GAILSettings,
    RewardSignalSettings,
    RNDSettings,
)
from jaxrl.settings.run import (
    CheckpointSettings,
    EngineSettings,
    EnvironmentSettings,
    RunSettings,
    TorchSettings,
    with_drawn_seed,
    with_seed,
)
from jaxrl.settings.section import Section, SettingsError

__all__ = [
    "TRAINED_TYPES",
    "BehaviorSettings",
    "BehavioralCloningSettings",
    "CheckpointSettings",
    "CuriositySettings",
    "Curriculum",
    "EngineSettings",
    "EnvironmentParameter",
    "EnvironmentSettings",
    "ExtrinsicSettings",
    "GAILSettings",
    "Hyperparameters",
    "Lesson",
    "MemorySettings",
    "NetworkSettings",
    "RNDSettings",
    "RewardSignalSettings",
    "RunSettings",
    "Sampler",
    "Schedule",
    "Section",
    "SelfPlaySettings",
    "SettingsError",
    "TorchSettings",
    "behavior_settings_for",
    "constants",
    "load_run_settings",
    "remarks",
    "to_yaml",
    "unsupported",
    "with_drawn_seed",
    "with_seed",
]

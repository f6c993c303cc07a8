"""What the replays of off-policy algorithms take, before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jaxrl.algorithms import make_algorithm
from jaxrl.jax_envs import environment_in
from jaxrl.jax_envs.scene import scene_of
from jaxrl.settings import RunSettings, SettingsError, behavior_settings_for
from jaxrl.tools.doctor.findings import Finding, fail, ok
from jaxrl.training.memory import check_store, stored_bytes
from jaxrl.types import BehaviorSpec, JaxrlError


def of_compiled(settings: RunSettings) -> Iterator[Finding]:
    """As `replays`, of the environment in JAX that the settings name, which can be made; for all seeds."""
    options = settings.env_settings
    try:
        parts = scene_of(environment_in(options)).parts
        yield from replays(settings, {part.name: part.spec for part in parts}, options.seeds)
    except JaxrlError as error:
        yield fail("settings", str(error))


def replays(settings: RunSettings, specs: Mapping[str, BehaviorSpec], seeds: int = 1) -> Iterator[Finding]:
    """A line for each behavior that keeps more than its newest rollout: bytes of all seeds, or that they do not fit.

    Raises JaxrlError for settings that no algorithm can be made of.
    """
    for name, spec in specs.items():
        own = behavior_settings_for(settings, name)
        algorithm = make_algorithm(spec, own)
        try:
            check_store(name.partition("?")[0], algorithm, own, seeds)
        except SettingsError as error:
            yield fail("replay", str(error))
            continue
        needed = stored_bytes(algorithm, seeds)
        if needed:
            size = f"{needed / 2**30:.2f} GiB" if needed >= 2**30 else f"{needed / 2**20:.2f} MiB"
            of = f"buffer_size {own.hyperparameters.buffer_size}, {seeds} seed(s)"
            yield ok("replay", f"{name}: {size} ({needed} bytes; {of})")

"""Checks whether jaxrl can train a configuration, which has been read already."""

from __future__ import annotations

from jaxrl.settings import RunSettings
from jaxrl.tools.doctor.findings import Finding, fail, ok
from jaxrl.training.checks import check_connectors, check_exact, undemonstrated
from jaxrl.types import JaxrlError


def configuration(settings: RunSettings) -> Finding:
    """Return the behaviors of the file with their algorithms, or the reasons why `jaxrl train` would refuse it."""
    problems = undemonstrated(settings)
    for check in () if problems else (check_connectors, check_exact):
        try:
            check(settings)
        except JaxrlError as error:
            problems.append(str(error))
    if problems:
        return fail("settings", "; ".join(problems))
    behaviors = [
        f"{path.removeprefix('behaviors.')}: {behavior.trainer_type}" for path, behavior in settings.every_behavior()
    ]
    return ok("settings", ", ".join(behaviors) or "no behavior is listed, and there is no default_settings")

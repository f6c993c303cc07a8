"""What `jaxrl --version` and the log of a run say about versions."""

from __future__ import annotations

from jaxrl.artifacts.versions import versions

COMMUNICATOR_API = "1.5.0"
"""Version of ML-Agents' wire protocol that jaxrl speaks."""


def version_line() -> str:
    """jaxrl, mlagents-envs, communicator API and jax in one line."""
    found = versions()
    return (
        f"jaxrl {found['jaxrl_version']}, mlagents-envs {found['mlagents_envs_version']}, "
        f"communicator API {COMMUNICATOR_API}, jax {found['jax_version']}"
    )

"""`import mlagents_envs` with the current protobuf runtime, in every process that has imported jaxrl.

The modules of mlagents-envs 0.28.0 that need protobuf 3 are replaced by those of `jaxrl.envs.protobuf`, when somebody
imports them. Until then it costs one small class: no protobuf, numpy or JAX is imported here, nor `importlib.abc`,
whose base classes would cost more than the rest.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MESSAGES = "mlagents_envs.communicator_objects."
_CLIENT = "mlagents_envs.environment"
_VIEWS = {
    "gym_unity": "UnityToGymWrapper(env) is jaxrl.gymnasium_view(env)",
    "mlagents_envs.envs": "UnityToGymWrapper(env) is jaxrl.gymnasium_view(env), UnityParallelEnv(env) is "
    "jaxrl.pettingzoo_view(env)",
}
"""Packages that are not installed with jaxrl, and what stands for them."""


class _Messages:
    """Loader of a module that jaxrl makes of a descriptor."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        from jaxrl.envs.protobuf import message_module

        return message_module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is complete."""


class _Client:
    """Loader that runs the package's own module while there is a `distutils`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from jaxrl.envs.protobuf import distutils_offered

        with distutils_offered():
            self._loader.exec_module(module)


class _Finder:
    """Asked before the finders of Python, about every module; answers for a few.

    Raises ModuleNotFoundError, with advice, for a package of ML-Agents whose classes jaxrl has under other names.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(_MESSAGES) and fullname.endswith("_pb2"):
            messages: Any = _Messages()
            return importlib.machinery.ModuleSpec(fullname, messages)
        if fullname in _VIEWS and importlib.machinery.PathFinder.find_spec(fullname, path) is None:
            advice = f"with jaxrl {_VIEWS[fullname]}, of env = jaxrl.unity_environment(...)"
            raise ModuleNotFoundError(f"no module {fullname} is installed; {advice}", name=fullname)
        if fullname != _CLIENT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            client: Any = _Client(spec.loader)
            spec.loader = client
        return spec


def install() -> None:
    """Make `mlagents_envs` importable from now on. May be called again."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

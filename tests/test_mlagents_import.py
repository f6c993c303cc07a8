"""`import mlagents_envs` works after `import jaxrl`, which stays cheap: each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    """Output of `code` in a new interpreter in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "first",
    [
        "import mlagents_envs.environment",
        "from mlagents_envs.side_channel.engine_configuration_channel import EngineConfigurationChannel",
        "from mlagents_envs.communicator_objects.agent_info_pb2 import AgentInfoProto",
        "from jaxrl.envs.protobuf import register; register()",
    ],
)
def test_whatever_is_imported_first(first):
    code = f"""
import jaxrl
{first}
import sys, mlagents_envs.environment as client
from mlagents_envs.communicator_objects import agent_info_pb2
from jaxrl.envs.protobuf import messages, register
from google.protobuf.internal import api_implementation
print(
    api_implementation.Type(), client.UnityEnvironment.API_VERSION, register() is client,
    messages().AgentInfoProto is agent_info_pb2.AgentInfoProto, "distutils" in sys.modules, "jax" in sys.modules,
)
"""
    assert run(code) == "upb 1.5.0 True True False False"


def test_importing_jaxrl_imports_neither_jax_nor_numpy_nor_protobuf():
    code = """
import sys, jaxrl
names = "jax", "numpy", "google.protobuf", "importlib.resources", "mlagents_envs"
print([name for name in names if name in sys.modules])
"""
    assert run(code) == "[]"


def test_messages_that_are_not_there_are_an_import_error():
    code = """
import jaxrl
try:
    import mlagents_envs.communicator_objects.nothing_pb2
except ImportError as error:
    print(error)
"""
    assert run(code) == "mlagents-envs has no messages mlagents_envs.communicator_objects.nothing_pb2"


def test_wrappers_that_jaxrl_has_under_other_names_are_an_import_error():
    code = """
import jaxrl
for name in "gym_unity.envs", "mlagents_envs.envs.unity_gym_env":
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error)
"""
    views = [
        "UnityToGymWrapper(env) is jaxrl.gymnasium_view(env)",
        "UnityParallelEnv(env) is jaxrl.pettingzoo_view(env)",
    ]
    for line, name, known in zip(run(code).splitlines(), ("gym_unity", "mlagents_envs.envs"), (1, 2), strict=True):
        known_views = ", ".join(views[:known])
        assert line == f"no module {name} is installed; with jaxrl {known_views}, of env = jaxrl.unity_environment(...)"


def test_the_finder_is_there_once():
    code = """
import sys, jaxrl
from jaxrl.mlagents_import import install
install()
print([type(finder).__module__ for finder in sys.meta_path].count("jaxrl.mlagents_import"))
"""
    assert run(code) == "1"

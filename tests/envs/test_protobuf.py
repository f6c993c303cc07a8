"""`mlagents_envs` becomes importable with the current protobuf runtime, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.envs import protobuf
from jaxrl.envs.protobuf import messages, register
from jaxrl.types import JaxrlError

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    """Output of `code` in a new interpreter in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_whole_package_imports_and_uses_the_fast_runtime():
    code = """
import pkgutil, importlib, sys
from jaxrl.envs.protobuf import register
register(); register()
import mlagents_envs
for module in pkgutil.walk_packages(mlagents_envs.__path__, "mlagents_envs."):
    if ".registry" not in module.name:  # needs cloudpickle's downloads, and is no part of the protocol
        importlib.import_module(module.name)
from mlagents_envs.environment import UnityEnvironment
from google.protobuf.internal import api_implementation
print(api_implementation.Type(), UnityEnvironment.API_VERSION, "distutils" in sys.modules, "jax" in sys.modules)
"""
    assert run(code) == "upb 1.5.0 False False"


def test_messages_alone_do_not_import_the_client():
    code = """
import sys
from jaxrl.envs.protobuf import messages
messages()
print("mlagents_envs.environment" in sys.modules, "grpc" in sys.modules)
"""
    assert run(code) == "False False"


def test_an_imported_distutils_is_left_as_it_was():
    code = """
import sys, types
own = sys.modules["distutils"] = types.ModuleType("distutils")
from jaxrl.envs.protobuf import register
register()
print(sys.modules["distutils"] is own)
"""
    assert run(code) == "True"


def test_fields_and_numbers_of_the_wire():
    m = messages()
    numbers = {field.name: field.number for field in m.AgentInfoProto.DESCRIPTOR.fields}
    assert numbers["reward"] == 7 and numbers["group_reward"] == 15
    assert (m.STEP, m.RESET, m.QUIT, m.NONE, m.PNG) == (0, 1, 2, 0, 1)
    # Field 5, varint: tag 5 * 8 + 0 = 0x28.
    assert m.UnityRLInitializationInputProto(num_areas=3).SerializeToString() == b"\x28\x03"
    text = m.UnityMessageProto()
    text.unity_output.rl_output.agentInfos["A"].value.add(id=4)
    assert m.UnityMessageProto.FromString(text.SerializeToString()) == text


def test_the_package_sees_the_same_classes():
    register()
    from mlagents_envs.communicator_objects.agent_info_pb2 import AgentInfoProto

    assert AgentInfoProto is messages().AgentInfoProto


@pytest.mark.parametrize(
    ("ours", "theirs", "compatible"), [("1.5.0", "1.0.0", True), ("1.5.0", "2.0.0", False), ("0.1.0", "0.2.0", False)]
)
def test_version_check_of_the_package(ours, theirs, compatible):
    environment = register().UnityEnvironment
    assert environment._check_communication_compatibility(theirs, ours, "2.2.1") is compatible


def test_another_release_of_the_package_is_named(tmp_path):
    path = tmp_path / "header_pb2.py"
    path.write_text("DESCRIPTOR = None\n")
    with pytest.raises(JaxrlError, match=r"header_pb2\.py: .* mlagents-envs 0\.28\.0"):
        protobuf._serialized_descriptor(path)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(protobuf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JaxrlError, match="pip install"):
        protobuf._folder()

"""What the doctor says of Python, packages, device, memory and disk."""

from __future__ import annotations

import sys

import pytest

from jaxrl.algorithms import make_settings
from jaxrl.settings import RunSettings
from jaxrl.tools.bench.lines import Accelerator
from jaxrl.tools.doctor import hardware, software
from jaxrl.tools.doctor.configuration import configuration
from jaxrl.tools.doctor.findings import Outcome
from jaxrl.tools.doctor.learner import replays
from tests.helpers import make_spec

OK, WARN, FAIL = Outcome.OK, Outcome.WARN, Outcome.FAIL
CPU = Accelerator(backend="cpu", kind="cpu", count=1)
GPU = Accelerator(backend="gpu", kind="NVIDIA H200", count=2)
GIB = 2**30


@pytest.mark.parametrize(("version", "outcome"), [((3, 10), FAIL), ((3, 11), OK), ((3, 14), OK), ((3, 15), WARN)])
def test_python(version, outcome):
    found = software.python(version)
    assert found.outcome is outcome
    assert sys.executable in found.text
    assert bool(found.remedy) == (outcome is not OK)


def test_packages_that_are_missing_or_old():
    found = software.packages(["numpy>=1.26", "no-such-package>=2", "pillow>=999", "torch; extra == 'torch'",
                               'other>=3; python_version >= "3.99"'])  # fmt: skip
    assert found.outcome is FAIL
    assert found.text.startswith("no-such-package is not installed; pillow is ")
    assert found.text.endswith(", needed is >=999")
    assert found.remedy == f"{sys.executable} -m pip install 'no-such-package' 'pillow>=999'"
    assert software.packages(["mlagents-envs==0.28.0", "numpy>=1.26"]).outcome is OK
    assert software.packages(["mlagents-envs==0.27.0"]).outcome is FAIL
    assert software.packages([]).outcome is WARN


def test_a_configuration_that_jaxrl_does_not_train():
    imitates = make_settings("ppo", behavioral_cloning={"demo_path": "x"})
    behaviors = {"A": make_settings("ppo"), "B": imitates}
    found = configuration(RunSettings(behaviors=behaviors))
    assert found.outcome is FAIL and found.subject == "settings"
    missing = "x: there is no such file or folder of demonstrations"
    assert found.text == f"behaviors.B.behavioral_cloning.demo_path: {missing}"
    found = configuration(RunSettings(behaviors={"A": behaviors["A"]}, default_settings=make_settings("poca")))
    assert (found.outcome, found.text) == (OK, "default_settings: poca, A: ppo")
    frames = make_settings("ppo", connectors=[{"type": "frame_stack", "frames": 2}])
    assert "Unity does not give to a model" in configuration(RunSettings(behaviors={"A": frames})).text


def test_what_replays_take(monkeypatch):
    """1,000 decisions of [3] numbers, 1 continuous action and 2 choices: 51 bytes each, 12 together (test_sac)."""
    spec = make_spec((3,), continuous=1, branches=(2,))
    own = make_settings("sac", hyperparameters={"buffer_size": 1000})
    run = RunSettings(behaviors={"Ball": own, "Walker": make_settings("ppo")})
    specs = {"Ball?team=0": spec, "Walker?team=0": spec}
    (found,) = replays(run, specs, seeds=2)
    told = "Ball?team=0: 0.10 MiB (102024 bytes; buffer_size 1000, 2 seed(s))"
    assert (found.outcome, found.subject, found.text) == (OK, "replay", told)
    monkeypatch.setattr("jaxrl.training.memory.free_bytes", lambda devices: 102023)
    (found,) = replays(run, specs, seeds=2)
    assert found.outcome is FAIL and "behaviors.Ball.hyperparameters.buffer_size: got 1000" in found.text
    assert found.text.endswith("at most 899 fit")


def test_this_installation_is_whole():
    found = list(software.software())
    assert [finding.outcome for finding in found if finding.subject != "packages"] == [OK, OK]
    assert "communicator API 1.5.0" in found[-1].text


def test_a_gpu_that_jax_does_not_use(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    found = hardware.device(CPU, 8, ["GPU 0: NVIDIA H200"])
    assert found.outcome is WARN
    assert found.text.endswith("but the machine has GPU 0: NVIDIA H200: jaxlib is for CPUs alone")
    assert "jax[cuda12]" in found.remedy
    assert hardware.device(CPU, 8, []).outcome is OK
    assert (
        hardware.device(GPU, 8, ["GPU 0: NVIDIA H200"]).text == "JAX computes on 2 x NVIDIA H200 (gpu); 8 CPU core(s)"
    )
    assert hardware.device(CPU, 1, []).outcome is WARN
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    found = hardware.device(CPU, 8, ["GPU 0: NVIDIA H200"])
    assert (found.outcome, found.text[-19:]) == (OK, "(JAX_PLATFORMS=cpu)")


@pytest.mark.parametrize(("free", "outcome"), [(4 * GIB, OK), (GIB, WARN), (GIB // 4, FAIL), (None, OK)])
def test_memory(free, outcome):
    assert hardware.memory(free).outcome is outcome


def test_free_memory_is_what_the_system_tells():
    free = hardware.free_memory()
    assert free is None or 2**20 < free < 2**50


def test_disk(tmp_path):
    assert [hardware.disk(tmp_path / "results", free).outcome for free in (9 * GIB, GIB // 2, 2**20)] == [
        OK,
        WARN,
        FAIL,
    ]
    assert hardware.disk(tmp_path / "results", 9 * GIB).text == f"9.0 GiB free in {tmp_path / 'results'}"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    found = hardware.disk(tmp_path / "file", 9 * GIB)
    assert (found.outcome, found.text) == (FAIL, f"{tmp_path / 'file'} is a file, not a folder")

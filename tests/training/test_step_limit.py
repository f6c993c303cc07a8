"""The last steps that can be counted, in both loops: 2^31 - 1 trains and ends, 2^31 is refused before it begins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax.traverse_util import unflatten_dict

from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.folder import checkpoints, require_latest
from jaxrl.cli import main
from jaxrl.rollout.noise import noise_key
from tests.event_files import read_events
from tests.trainer import free_ports

LARGEST = 2**31 - 1
BUFFER = 64
LOOPS = ["jax:basic", pytest.param("player:basic", marks=pytest.mark.skipif(os.name == "nt", reason="shell script"))]
pytestmark = [pytest.mark.usefixtures("runs"), pytest.mark.timeout(200)]


def train(folder: Path, env: str, *flags: str, **changes: Any) -> int:
    """Train Basic in a run folder below `folder`; the exit code."""
    behavior: dict[str, Any] = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 32, "buffer_size": BUFFER, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": BUFFER,
        "time_horizon": LARGEST,
        "summary_freq": 50,
        "checkpoint_interval": 10**12,  # never reached: never
        **changes,
    }
    env_settings = {"env_path": env, "num_areas": 2, "seed": 1, "base_port": free_ports()}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"behaviors": {"Basic": behavior}, "env_settings": env_settings}))
    return main(["train", str(path), "--results-dir", str(folder / "results"), "--run-id", "run", *flags])


def arrays_of(path: Path) -> dict[str, Any]:
    """A whole checkpoint as nested dictionaries."""

    def blank(entry: Any) -> Any:
        zeros = np.zeros(entry["shape"], jnp.dtype(entry["dtype"]))
        return jax.random.wrap_key_data(jnp.asarray(zeros)) if "key" in entry else zeros

    leaves = checkpoint.read_info(path).leaves
    return checkpoint.restore(path, unflatten_dict({name: blank(entry) for name, entry in leaves.items()}, sep="/"))


def move_to(run: Path, step: int) -> None:
    """Give the run a checkpoint that is as its last, but at another step."""
    last = require_latest(run)
    info, arrays = checkpoint.read_info(last), arrays_of(last)
    arrays["train"]["step"] = np.full_like(arrays["train"]["step"], step)
    if "step" in arrays:  # the host's own count
        arrays["step"] = np.int64(step)
    path = checkpoint.save(run, step, arrays, settings=info.settings)
    document = json.loads((path / "checkpoint.json").read_text())
    spec = json.loads((last / "checkpoint.json").read_text())["spec"]
    (path / "checkpoint.json").write_text(json.dumps({**document, "spec": spec}))
    (path / "manifest.json").unlink()
    manifest.write(path)  # else it would be damaged


def tag(run: Path, name: str, after: int) -> list[float]:
    """Values of a tag at steps beyond `after`, in order."""
    events = [event for path in run.glob("events.*") for event in read_events(path) if event.step > after]
    events.sort(key=lambda event: event.step)
    return [value.simple_value for event in events for value in event.summary.value if value.tag == name]


@pytest.mark.parametrize("env", [LOOPS[0], pytest.param("player:basic", marks=[*LOOPS[1].marks, pytest.mark.slow])])
def test_a_run_counts_to_the_last_step_and_ends_there(tmp_path, env, capsys):
    run = tmp_path / "results" / "run" / "Basic"
    assert train(tmp_path, env) == 0
    (first,) = checkpoints(run)  # that of the end: the interval is never reached
    assert first.step > BUFFER
    begin = LARGEST - 3 * BUFFER - 10
    move_to(run, begin)
    assert train(tmp_path, env, "--resume", max_steps=LARGEST) == 0
    last = require_latest(run)
    learner, reached = arrays_of(last)["train"]["step"], int(last.name.rpartition("-")[2])
    if env == "jax:basic":
        assert learner == reached == LARGEST  # the last iteration made more steps than there were left
    else:
        assert LARGEST - BUFFER < learner <= LARGEST <= reached < LARGEST + 5  # the host counts on
    rates = tag(run, "Policy/Learning Rate", first.step)  # the schedule goes on to its end
    first_rate = 1e-10 + 3e-4 * (LARGEST - begin - BUFFER) / LARGEST
    np.testing.assert_allclose(rates[0], first_rate, atol=1e-12)
    assert len(rates) >= 2 and rates == sorted(rates, reverse=True) and 1e-10 <= rates[-1] < 1.2e-10
    capsys.readouterr()
    assert train(tmp_path, env, "--resume", max_steps=LARGEST) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Basic: has passed max_steps (2147483647) already: no more can be counted, go on in a new run" in said
    assert arrays_of(require_latest(run))["train"]["step"] >= learner


def test_a_policy_that_only_acts_may_decide_for_ever():
    """Decisions are not trainer steps: their numbers have no limit, and those of small ones are as they always were."""
    assert noise_key((5, 6), 3).tolist() == [5, 6 ^ 3, 0, 3]
    keys = [noise_key((5, 6), number).tobytes() for number in (3, 2**32 + 3, 2**33 + 3, 2**32 - 1)]
    assert len(set(keys)) == 4

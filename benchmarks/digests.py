"""Digests of what short seeded runs have learned, to show that a change of the code changed no number.

    python benchmarks/digests.py --out before.json           # on the commit before
    python benchmarks/digests.py --compare before.json       # on the commit after: names every run that differs

Host loop: whole commands over real players with one and two workers in lockstep. Compiled loop: one and four seeds.
PPO, MA-POCA, MAPPO and COMA on discrete, continuous and hybrid actions; commands with memory, images, connectors,
lessons, two behaviors and sweeps. A digest covers every float array of the
learner (weights, Adam's moments, normaliser), whatever it is called, so that names and places may change. Digests
hold for one machine, one number of cores and one version of JAX.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PORT = 15005 + 10 * (os.getpid() % 1000)  # others may measure at the same time
CAPACITY = {"mappo": {"team_capacity": 8}, "coma": {"team_capacity": 8}}


def digest(leaves: list[Any], axes: int = 0) -> str:
    """Of float arrays with more than `axes` axes, in no order."""
    import numpy as np

    arrays = [np.asarray(leaf) for leaf in leaves]
    kept = [a for a in arrays if a.ndim > axes and np.issubdtype(a.dtype, np.floating) and a.size]
    parts = sorted(hashlib.sha256(f"{a.dtype}{a.shape}".encode() + a.tobytes()).hexdigest() for a in kept)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def settings(trainer: str, normalize: bool) -> dict[str, Any]:
    """A tiny behavior, as a file has it."""
    size = {"batch_size": 64, "buffer_size": 256, "num_epoch": 2, "learning_rate": 1e-3}
    network = {"normalize": normalize, "hidden_units": 16, "num_layers": 1}
    return {
        "trainer_type": trainer, "hyperparameters": size | CAPACITY.get(trainer, {}), "network_settings": network,
        "max_steps": 1500, "checkpoint_interval": 10_000, "summary_freq": 500, "time_horizon": 16,
    }  # fmt: skip


def host(trainer: str, player: str, workers: int) -> str:
    """A whole command in a process of its own; `player` is a name or a script of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"player:{player}"
        if player.endswith(".py"):
            path = str(Path(folder, "player.x86_64"))
            words = [sys.executable, str(ROOT / "tests" / "envs" / player), "--answer-seconds", "600"]
            Path(path).write_text(
                f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(ROOT))}\nexec {shlex.join(words)} "$@"\n'
            )
            Path(path).chmod(0o755)
        written = {
            "default_settings": settings(trainer, normalize=False),
            "env_settings": {"env_path": path, "num_envs": workers, "num_areas": 4, "seed": 7, "base_port": PORT},
        }
        Path(folder, "run.yaml").write_text(yaml.safe_dump(written))
        command = [sys.executable, "-m", "jaxrl.cli", "train", f"{folder}/run.yaml", "--run-id=run"]
        ended = subprocess.run([*command, f"--results-dir={folder}"], cwd=ROOT, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(ended.stdout + ended.stderr)
        return digest(saved(Path(folder, "run")))


def saved(*runs: Path) -> list[Any]:
    """Leaves of the learners in the checkpoints below folders of runs, the last of each, read without jaxrl."""
    import jax
    import orbax.checkpoint as ocp

    found: list[Any] = []
    for behavior in sorted({path.parents[1] for run in runs for path in run.glob("**/checkpoint.json")}):
        folder = max((path.parent for path in behavior.glob("*/checkpoint.json")), key=_step)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            found += jax.tree.leaves(checkpointer.restore(folder / "arrays")["train"])
    return found


def _step(folder: Path) -> int:
    return int(json.loads((folder / "checkpoint.json").read_text())["step"])


def command(words: str, changes: dict[str, Any]) -> str:
    """`jaxrl WORDS`, a file of settings in place of FILE, a results folder in place of RESULTS."""
    own = {"network_settings": {"normalize": False, "hidden_units": 16, "num_layers": 1}} | changes
    lessons, environment = own.pop("lessons", None), own.pop("environment")
    written: dict[str, Any] = {
        "default_settings": settings("ppo", normalize=False) | own,
        "env_settings": {"num_areas": 4, "seed": 7, "base_port": PORT, "env_path": environment},
    }
    written |= {"environment_parameters": lessons} if lessons else {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "run.yaml").write_text(yaml.safe_dump(written))
        given = words.replace("FILE", f"{folder}/run.yaml").replace("RESULTS", folder).split()
        ended = subprocess.run([sys.executable, "-m", "jaxrl.cli", *given], cwd=ROOT, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(ended.stdout + ended.stderr)
        return digest(saved(Path(folder)))


def commands() -> dict[str, Callable[[], str]]:
    """What the Python interface does not reach, and what only a whole run has."""
    memory = {"hidden_units": 16, "num_layers": 1, "memory": {"sequence_length": 8, "memory_size": 16}}
    ends = {"behavior": "Hallway", "measure": "progress", "threshold": 0.5}
    lessons = {
        "length": {
            "curriculum": [
                {"name": "short", "value": 4.0, "completion_criteria": ends},
                {"name": "long", "value": 8.0},
            ]
        }
    }
    connected = {
        "connectors": [{"type": "normalize"}, {"type": "frame_stack", "frames": 2}, {"type": "previous_action"}]
    }
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "memory": ("hallway", {"network_settings": memory}),
        "images": ("grid_world", {"max_steps": 600}),
        "connectors": ("basic", connected),
        "lessons": ("hallway", {"lessons": lessons}),
        "scene": ("wall_jump", {}),
        "scene_memory": ("wall_jump", {"network_settings": memory, "trainer_type": "poca"}),
    }
    train = "train FILE --run-id=run --results-dir=RESULTS --force"
    found = {}
    for name, (environment, changes) in cases.items():
        for loop, kind in (("host", "player"), ("compiled", "jax")):
            found[f"{loop}/command/{name}"] = partial(
                command, train, changes | {"environment": f"{kind}:{environment}"}
            )
    basic = {"environment": "jax:basic"}
    found["compiled/command/seeds"] = partial(command, f"{train} --seeds=2", basic)
    rates = "hyperparameters.learning_rate=1e-3,3e-4"
    found["compiled/command/sweep"] = partial(
        command, f"sweep FILE --results-dir=RESULTS --run-id=run --set {rates}", basic
    )
    return found


def hybrid_environment() -> Any:
    """Two members that earn by naming a colour (discrete) and pointing at it (continuous)."""
    import jax
    import jax.numpy as jnp

    from jaxrl.jax_envs.interface import JaxEnv, TeamStep, TeamView
    from jaxrl.types import ActionSpec, BehaviorSpec, ObservationSpec

    def view(state: Any) -> TeamView:
        clock, colour = state
        obs = jnp.stack([2.0 * colour - 1.0, jnp.full(2, clock / 8.0), jnp.arange(2.0)], axis=-1)
        return TeamView(obs=(obs,), action_mask=jnp.ones((2, 2), bool), alive=jnp.ones(2, bool))

    def reset(key: Any, parameters: Any) -> Any:
        state = (jnp.int32(0), jax.random.bernoulli(key, shape=(2,)).astype(jnp.int32))
        return state, view(state)

    def step(key: Any, state: Any, actions: Any) -> Any:
        clock, colour = state[0] + 1, state[1]
        right = (actions.discrete[:, 0] == colour) * 1.0 - jnp.abs(actions.continuous[:, 0] - 2.0 * colour + 1.0)
        over, nobody = clock >= 8, jnp.zeros(2, bool)
        state = (clock, jax.random.bernoulli(key, shape=(2,)).astype(jnp.int32))
        seen = view(state)
        ended = jnp.broadcast_to(over, (2,))
        group = jnp.broadcast_to(right.mean(), (2,))
        return state, TeamStep(seen._replace(alive=~ended), right, group, ended, nobody, over, {})

    spec = BehaviorSpec((ObservationSpec("lamp", (3,)),), ActionSpec(1, (2,)))
    return JaxEnv(name="Hybrid", spec=spec, members=2, parameters={}, reset=reset, step=step)


def compiled(trainer: str, name: str, seeds: int) -> str:
    """Five iterations of the Python interface."""
    import jax

    import jaxrl

    env = hybrid_environment() if name == "hybrid" else jaxrl.make_environment(f"jax:{name}")
    written = settings(trainer, normalize=name == "ball3d")
    bound = jaxrl.make_settings(written.pop("trainer_type"), **written)
    make = getattr(jaxrl, f"make_{trainer}")
    built = jaxrl.make_jitted_trainer(env, make(env.spec, bound), bound, areas=8, seeds=seeds)
    state, _ = built.run(built.init(range(seeds)), 5)
    learner = jax.tree.map(
        lambda x: jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state.train
    )
    return digest(jax.tree.leaves(learner), axes=1)  # the first is that of the seeds


def runs() -> dict[str, Callable[[], str]]:
    """Every run by its name."""
    found: dict[str, Callable[[], str]] = {}
    for trainer in ("ppo", "poca", "mappo", "coma"):
        for workers in (1, 2):
            found[f"host/{trainer}/hybrid/{workers}"] = partial(host, trainer, "countdown_player.py", workers)
        found[f"host/{trainer}/discrete/1"] = partial(host, trainer, "dungeon_escape", 1)
        for seeds in (1, 4):
            found[f"compiled/{trainer}/discrete/{seeds}"] = partial(compiled, trainer, "dungeon_escape", seeds)
        found[f"compiled/{trainer}/hybrid/1"] = partial(compiled, trainer, "hybrid", 1)
        found[f"compiled/{trainer}/continuous/1"] = partial(compiled, trainer, "ball3d", 1)
    found["host/ppo/continuous/2"] = partial(host, "ppo", "ball3d", 2)
    found["host/poca/continuous/1"] = partial(host, "poca", "ball3d", 1)
    return found | commands()


def main() -> int:
    """Print one line per run; with --compare the exit code is 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the digests as JSON")
    parser.add_argument("--compare", type=Path, help="digests to compare with")
    parser.add_argument("--only", default="", help="runs whose name contains this text")
    given = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    known = json.loads(given.compare.read_text()) if given.compare else {}
    found, differing = {}, 0
    for name, run in runs().items():
        if given.only not in name:
            continue
        found[name] = run()
        same = "" if name not in known else ("  equal" if known[name] == found[name] else "  DIFFERS")
        differing += same == "  DIFFERS"
        print(f"{name:32} {found[name]}{same}", flush=True)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())

"""A policy to be played, from the folder of a run or from an ONNX file alone.

A file is asked by ONNX Runtime on the host, from within compiled programs too: an environment in JAX that is played by
a file needs one call for each decision of all its areas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import make_settings
from jaxrl.algorithms.interface import Algorithm, Decision, PolicyState, Storage
from jaxrl.artifacts.onnx.policy_file import PolicyFile
from jaxrl.training.trained_policy import Trained, load_trained
from jaxrl.types import Action, BehaviorSpec, PolicyError

MODELS = (".onnx", ".nn")
"""Endings of files that hold a policy; those of Barracuda (.nn) are refused by name."""
_STEP = re.compile(r"-(\d+)$")
_MEMORY = "recurrent"


def is_model(path: Path | str | None) -> bool:
    """Return whether a path names a file with a policy, not the folder of a run."""
    return path is not None and Path(path).suffix.lower() in MODELS and not Path(path).is_dir()


def behavior_of_file(path: Path) -> str:
    """Return the behavior that a file is called after: `Walker` for Walker.onnx and Walker-500000.onnx."""
    return _STEP.sub("", path.stem)


def choose_model(models: Sequence[Path], behavior: str, behaviors: Sequence[str]) -> Path | None:
    """Return the file for one of the behaviors: that of its name, or the only one that is called after none of them.

    None where no file is for it. Raises PolicyError where several are.
    """
    named = [path for path in models if behavior_of_file(path) == behavior]
    candidates = named or [path for path in models if behavior_of_file(path) not in behaviors]
    if len(candidates) > 1:
        listed, names = ", ".join(map(str, candidates)), ", ".join(behaviors)
        raise PolicyError(f"{listed}: which of them plays {behavior}? Name each after its behavior ({names})")
    return candidates[0] if candidates else None


def load_policy(
    source: Path,
    spec: BehaviorSpec | None = None,
    *,
    behavior: str | None = None,
    checkpoint_at: int | str | Path | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
) -> Trained:
    """Return the policy in the folder of a run, as `load_trained`, or in an ONNX file.

    Raises as `load_trained`; ArtifactError, as `PolicyFile`; PolicyError for a checkpoint or seed of a file.
    """
    if not is_model(source):
        chosen = {"checkpoint_at": checkpoint_at, "seed": seed, "deterministic": deterministic, "trust": trust}
        return load_trained(source, spec, behavior=behavior, **chosen)
    for name, value in (("checkpoint", checkpoint_at), ("seed", seed)):
        if value is not None:
            raise PolicyError(
                f"{name}: got {value}, but {source} is one policy: leave it out, or name its run's folder"
            )
    file = PolicyFile(source, spec)
    step = _STEP.search(source.stem)
    return Trained(
        behavior=behavior or behavior_of_file(source),
        spec=file.spec,
        settings=make_settings("ppo", network_settings={"deterministic": deterministic}),
        algorithm=_playing(file, deterministic),
        policy=PolicyState(params={}, normalizer=()),
        step=int(step[1]) if step else 0,
        parameters={},
        origin=source.name,
        of_file=True,
    )


def _playing(file: PolicyFile, deterministic: bool) -> Algorithm:
    """Return an algorithm that acts as the file does; it does not learn."""
    action = file.spec.action

    def answer(obs: Any, action_mask: Any, memory: Any, noise: Any) -> tuple[np.ndarray, ...]:
        lead = np.shape(action_mask)[:-1]
        rows, arrays = math.prod(lead), (*obs, action_mask, memory, *noise)
        flat = [np.asarray(x).reshape(rows, *np.shape(x)[len(lead) :]) for x in arrays]
        seen, (mask, before, *drawn) = flat[: len(obs)], flat[len(obs) :]
        answered = file.act(seen, mask, before, None if deterministic else drawn)
        return tuple(x.reshape(*lead, x.shape[-1]) for x in (*answered.action, answered.memory))

    def act(policy: PolicyState, obs: tuple[Any, ...], action_mask: Any, carry: Any, key: jax.Array) -> Decision:
        lead = action_mask.shape[:-1]
        memory = carry[_MEMORY] if file.memory_size else jnp.zeros((*lead, 0))
        sizes = (action.continuous_size, jnp.float32), (len(action.discrete_branches), jnp.int32)
        shapes = [jax.ShapeDtypeStruct((*lead, n), dtype) for n, dtype in (*sizes, (memory.shape[-1], jnp.float32))]
        noise = () if deterministic else _noise(file, key, lead)
        continuous, discrete, new_memory = jax.pure_callback(
            answer, tuple(shapes), obs, action_mask, memory, noise, vmap_method="broadcast_all"
        )
        sent = Action(continuous=continuous, discrete=discrete)
        return Decision(sent, sent, {}, {_MEMORY: new_memory} if file.memory_size else ())

    memories = ((_MEMORY, (file.memory_size,)),) if file.memory_size else ()
    never = _no_learning
    return Algorithm(
        init=never,
        act=act,
        storage=Storage(init=never, add=never, can_sample=never, sample=never, kept=never),
        learn=never,
        estimate=never,
        collect_size=0,
        extras=(),
        memories=memories,
        team_rows=False,
    )


def _noise(file: PolicyFile, key: jax.Array, lead: tuple[int, ...]) -> tuple[jax.Array, ...]:
    keys = jax.random.split(key, max(len(file.noise), 1))
    draws = (jax.random.gumbel if each.is_gumbel else jax.random.normal for each in file.noise)
    return tuple(draw(k, (*lead, each.size)) for draw, k, each in zip(draws, keys, file.noise, strict=False))


def _no_learning(*_: Any) -> Any:
    """Raise PolicyError: every function of the algorithm but `act`."""
    raise PolicyError("a policy of an ONNX file is played: to learn, train a run")

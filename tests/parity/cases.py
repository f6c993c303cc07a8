"""One parity case: settings and arrays of a fixture, and what our code calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxrl.networks import ENCODERS, JOINT_ENCODERS
from jaxrl.networks.encoders import kind_of
from jaxrl.settings import MemorySettings
from jaxrl.settings.networks import NetworkSettings
from jaxrl.torch.weights import HEAD_PREFIX, Weights
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

VARIABLE = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)


class UnsupportedCaseError(Exception):
    """The case needs something that jaxrl does not have yet; its text says what."""


class Case(NamedTuple):
    """A fixture as loaded."""

    name: str
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]
    folder: Path  # with the case and its demonstrations

    @property
    def spec(self) -> BehaviorSpec:
        behavior = self.meta["behavior_spec"]
        action = behavior["action"]
        return BehaviorSpec(
            observations=tuple(_observation(o) for o in behavior["observations"]),
            action=ActionSpec(action["continuous_size"], tuple(action["discrete_branches"])),
        )

    @property
    def network(self) -> NetworkSettings:
        settings = self.meta["network_settings"]
        read = ("hidden_units", "num_layers", "vis_encode_type", "goal_conditioning_type")
        memory = None if settings.get("memory") is None else MemorySettings(**settings["memory"])
        return NetworkSettings(**{name: settings[name] for name in read if name in settings}, memory=memory)

    def below(self, prefix: str) -> dict[str, np.ndarray]:
        """Arrays whose name starts with the prefix, without it."""
        return {name.removeprefix(prefix): x for name, x in self.arrays.items() if name.startswith(prefix)}

    def observations(self, prefix: str) -> tuple[jnp.ndarray, ...]:
        """Observations `<prefix>0`, `<prefix>1`, ..."""
        return tuple(jnp.asarray(self.arrays[f"{prefix}{i}"]) for i in range(len(self.spec.observations)))

    def action(self, prefix: str, mask: str) -> tuple[Action, jnp.ndarray]:
        """Actions `<prefix>act_cont/act_disc` and the action mask; what the action spec lacks may lack in the file."""
        action = self._action(prefix)
        lead = action.continuous.shape[:-1]
        allowed = self.arrays.get(mask, np.ones((*lead, self.spec.action.mask_size)))
        return action, jnp.asarray(allowed).astype(bool)

    def team(self, prefix: str) -> tuple[tuple[jnp.ndarray, ...], Action, jnp.ndarray]:
        """Agent and groupmates as a team of A = 1 + K, the agent at index 0: observations, actions, present [B, A]."""
        own = self.observations(f"{prefix}obs_")
        if f"{prefix}group_obs_0" not in self.arrays:
            alone = Action(*(part[:, None] for part in self._action(prefix)))
            return tuple(o[:, None] for o in own), alone, jnp.ones((own[0].shape[0], 1), bool)
        mates = self.observations(f"{prefix}group_obs_")
        obs = tuple(jnp.concatenate([o[:, None], m], axis=1) for o, m in zip(own, mates, strict=True))
        parts = zip(self._action(prefix), self._action(f"{prefix}group_"), strict=True)
        action = Action(*(jnp.concatenate([o[:, None], m], axis=1) for o, m in parts))
        return obs, action, present_of(obs[0])

    def _action(self, prefix: str) -> Action:
        spec, lead = self.spec.action, self.arrays[f"{prefix}obs_0"].shape
        lead = lead[: len(lead) - len(self.spec.observations[0].shape)]
        continuous = self.arrays.get(f"{prefix}act_cont", np.zeros((*lead, spec.continuous_size), np.float32))
        discrete = self.arrays.get(f"{prefix}act_disc", np.zeros((*lead, len(spec.discrete_branches)), np.int32))
        return Action(jnp.asarray(continuous), jnp.asarray(discrete, jnp.int32))


def load(path: Path) -> Case:
    """Read `<case>.json` and the `.npz` beside it."""
    meta = json.loads(path.read_text(encoding="utf-8"))
    with np.load(path.with_suffix(".npz")) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return Case(name=path.stem, meta=meta, arrays=arrays, folder=path.parent)


def check_supported(case: Case) -> None:
    """Raise `UnsupportedCaseError` for what the networks do not have yet."""
    if case.meta["algorithm"] not in ("ppo", "poca"):
        raise UnsupportedCaseError(f"algorithm {case.meta['algorithm']}")
    for observation in case.spec.observations:
        if kind_of(observation) not in (*ENCODERS, *JOINT_ENCODERS):
            raise UnsupportedCaseError(f"{kind_of(observation)} observation")


def check_memory(case: Case) -> None:
    """Raise `UnsupportedCaseError` where values come from another memory than ours do."""
    if case.network.memory is not None and case.meta.get("shared_critic"):
        raise UnsupportedCaseError(
            "shared_critic with memory: here one body has one memory; the original gives the value another one than "
            "the policy (docs/from-ml-agents.md, memory with shared_critic)"
        )


def present_of(first_observation: jnp.ndarray) -> jnp.ndarray:
    """A groupmate is absent if the first element of its first observation is NaN: [B, A, ...] -> bool [B, A]."""
    return ~jnp.isnan(first_observation.reshape(*first_observation.shape[:2], -1)[..., 0])


def signals_of(weights: Weights) -> tuple[str, ...]:
    """Names of the reward signals that have a value head, in the order of the checkpoint."""
    heads = (name.removeprefix(HEAD_PREFIX) for name in weights if name.startswith(HEAD_PREFIX))
    return tuple(name.removesuffix(".weight") for name in heads if name.endswith(".weight"))


def expected_names(case: Case) -> list[str]:
    """Arrays that hold results of the reference, `mid/` (only there to locate a mismatch) left out."""
    results = re.compile(r"(out|state|message|g1|g1_tiny|w\d+|o\d+)/|accepted$")
    return [name for name in case.arrays if results.match(name)]


def _observation(entry: dict[str, Any]) -> ObservationSpec:
    goal = entry["type"] == "goal_signal"
    return ObservationSpec(
        name=entry["name"],
        shape=tuple(entry["shape"]),
        dimension_property=VARIABLE if entry["kind"] == "entities" else (),
        observation_type=ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT,
    )

"""Converts ML-Agents' PyTorch weights to ours, and back: arrays in, arrays out, no torch needed.

A layout lists the names that each of our arrays is made of (`torch_layout`). Layouts follow from the behavior spec
and the settings, never from a list of known networks. Arrays are float32; the flax parameters come as {"params": ...}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxrl.networks import normalizer, resnet, visual
from jaxrl.networks.body import conditioning_goals
from jaxrl.networks.encoders import kind_of
from jaxrl.networks.entities import EMBEDDING
from jaxrl.networks.memory import features
from jaxrl.networks.normalizer import NormalizerState, States
from jaxrl.networks.observations import encoding_size
from jaxrl.settings.networks import NetworkSettings
from jaxrl.torch.layout import BIAS, KERNEL, ROW, Entry, Layout, filters, linear, to_ours, to_theirs
from jaxrl.types import BehaviorSpec, JaxrlError, ObservationSpec

Weights = Mapping[str, np.ndarray]
"""Arrays by the dotted names of a checkpoint."""

CONSTANTS = (
    "version_number",
    "is_continuous_int_deprecated",
    "continuous_act_size_vector",
    "discrete_act_size_vector",
    "act_size_vector_deprecated",
    "memory_size_vector",
)
"""Entries of an actor's checkpoint that repeat the spec; nothing is read from them."""
DUPLICATES = "network_body.processors."
"""A second name of every tensor below `network_body.observation_encoder.processors.`."""
NORMALIZER = "network_body.observation_encoder.processors.{}.normalizer."
MAX_TEAM = "network_body._current_max_agents"
HEAD_PREFIX = "value_heads.value_heads."
ENCODER = "network_body.observation_encoder"
BODY = "network_body._body_endoder"


class TorchImportError(JaxrlError):
    """Weights that do not fit the behavior spec and the settings."""


class Imported(NamedTuple):
    """Network of a checkpoint."""

    params: dict[str, Any]
    normalizer: States  # one per observation, None where the checkpoint holds no statistics
    max_team: jnp.ndarray | None  # float32 scalar, team critics only


def actor_layout(spec: BehaviorSpec, settings: NetworkSettings) -> Layout:
    """Return the layout of `networks.models.Actor`."""
    return (*body_layout(spec, settings), *_action_heads(spec, _width(settings)))


def value_layout(spec: BehaviorSpec, settings: NetworkSettings, signals: tuple[str, ...]) -> Layout:
    """Return the layout of `networks.models.ValueNetwork`."""
    return (*body_layout(spec, settings), *_value_heads(_width(settings), signals))


def squashed_layout(spec: BehaviorSpec, settings: NetworkSettings) -> Layout:
    """Return the layout of `networks.models.SquashedActor`."""
    return (*body_layout(spec, settings), *_action_heads(spec, _width(settings), squashed=True))


def action_value_layout(spec: BehaviorSpec, settings: NetworkSettings, signals: tuple[str, ...]) -> Layout:
    """Return the layout of `networks.models.ActionValueNetwork`."""
    network = body_layout(spec, settings, spec.action.continuous_size)
    return (*network, *_value_heads(_width(settings), signals, max(spec.action.mask_size, 1)))


def shared_layout(spec: BehaviorSpec, settings: NetworkSettings, signals: tuple[str, ...]) -> Layout:
    """Return the layout of `networks.models.SharedActorCritic`."""
    return (*actor_layout(spec, settings), *_value_heads(_width(settings), signals))


def team_critic_layout(spec: BehaviorSpec, settings: NetworkSettings, signals: tuple[str, ...]) -> Layout:
    """Return the layout of `networks.models.TeamCritic`."""
    hidden, size = settings.hidden_units, encoding_size(spec, settings)
    with_action = size + spec.action.continuous_size + spec.action.mask_size
    embedding = "network_body.{}.self_ent_encoder.seq_layers.0"
    return (
        *encoders(spec, settings),
        *linear(("embed_obs",), (embedding.format("obs_encoder"),), size, (hidden,)),
        *linear(("embed_obs_action",), (embedding.format("obs_action_encoder"),), with_action, (hidden,)),
        *attention(("attention",), "network_body.self_attn", hidden),
        *layers("network_body.linear_encoder.seq_layers", hidden, hidden, settings.num_layers),
        *_memory(settings),
        *_value_heads(_width(settings) + 1, signals),
    )


def import_weights(weights: Weights, layout: Layout, spec: BehaviorSpec) -> Imported:
    """Build one of our networks from the weights of one of ML-Agents'.

    Raises `TorchImportError` naming every missing, left-over or misshapen entry.
    """
    normalizer, statistics = _import_normalizer(weights, spec)
    extra = {MAX_TEAM} if any(entry.path[0] == "attention" for entry in layout) else set()
    ignored = {name for name in weights if name in CONSTANTS or name.startswith(DUPLICATES)}
    _check_names(set(weights) - ignored, {*_names(layout), *statistics, *extra})
    max_team = jnp.asarray(weights[MAX_TEAM], jnp.float32) if extra else None
    return Imported(params=import_arrays(weights, layout), normalizer=normalizer, max_team=max_team)


def import_arrays(weights: Weights, layout: Layout) -> dict[str, Any]:
    """Return the arrays of a layout (parameters, or their gradients) as {"params": ...}; other names are not read."""
    _check_names({name for entry in layout for name in entry.names if name in weights}, _names(layout))
    flat = {}
    for entry in layout:
        parts = [np.asarray(weights[name], np.float32) for name in entry.names]
        for name, part, shape in zip(entry.names, parts, entry.shapes, strict=True):
            if part.shape != shape:
                raise TorchImportError(
                    f"{name}: shape {part.shape} in the checkpoint, {shape} expected from the behavior spec and "
                    "network_settings; check hidden_units, num_layers and that the checkpoint is of this behavior"
                )
        flat["params", *entry.path] = jnp.asarray(to_ours(entry, parts))
    return unflatten_dict(flat)


def export_arrays(params: Mapping[str, Any], layout: Layout) -> dict[str, np.ndarray]:
    """Invert `import_arrays`: return arrays of {"params": ...} by dotted names. Raises `TorchImportError`."""
    flat = flatten_dict(params["params"])
    paths = {entry.path for entry in layout}
    if set(flat) != paths:
        wrong = sorted(".".join(path) for path in set(flat) ^ paths)
        raise TorchImportError(
            f"parameters and layout differ in {', '.join(wrong)}: use the layout of the same network"
        )
    weights = {}
    for entry in layout:
        theirs = to_theirs(entry, np.asarray(flat[entry.path], np.float32))
        weights.update(zip(entry.names, theirs, strict=True))
    return weights


def export_normalizer(states: States) -> dict[str, np.ndarray]:
    """Return normaliser states as checkpoint entries; the count is an int64."""
    weights = {}
    for i, state in enumerate(states):
        if state is not None:
            prefix = NORMALIZER.format(i)
            count = np.maximum(np.asarray(state.count), 1.0)
            weights[prefix + "normalization_steps"] = count.astype(np.int64)
            weights[prefix + "running_mean"] = np.asarray(state.mean)
            m2, shown = np.asarray(state.m2), np.asarray(normalizer.variance(state)) * count
            weights[prefix + "running_variance"] = np.where(np.isclose(shown, m2, atol=0), m2, shown)  # never 0
    return weights


def _import_normalizer(weights: Weights, spec: BehaviorSpec) -> tuple[States, set[str]]:
    states, names = [], set()
    for i, observation in enumerate(spec.observations):
        wanted = [NORMALIZER.format(i) + leaf for leaf in ("running_mean", "running_variance", "normalization_steps")]
        if not any(name in weights for name in wanted):
            states.append(None)
            continue
        names.update(wanted)
        _check_names({name for name in wanted if name in weights}, set(wanted))
        mean, m2, count = (jnp.asarray(np.asarray(weights[name]), jnp.float32) for name in wanted)
        if mean.shape != observation.shape or m2.shape != observation.shape:
            raise TorchImportError(f"{wanted[0]}: shape {mean.shape} in the checkpoint, {observation.shape} expected")
        states.append(NormalizerState(mean=mean, m2=m2, count=count))
    return tuple(states), names


def _check_names(found: set[str], wanted: set[str]) -> None:
    missing, left = sorted(wanted - found), sorted(found - wanted)
    if missing:
        raise TorchImportError(f"missing in the checkpoint: {', '.join(missing)}; check num_layers and the action spec")
    if left:
        raise TorchImportError(f"left over in the checkpoint: {', '.join(left)}; this network has no such part")


def _names(layout: Layout) -> set[str]:
    return {name for entry in layout for name in entry.names}


def body_layout(spec: BehaviorSpec, settings: NetworkSettings, action: int = 0) -> Layout:
    """Return the layout of `networks.body.NetworkBody`; `action`: numbers that join the encoding."""
    return (*encoders(spec, settings), *conditioned_body(spec, settings, action), *_memory(settings))


def _memory(settings: NetworkSettings) -> Layout:
    """Return the layout of an LSTM after the body; ML-Agents has no other memory. Raises `TorchImportError`."""
    memory = settings.memory
    if memory is None:
        return ()
    if memory.memory_type != "lstm":
        raise TorchImportError(f"memory_type: {memory.memory_type} does not exist in ML-Agents; use lstm")
    hidden, prefix = features(memory), "network_body.lstm.lstm."
    gates = 4 * hidden
    return (
        Entry(("memory", "kernel"), (f"{prefix}weight_ih_l0",), ((gates, settings.hidden_units),), "kernel"),
        Entry(("memory", "recurrent"), (f"{prefix}weight_hh_l0",), ((gates, hidden),), "kernel"),
        Entry(("memory", "bias"), (f"{prefix}bias_ih_l0",), ((gates,),), "bias"),
        Entry(("memory", "recurrent_bias"), (f"{prefix}bias_hh_l0",), ((gates,),), "bias"),
    )


def _width(settings: NetworkSettings) -> int:
    """Return the input size of the heads."""
    return settings.hidden_units if settings.memory is None else features(settings.memory)


def _action_heads(spec: BehaviorSpec, hidden: int, *, squashed: bool = False) -> Layout:
    entries: Layout = ()
    continuous, branches = spec.action.continuous_size, spec.action.discrete_branches
    if continuous:
        prefix = "action_model._continuous_distribution."
        entries += linear(("heads", "mean"), (f"{prefix}mu",), hidden, (continuous,))
        if squashed:
            entries += linear(("heads", "log_sigma"), (f"{prefix}log_sigma",), hidden, (continuous,))
        else:
            entries += (Entry(("heads", "log_sigma"), (f"{prefix}log_sigma",), ((1, continuous),), ROW),)
    if branches:
        names = tuple(f"action_model._discrete_distribution.branches.{i}" for i in range(len(branches)))
        entries += linear(("heads", "logits"), names, hidden, branches)
    return entries


def _value_heads(inputs: int, signals: tuple[str, ...], outputs: int = 1) -> Layout:
    return linear(("values",), tuple(HEAD_PREFIX + name for name in signals), inputs, (outputs,) * len(signals))


def encoders(spec: BehaviorSpec, settings: NetworkSettings) -> Layout:
    """Return the layout of `networks.observations.ObservationEncoder` as "encoder/...", without normalisers."""
    entries: list[Entry] = []
    for i, observation in enumerate(spec.observations):
        if kind_of(observation) == "visual":
            entries += _image(("encoder", f"observation_{i}"), f"{ENCODER}.processors.{i}", observation, settings)
    return (*entries, *_entities(spec, settings))


def conditioned_body(spec: BehaviorSpec, settings: NetworkSettings, action: int = 0) -> Layout:
    """Return the layout of bodies of actors and value networks as "body/...": the last layer may be chosen by goals."""
    size, hidden = encoding_size(spec, settings) + action, settings.hidden_units
    goals = conditioning_goals(spec, settings)
    if not goals:
        return layers(f"{BODY}.seq_layers", size, hidden, settings.num_layers)
    last = settings.num_layers - 1
    inputs = size if last == 0 else hidden
    ours, theirs = ("body", f"layer_{last}"), f"{BODY}.layers.{2 * last}"
    return (
        *layers(f"{BODY}.layers", size, hidden, last),
        *linear((*ours, "hidden_0"), (f"{theirs}.hypernet.0",), sum(end - start for start, end in goals), (hidden,)),
        *linear((*ours, "hidden_1"), (f"{theirs}.hypernet.2",), hidden, (hidden,)),
        *linear((*ours, "made"), (f"{theirs}.hypernet.5",), hidden, (inputs * hidden,)),
        Entry((*ours, "bias"), (f"{theirs}.bias",), ((hidden,),), BIAS),
    )


def layers(prefix: str, inputs: int, hidden: int, count: int) -> Layout:
    """Return the plain layers of a body; the indices in the names count the activations as well."""
    entries: list[Entry] = []
    for i in range(count):
        entries += linear(("body", f"layer_{i}"), (f"{prefix}.{2 * i}",), inputs, (hidden,))
        inputs = hidden
    return tuple(entries)


def attention(path: tuple[str, ...], name: str, embedding: int) -> Layout:
    """Return the layout of a residual self attention; queries, keys and values are one layer here."""
    parts = tuple(f"{name}.fc_{part}" for part in "qkv")
    out = f"{name}.fc_out"
    return (
        *linear((*path, "qkv"), parts, embedding, (embedding,) * 3),
        Entry((*path, "out_kernel"), (f"{out}.weight",), ((embedding, embedding),), KERNEL),
        Entry((*path, "out_bias"), (f"{out}.bias",), ((embedding,),), BIAS),
    )


def _entities(spec: BehaviorSpec, settings: NetworkSettings) -> Layout:
    """Return the layout of embeddings, the input of the agent itself, and the attention over all of them."""
    sensors = [(i, o) for i, o in enumerate(spec.observations) if kind_of(o) == "entities"]
    if not sensors:
        return ()
    self_size, path = encoding_size(spec, settings) - EMBEDDING, ("encoder", "entities")
    entries: list[Entry] = []
    if self_size:
        entries += linear((*path, "self"), (f"{ENCODER}.x_self_encoder.seq_layers.0",), self_size, (EMBEDDING,))
    for j, (i, observation) in enumerate(sensors):
        inputs = observation.shape[1] + (EMBEDDING if self_size else 0)
        name = f"{ENCODER}.processors.{i}.self_ent_encoder.seq_layers.0"
        entries += linear((*path, f"embed_{j}"), (name,), inputs, (EMBEDDING,))
    return (*entries, *attention((*path, "attention"), f"{ENCODER}.rsa", EMBEDDING))


def _image(
    path: tuple[str, ...], name: str, observation: ObservationSpec, settings: NetworkSettings
) -> Iterator[Entry]:
    flat = int(np.prod(visual.image_encoder(settings).features(observation.shape)))  # inputs of the linear layer
    channels, trunk = observation.shape[0], (*path, "trunk")
    if settings.vis_encode_type == "resnet":
        yield from _resnet(trunk, f"{name}.sequential", channels)
        yield from linear((*path, "dense"), (f"{name}.dense",), flat, (settings.hidden_units,))
        return
    for i, layer in enumerate(visual.image_encoder(settings).layers):
        yield from filters(
            (*trunk, f"convolution_{i}"), f"{name}.conv_layers.{2 * i}", channels, layer.features, layer.side
        )
        channels = layer.features
    yield from linear((*path, "dense"), (f"{name}.dense.0",), flat, (settings.hidden_units,))


def _resnet(trunk: tuple[str, ...], name: str, channels: int) -> Iterator[Entry]:
    """Yield four modules per stack: filters, pool, block, block; a block's filters are its modules 1 and 3."""
    for i, maps in enumerate(resnet.CHANNELS):
        yield from filters((*trunk, f"stack_{i}"), f"{name}.{4 * i}", channels, maps, resnet.SIDE)
        for j in range(resnet.BLOCKS):
            block = f"{name}.{4 * i + 2 + j}.layers"
            for module, part in ((1, "first"), (3, "second")):
                ours = (*trunk, f"stack_{i}_block_{j}_{part}")
                yield from filters(ours, f"{block}.{module}", maps, maps, resnet.SIDE)
        channels = maps

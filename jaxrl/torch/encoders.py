"""Layouts of observation encoders and of bodies, whose last layer a goal may choose."""

from __future__ import annotations

from collections.abc import Iterator

from jaxrl.networks import resnet, visual
from jaxrl.networks.body import conditioning_goals
from jaxrl.networks.encoders import kind_of
from jaxrl.networks.entities import EMBEDDING
from jaxrl.networks.observations import encoding_size
from jaxrl.networks.settings import NetworkShape
from jaxrl.torch.layout import BIAS, KERNEL, Entry, Layout, filters, linear
from jaxrl.types import BehaviorSpec, ObservationSpec

ENCODER = "network_body.observation_encoder"
BODY = "network_body._body_endoder"


def encoders(spec: BehaviorSpec, settings: NetworkShape) -> Layout:
    """Layout of `networks.observations.ObservationEncoder` as "encoder/...", without normalisers."""
    found: list[Entry] = []
    for i, observation in enumerate(spec.observations):
        if kind_of(observation) == "visual":
            found += _image(("encoder", f"observation_{i}"), f"{ENCODER}.processors.{i}", observation, settings)
    return (*found, *_entities(spec, settings))


def conditioned_body(spec: BehaviorSpec, settings: NetworkShape) -> Layout:
    """Layout of the body of actors and value networks as "body/...": plain layers, or the last one chosen by goals."""
    size, hidden, goals = encoding_size(spec, settings), settings.hidden_units, conditioning_goals(spec, settings)
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
    """Plain layers of a body; the indices in the names count the activations as well."""
    entries: list[Entry] = []
    for i in range(count):
        entries += linear(("body", f"layer_{i}"), (f"{prefix}.{2 * i}",), inputs, (hidden,))
        inputs = hidden
    return tuple(entries)


def attention(path: tuple[str, ...], name: str, embedding: int) -> Layout:
    """A residual self attention; queries, keys and values are one layer here."""
    parts = tuple(f"{name}.fc_{part}" for part in "qkv")
    out = f"{name}.fc_out"
    return (
        *linear((*path, "qkv"), parts, embedding, (embedding,) * 3),
        Entry((*path, "out_kernel"), (f"{out}.weight",), ((embedding, embedding),), KERNEL),
        Entry((*path, "out_bias"), (f"{out}.bias",), ((embedding,),), BIAS),
    )


def _entities(spec: BehaviorSpec, settings: NetworkShape) -> Layout:
    """Embeddings, what they see of the agent itself, and the attention over all of them."""
    found = [(i, o) for i, o in enumerate(spec.observations) if kind_of(o) == "entities"]
    if not found:
        return ()
    own, path = encoding_size(spec, settings) - EMBEDDING, ("encoder", "entities")
    entries: list[Entry] = []
    if own:
        entries += linear((*path, "self"), (f"{ENCODER}.x_self_encoder.seq_layers.0",), own, (EMBEDDING,))
    for j, (i, observation) in enumerate(found):
        inputs = observation.shape[1] + (EMBEDDING if own else 0)
        name = f"{ENCODER}.processors.{i}.self_ent_encoder.seq_layers.0"
        entries += linear((*path, f"embed_{j}"), (name,), inputs, (EMBEDDING,))
    return (*entries, *attention((*path, "attention"), f"{ENCODER}.rsa", EMBEDDING))


def _image(path: tuple[str, ...], name: str, observation: ObservationSpec, settings: NetworkShape) -> Iterator[Entry]:
    flat = visual.flat_size(observation, settings)
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
    """Per stack four modules: filters, pool, block, block; a block's filters are its modules 1 and 3."""
    for i, features in enumerate(resnet.CHANNELS):
        yield from filters((*trunk, f"stack_{i}"), f"{name}.{4 * i}", channels, features, resnet.SIDE)
        for j in range(resnet.BLOCKS):
            block = f"{name}.{4 * i + 2 + j}.layers"
            for module, part in ((1, "first"), (3, "second")):
                ours = (*trunk, f"stack_{i}_block_{j}_{part}")
                yield from filters(ours, f"{block}.{module}", features, features, resnet.SIDE)
        channels = features

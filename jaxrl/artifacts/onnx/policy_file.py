"""The policy in an ONNX file of anybody's, as a pure function of what agents see, remember and draw.

The graphs draw actions themselves, by RandomNormalLike and Multinomial, and no seed of the caller's repeats that. Each
of these operators becomes an input when a file is read: normal noise for the first, Gumbel noise for the second, since
argmax(log p + noise) is distributed as p. Without noise a policy takes its mean and its most likely actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.onnx.check import LARGEST, NN, NN_REMEDY, contract
from jaxrl.artifacts.onnx.findings import Outcome
from jaxrl.artifacts.onnx.model_inputs import (
    LEGACY,
    MASKS,
    MEMORY_IN,
    MEMORY_OUT,
    NOISE,
    VECTOR,
    SensorInput,
    is_sensor,
    sensor_inputs,
    separate_actions,
)
from jaxrl.artifacts.onnx.model_spec import observations_of, sensor_of
from jaxrl.artifacts.onnx.session import DTYPES, Outputs, open_session, run, run_on_zeros
from jaxrl.regular_files import read_regular
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec

_BRIGHTEST = 255.0
"""Largest brightness of images in whole numbers."""
_DRAWS = ("RandomNormalLike", "Multinomial")
_OTHER_DRAWS = ("Bernoulli", "RandomNormal", "RandomUniform", "RandomUniformLike")
_NOISE = "jaxrl/noise"


class Noise(NamedTuple):
    """An input of random numbers."""

    name: str
    is_gumbel: bool  # else of a normal distribution
    size: int  # numbers for each agent


class Answer(NamedTuple):
    """Decisions of N agents."""

    action: Action  # as the environment receives it
    memory: np.ndarray  # float32 [N, m]


class PolicyFile:
    """A policy that Unity would run, for a behavior.

    Args:
      path: the file.
      spec: what the agents see and do; None: as the file says it.

    Raises ArtifactError where there is no such model, where Unity would refuse it for this behavior, where it draws in
    a way that cannot be repeated, or where it does not say what its agents do and `spec` is None.
    """

    def __init__(self, path: Path, spec: BehaviorSpec | None = None) -> None:
        model = _read(path)
        refused = [f for f in contract(path, spec) if f.outcome is Outcome.REFUSED]
        if refused:
            texts, remedies = ("; ".join(dict.fromkeys(f[field] for f in refused[:3])) for field in (2, 3))
            raise ArtifactError(f"{path}: cannot be played: {texts}: {remedies}")
        draws, sources = _with_noise_inputs(model, path)
        self._session = open_session(model.SerializeToString())
        outputs = separate_actions(run_on_zeros(self._session))
        self._version = float(outputs["version_number"].ravel()[0])
        self._inputs = {node.name: DTYPES[node.type] for node in self._session.get_inputs()}
        self._outputs = [node.name for node in self._session.get_outputs() if node.name not in sources]
        self._shapes = {node.name: node.shape for node in self._session.get_inputs()}
        self.memory_size = int(outputs["memory_size"].ravel()[0])
        self.spec = spec or BehaviorSpec(_sensors(path, self._shapes, self._version), _actions(path, outputs))
        self._sensors = [each for each in sensor_inputs(self.spec, self._version) if each.name in self._inputs]
        self.noise = tuple(self._noises(draws, sources, outputs))

    def _noises(self, draws: Sequence[str], sources: Sequence[str], outputs: Outputs) -> Iterator[Noise]:
        for name, source in zip(draws, sources, strict=True):
            yield Noise(name, "Multinomial" in name, outputs[source].shape[-1])
        if NOISE in self._inputs:
            yield Noise(NOISE, False, int(self._shapes[NOISE][-1]))
        if self._version == LEGACY and self.spec.action.discrete_branches:
            yield Noise("", True, self.spec.action.mask_size)  # drawn behind the graph, as Unity does

    def act(
        self,
        obs: Sequence[np.ndarray],
        action_mask: np.ndarray,
        memory: np.ndarray,
        noise: Sequence[np.ndarray] | None,
    ) -> Answer:
        """Decide for N agents.

        Args:
          obs: one array [N, *shape] per sensor, images as numbers from 0 to 1 or as bytes.
          action_mask: bool [N, M], True where allowed.
          memory: float32 [N, m].
          noise: float32 [N, size] for each of `self.noise`; None: the deterministic outputs, as Unity's Deterministic
            Inference has them, or where the file has none, the mean and the most likely actions.
        """
        rows, action = len(action_mask), self.spec.action
        drawn = {each.name: np.zeros((rows, each.size), np.float32) for each in self.noise}
        if noise is not None:
            drawn = dict(zip(drawn, noise, strict=True))
        outputs = separate_actions(run(self._session, self._outputs, self._feed(obs, action_mask, memory, drawn)))
        name = "" if noise is not None else "deterministic_"
        continuous, discrete = np.zeros((rows, 0)), np.zeros((rows, 0))
        if action.continuous_size:
            continuous = outputs.get(f"{name}continuous_actions", outputs["continuous_actions"])
        if action.discrete_branches and self._version == LEGACY:
            discrete = _most_likely(outputs["discrete_actions"] + drawn[""], action.discrete_branches)
        elif action.discrete_branches:
            discrete = outputs.get(f"{name}discrete_actions", outputs["discrete_actions"])
        remembered = outputs[MEMORY_OUT][:, 0] if self.memory_size else memory
        return Answer(Action(continuous.astype(np.float32), discrete.astype(np.int32)), remembered.astype(np.float32))

    def _feed(
        self, obs: Sequence[np.ndarray], action_mask: np.ndarray, memory: np.ndarray, drawn: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        values = {**drawn, MASKS: action_mask, MEMORY_IN: memory[:, None]}
        values |= {each.name: _shown(each, obs) for each in self._sensors}
        rows = len(action_mask)
        return {
            name: np.asarray(values[name], dtype)
            if name in values
            else np.zeros((rows, *(size if isinstance(size, int) else 1 for size in self._shapes[name][1:])), dtype)
            for name, dtype in self._inputs.items()
        }


def _read(path: Path) -> onnx.ModelProto:
    if path.suffix.lower() == ".nn":
        raise ArtifactError(f"{path}: {NN}: {NN_REMEDY}")
    try:
        model = onnx.load_model_from_string(read_regular(path, LARGEST))
    except (OSError, DecodeError, ValueError, TypeError) as error:
        raise ArtifactError(f"{path}: cannot be read as an ONNX model: {' '.join(str(error).split())[:300]}") from None
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise ArtifactError(f"{path}: its weights lie in another file: export it with all weights in one")
    return model


def _with_noise_inputs(model: onnx.ModelProto, path: Path) -> tuple[list[str], list[str]]:
    """Make an input of each operator that draws.

    Returns the names of these inputs, and of outputs that are added, of the same sizes. Raises ArtifactError.
    """
    graph, nodes, names, sources = model.graph, [], [], []
    others = sorted({n.op_type for n in _inner_nodes(graph) if n.op_type in (*_DRAWS, *_OTHER_DRAWS)})
    others += [n.op_type for n in graph.node if n.op_type in _OTHER_DRAWS]
    if others:
        raise ArtifactError(
            f"{path}: draws by {', '.join(others)}, which no seed repeats: expected {' or '.join(_DRAWS)}"
        )
    for number, node in enumerate(graph.node):
        if node.op_type not in _DRAWS:
            nodes.append(node)
            continue
        samples = next((attribute.i for attribute in node.attribute if attribute.name == "sample_size"), 1)
        if samples != 1:
            raise ArtifactError(f"{path}: {node.name or node.output[0]} draws {samples} indices at once, expected one")
        name, source = f"{_NOISE}/{node.op_type}/{number}", f"{_NOISE}/like/{number}"
        nodes.append(helper.make_node("Identity", [node.input[0]], [source]))
        nodes += _normal(node, name) if node.op_type == "RandomNormalLike" else _drawn_choice(node, name)
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None]))
        graph.output.append(helper.make_tensor_value_info(source, TensorProto.FLOAT, None))
        names.append(name)
        sources.append(source)
    del graph.node[:]
    graph.node.extend(nodes)
    return names, sources


def _normal(node: onnx.NodeProto, noise: str) -> list[onnx.NodeProto]:
    """Make the nodes that replace RandomNormalLike."""
    values = {attribute.name: attribute.f for attribute in node.attribute}
    scale, mean = (f"{noise}/{name}" for name in ("scale", "mean"))
    return [
        helper.make_node("Constant", [], [scale], value=_number(values.get("scale", 1.0))),
        helper.make_node("Constant", [], [mean], value=_number(values.get("mean", 0.0))),
        helper.make_node("Mul", [noise, scale], [f"{noise}/scaled"]),
        helper.make_node("Add", [f"{noise}/scaled", mean], [node.output[0]]),
    ]


def _drawn_choice(node: onnx.NodeProto, noise: str) -> list[onnx.NodeProto]:
    """Make the nodes that replace Multinomial with one sample."""
    dtype = {attribute.name: attribute.i for attribute in node.attribute}.get("dtype", TensorProto.INT32)
    return [
        helper.make_node("Add", [node.input[0], noise], [f"{noise}/sum"]),
        helper.make_node("ArgMax", [f"{noise}/sum"], [f"{noise}/choice"], axis=1, keepdims=1),
        helper.make_node("Cast", [f"{noise}/choice"], [node.output[0]], to=dtype),
    ]


def _number(value: float) -> TensorProto:
    return helper.make_tensor("", TensorProto.FLOAT, [], [value])


def _inner_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of graphs within nodes."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from attribute.g.node
                yield from _inner_nodes(attribute.g)


def _sensors(path: Path, shapes: dict[str, list[int | str]], version: float) -> tuple[ObservationSpec, ...]:
    if version != LEGACY:
        return observations_of(path)
    names = sorted((name for name in shapes if is_sensor(name, version)), key=lambda name: (name != VECTOR, name))
    return tuple(sensor_of(path, name, tuple(shapes[name][1:])) for name in names)


def _actions(path: Path, outputs: Outputs) -> ActionSpec:
    """Read the actions that the model gives its agents."""
    continuous, discrete = (
        [int(size) for size in outputs[name].ravel()] if (name := f"{kind}_action_output_shape") in outputs else []
        for kind in ("continuous", "discrete")
    )
    if discrete and outputs["version_number"].ravel()[0] == LEGACY:
        raise ArtifactError(
            f"{path}: a model of version 2, which tells the sum of its branches alone, {discrete[0]}: name the "
            "environment that it plays"
        )
    return ActionSpec(sum(continuous), tuple(discrete))


def _shown(each: SensorInput, obs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the observation of an input, [N, *shape]."""
    parts = [np.asarray(obs[i], np.float32) / (_BRIGHTEST if obs[i].dtype == np.uint8 else 1.0) for i in each.sensors]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _most_likely(values: np.ndarray, branches: Sequence[int]) -> np.ndarray:
    """Return the index of the largest value of each branch, [N, D]."""
    parts = np.split(values, np.cumsum(branches)[:-1], axis=-1)
    return np.stack([part.argmax(axis=-1) for part in parts], axis=-1)

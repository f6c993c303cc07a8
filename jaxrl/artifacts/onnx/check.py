"""Checks a model as Unity's ML-Agents package (4.x) does before it uses it.

The model is run once on zero inputs, as Unity does. `examine` takes any model, also of ML-Agents, and reports every
check, passed or not; `check_contract` reports the faults of a file that jaxrl has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.onnx.findings import Finding, Outcome
from jaxrl.artifacts.onnx.model_inputs import (
    KINDS,
    LEGACY,
    MASKS,
    MEMORY_IN,
    TOLERATED,
    VECTOR,
    VISUAL,
    is_sensor,
    names_sensors,
    sensor_inputs,
    separate_actions,
)
from jaxrl.artifacts.onnx.operators import operator_findings, weight_findings
from jaxrl.artifacts.onnx.session import DTYPES, Outputs, RuntimeErrors, open_session, run_on_zeros
from jaxrl.regular_files import read_regular
from jaxrl.types import BehaviorSpec

_PER_AGENT = ("continuous_actions", "discrete_actions", "recurrent_out")
Shapes = dict[str, list[int | str]]
"""Shapes of the inputs by name; the first axis is that of agents."""
LARGEST = 2**29
"""Largest size of a model in bytes; policies have some millions."""
_EXPORT = "export it with ML-Agents 0.28 or later, or with jaxrl"
NN = "is a model of Barracuda (.nn), not of ONNX; Unity's packages from 3.0 on do not read it"
NN_REMEDY = "give the .onnx of the same training, or train anew: files of a later ML-Agents, and of jaxrl, are .onnx"
_WARNING, _REFUSED = Outcome.WARNING, Outcome.REFUSED


def examine(path: Path, spec: BehaviorSpec | None = None) -> list[Finding]:
    """Make all checks of Unity, in its order, and check the operators against its engines.

    `spec`: of the behavior that is to use the model; None: comparisons with a spec stay open.
    Raises ArtifactError where there is no file to look at.
    """
    if not path.is_file():
        raise ArtifactError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give an .onnx file")
    if path.suffix.lower() == ".nn":
        return [Finding("file", _REFUSED, f"{path}: {NN}", NN_REMEDY)]
    try:
        model = onnx.load_model_from_string(read_regular(path, LARGEST))
        findings = [*weight_findings(model), *operator_findings(model)]
    except (OSError, DecodeError, ValueError, TypeError, IndexError, RecursionError) as error:
        return [Finding("file", _REFUSED, f"{path}: cannot be read as ONNX: {_line(error)}", "give an .onnx file")]
    return [*contract(path, spec), *findings]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def check_contract(path: Path, spec: BehaviorSpec) -> list[str]:
    """Return reasons why Unity would reject or warn of the file, one line each; empty when it fits the behavior."""
    return [finding.text for finding in contract(path, spec) if finding.outcome in (_WARNING, _REFUSED)]


def contract(path: Path, spec: BehaviorSpec | None) -> list[Finding]:
    """Check inputs, version, memory and outputs. A check without a finding of its own has one that all is well."""
    try:
        session = open_session(str(path))
    except RuntimeErrors as error:
        text = f"{path}: ONNX Runtime cannot load it: {_line(error)}"
        return [Finding("file", _REFUSED, text, "write the file anew, or simplify its operators")]
    unknown = [node for node in session.get_inputs() if node.type not in DTYPES]
    if unknown:
        texts = (f"input '{node.name}' is of type {node.type}, expected {', '.join(DTYPES)}" for node in unknown)
        return [Finding("inputs", _REFUSED, text, "make it float32") for text in texts]
    inputs = {node.name: list(node.shape) for node in session.get_inputs()}
    try:
        outputs = separate_actions(run_on_zeros(session))
    except (*RuntimeErrors, MemoryError) as error:
        text = f"{path}: ONNX Runtime cannot run it on zero inputs: {_line(error)}"
        failed = Finding("run", _REFUSED, text, "make all inputs work for a batch of one")
        return [*_input_findings(inputs, spec, _version_by_names(inputs)), failed]
    version = _number(outputs, "version_number")
    return [
        *_or_ok(_input_findings(inputs, spec, version), "inputs", _listed(inputs)),
        *_or_ok(_version_findings(outputs), "version", f"version_number is {version}"),
        *_or_ok(_memory_findings(outputs, inputs), "memory", f"memory_size is {_number(outputs, 'memory_size')}"),
        *_or_ok(_action_findings(outputs, inputs, spec), "actions", _actions(outputs)),
        *_batch_findings(session, outputs),
    ]


def _version_by_names(inputs: Shapes) -> int | None:
    """Return version 2 for a model with inputs of that version; None where they say nothing."""
    return LEGACY if any(name == VECTOR or name.startswith(VISUAL) for name in inputs) else None


def _batch_findings(session: onnxruntime.InferenceSession, outputs: Outputs) -> Iterator[Finding]:
    """Yield findings about the batch: Unity asks for all agents at once, so rows must be open, and kept."""
    fixed = [node.name for node in session.get_inputs() if node.shape and isinstance(node.shape[0], int)]
    remedy = "leave the first axis of every input open (dynamic_axes of torch.onnx.export)"
    if fixed:
        text = f"{', '.join(fixed)}: the number of agents is fixed to {session.get_inputs()[0].shape[0]}"
        yield Finding("batch", _REFUSED, text, remedy)
        return
    per_agent = [name for name in outputs if name.removeprefix("deterministic_") in _PER_AGENT]
    try:
        for name, value in separate_actions(run_on_zeros(session, rows=3)).items():
            if name in per_agent and value.shape[:1] != (3,):
                text = f"output '{name}' is {list(value.shape)} for three agents"
                yield Finding("batch", _REFUSED, text, remedy)
    except RuntimeErrors as error:
        yield Finding("batch", _REFUSED, f"it cannot be run for three agents: {_line(error)}", remedy)


def _or_ok(found: list[Finding] | Iterator[Finding], check: str, text: str) -> list[Finding]:
    return list(found) or [Finding(check, Outcome.OK, text)]


def _input_findings(inputs: Shapes, spec: BehaviorSpec | None, version: float | None) -> Iterator[Finding]:
    """Yield findings about inputs: each sensor needs an input of its shape; discrete actions need masks."""
    if spec is None:
        yield from _inputs_without_spec(inputs, version)
        return
    expected = {needed.name: needed.shape for needed in sensor_inputs(spec, version)}
    if spec.action.discrete_branches:
        expected[MASKS] = (spec.action.mask_size,)
    remedy = "train for the sensors and actions that the agent has, or give the agent those that the model was made for"
    for name, shape in expected.items():
        wanted = f"expected [batch, {', '.join(map(str, shape))}]"
        if name not in inputs:
            yield Finding("inputs", _REFUSED, f"input '{name}' is missing, {wanted}", remedy)
        elif tuple(inputs[name][1:]) != shape:
            yield Finding("inputs", _REFUSED, f"input '{name}' is {inputs[name]}, {wanted}", remedy)
    for name in sorted(inputs.keys() - expected.keys() - {MEMORY_IN, *TOLERATED}):
        if version == LEGACY and name.startswith(VISUAL):
            yield Finding("inputs", _REFUSED, f"input '{name}' belongs to no camera of the agent", remedy)
            continue
        text = f"input '{name}' is not known to Unity and belongs to no sensor"
        yield Finding("inputs", _WARNING, text, "remove the input, or add the sensor that it is meant for")


def _inputs_without_spec(inputs: Shapes, version: float | None) -> Iterator[Finding]:
    sensors = [name for name in inputs if is_sensor(name, version)]
    if names_sensors(sensors, version):
        text = f"{_listed({name: inputs[name] for name in sensors})}: has to be what the agent's sensors show"
        yield Finding("inputs", Outcome.OPEN, text, "give --env, --config, or a file that lies in its run folder")
    else:
        names = f"{VECTOR}, {VISUAL}0 ... (version 2)" if version == LEGACY else "obs_0, obs_1 ..."
        text = f"{_listed(inputs)}, expected {names}"
        yield Finding("inputs", _REFUSED, text, f"one input for each sensor, in their order; {_EXPORT}")
    for name in sorted(inputs.keys() - {*sensors, MASKS, MEMORY_IN, *TOLERATED}):
        text = f"input '{name}' is not known to Unity and belongs to no sensor"
        yield Finding("inputs", _WARNING, text, "remove the input")


def _version_findings(outputs: Outputs) -> Iterator[Finding]:
    version = _number(outputs, "version_number")
    if version is None:
        yield Finding("version", _REFUSED, "output 'version_number' is missing, expected 3", _EXPORT)
    elif not 2 <= version <= 3:
        yield Finding("version", _REFUSED, f"output 'version_number' is {version:g}, expected 2 or 3", _EXPORT)


def _memory_findings(outputs: Outputs, inputs: Shapes) -> Iterator[Finding]:
    """Yield findings about memory, which needs input and output [batch, 1, memory_size], and version 3."""
    memory = _number(outputs, "memory_size")
    if memory is None:
        yield Finding("memory", _REFUSED, "output 'memory_size' is missing, expected 0 without memory", _EXPORT)
        return
    if memory <= 0:
        return
    if _number(outputs, "version_number") == LEGACY:
        yield Finding("memory", _REFUSED, "models of version 2 with memory are rejected", _EXPORT)
        return
    for kind, name, shapes in (
        ("input", "recurrent_in", inputs),
        ("output", "recurrent_out", {key: list(value.shape) for key, value in outputs.items()}),
    ):
        if name not in shapes:
            yield Finding("memory", _REFUSED, f"memory_size is {memory:g} but the {kind} '{name}' is missing", _EXPORT)
        elif shapes[name][1:] != [1, memory]:
            text = f"{kind} '{name}' is {shapes[name]}, expected [batch, 1, {memory:g}]"
            yield Finding("memory", _REFUSED, text, "memory_size, recurrent_in and recurrent_out belong together")


def _action_findings(outputs: Outputs, inputs: Shapes, spec: BehaviorSpec | None) -> Iterator[Finding]:
    """Yield findings about sampled, deterministic and shape outputs of each kind of action that the behavior has."""
    if spec is None:
        yield from _actions_without_spec(outputs, inputs)
        return
    branches = list(spec.action.discrete_branches)
    if _number(outputs, "version_number") == LEGACY:
        branches = [sum(branches)]
    kinds = {"continuous": [spec.action.continuous_size], "discrete": branches}
    for kind, sizes in kinds.items():
        if sum(sizes):
            yield from _kind_findings(outputs, kind, sizes)
        elif f"{kind}_actions" in outputs:
            text = f"output '{kind}_actions' exists, but the behavior has no {kind} actions"
            yield Finding("actions", _REFUSED, text, "set the agent's actions to those that the model was made for")
    if not any(sum(sizes) for sizes in kinds.values()):
        yield Finding("actions", _REFUSED, "the behavior has no actions", "give the agent actions")


def _actions_without_spec(outputs: Outputs, inputs: Shapes) -> Iterator[Finding]:
    """Yield findings where the model's own statements about actions disagree."""
    kinds = [kind for kind in KINDS if f"{kind}_actions" in outputs]
    if not kinds:
        yield Finding("actions", _REFUSED, "neither 'continuous_actions' nor 'discrete_actions' is an output", _EXPORT)
    if "discrete" in kinds and "action_masks" not in inputs:
        yield Finding("actions", _REFUSED, "discrete actions need the input 'action_masks'", _EXPORT)
    for kind in kinds:
        shape = f"{kind}_action_output_shape"
        if shape in outputs:
            sizes = [int(size) for size in outputs[shape].ravel() if np.isfinite(size)]
            yield from _kind_findings(outputs, kind, sizes)
            if kind == "discrete" and inputs.get("action_masks", [])[1:] not in ([], [sum(sizes)]):
                text = (
                    f"input 'action_masks' is {inputs['action_masks']}, '{shape}' says {sizes}, which is {sum(sizes)}"
                )
                yield Finding("actions", _REFUSED, text, _EXPORT)
        else:
            yield Finding("actions", _REFUSED, f"output '{shape}' is missing", _EXPORT)


def _kind_findings(outputs: Outputs, kind: str, sizes: list[int]) -> Iterator[Finding]:
    wide = kind == "continuous" or _number(outputs, "version_number") == LEGACY
    width = sum(sizes) if wide else len(sizes)
    for name, missing in ((f"{kind}_actions", _REFUSED), (f"deterministic_{kind}_actions", _WARNING)):
        if name not in outputs:
            remedy = _EXPORT if missing is _REFUSED else "leave Deterministic Inference off, which reads it"
            yield Finding("actions", missing, f"output '{name}' is missing", remedy)
        elif outputs[name].shape != (1, width):
            text = f"output '{name}' is {list(outputs[name].shape)} for one agent, expected [1, {width}]"
            yield Finding("actions", _REFUSED, text, "set the agent's actions to those that the model was made for")
    name = f"{kind}_action_output_shape"
    if name not in outputs:
        yield Finding("actions", _REFUSED, f"output '{name}' is missing", _EXPORT)
    elif outputs[name].dtype != np.float32 or outputs[name].ravel().tolist() != sizes:
        text = f"output '{name}' is {outputs[name].tolist()} ({outputs[name].dtype}), expected {sizes} as float32"
        yield Finding("actions", _REFUSED, text, "set the agent's actions to those that the model was made for")


def _number(outputs: Outputs, name: str) -> float | None:
    """Return a constant output as a number; None where it is missing."""
    value = outputs.get(name)
    if value is None or not value.size or not np.issubdtype(value.dtype, np.number):
        return None
    return float(value.ravel()[0])


def _listed(shapes: Shapes) -> str:
    return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items()) or "no input"


def _actions(outputs: Outputs) -> str:
    sizes = (outputs.get(f"{kind}_action_output_shape") for kind in KINDS)
    pairs = zip(KINDS, sizes, strict=True)
    numbers = ((kind, size.ravel()) for kind, size in pairs if size is not None)
    return ", ".join(f"{kind} {[int(n) if np.isfinite(n) else n for n in size]}" for kind, size in numbers)

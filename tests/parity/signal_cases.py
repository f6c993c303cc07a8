"""Family g: reward signals that learn, on one minibatch, through the signals themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import make_settings
from jaxrl.demonstrations import Demonstration
from jaxrl.networks import normalizer
from jaxrl.networks.normalizer import NormalizerState
from jaxrl.rewards import gail, make_signal
from jaxrl.rewards.interface import RewardSignal
from jaxrl.rollout.transitions import Transitions
from jaxrl.torch import weights as torch_weights
from jaxrl.types import Action
from tests.parity.cases import Case
from tests.parity.compare import GRADIENT_FLOOR, TINY, Comparison

LINEAR = {
    "forward_hidden": "forward_model_next_state_prediction.0.seq_layers.0",
    "forward_out": "forward_model_next_state_prediction.1",
    "inverse_hidden": "inverse_model_action_encoding.0.seq_layers.0",
    "continuous": "continuous_action_prediction",
    "discrete": "discrete_action_prediction",
}
"""Where the original keeps the layers of both models, by our name."""
DISCRIMINATOR = {"estimate": "_estimator.0", "code": "_z_mu_layer"}
"""The same of GAIL."""


def run_curiosity(case: Case) -> Comparison:
    """Rewards before and after each of three updates, losses, gradients and weights."""
    comparison, signal, seen = Comparison(), _signal(case), _seen(case)
    state = {**signal.init(jax.random.key(0)), "params": _models(case, "w/")}
    told, raw, paid = [], [], []
    strength = case.meta["settings"]["strength"]
    for count in range(4):
        state = {**state, "learned": jnp.array(count > 0)}
        raw.append(_raw(signal, state, seen, strength))
        paid.append(signal.reward(state, seen, cooperative=False))
        if count == 3:
            break
        assert signal.gradient is not None
        gradient, metrics = signal.gradient(state, seen, jax.random.key(0))
        told.append(metrics)
        if count == 0:
            first = _exported(case, gradient)
            _gradients(case, comparison, first)
        state = signal.apply(state, gradient)
        if case.below(f"w{count + 1}/"):
            _weights(case, comparison, f"w{count + 1}/", _exported(case, state["params"]), count + 1)
    forward, inverse = (np.array([one[name] for one in told]) for name in ("forward_loss", "inverse_loss"))
    total = 10 * (0.2 * forward + 0.8 * inverse)
    found = {"reward": paid, "reward_stream": strength * np.array(paid)}
    found |= {"raw_reward": raw, "forward_loss": forward, "inverse_loss": inverse, "total_loss": total}
    for name, ours in found.items():
        comparison.add(f"out/{name}", np.array(ours), case.arrays[f"out/{name}"])
    return comparison


def run_rnd(case: Case) -> Comparison:
    """The calls of `operations`, after each of which the original's normaliser has moved, ours only if told to."""
    comparison, signal, seen = Comparison(), _signal(case), _seen(case)
    statistics = _statistics(case, "w/predictor/_encoder.")
    state = signal.init(jax.random.key(0))
    state |= {"params": _body(case, "w/predictor/_encoder."), "target": _body(case, "w/target/_encoder.")}
    state |= {"normalizer": statistics} if statistics else {}
    paid, losses = [], []
    everywhere = seen._replace(valid=jnp.ones_like(seen.valid))  # as the original, which does not look at masks
    for number, operation in enumerate(case.meta["operations"]):
        if operation == "evaluate":
            paid.append(signal.reward(state, seen, cooperative=False))
            state = signal.watch(state, everywhere)
        else:
            assert signal.gradient is not None
            gradient, told = signal.gradient(state, everywhere, jax.random.key(0))
            losses.append(told["loss"])
            if len(losses) == 1:
                _gradients(case, comparison, _names(case, gradient, "_encoder."))
            state = signal.watch(signal.apply(state, gradient), everywhere)
            place = f"w{len(losses)}/"
            if case.below(place):
                ours = _names(case, state["params"], "predictor/_encoder.")
                ours |= _names(case, state["target"], "target/_encoder.")
                for network in ("predictor", "target"):
                    ours |= _exported_statistics(state["normalizer"], f"{network}/_encoder.")
                _weights(case, comparison, place, ours, len(losses))
        _after(case, comparison, number, state["normalizer"])
    strength = case.meta["settings"]["strength"]
    for name, ours in {"reward": paid, "reward_stream": strength * np.array(paid), "loss": losses}.items():
        comparison.add(f"out/{name}", np.array(ours), case.arrays[f"out/{name}"])
    return comparison


def run_gail(case: Case) -> Comparison:
    """Rewards before and after each of three updates, what is told of them, gradients and weights."""
    comparison, seen = Comparison(), _seen(case)
    everywhere = seen._replace(valid=jnp.ones_like(seen.valid))  # as the original, which does not look at masks
    demo = _demonstration(case)
    signal = _compiled(gail.gail(case.spec, _section(case, demo_path="unread"), demo))
    state = {**signal.init(jax.random.key(0)), "params": _discriminator(case, "w/")}
    state["normalizer"] = _statistics(case, "w/encoder.") or state["normalizer"]
    if "beta" in state:
        state["beta"] = jnp.asarray(case.arrays["w/_beta"])
    paid, told = [], []
    for count in (1, 2, 3):
        paid.append(signal.reward(state, seen, cooperative=False))
        draws = _draws(case, f"r{count}/")
        state = _with_experts(case, state, draws)
        assert signal.gradient is not None
        gradient, metrics = signal.gradient(state, everywhere, draws)
        told.append(metrics)
        if count == 1:
            _gradients(case, comparison, _discriminated(case, gradient[0]))
        state = signal.apply(state, gradient)
        if case.below(f"w{count}/"):
            ours = _discriminated(case, state["params"]) | _exported_statistics(state["normalizer"], "encoder.")
            _weights(case, comparison, f"w{count}/", ours | {"_beta": state.get("beta")}, count)
        _after(case, comparison, count, state["normalizer"])
    paid.append(signal.reward(state, seen, cooperative=False))
    names = {"loss": "gail_loss", "grad_mag_loss": "gradient_penalty"}
    for name in told[0]:
        ours = np.array([one[name] for one in told])
        comparison.add(f"out/{names.get(name, name)}", ours, case.arrays[f"out/{names.get(name, name)}"])
    strength = case.meta["settings"]["strength"]
    for name, ours in {"reward": paid, "reward_stream": strength * np.array(paid)}.items():
        comparison.add(f"out/{name}", np.array(ours), case.arrays[f"out/{name}"])
    return comparison


def _demonstration(case: Case) -> Demonstration:
    action, _ = case.action("demo/", "")
    obs = tuple(np.asarray(x) for x in case.observations("demo/obs_"))
    done = case.arrays["demo/done"] > 0
    no = np.zeros_like(done)
    return Demonstration(case.spec, "", obs, Action(*map(np.asarray, action)), no.astype(np.float32), done, no, no, no)


def _draws(case: Case, at: str) -> gail.Draws:
    drawn = case.below(at)
    rows, spec = jnp.asarray(drawn["expert_index"]), case.spec.action
    none = (
        np.zeros((len(rows), spec.continuous_size + spec.mask_size), np.float32),
        np.zeros((len(rows), 1), np.float32),
    )
    between = gail.Decisions(
        tuple(jnp.asarray(drawn[f"eps_obs_{i}"]) for i in range(len(case.spec.observations))),
        jnp.asarray(drawn.get("eps_action", none[0])),
        jnp.asarray(drawn.get("eps_done", none[1])),
    )
    noise = tuple(jnp.asarray(drawn[f"vail_{x}"]) for x in ("policy", "expert", "penalty") if f"vail_{x}" in drawn)
    return gail.Draws(rows, between, noise)


def _with_experts(case: Case, state: Any, draws: gail.Draws) -> Any:
    """The original's normaliser takes in the experts of an update before all else; ours knows all from the first."""
    rows = tuple(x[draws.expert] for x in case.observations("demo/obs_"))
    everywhere = jnp.ones(len(draws.expert), bool)
    return {**state, "normalizer": normalizer.update_all(state["normalizer"], rows, everywhere)}


def _discriminator(case: Case, prefix: str) -> Any:
    params = {"encoder": _body(case, f"{prefix}encoder.")["params"], **_layers(case, prefix, DISCRIMINATOR)}
    if f"{prefix}_z_sigma" in case.arrays:
        params["sigma"] = jnp.asarray(case.arrays[f"{prefix}_z_sigma"])
    return {"params": params}


def _discriminated(case: Case, params: Any) -> dict[str, np.ndarray]:
    found = _names(case, {"params": params["params"]["encoder"]}, "encoder.") | _written(params, DISCRIMINATOR)
    return found | ({"_z_sigma": np.asarray(params["params"]["sigma"])} if "sigma" in params["params"] else {})


def _layers(case: Case, prefix: str, table: dict[str, str]) -> dict[str, Any]:
    """The linear layers of the table that the fixture has, by our names."""
    found = {}
    for ours, theirs in table.items():
        if f"{prefix}{theirs}.weight" in case.arrays:
            kernel, bias = (case.arrays[f"{prefix}{theirs}.{leaf}"] for leaf in ("weight", "bias"))
            found[ours] = {"kernel": jnp.asarray(kernel.T), "bias": jnp.asarray(bias)}
    return found


def _written(params: Any, table: dict[str, str]) -> dict[str, np.ndarray]:
    """The way back."""
    found = {}
    for ours, theirs in table.items():
        if ours in params["params"]:
            layer = params["params"][ours]
            found |= {f"{theirs}.weight": np.asarray(layer["kernel"]).T, f"{theirs}.bias": np.asarray(layer["bias"])}
    return found


def _signal(case: Case) -> RewardSignal:
    return _compiled(make_signal(case.meta["signal"], case.spec, _section(case)))


def _compiled(signal: RewardSignal) -> RewardSignal:
    """Each function as one program for the case: uncompiled they are hundreds, made anew for each call."""
    assert signal.gradient is not None
    return signal._replace(
        init=jax.jit(signal.init),
        reward=jax.jit(signal.reward, static_argnames="cooperative"),
        gradient=jax.jit(signal.gradient),
        apply=jax.jit(signal.apply),
        watch=jax.jit(signal.watch),
    )


def _section(case: Case, **more: Any) -> Any:
    name = case.meta["signal"]
    network = {k: v for k, v in case.meta["network_settings"].items() if v is not None}
    section = {**case.meta["settings"], "network_settings": network, **more}
    return make_settings("ppo", reward_signals={name: section}).reward_signals[name]


def _seen(case: Case) -> Transitions:
    action, mask = case.action("mb/", "mb/action_mask")
    valid = jnp.asarray(case.arrays["mb/masks"] > 0)
    later = case.observations("mb/next_obs_") if "mb/next_obs_0" in case.arrays else case.observations("mb/obs_")
    return Transitions(
        obs=case.observations("mb/obs_"),
        carry=(),
        begin=jnp.zeros_like(valid),
        action_mask=mask,
        action=action,
        extras={},
        reward=jnp.zeros(valid.shape),
        discount=jnp.asarray(1.0 - case.arrays["mb/done"]),
        next_obs=later,
        seen=jnp.ones_like(valid),
        valid=valid,
    )


def _raw(signal: RewardSignal, state: Any, seen: Transitions, strength: float) -> jax.Array:
    """What the reward is before it is cut off: the forward loss of a minibatch of one row each."""
    gradient = signal.gradient
    assert gradient is not None
    rows = jax.tree.map(lambda x: x[:, None], seen._replace(valid=jnp.ones_like(seen.valid)))
    return jax.vmap(lambda row: gradient(state, row, jax.random.key(0))[1]["forward_loss"])(rows)


def _body(case: Case, prefix: str) -> Any:
    there = {f"network_body.{name}": x for name, x in case.below(prefix).items()}
    return torch_weights.import_arrays(there, torch_weights.body_layout(case.spec, case.network, _joining(case)))


def _joining(case: Case) -> int:
    """Numbers that join the encoding: actions and the end of the episode, in a discriminator that looks at them."""
    spec = case.spec.action
    return spec.continuous_size + spec.mask_size + 1 if case.meta["settings"].get("use_actions") else 0


def _models(case: Case, prefix: str) -> Any:
    return {"params": {"encoder": _body(case, f"{prefix}_state_encoder.")["params"], **_layers(case, prefix, LINEAR)}}


def _names(case: Case, params: Any, prefix: str) -> dict[str, np.ndarray]:
    layout = torch_weights.body_layout(case.spec, case.network, _joining(case))
    exported = torch_weights.export_arrays(params, layout)
    return {f"{prefix}{name.removeprefix('network_body.')}": np.asarray(x) for name, x in exported.items()}


def _exported(case: Case, params: Any) -> dict[str, np.ndarray]:
    return _names(case, {"params": params["params"]["encoder"]}, "_state_encoder.") | _written(params, LINEAR)


def _gradients(case: Case, comparison: Comparison, ours: dict[str, np.ndarray]) -> None:
    """Gradients of the first update; of those too large for the fixture, where they are rounding noise."""
    for name, theirs in case.below("g1/").items():
        comparison.add(f"g1/{name}", ours[name], theirs, floor=GRADIENT_FLOOR)
    for name, tiny in case.below("g1_tiny/").items():
        near = np.abs(np.abs(ours[name]) - TINY) < 0.5 * TINY
        comparison.add(f"g1_tiny/{name}", np.where(near, tiny, np.abs(ours[name]) < TINY), tiny)


def _weights(case: Case, comparison: Comparison, place: str, ours: dict[str, np.ndarray], updates: int) -> None:
    bound = updates * case.meta["settings"]["learning_rate"]
    for name, theirs in case.below(place).items():
        if ".normalizer." in name and name not in ours:  # curiosity's is never moved
            comparison.add(f"{place}{name}", case.arrays[f"w/{name}"], theirs)
            continue
        tiny = case.arrays.get(f"g1_tiny/{name}")
        if tiny is None:
            first = case.arrays.get(f"g1/{name.removeprefix('predictor/')}")
            tiny = np.zeros(theirs.shape, bool) if first is None else np.abs(first) < TINY
        comparison.add_after_adam(f"{place}{name}", ours[name], theirs, tiny, bound)


def _statistics(case: Case, prefix: str) -> tuple[NormalizerState | None, ...]:
    if not case.meta["network_settings"]["normalize"]:
        return ()
    found = []
    for i in range(len(case.spec.observations)):
        at = f"{prefix}observation_encoder.processors.{i}.normalizer."
        mean, m2, steps = (
            jnp.asarray(case.arrays[at + x], jnp.float32)
            for x in ("running_mean", "running_variance", "normalization_steps")
        )
        found.append(NormalizerState(mean, m2, steps))
    return tuple(found)


def _exported_statistics(states: tuple[NormalizerState | None, ...], prefix: str) -> dict[str, np.ndarray]:
    found = {}
    for i, state in enumerate(states):
        if state is not None:
            at = f"{prefix}observation_encoder.processors.{i}.normalizer."
            names = ("running_mean", "running_variance", "normalization_steps")
            leaves = (state.mean, state.m2, state.count)
            found |= {at + n: np.asarray(x) for n, x in zip(names, leaves, strict=True)}
    return found


def _after(case: Case, comparison: Comparison, number: int, states: tuple[NormalizerState | None, ...]) -> None:
    for name, theirs in case.below(f"o{number}/").items():
        state = states[int(name.split("_")[-2])]
        assert state is not None
        ours = {"mean": state.mean, "var": state.m2, "steps": state.count}[name.rpartition("_")[2]]
        comparison.add(f"o{number}/{name}", ours, theirs)

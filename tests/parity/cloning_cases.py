"""Family h: behavioral cloning, call by call, with the rows and the noise that the original drew."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import make_settings
from jaxrl.demonstrations import read
from jaxrl.learning import cloning
from jaxrl.networks import actions, squashed
from jaxrl.networks.models import Actor, SquashedActor
from jaxrl.settings.demonstrations import AS_RECORDED
from jaxrl.torch import weights as torch_weights
from tests.parity.cases import Case
from tests.parity.compare import GRADIENT_FLOOR, Comparison
from tests.parity.signal_cases import _statistics


def run_cloning(case: Case) -> Comparison:
    """Losses, rates and weights; our own counting of batches says how many of them there are."""
    comparison, spec = Comparison(), case.spec
    of_sac = case.meta["tanh_squash"]
    settings, length = _settings(case), case.meta["sequence_length"]
    actor = (SquashedActor if of_sac else Actor)(spec, settings.network_settings)
    drawn = (lambda d, x: squashed.drawn(d, x)[0]) if of_sac else actions.drawn
    layout = (torch_weights.squashed_layout if of_sac else torch_weights.actor_layout)(spec, settings.network_settings)
    demonstration = read(case.folder / case.meta["demo_file"], AS_RECORDED)
    copied = cloning.Copied(actor.apply, drawn, lambda action: action)  # in the environment's units, as the original
    laid = cloning.in_sequences(demonstration, length)
    rows_at, (count, _) = cloning.as_wanted(copied, laid), laid.places.shape
    _same_rows(case, comparison, jax.tree.map(np.asarray, rows_at(jnp.arange(count))), length)

    def all_at(chosen: jax.Array) -> cloning.Rows:  # as the original, which learns from what fills up sequences
        rows = rows_at(chosen)
        return rows._replace(valid=jnp.ones_like(rows.valid))

    made = cloning.make_cloning(spec, settings, copied, all_at, laid.places.shape)
    size, turns = cloning._batches(
        *laid.places.shape,
        settings.behavioral_cloning.batch_size or settings.hyperparameters.batch_size,
        settings.behavioral_cloning.samples_per_update,
    )
    params = torch_weights.import_arrays(_parameters(case, "w/"), layout)
    states = _statistics(case, "w/network_body.") or (None,) * len(spec.observations)
    kept, step = made.init(params), jax.jit(made.step)
    losses = []
    learn = jax.jit(made.learn)
    for call, at in enumerate(case.meta["policy_steps"], 1):
        order = case.arrays[f"r{call}/rows"]
        epochs = settings.behavioral_cloning.num_epoch or cloning.EPOCHS
        trains = call not in case.meta["calls_without_training"]
        comparison.add(f"r{call}/count", len(order), epochs * turns * trains)
        if not trains:
            before = params
            kept, params, loss = learn(kept, params, states, jnp.int32(at), jax.random.key(0))
            assert all(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x == y).all()), before, params)))
            losses.append(float(loss))
            _weights(case, comparison, layout, params, f"w{call}/", call)
            continue
        moments, told = kept["optimizer"], []
        for number, chosen in enumerate(order):
            chosen = chosen.reshape(size, length)[:, 0] // length
            noise = case.arrays.get(f"r{call}/noise")
            noise = np.zeros((size * length, 0), np.float32) if noise is None else noise[number]
            comparison.add(f"r{call}/rate{number}", kept["rate"], case.arrays[f"r{call}/learning_rate"][number])
            noise = jnp.asarray(noise.reshape(size, length, -1))
            params, moments, loss = step(params, moments, states, kept["rate"], jnp.asarray(chosen), noise)
            told.append(float(loss))
            if call == 1 and number == 0:  # Adam's first moment is a tenth of the first gradient
                slope = torch_weights.export_arrays(jax.tree.map(lambda m: m / (1.0 - 0.9), moments.mu), layout)
                for name, theirs in case.below("g1/").items():
                    comparison.add(f"g1/{name}", slope[name], theirs, floor=GRADIENT_FLOOR)
                _weights(case, comparison, layout, params, "w_step1/", 1)
        comparison.add(f"r{call}/loss", told, case.arrays[f"r{call}/loss"])
        after, _, _ = learn(kept, params, states, jnp.int32(at), jax.random.key(0))  # for the rate that it sets
        kept = {"optimizer": moments, "rate": after["rate"]}
        losses.append(np.mean(told))
        _weights(case, comparison, layout, params, f"w{call}/", call)
    comparison.add("out/pretraining_loss", losses, case.arrays["out/pretraining_loss"])
    return comparison


def _settings(case: Case) -> Any:
    network = {k: v for k, v in case.meta["network_settings"].items() if v is not None}
    section = {k: v for k, v in case.meta["settings"].items() if v is not None}
    return make_settings(
        case.meta["algorithm"],
        network_settings=network,
        hyperparameters={
            "learning_rate": case.meta["policy_learning_rate"],
            "batch_size": case.meta["trainer_batch_size"],
        },
        behavioral_cloning={"demo_path": "unread", **section},
    )


def _same_rows(case: Case, comparison: Comparison, rows: Any, length: int) -> None:
    """The demonstration as the original lays it out, padding included."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]) if x.size else x, rows)
    for i, x in enumerate(flat.obs):
        comparison.add(f"demo/obs_{i}", x, case.arrays[f"demo/obs_{i}"])
    for name, x in zip(("act_cont", "act_disc"), flat.action, strict=True):
        if x.size:
            comparison.add(f"demo/{name}", x, case.arrays[f"demo/{name}"])


def _parameters(case: Case, place: str) -> dict[str, np.ndarray]:
    return {name: x for name, x in case.below(place).items() if ".normalizer." not in name}


def _weights(case: Case, comparison: Comparison, layout: Any, params: Any, place: str, calls: int) -> None:
    ours = torch_weights.export_arrays(params, layout)
    for name, theirs in _parameters(case, place).items():
        comparison.add(f"{place}{name}", ours[name], theirs, floor=GRADIENT_FLOOR)
    for name in case.below(place):
        if ".normalizer." in name:
            comparison.add(f"{place}{name}", case.arrays[f"w/{name}"], case.arrays[f"{place}{name}"])

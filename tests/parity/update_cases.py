"""Family c: loss functions, and optimiser updates through the algorithms' own loss and update."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms import poca, ppo, updating
from jaxrl.algorithms.interface import PolicyState, TrainState
from jaxrl.algorithms.parts import Batch, Parts, loss_of
from jaxrl.learning import losses
from jaxrl.networks import normalizer
from jaxrl.networks.memory import Sequences
from jaxrl.networks.models import update_max_team
from jaxrl.settings.networks import NetworkSettings
from jaxrl.torch import weights as torch_weights
from tests.parity.cases import Case, check_memory, check_supported, signals_of
from tests.parity.compare import GRADIENT_FLOOR, TINY, Comparison
from tests.parity.memory_cases import stored_memory

SURELY_NOT_TINY = 10 * TINY
"""Our gradient differs by rounding from one that the reference found tiny."""
STATISTICS = ("policy_loss", "value_loss", "baseline_loss", "learning_rate", "epsilon", "beta")


class Hyperparameters(NamedTuple):
    """The part of `hyperparameters` that an update reads; ML-Agents' defaults."""

    learning_rate: float
    beta: float
    epsilon: float
    batch_size: int
    shared_critic: bool
    learning_rate_schedule: str = "linear"
    beta_schedule: str = "linear"
    epsilon_schedule: str = "linear"
    num_epoch: int = 1
    posthumous_credit: str = "value"


class Settings(NamedTuple):
    """The part of a behavior's settings that an update reads."""

    network_settings: NetworkSettings
    hyperparameters: Hyperparameters
    reward_signals: dict[str, Any]
    max_steps: int
    places: int | None = None


class Layouts(NamedTuple):
    """Where actor and critic lie in the checkpoint; the critic is None where they share a body."""

    actor: torch_weights.Layout
    critic: torch_weights.Layout | None


def run_losses(case: Case) -> Comparison:
    """The loss functions with old values distinct from the returns."""
    x, epsilon = {k: jnp.asarray(v) for k, v in case.arrays.items()}, case.meta["epsilon"]
    two = [jnp.stack([x[name], x[f"{name}_2"]], axis=-1) for name in ("values", "old_values", "returns")]
    ours = {
        "value_loss": losses.value_loss(x["values"], x["old_values"], x["returns"], x["masks"], epsilon),
        "value_loss_two_streams": losses.value_loss(*two, x["masks"], epsilon),
        "policy_loss": losses.clipped_policy_loss(
            x["log_probs"], x["old_log_probs"], x["advantages"], x["masks"], epsilon
        ),
        "masked_mean_2d": losses.masked_mean(x["log_probs"], x["masks"]),
        "masked_mean_all_masked": losses.masked_mean(x["values"], jnp.zeros_like(x["masks"])),
    }
    comparison = Comparison()
    for name, value in ours.items():
        comparison.add(name, value, case.arrays[name])
    return comparison


def run_update(case: Case) -> Comparison:
    """Gradients of the first update, weights after one and three, statistics of all."""
    check_supported(case)
    check_memory(case)
    comparison = Comparison()
    settings, layouts = _settings(case), _layouts(case)
    state, normalizers = _state(case, layouts)
    batch = _batch(case, normalizers)
    _first_gradient(case, comparison, settings, layouts, state, batch)
    update = jax.jit(partial(updating.update, algorithm_parts(case, settings)))
    metrics = []
    for count in (1, 2, 3):
        state, measured = update(state, batch)
        metrics.append(measured)
        if count != 2:
            _compare_weights(case, comparison, layouts, state, count)
    for name in STATISTICS:
        if f"out/{name}" in case.arrays:
            ours = jnp.stack([measured[name] for measured in metrics])
            comparison.add(f"out/{name}", ours, case.arrays[f"out/{name}"], floor=0.0)
    return comparison


def algorithm_parts(case: Case, settings: Any) -> Parts:
    """The algorithm's own, as its `make_x` has them."""
    return (ppo if case.meta["algorithm"] == "ppo" else poca).parts_of(case.spec, settings)


def _first_gradient(
    case: Case, comparison: Comparison, settings: Settings, layouts: Layouts, state: TrainState, batch: Batch
) -> None:
    now = updating.coefficients(settings, state.step)._replace(own=state.own)
    loss = partial(loss_of, algorithm_parts(case, settings))
    params = {"actor": state.policy.params, "critic": state.critic}
    (_, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch, now)
    comparison.add("out/first_entropy_mean", metrics["entropy"], case.arrays["out/first_entropy_mean"])
    comparison.add("out/first_signed_policy_loss", metrics["policy_loss"], case.arrays["out/first_signed_policy_loss"])
    for name, array in _exported(layouts, gradient).items():
        comparison.add_from(case.arrays, f"g1/{name}", array, floor=GRADIENT_FLOOR)
        tiny = case.arrays.get(f"g1_tiny/{name}")  # all that large cases tell of a gradient
        if tiny is not None:
            comparison.add(f"g1_tiny/{name}", (np.abs(array) >= SURELY_NOT_TINY) & tiny, np.zeros_like(tiny))


def _compare_weights(case: Case, comparison: Comparison, layouts: Layouts, state: TrainState, count: int) -> None:
    """Those that the case has: large cases leave out weights whose gradients are tiny, or all of one update."""
    bound = count * case.meta["hyperparameters"]["learning_rate"]
    for name, array in _exported(layouts, {"actor": state.policy.params, "critic": state.critic}).items():
        theirs, noise = case.arrays.get(f"w{count}/{name}"), case.arrays.get(f"g1_tiny/{name}")
        if theirs is None:
            continue
        if noise is None:
            noise = np.abs(case.arrays.get(f"g1/{name}", np.ones_like(theirs))) < TINY
        comparison.add_after_adam(f"w{count}/{name}", array, theirs, noise, bound)
    fixed = {f"actor/{k}": v for k, v in torch_weights.export_normalizer(state.policy.normalizer).items()}
    if layouts.critic is not None:
        fixed |= {name.replace("actor/", "critic/", 1): array for name, array in fixed.items()}
    if case.meta["algorithm"] == "poca":
        fixed[f"critic/{torch_weights.MAX_TEAM}"] = np.asarray(state.own["max_team"])
    for name, array in fixed.items():
        comparison.add_from(case.arrays, f"w{count}/{name}", array)


def _exported(layouts: Layouts, trees: dict[str, Any]) -> dict[str, np.ndarray]:
    """Our trees {"actor", "critic"} under the names of the checkpoint."""
    arrays = {f"actor/{k}": v for k, v in torch_weights.export_arrays(trees["actor"], layouts.actor).items()}
    if layouts.critic is not None:
        arrays |= {f"critic/{k}": v for k, v in torch_weights.export_arrays(trees["critic"], layouts.critic).items()}
    return arrays


def _settings(case: Case) -> Settings:
    # One minibatch of all; with memory of all sequences, whatever is masked in them.
    rows = np.asarray(case.arrays["mb/masks"] > 0)
    rows = int(rows.sum()) if case.network.memory is None else rows.size
    team = case.team("mb/")[2].shape[1] if case.meta["algorithm"] == "poca" else 1
    given = {"shared_critic": case.meta["shared_critic"]} | case.meta["hyperparameters"]
    hyper = Hyperparameters(batch_size=rows * team, **given)
    return Settings(case.network, hyper, dict.fromkeys(_streams(case)), case.meta["max_steps"])


def _streams(case: Case) -> tuple[str, ...]:
    return signals_of(case.below("w/actor/" if case.meta["shared_critic"] else "w/critic/"))


def _layouts(case: Case) -> Layouts:
    arguments = (case.spec, case.network, _streams(case))
    if case.meta["shared_critic"]:
        return Layouts(torch_weights.shared_layout(*arguments), None)
    critic = torch_weights.team_critic_layout if case.meta["algorithm"] == "poca" else torch_weights.value_layout
    return Layouts(torch_weights.actor_layout(case.spec, case.network), critic(*arguments))


def _state(case: Case, layouts: Layouts) -> tuple[TrainState, normalizer.States]:
    actor = torch_weights.import_weights(case.below("w/actor/"), layouts.actor, case.spec)
    params: dict[str, Any] = {"actor": actor.params, "critic": {}}
    own: dict[str, Any] = {}
    if layouts.critic is not None:
        critic = torch_weights.import_weights(case.below("w/critic/"), layouts.critic, case.spec)
        params["critic"] = critic.params
        if critic.max_team is not None:
            own["max_team"] = update_max_team(critic.max_team, case.team("mb/")[2])
    state = TrainState(
        policy=PolicyState(params=params["actor"], normalizer=actor.normalizer),
        critic=params["critic"],
        optimizer=updating.ADAM.init(params),
        own=own,
        signals=dict.fromkeys(_streams(case), ()),
        step=jnp.int32(case.meta["policy_step"]),
        key=jax.random.key(0),
    )
    return state, actor.normalizer


def _batch(case: Case, normalizers: normalizer.States) -> Batch:
    """The minibatch as teams [N, A, ...]; only member 0 is trained on, the others are its groupmates."""
    action, mask = case.action("mb/", "mb/action_mask")
    x = case.below("mb/")
    if case.meta["algorithm"] == "poca":
        obs, action, present = case.team("mb/")
    else:
        obs = tuple(o[:, None] for o in case.observations("mb/obs_"))
        action = type(action)(*(part[:, None] for part in action))
        present = jnp.ones((len(mask), 1), bool)
    members = present.shape[1]
    obs = tuple(jnp.nan_to_num(o) for o in normalizer.normalize_all(normalizers, obs))

    def own(array: np.ndarray | jnp.ndarray, fill: float | bool) -> jnp.ndarray:
        """[N, ...] -> [N, A, ...]: the array for member 0, `fill` for the others."""
        array = jnp.asarray(array)
        return jnp.full((array.shape[0], members, *array.shape[1:]), fill, array.dtype).at[:, 0].set(array)

    baseline = own(x["old_baselines"][:, None], jnp.nan) if "old_baselines" in x else jnp.zeros((len(mask), members, 0))
    batch = Batch(
        obs=obs,
        action_mask=own(mask, True),
        action=action,
        log_prob=own(x["old_log_probs"], jnp.nan),
        present=present,
        acted=own(x["masks"].astype(bool), False),
        advantage=own(x["advantages"], jnp.nan),
        returns=own(x["returns"][:, None], jnp.nan),
        baseline=baseline,
    )
    return batch if case.network.memory is None else _sequences(case, batch)


def _sequences(case: Case, batch: Batch) -> Batch:
    """The rows as sequences [N, L, A, ...], each from the memory at its start; mates have none of their own here."""
    count, length = case.meta["n_sequences"], case.meta["sequence_length"]
    batch = jax.tree.map(lambda x: x.reshape(count, length, *x.shape[1:]), batch)
    stored = {"actor": stored_memory(batch.present, case.arrays["mb/memory"])}
    if case.meta["algorithm"] == "poca":
        both = (case.arrays[f"mb/{name}_memory"] for name in ("critic", "baseline"))
        stored["critic"] = jnp.stack([stored_memory(batch.present, memory) for memory in both], axis=-2)
    elif not case.meta["shared_critic"]:
        stored["critic"] = stored_memory(batch.present, case.arrays["mb/critic_memory"])
    nowhere = jnp.zeros_like(batch.present)
    return batch._replace(memory=Sequences(stored, nowhere, ~nowhere))

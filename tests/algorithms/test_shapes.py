"""What is public raises AssertionError for an array of another shape, before anything is computed.

Each door is traced twice: as it is meant, and with one array cut to length 1, which would broadcast in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms import ALGORITHMS, policy_gradient, preparing, updating
from jaxrl.algorithms.parts import Batch, Now, loss_of, of_each_member
from jaxrl.rewards import extrinsic
from jaxrl.rewards.signals import bind
from jaxrl.rollout.booking.records import RowsMessage
from jaxrl.rollout.buffer import trajectory
from jaxrl.rollout.buffer.cells import Cells, Layout, blank, pack, unpack, width
from jaxrl.rollout.buffer.pages import Pages
from jaxrl.rollout.buffer.repaging import repage, resize
from jaxrl.rollout.chunks import in_chunks
from jaxrl.types import Action
from tests.algorithms.team_rollouts import SMALL, SPEC, random_rollout, returns_of, steps_of
from tests.helpers import settings_of

Cut = Callable[[Any], Any]
"""The identity, or what makes an array wrong."""

T, B, A, N = 5, 4, 3, 20
ROLLOUT = random_rollout(0, t=T, b=B, a=A)
VALUE = np.zeros((T, B, A, 1), np.float32)
EXTRAS = (("log_prob", (SPEC.action.columns,)),)
CARRY = np.zeros((B, A, 2), np.float32)
SETTINGS = {name: settings_of(name, SMALL) for name in ("ppo", "poca")}
SETTINGS["coma"] = settings_of("coma", SMALL | {"hyperparameters__team_capacity": A})
MADE = {name: ALGORITHMS[name](SPEC, settings) for name, settings in SETTINGS.items()}
STATES = {name: jax.eval_shape(made.init, jax.random.key(0)) for name, made in MADE.items()}
BUFFER = trajectory.init(SPEC, EXTRAS, CARRY[0, 0], capacity=6, rows=B, members=A)
LAYOUT = Layout(SPEC, EXTRAS)
STEPS = RowsMessage(
    obs=tuple(np.zeros((2, B, A, *sensor.shape), np.float32) for sensor in SPEC.observations),
    action_mask=np.ones((B, A, SPEC.action.mask_size), bool),
    reward=np.zeros((B, A, 2), np.float32),
    earned=np.zeros((B, A), np.float32),
    ending=np.zeros((B, A), np.uint8),
    present=np.ones((2, B, A), bool),
    deciding=np.ones((B, A), bool),
)
FLAT = jax.tree.map(lambda x: np.reshape(x, (T * B, *x.shape[2:])), ROLLOUT)
BATCH = Batch(
    obs=FLAT.obs,
    action_mask=FLAT.action_mask,
    action=FLAT.action,
    log_prob=FLAT.extras["log_prob"],
    present=FLAT.present,
    acted=FLAT.acted,
    advantage=FLAT.reward,
    returns=np.zeros((N, A, 1), np.float32),
    baseline=np.zeros((N, A, 1), np.float32),
)
ONE = np.float32(0.2)


def add(cut: Cut, part: str) -> Any:
    steps = STEPS._replace(**{part: cut(getattr(STEPS, part))}) if part in STEPS._fields else STEPS
    log_prob = np.zeros((B, A, SPEC.action.columns), np.float32)
    action = Action(np.zeros((B, A, 2), np.float32), np.zeros((B, A, 2), np.int32))
    if part == "action":
        action = action._replace(continuous=cut(action.continuous))
    extras = {"log_prob": cut(log_prob) if part == "log_prob" else log_prob}
    carry = cut(CARRY) if part == "carry" else CARRY
    return jax.eval_shape(partial(trajectory.add, time_horizon=9), BUFFER, steps, action, extras, carry)


def packed(cut: Cut, part: str) -> Any:
    names = ("obs", "action_mask", "action", "extras", "begin", "present", "acted")
    cells = Cells(
        **{name: getattr(ROLLOUT, name) for name in names},
        carry=np.zeros((T, B, A, 2), np.float32),
        outcome=np.zeros((T, B, A, 4), np.float32),
    )
    cells = cells._replace(**{part: jax.tree.map(cut, getattr(cells, part))})
    return jax.eval_shape(lambda *x: pack(cells._replace(obs=x), LAYOUT), *cells.obs)


def unpacked(cut: Cut) -> Any:
    stored = blank(LAYOUT, CARRY[0, 0], (T, B, A))
    return unpack(stored._replace(columns=np.zeros((T, B, A, cut(np.zeros(width(LAYOUT))).size))), LAYOUT)


def act(cut: Cut, trainer: str) -> Any:
    obs = tuple(cut(o[0]) for o in ROLLOUT.obs)
    return jax.eval_shape(MADE[trainer].act, STATES[trainer].policy, obs, ROLLOUT.action_mask[0], (), jax.random.key(0))


def of(cut: Cut, part: str) -> Any:
    """The rollout with this part cut."""
    if part == "log_prob":
        return ROLLOUT._replace(extras={"log_prob": cut(ROLLOUT.extras["log_prob"])})
    return ROLLOUT._replace(**{part: jax.tree.map(cut, getattr(ROLLOUT, part))})


def learn(cut: Cut, trainer: str, part: str) -> Any:
    return jax.eval_shape(MADE[trainer].learn, STATES[trainer], of(cut, part))


def estimate(cut: Cut, trainer: str) -> Any:
    call = partial(preparing.evaluated, steps_of(trainer, SETTINGS[trainer]).parts)
    return jax.eval_shape(call, STATES[trainer], of(cut, "present"))


def returns(cut: Cut, part: str) -> Any:
    value = cut(VALUE) if part == "value" else VALUE
    rollout = ROLLOUT if part == "value" else of(cut, part)
    return jax.eval_shape(partial(returns_of, SETTINGS["poca"], True), rollout, value)


def batch(cut: Cut, part: str) -> Any:
    given = {"advantage": VALUE, "baseline": VALUE} | ({part: cut(VALUE)} if part != "obs" else {})
    obs = jax.tree.map(cut, ROLLOUT.obs) if part == "obs" else ROLLOUT.obs
    return jax.eval_shape(lambda o, r, g: preparing.make_batch(ROLLOUT, o, r, **g), obs, VALUE, given)


def update(cut: Cut, part: str) -> Any:
    settings = SETTINGS["poca"]
    given = BATCH._replace(**{part: cut(getattr(BATCH, part))})
    parts = steps_of("poca", settings).parts._replace(
        init=lambda key: ({"actor": np.float32(0.0), "critic": {}}, key),
        actor=lambda params, *_: params,
        estimates=lambda *_: (None, None),
        loss=lambda params, *_: (params, {}),
    )
    state = policy_gradient.init_state(parts, bind(SPEC, settings), jax.random.key(0))
    return jax.eval_shape(partial(updating.update, parts), state, given)


def loss(cut: Cut) -> Any:
    loss, state = partial(loss_of, steps_of("poca", SETTINGS["poca"]).parts), STATES["poca"]
    given = BATCH._replace(returns=cut(BATCH.returns))
    now = Now(ONE, ONE, ONE, state.own)  # type: ignore[arg-type]
    return jax.eval_shape(loss, {"actor": state.policy.params, "critic": state.critic}, given, now)


DOORS: dict[str, Callable[[Cut], Any]] = {
    "begins": lambda cut: trajectory.begins(STEPS._replace(ending=cut(STEPS.ending))),
    "memory": lambda cut: trajectory.memory(BUFFER, jax.tree.map(cut, STEPS)),
    **{f"add {part}": partial(add, part=part) for part in (*STEPS._fields[1:], "action", "log_prob", "carry")},
    "turn turning": lambda cut: jax.eval_shape(trajectory.turn, BUFFER, cut(np.ones(B, bool)), np.arange(B)),
    "turn page": lambda cut: jax.eval_shape(trajectory.turn, BUFFER, np.ones(B, bool), cut(np.arange(B))),
    "resize": lambda cut: resize(BUFFER, capacity=6, pages=len(cut(np.arange(B))), members=A),
    "repage": lambda cut: repage(BUFFER, Pages(6, len(cut(np.arange(B)))), capacity=4),
    **{f"pack {part}": partial(packed, part=part) for part in Cells._fields},
    "unpack": unpacked,
    "act": partial(act, trainer="poca"),
    "in_chunks": lambda cut: jax.eval_shape(lambda *x: in_chunks(lambda *y: y, x, 4), VALUE, cut(VALUE)),
    **{f"learn {trainer} {part}": partial(learn, trainer=trainer, part=part)
       for trainer in SETTINGS for part in ("obs", "log_prob", "waiting", "present")},
    **{f"estimates {trainer}": partial(estimate, trainer=trainer) for trainer in SETTINGS},
    **{f"returns {part}": partial(returns, part=part) for part in ("value", "terminated", "truncated", "left", "cut")},
    "by_stream": lambda cut: preparing.by_stream("x", cut(VALUE), ROLLOUT, SETTINGS["poca"]),
    **{f"batch {part}": partial(batch, part=part) for part in ("obs", "advantage", "baseline")},
    **{f"update {part}": partial(update, part=part) for part in ("returns", "acted")},
    "of_each_member": lambda cut: of_each_member(cut(VALUE[:, :, 0]), ROLLOUT.present),
    "loss": loss,
    **{f"reward {part}": partial(lambda cut, part: extrinsic.reward((), of(cut, part), cooperative=True), part=part)
       for part in ("reward", "mates_reward", "group_reward", "left", "terminated", "truncated", "acted")},
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_another_shape_is_refused(door: str) -> None:
    DOORS[door](lambda x: x)
    with pytest.raises(AssertionError):
        DOORS[door](lambda x: x[:1])


def test_what_the_buffer_does_not_keep_is_refused() -> None:
    """It would be lost in silence."""
    steps, noted = STEPS, {"log_prob": np.zeros((B, A, 4), np.float32), "value": np.zeros((B, A), np.float32)}
    action = Action(np.zeros((B, A, 2), np.float32), np.zeros((B, A, 2), np.int32))
    with pytest.raises(AssertionError, match="value"):
        jax.eval_shape(partial(trajectory.add, time_horizon=9), BUFFER, steps, action, noted, CARRY)


def test_a_step_per_seed_is_refused() -> None:
    """The learning rates of several seeds would spread over parameters."""
    with pytest.raises(AssertionError):
        updating.coefficients(SETTINGS["poca"], np.zeros(1, np.int32))


def test_pages_of_less_than_four_states_are_refused() -> None:
    """With two the cutting would never end."""
    with pytest.raises(AssertionError):
        repage(BUFFER, Pages(6, B), capacity=3)

"""Baton Pass: each runner may fetch one food, and only by giving its place up does it let the next runner come.

After the task of that name in Cohen et al., "On the Use and Misuse of Absorbing States in Multi-agent Reinforcement
Learning" (arXiv 2111.05992), as a grid world written for this project.

Rules. The field is a grid of `size` x `size` cells with a button, one food and one runner on three different cells.
One decision of the runner goes in this order:
1. It turns (second branch: 1 left, 2 right, 0 not), then moves one cell (first branch: 1 forward, 2 back, 0 not). At
   the edge it stays where it is. The decision costs it `time_penalty / life`.
2. On the food's cell, if it has not eaten yet, it eats: group reward 1. Food number `max_food` ends the episode.
3. On the button's cell it presses, unless it is the last of the `runners`: it pays `press_cost` and leaves,
   its episode terminates at once. The next runner starts on a random free cell, in a random direction. If the food
   has been eaten a new one lies on another random free cell.
4. A runner that made `life` decisions dies. Nobody follows it, so the episode is over.
All ends terminate: how long a runner still lives and how many follow is in the observation, so nothing is cut off.

Why. Whoever presses sees no reward afterwards, and pays more than the time it saves. An agent that counts only what it
lives to see therefore eats and then keeps away from the button: group reward 1. A learner with posthumous credit finds
that the button is worth all that later runners eat.

Members. One runner is alive at a time. Runner k is member k modulo A = `rows`: the row of one that left long ago is
used again, so that a critic which masks the absent need not carry them along. With `rows` = `runners` every runner has
its own, as a critic with absorbing states needs it.

Observation of the runner, one vector of 12 numbers in [-1, 1], distances divided by size - 1, seen from the runner
(forward, leftward): to the button (2) · to the food (2), it lies there · then own position (2) and direction (2) on the
field · share of its life left · share of the runners to follow · share of the food to come. The food reads 0 once it
has been eaten. A runner that has just left still shows what it saw last; other members read 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Point, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

BRANCHES = (3, 3)  # move, turn
FORWARD, BACK = 1, 2
LEFT, RIGHT = 1, 2
OBS_SIZE = 12


class BatonSettings(NamedTuple):
    """Sizes and constants; all are fixed when the environment is made, except the default of the parameter."""

    size: int = 5  # cells along each side, at least 2
    runners: int = 22  # in an episode, at most
    rows: int = 2  # A, at least 2
    max_food: int = 20  # in an episode
    life: int = 20  # decisions of one runner; parameter `life`, at least 1
    time_penalty: float = 0.05  # cost of a whole life to the runner
    press_cost: float = 0.1  # cost of the button to the runner; more than `time_penalty`, or leaving would pay


DEFAULTS = BatonSettings()


class BatonState(NamedTuple):
    """State of one area. Cells are numbered x + size · y, y upwards; directions 0 east, 1 north, 2 west, 3 south."""

    cell: Array  # int32 [], of the runner
    direction: Array  # int32 []
    runner: Array  # int32 [], how many runners came before it
    age: Array  # int32 [], decisions it made
    fed: Array  # bool [], it has eaten; there is a food exactly as long as it has not
    eaten: Array  # int32 [], foods of this episode that were eaten
    food: Array  # int32 [], its cell, the last one's if there is none
    button: Array  # int32 [], its cell
    life: Array  # int32 [], decisions


def make_baton_pass(settings: BatonSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with A = `settings.rows`.

    Raises:
        ValueError: `size` or `rows` < 2, or `runners`, `max_food` or `life` < 1.
    """
    for name, least in {"size": 2, "rows": 2, "runners": 1, "max_food": 1, "life": 1}.items():
        if getattr(settings, name) < least:
            raise ValueError(f"{name} = {getattr(settings, name)}: must be at least {least}")
    defaults = {"life": float(settings.life)}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[BatonState, TeamView]:
        life = jnp.round(given(parameters, defaults)["life"])
        state = _place(settings, key, jnp.maximum(life, 1).astype(jnp.int32))
        return state, _view(settings, state, left=jnp.bool_(False), before=state)

    return JaxEnv(
        name="BatonPass",
        spec=BehaviorSpec((vector_sensor(OBS_SIZE),), ActionSpec(continuous_size=0, discrete_branches=BRANCHES)),
        members=settings.rows,
        parameters=defaults,
        reset=reset,
        step=lambda key, state, actions: _step(settings, key, state, actions.discrete),
        draw=lambda state: _draw(settings, state),
    )


def _integer(share: Array, count: int) -> Array:
    """Map a share of [0, 1) to one of 0 .. count - 1; the minimum guards against rounding up."""
    return jnp.minimum((share * count).astype(jnp.int32), count - 1)


def _free_cell(settings: BatonSettings, share: Array, one: Array, other: Array) -> Array:
    """Choose a cell that is neither `one` nor `other`, two different cells; all others are equally likely."""
    cell = _integer(share, settings.size**2 - 2)
    cell += cell >= jnp.minimum(one, other)
    return cell + (cell >= jnp.maximum(one, other))


def _place(settings: BatonSettings, key: Array, life: Array) -> BatonState:
    """Place the first runner of an episode, its food and the button."""
    draw = jax.random.uniform(key, (4,))
    cells, zero = settings.size**2, jnp.int32(0)
    button = _integer(draw[0], cells)
    food = (button + 1 + _integer(draw[1], cells - 1)) % cells
    return BatonState(
        cell=_free_cell(settings, draw[2], button, food),
        direction=_integer(draw[3], 4),
        runner=zero,
        age=zero,
        fed=jnp.bool_(False),
        eaten=zero,
        food=food,
        button=button,
        life=life,
    )


def _next_runner(settings: BatonSettings, key: Array, state: BatonState) -> BatonState:
    """Return the state after a press. The new runner avoids the food's cell, also that of a food that was eaten."""
    draw = jax.random.uniform(key, (3,))
    cell = _free_cell(settings, draw[0], state.button, state.food)
    return state._replace(
        cell=cell,
        direction=_integer(draw[1], 4),
        runner=state.runner + 1,
        age=jnp.int32(0),
        fed=jnp.bool_(False),
        food=jnp.where(state.fed, _free_cell(settings, draw[2], state.button, cell), state.food),
    )


def _heading(direction: Array) -> tuple[Array, Array]:
    """Return the unit vector (x, y), int32, of a direction."""
    east_west, sign = direction % 2 == 0, 1 - 2 * (direction // 2)
    return jnp.where(east_west, sign, 0), jnp.where(east_west, 0, sign)


def _walk(settings: BatonSettings, state: BatonState, move: Array, turn: Array) -> BatonState:
    """Turn and move the runner (rule 1)."""
    direction = (state.direction + (turn == LEFT) - (turn == RIGHT)) % 4
    stride = (move == FORWARD).astype(jnp.int32) - (move == BACK)
    ahead_x, ahead_y = _heading(direction)
    x = jnp.clip(state.cell % settings.size + ahead_x * stride, 0, settings.size - 1)
    y = jnp.clip(state.cell // settings.size + ahead_y * stride, 0, settings.size - 1)
    return state._replace(cell=x + settings.size * y, direction=direction, age=state.age + 1)


def _step(settings: BatonSettings, key: Array, state: BatonState, actions: Array) -> tuple[BatonState, TeamStep]:
    """Apply the four rules of the module's docstring, in their order; `actions` int32 [A, 2]. The key is consumed."""
    member = state.runner % settings.rows
    move, turn = actions[member, 0], actions[member, 1]
    walked = _walk(settings, state, move, turn)
    eats = (walked.cell == walked.food) & ~walked.fed
    walked = walked._replace(fed=walked.fed | eats, eaten=walked.eaten + eats)
    presses = (walked.cell == walked.button) & (walked.runner < settings.runners - 1)
    over = (walked.eaten >= settings.max_food) | (~presses & (walked.age >= walked.life))
    fresh = _next_runner(settings, key, walked)
    state = jax.tree.map(lambda new, old: jnp.where(presses, new, old), fresh, walked)
    runs = jnp.arange(settings.rows) == member
    cost = settings.time_penalty / walked.life + settings.press_cost * presses
    view = _view(settings, state, left=presses, before=walked)
    return state, team_step(
        view._replace(alive=view.alive & ~over),
        reward=jnp.where(runs, -cost, 0.0),
        group_reward=runs & eats,
        terminated=runs & (over | presses),
        over=over,
        figures={"Food Eaten": state.eaten, "Runners": state.runner + 1},
    )


def _observe(settings: BatonSettings, state: BatonState) -> Array:
    """Compute the runner's observation, float32 [12]; the layout is in the module's docstring."""
    scale = 1.0 / (settings.size - 1)
    x, y = state.cell % settings.size, state.cell // settings.size
    ahead_x, ahead_y = _heading(state.direction)

    def to(place: Array) -> tuple[Array, Array]:
        away_x, away_y = place % settings.size - x, place // settings.size - y
        return (away_x * ahead_x + away_y * ahead_y) * scale, (away_y * ahead_x - away_x * ahead_y) * scale

    numbers = [
        *to(state.button),
        *(jnp.where(state.fed, 0.0, way) for way in to(state.food)),
        ~state.fed,
        x * (2 * scale) - 1,
        y * (2 * scale) - 1,
        ahead_x,
        ahead_y,
        1 - state.age / state.life,
        1 - (state.runner + 1) / settings.runners,
        1 - state.eaten / settings.max_food,
    ]
    return jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])


def _view(settings: BatonSettings, state: BatonState, left: Array, before: BatonState) -> TeamView:
    """Compute the view: `state.runner` runs; a runner that has just `left` sees the state `before` the next one."""
    member = jnp.arange(settings.rows)
    runs, has_left = member == state.runner % settings.rows, left & (member == before.runner % settings.rows)
    gone = jnp.where(has_left[:, None], _observe(settings, before)[None], 0.0)
    return TeamView(
        obs=(jnp.where(runs[:, None], _observe(settings, state)[None], gone),),
        action_mask=jnp.ones((settings.rows, sum(BRANCHES)), bool),
        alive=runs,
    )


def _draw(settings: BatonSettings, state: BatonState) -> Scene:
    """Draw the field; the runner carries its number and looks along the line."""

    def centre(cell: Array) -> Point:
        return float(cell % settings.size) + 0.5, float(cell // settings.size) + 0.5

    size = float(settings.size)
    (x, y), angle = centre(state.cell), float(state.direction) * np.pi / 2
    nose = x + 0.45 * float(np.cos(angle)), y + 0.45 * float(np.sin(angle))
    ends = [end for k in range(1, settings.size) for end in (((k, 0.0), (k, size)), ((0.0, k), (size, k)))]
    shapes: list[Shape] = [Line(start, end, 0.02, "#bdb7aa") for start, end in ends]
    shapes.append(Box(centre(state.button), (0.8, 0.8), "#c62828"))
    shapes += [] if state.fed else [Disc(centre(state.food), 0.25, "#43a047")]
    shapes += [Line((x, y), nose, 0.12, "#0d47a1"), Disc((x, y), 0.3, "#1e88e5", str(int(state.runner)))]
    return Scene(size=(size, size), shapes=tuple(shapes))

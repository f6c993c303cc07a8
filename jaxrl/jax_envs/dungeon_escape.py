"""Dungeon Escape: a team gets out of a dungeon only if one of its members gives its life.

After the cooperative example scene of ML-Agents and its harder variant in Cohen et al., "On the Use and Misuse of
Absorbing States in Multi-agent Reinforcement Learning" (arXiv 2111.05992), as a grid world written for this project.

Rules. The dungeon is a grid of `size` x `size` cells; agents may share a cell. A dragon starts in the last row and
makes for the portal in the first row, one cell every `dragon_period` decisions; while a living agent stands next to it
(diagonals count) it stays where it is. One decision goes in this order:
1. Agents move (actions 1 up, 2 down, 3 left, 4 right; 0 stays). Walls and the living dragon's cell are closed.
2. An agent that attacks (5; allowed next to the living dragon) slays the dragon and dies of it: its episode terminates
   at once, without a reward. Of several attackers the one with the lowest index dies. The dragon drops the key.
3. An agent on the key's cell takes the key (again the lowest index).
4. The carrier opens the door (6; allowed on the door's cell with the key): the team escapes, each living member gets
   the group reward `escape_reward`.
5. The dragon walks. If it reaches the portal, the episode is lost, reward 0.
6. After `episode_limit` decisions help arrives: if the dragon has been held off until now, each living member gets the
   group reward `hold_out_reward`; if it was slain and the door is still closed, 0.
Each of these ends terminates all members (the clock is in the observation, so nothing is cut off). An action that is
not allowed counts as 0. Nothing else is rewarded.

Why. Whoever attacks sees no reward afterwards. An agent that counts only what it lives to see therefore does best to
keep the dragon at bay until help arrives (`hold_out_reward`); a learner with posthumous credit finds the sacrifice,
which brings the team `escape_reward`.

Observation of each agent, one vector of 18 + 4 (A - 1) numbers, about [-1, 1], distances divided by size - 1: own
position (2) · to the dragon (2), it lives, I stand next to it, it is held, its way to the portal · to the key (2), it
lies about, I carry it, a mate carries it · to the door (2) · to the portal (2) · time left · then for each mate, from
my index upwards and round: to it (2), alive, carries the key. What is not there reads 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Point, Polygon, Scene, Shape
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

NUM_ACTIONS = 7
ATTACK = 5
OPEN = 6
NOBODY = -1
_MOVES = np.array([[0, 0], [0, -1], [0, 1], [-1, 0], [1, 0], [0, 0], [0, 0]], np.int32)  # (x, y), by action
_BORDER = 0.7  # thickness of the wall, in cells
_WALL, _FLOORS, _DOOR, _STONE = "#5b5750", ("#ece6d8", "#e4ddcc"), "#8a5a2b", "#a39e94"
_GOLD, _DRAGON, _WINGS, _PORTAL = "#e0aa1e", "#b8352f", "#8f2722", ("#6d4aa8", "#9a7bd0", "#c9b6ec")
_TEAM = ("#2f6db3", "#23876d", "#a3519f", "#c46a1b", "#4a6670")


class DungeonSettings(NamedTuple):
    """Sizes and constants; all are fixed when the environment is made, except the defaults of parameters."""

    size: int = 6  # cells along each side, at least 4
    capacity: int = 5  # A
    team_size: int = 3  # agents at the start; parameter `team_size`, cut to 1..capacity
    dragon_period: int = 3  # decisions per cell of the dragon; parameter `dragon_period`, at least 1
    episode_limit: int = 100  # decisions
    escape_reward: float = 1.0
    hold_out_reward: float = 0.2


DEFAULTS = DungeonSettings()


class DungeonState(NamedTuple):
    """State of one area. Cells are (x, y), y counting away from the portal's row."""

    position: Array  # int32 [A, 2]; of a dead agent: where it died
    alive: Array  # bool [A]
    started: Array  # bool [A], members of this episode's team
    dragon: Array  # int32 [2]; where the key fell once the dragon is dead
    dragon_alive: Array  # bool []
    carrier: Array  # int32 [], index of the agent with the key, NOBODY else
    door: Array  # int32 [2]
    portal: Array  # int32 [2]
    clock: Array  # int32 [], decisions made
    dragon_period: Array  # int32 []


def make_dungeon_escape(settings: DungeonSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with A = `settings.capacity`.

    Raises ValueError: `size` < 4, or `team_size` not in 1..`capacity`.
    """
    if settings.size < 4:
        raise ValueError(f"size = {settings.size}: the dungeon needs at least 4 cells along each side")
    if not 1 <= settings.team_size <= settings.capacity:
        raise ValueError(f"team_size = {settings.team_size}: must lie between 1 and capacity = {settings.capacity}")
    defaults = {"team_size": float(settings.team_size), "dragon_period": float(settings.dragon_period)}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[DungeonState, TeamView]:
        state = _place(settings, key, given(parameters, defaults))
        return state, _view(settings, state)

    length = 18 + 4 * (settings.capacity - 1)
    return JaxEnv(
        name="DungeonEscape",
        spec=BehaviorSpec((vector_sensor(length),), ActionSpec(continuous_size=0, discrete_branches=(NUM_ACTIONS,))),
        members=settings.capacity,
        parameters=defaults,
        reset=reset,
        step=lambda _, state, actions: _step(settings, state, actions.discrete[:, 0]),
        draw=lambda state: draw_dungeon(settings.size, state),
        tell=tell_dungeon,
    )


def _place(settings: DungeonSettings, key: Array, parameters: dict[str, Array]) -> DungeonState:
    """Draw a new dungeon. Portal in row 0, dragon in the last row, agents between, the door in a side wall."""
    size, members = settings.size, settings.capacity
    draw = jax.random.uniform(key, (2 * members + 4,))

    def cell(share: Array, low: int, high: int) -> Array:
        """Map a share of [0, 1) to one of the integers low .. high - 1; the minimum guards against rounding up."""
        return jnp.minimum(low + (share * (high - low)).astype(jnp.int32), high - 1)

    column, row = cell(draw[:members], 0, size), cell(draw[members : 2 * members], 1, size - 1)
    dragon_x, portal_x, door_y = cell(draw[-4], 0, size), cell(draw[-3], 0, size), cell(draw[-2], 1, size - 1)
    started = jnp.arange(members) < jnp.clip(jnp.round(parameters["team_size"]), 1, members)
    return DungeonState(
        position=jnp.stack([column, row], axis=1),
        alive=started,
        started=started,
        dragon=jnp.stack([dragon_x, jnp.int32(size - 1)]),
        dragon_alive=jnp.bool_(True),
        carrier=jnp.int32(NOBODY),
        door=jnp.stack([jnp.where(draw[-1] < 0.5, 0, size - 1), door_y]),
        portal=jnp.stack([portal_x, jnp.int32(0)]),
        clock=jnp.int32(0),
        dragon_period=jnp.maximum(jnp.round(parameters["dragon_period"]), 1).astype(jnp.int32),
    )


def _next_to_dragon(state: DungeonState) -> Array:
    """Return which agents are alive and at most one cell, diagonals too, from the living dragon, bool [A]."""
    near = jnp.max(jnp.abs(state.position - state.dragon[None]), axis=1) <= 1
    return near & state.alive & state.dragon_alive


def _at(state: DungeonState, place: Array) -> Array:
    """Return which agents stand, or fell, on the cell `place` [2], bool [A]."""
    return jnp.all(state.position == place[None], axis=1)


def _carries(state: DungeonState) -> Array:
    """Return which agent has the key, bool [A]."""
    return jnp.arange(state.alive.shape[0]) == state.carrier


def _allowed(settings: DungeonSettings, state: DungeonState) -> Array:
    """Return the actions that would do something now, bool [A, 7]; all for agents that are not alive."""
    target = state.position[:, None] + _MOVES[None]  # [A, 7, 2]
    inside = jnp.all((target >= 0) & (target < settings.size), axis=-1)
    into_dragon = state.dragon_alive & jnp.all(target == state.dragon[None, None], axis=-1)
    action = np.arange(NUM_ACTIONS)[None]
    allowed = inside & ~into_dragon
    allowed &= (action != ATTACK) | _next_to_dragon(state)[:, None]
    allowed &= (action != OPEN) | (_carries(state) & _at(state, state.door))[:, None]
    return allowed | ~state.alive[:, None]


def _first(flags: Array) -> Array:
    """Return `flags` with only their first True, bool [A]."""
    return flags & (jnp.cumsum(flags) == 1)


def _walk_dragon(state: DungeonState) -> DungeonState:
    """Move the dragon one cell towards the portal, along the longer distance, unless held, dead or not its turn."""
    way = state.portal - state.dragon
    along_x = jnp.abs(way[0]) > jnp.abs(way[1])
    stride = jnp.sign(way) * jnp.stack([along_x, ~along_x])
    goes = state.dragon_alive & ~jnp.any(_next_to_dragon(state)) & (state.clock % state.dragon_period == 0)
    return state._replace(dragon=state.dragon + jnp.where(goes, stride, 0))


def _step(settings: DungeonSettings, state: DungeonState, action: Array) -> tuple[DungeonState, TeamStep]:
    """Apply the six rules of the module's docstring, in their order."""
    before = state
    allowed = jnp.take_along_axis(_allowed(settings, state), action[:, None], axis=1)[:, 0]
    action = jnp.where(allowed & state.alive, action, 0)
    opens = action == OPEN
    dies = _first(action == ATTACK)
    state = state._replace(
        position=state.position + jnp.asarray(_MOVES)[action],
        alive=state.alive & ~dies,
        dragon_alive=state.dragon_alive & ~jnp.any(dies),
        clock=state.clock + 1,
    )
    takes = _first(state.alive & _at(state, state.dragon) & ~state.dragon_alive & (state.carrier == NOBODY))
    state = _walk_dragon(state._replace(carrier=jnp.where(jnp.any(takes), jnp.argmax(takes), state.carrier)))
    return state, _judge(settings, before, state, escaped=jnp.any(opens))


def _judge(settings: DungeonSettings, before: DungeonState, state: DungeonState, escaped: Array) -> TeamStep:
    """Decide the team's reward and whether the episode is over."""
    lost = (state.dragon_alive & jnp.all(state.dragon == state.portal)) | ~jnp.any(state.alive)
    late = state.clock >= settings.episode_limit
    held_out = late & state.dragon_alive & ~lost
    over = escaped | lost | late
    prize = settings.escape_reward * escaped + settings.hold_out_reward * held_out
    figures = {"Dragon Slain": ~state.dragon_alive, "Escaped": escaped, "Held Out": held_out}
    return team_step(
        _view(settings, state)._replace(alive=state.alive & ~over),
        group_reward=jnp.where(state.alive, prize, 0.0),
        terminated=before.alive & (over | ~state.alive),
        over=over,
        figures=figures,
    )


def _view(settings: DungeonSettings, state: DungeonState) -> TeamView:
    """Compute observation, action mask and the living; the layout of the observation is in the module's docstring."""
    members, scale = settings.capacity, 1.0 / (settings.size - 1)
    near, carries = _next_to_dragon(state), _carries(state)
    key_lies = ~state.dragon_alive & (state.carrier == NOBODY)

    def to(place: Array, there: Array | bool = True) -> Array:
        return jnp.where(there, (place[None] - state.position) * scale, 0.0)

    def column(value: Array) -> Array:
        return jnp.broadcast_to(value.astype(jnp.float32), (members,))[:, None]

    way = jnp.sum(jnp.abs(state.portal - state.dragon)) * (0.5 * scale) * state.dragon_alive
    mate = (np.arange(members)[:, None] + np.arange(1, members)) % members  # [A, A - 1]
    offset = (state.position[mate] - state.position[:, None]) * scale
    mates = jnp.concatenate([offset, jnp.ones_like(offset[..., :1]), carries[mate][..., None]], axis=-1)
    mates = jnp.where(state.alive[mate][..., None], mates, 0.0)
    obs = jnp.concatenate(
        [
            state.position * (2.0 * scale) - 1.0,
            to(state.dragon, state.dragon_alive),
            *map(column, (state.dragon_alive, near, jnp.any(near), way)),
            to(state.dragon, key_lies),
            *map(column, (key_lies, carries, (state.carrier != NOBODY) & ~carries)),
            to(state.door),
            to(state.portal),
            column(1.0 - state.clock / settings.episode_limit),
            mates.reshape(members, -1),
        ],
        axis=1,
    )
    obs = jnp.where(state.started[:, None], obs, 0.0).astype(jnp.float32)
    return TeamView(obs=(obs,), action_mask=_allowed(settings, state), alive=state.alive)


def draw_dungeon(size: int, state: Any) -> Scene:
    """Draw the dungeon of `size` x `size` cells with walls around it; `state` is a `DungeonState` of numpy arrays.

    The portal's row is on top. Agents wear the number of their row, from 1. Where one died stands a gravestone.
    """

    def middle(cell: np.ndarray) -> Point:
        return float(cell[0]) + _BORDER + 0.5, size + _BORDER - 0.5 - float(cell[1])

    side = size + 2.0 * _BORDER
    cells = [(x, y) for x in range(size) for y in range(size)]
    shapes: list[Shape] = [
        Box((x + _BORDER + 0.5, y + _BORDER + 0.5), (1.0, 1.0), _FLOORS[(x + y) % 2]) for x, y in cells
    ]
    shapes += _door(middle(state.door), -1.0 if state.door[0] == 0 else 1.0)
    shapes += [
        Disc(middle(state.portal), radius, colour) for radius, colour in zip((0.44, 0.32, 0.18), _PORTAL, strict=True)
    ]
    for place in np.flatnonzero(state.started & ~state.alive):
        shapes += _grave(middle(state.position[place]), str(place + 1))
    if state.dragon_alive:
        shapes += _dragon(middle(state.dragon))
    elif state.carrier < 0:
        shapes += _key(middle(state.dragon), 1.0)
    for place in np.flatnonzero(state.alive):
        here = np.flatnonzero(state.alive & (state.position == state.position[place]).all(axis=1))
        shapes += _agent(middle(state.position[place]), int(place), here.tolist(), bool(place == state.carrier))
    return Scene(size=(side, side), shapes=tuple(shapes), background=_WALL)


def tell_dungeon(state: Any, over: bool) -> str:
    """Describe the state in a few words; `state` as above. An end that is neither lost nor late is an escape."""
    living = state.alive.any()
    if state.dragon_alive:
        if (state.dragon == state.portal).all():
            return "lost: the dragon is gone"
        if over:
            return "held out until help came" if living else "lost: nobody is left"
        near = np.abs(state.position - state.dragon).max(axis=1) <= 1
        return "the dragon is held" if (near & state.alive).any() else "the dragon makes for the portal"
    if not living:
        return "lost: nobody is left to carry the key"
    opens = state.carrier >= 0 and bool((state.position[state.carrier] == state.door).all())
    if over:
        return "the door opens: escaped!" if opens else "lost: too late"
    if state.carrier >= 0:
        return f"{state.carrier + 1} carries the key to the door"
    fallen = " and ".join(str(place + 1) for place in np.flatnonzero(state.started & ~state.alive))
    return f"{fallen} slew the dragon and died: the key drops"


def _door(beside: Point, side: float) -> list[Shape]:
    """Draw the door with a golden lock, in the wall to the left (`side` -1) or right of its cell."""
    x, y = beside[0] + 0.78 * side, beside[1]
    return [Box((x, y), (0.56, 0.92), _DOOR), Box((x, y), (0.44, 0.8), "#a8743c"), Disc((x, y), 0.1, _GOLD)]


def _grave(middle: Point, label: str) -> list[Shape]:
    x, y = middle
    stone = Box((x, y - 0.1), (0.5, 0.44), _STONE, label=label)
    return [Box((x, y - 0.34), (0.7, 0.08), "#857f74"), Disc((x, y + 0.1), 0.25, _STONE), stone]


def _dragon(middle: Point) -> list[Shape]:
    """Draw the dragon from above: wings, a body with a spiked back, two eyes."""
    x, y = middle
    wings = [
        Polygon(
            ((x, y + 0.2), (x + s * 0.48, y + 0.4), (x + s * 0.4, y), (x + s * 0.46, y - 0.34), (x, y - 0.12)), _WINGS
        )
        for s in (-1, 1)
    ]
    horns = [
        Polygon(((x + s * 0.06, y + 0.2), (x + s * 0.2, y + 0.46), (x + s * 0.22, y + 0.1)), _DRAGON) for s in (-1, 1)
    ]
    eyes = [
        Disc((x + s * 0.1, y + 0.1), radius, colour)
        for s in (-1, 1)
        for radius, colour in ((0.07, "#ffe9a8"), (0.03, "#2f3136"))
    ]
    return [
        *wings,
        *horns,
        Disc((x, y), 0.28, _DRAGON),
        *eyes,
        Line((x - 0.1, y - 0.12), (x + 0.1, y - 0.12), 0.04, "#5e1512"),
    ]


def _key(middle: Point, scale: float) -> list[Shape]:
    x, y = middle
    bits = [Line((x + at * scale, y), (x + at * scale, y - 0.13 * scale), 0.07 * scale, _GOLD) for at in (0.16, 0.27)]
    ring = [Disc((x - 0.17 * scale, y), 0.15 * scale, _GOLD), Disc((x - 0.17 * scale, y), 0.07 * scale, _FLOORS[0])]
    return [Line((x - 0.1 * scale, y), (x + 0.27 * scale, y), 0.07 * scale, _GOLD), *bits, *ring]


def _agent(middle: Point, place: int, here: list[int], carries: bool) -> list[Shape]:
    """Draw an agent as a numbered disc; agents that share a cell stand in a ring. The carrier holds the key."""
    radius, away = (0.3, 0.0) if len(here) == 1 else (0.19, 0.25)
    angle = 2.0 * math.pi * here.index(place) / len(here) + 0.5 * math.pi
    x, y = middle[0] + away * math.cos(angle), middle[1] + away * math.sin(angle)
    body = Disc((x, y), radius, _TEAM[place % len(_TEAM)], label=str(place + 1))
    return [body, *_key((x + 0.8 * radius, y + 0.9 * radius), 0.6)] if carries else [body]

"""Collaborative Push Block: agents push blocks into a goal; heavy blocks move only if several push together.

After the cooperative example scene of ML-Agents (one of the tasks in Cohen et al., arXiv 2111.05992), as a grid world
written for this project.

Rules. A square of `size` x `size` cells; agents may share a cell, blocks may not. The last row is the goal. Each agent
looks along one of the four ways. One decision goes in this order:
1. Actions: 1 forward, 2 back, 3 turn left, 4 turn right, 5 step left, 6 step right; 0 stays. All moves are one cell in
   the agent's own frame, a turn is a quarter. Moves out of the square are not allowed and count as 0.
2. An agent whose move leads onto a block pushes it. A block that needs k agents (1 small, 2 medium, 3 large) moves one
   cell if k or more push it the same way in the same decision. It stays where it is if enough push it two ways at once,
   if another block or an agent stands in its way, if a block with a lower index moves to the same cell, or if it would
   leave the inner part: the outermost cells beside and opposite the goal are a path for agents alone, so that a block
   cannot be lost at a wall.
3. A block that reaches the goal vanishes, and each member gets the group reward k.
4. Agents move, except onto a cell that now holds a block. So those who pushed follow their block.
Every decision costs the group `penalty / episode_limit`. The episode ends when the last block is in, or with decision
`episode_limit`; both terminate it (the clock is in the observation, so nothing is cut off).

Observation of each agent, one vector of 11 + 3 N + 4 (A - 1) numbers in [-1, 1] for N blocks; distances are divided
by size - 1 and, like all directions but the first two, given as (ahead, left) in the agent's own frame: own position
(x, y) · own way (x, y) · time left · to the goal (2) · k / 3 of the block on the next cell ahead, left, behind, right ·
for each block: it stands, to it (2) · then for each mate, from my index upwards and round: to it (2), its way (2).
Blocks come in a fixed order: small, medium, large. What is not there reads 0.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.drawing import Box, Disc, Line, Scene, Shape
from jaxrl.jax_envs.hallway import WAYS
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamStep, TeamView, given, team_step, vector_sensor
from jaxrl.types import ActionSpec, BehaviorSpec

NUM_ACTIONS = 7
KINDS = ("small", "medium", "large")  # of blocks that need 1, 2, 3 agents
_MOVES = np.array([0, 1, 1, 0, 0, 1, 1], bool)  # by action
_QUARTER = np.array([0, 0, 2, 0, 0, 1, 3], np.int32)  # of a move, seen from the agent's way
_SPIN = np.array([0, 0, 0, 1, 3, 0, 0], np.int32)  # quarter turns to the left
_COLOURS = ("#e9c46a", "#f4a261", "#e76f51")


class PushBlockSettings(NamedTuple):
    """Sizes and constants; all are fixed when the environment is made, except the defaults of parameters."""

    size: int = 7  # cells along each side, at least 5
    members: int = 3  # A
    small: int = 2  # blocks for one agent; parameter `small_blocks`, cut to 0..small
    medium: int = 1  # for two; parameter `medium_blocks`
    large: int = 1  # for three; parameter `large_blocks`
    episode_limit: int = 100  # decisions
    penalty: float = 0.5  # of an episode that lasts `episode_limit` decisions


DEFAULTS = PushBlockSettings()


class PushBlockState(NamedTuple):
    """State of one area. Cells are (x, y), y counting towards the goal."""

    position: Array  # int32 [A, 2]
    heading: Array  # int32 [A], quarter turns to the left from the way to the goal, 0..3
    block: Array  # int32 [N, 2]; of a block that is in: where it vanished
    standing: Array  # bool [N], not yet in
    started: Array  # bool [N], blocks of this episode
    clock: Array  # int32 [], decisions made


def make_push_block(settings: PushBlockSettings = DEFAULTS) -> JaxEnv:
    """Bind `settings` into an environment with A = `settings.members` and N = small + medium + large.

    Raises:
        ValueError: `size` < 5, no block or more than the (size - 2) x (size - 4) cells where blocks start, or a block
            that needs more agents than there are.
    """
    needs, cells = _needs(settings), (settings.size - 2) * (settings.size - 4)
    if settings.size < 5:
        raise ValueError(f"size = {settings.size}: the square needs at least 5 cells along each side")
    if not 1 <= len(needs) <= cells:
        raise ValueError(f"{len(needs)} blocks: must lie between 1 and {cells}, the cells where blocks start")
    if needs.max() > settings.members:
        raise ValueError(f"members = {settings.members}: a block here needs {needs.max()} agents")
    defaults = {f"{kind}_blocks": float(getattr(settings, kind)) for kind in KINDS}

    def reset(key: Array, parameters: EnvParams = defaults) -> tuple[PushBlockState, TeamView]:
        state = _place(settings, key, list(given(parameters, defaults).values()))
        return state, _view(settings, state, jnp.bool_(False))

    length = 11 + 3 * len(needs) + 4 * (settings.members - 1)
    return JaxEnv(
        name="PushBlockCollab",
        spec=BehaviorSpec((vector_sensor(length),), ActionSpec(continuous_size=0, discrete_branches=(NUM_ACTIONS,))),
        members=settings.members,
        parameters=defaults,
        reset=reset,
        step=lambda _, state, actions: _step(settings, state, actions.discrete[:, 0]),
        draw=lambda state: _draw(settings, state),
    )


ALONE = PushBlockSettings(members=1, small=1, medium=0, large=0)


def make_push_block_alone(settings: PushBlockSettings = ALONE) -> JaxEnv:
    """Make a world of one agent and one block, as ML-Agents' scene "Push Block". Raises ValueError as above."""
    return make_push_block(settings)._replace(name="PushBlock")


def _needs(settings: PushBlockSettings) -> np.ndarray:
    """Return the number of agents that each block needs, int32 [N]."""
    return np.repeat(np.array([1, 2, 3], np.int32), [settings.small, settings.medium, settings.large])


def _place(settings: PushBlockSettings, key: Array, counts: list[Array]) -> PushBlockState:
    """Place agents on the path opposite the goal and blocks on cells of their own, inside and two from the goal.
    `counts`: float32 [], blocks of each kind.
    """
    size, members, needs = settings.size, settings.members, _needs(settings)
    block_key, column_key, heading_key = jax.random.split(key, 3)
    cell = jnp.argsort(jax.random.uniform(block_key, ((size - 2) * (size - 4),)))[: len(needs)].astype(jnp.int32)
    rank = np.concatenate([np.arange(count) for count in np.bincount(needs, minlength=4)[1:]])
    started = jnp.asarray(rank) < jnp.round(jnp.stack(counts))[needs - 1]
    column = jax.random.randint(column_key, (members,), 0, size, jnp.int32)
    return PushBlockState(
        position=jnp.stack([column, jnp.zeros_like(column)], axis=1),
        heading=jax.random.randint(heading_key, (members,), 0, 4, jnp.int32),
        block=jnp.stack([1 + cell % (size - 2), 2 + cell // (size - 2)], axis=1),
        standing=started,
        started=started,
        clock=jnp.int32(0),
    )


def _same(first: Array, second: Array) -> Array:
    """Return which of the cells [.., P, 2] equal which of the cells [.., Q, 2], bool [.., P, Q]."""
    return jnp.all(first[..., :, None, :] == second[..., None, :, :], axis=-1)


def _allowed(settings: PushBlockSettings, state: PushBlockState) -> Array:
    """Return the allowed actions, all but moves out of the square, bool [A, 7]."""
    onto = state.position[:, None] + jnp.asarray(WAYS)[(state.heading[:, None] + _QUARTER) % 4]  # [A, 7, 2]
    return jnp.all((onto >= 0) & (onto < settings.size), axis=-1) | ~_MOVES


def _push(settings: PushBlockSettings, state: PushBlockState, way: Array, moves: Array) -> tuple[Array, Array]:
    """Apply rule 2 to agents that go the `way` int32 [A] if it `moves`, bool [A]: moved blocks, bool [N]; targets."""
    pushes = _same(state.position + jnp.asarray(WAYS)[way], state.block) & moves[:, None] & state.standing
    count = jnp.sum(pushes[..., None] & (way[:, None] == np.arange(4))[:, None], axis=0)  # [N, 4]
    enough = count >= _needs(settings)[:, None]
    target = state.block + jnp.asarray(WAYS)[jnp.argmax(enough, axis=1)]
    column, row = target[:, 0], target[:, 1]
    inner = (column >= 1) & (column <= settings.size - 2) & (row >= 1)
    taken = jnp.any(_same(target, state.block) & state.standing, axis=1)
    taken |= jnp.any(_same(target, state.position), axis=1)
    goes = (jnp.sum(enough, axis=1) == 1) & inner & ~taken
    clash = _same(target, target) & goes & np.tri(len(goes), k=-1, dtype=bool)
    return goes & ~jnp.any(clash, axis=1), target


def _step(settings: PushBlockSettings, state: PushBlockState, action: Array) -> tuple[PushBlockState, TeamStep]:
    """Apply the rules of the module's docstring, in their order."""
    allowed = jnp.take_along_axis(_allowed(settings, state), action[:, None], axis=1)[:, 0]
    action = jnp.where(allowed, action, 0)
    moves, way = jnp.asarray(_MOVES)[action], (state.heading + jnp.asarray(_QUARTER)[action]) % 4
    goes, target = _push(settings, state, way, moves)
    scored = goes & (target[:, 1] == settings.size - 1)
    block, standing = jnp.where(goes[:, None], target, state.block), state.standing & ~scored
    onto = state.position + jnp.asarray(WAYS)[way]
    free = moves & ~jnp.any(_same(onto, block) & standing, axis=1)
    state = state._replace(
        position=jnp.where(free[:, None], onto, state.position),
        heading=(state.heading + jnp.asarray(_SPIN)[action]) % 4,
        block=block,
        standing=standing,
        clock=state.clock + 1,
    )
    return state, _judge(settings, state, scored)


def _judge(settings: PushBlockSettings, state: PushBlockState, scored: Array) -> TeamStep:
    """Decide the team's reward and whether the episode is over."""
    needs, done = _needs(settings), ~jnp.any(state.standing)
    over = done | (state.clock >= settings.episode_limit)
    gain = jnp.sum(scored * needs) - settings.penalty / settings.episode_limit
    within = state.started & ~state.standing
    figures = {f"{kind.capitalize()} Blocks": jnp.sum(within & (needs == i + 1)) for i, kind in enumerate(KINDS)}
    stats = {**figures, "All In": done}
    return team_step(_view(settings, state, over), group_reward=gain, terminated=over, figures=stats)


def _view(settings: PushBlockSettings, state: PushBlockState, over: Array) -> TeamView:
    """Compute observation, action mask and the living; the layout of the observation is in the module's docstring."""
    members, scale, needs = settings.members, 1.0 / (settings.size - 1), _needs(settings)
    ways = jnp.asarray(WAYS)
    frame = ways[(state.heading[:, None] + np.arange(2)) % 4]  # [A, 2, 2], ahead and left

    def own(vector: Array) -> Array:
        """Convert vectors [A, K, 2] to each agent's frame, flat: [A, 2 K]."""
        return jnp.sum(vector[:, :, None] * frame[:, None], axis=-1).reshape(members, -1)

    beside = state.position[:, None] + ways[(state.heading[:, None] + np.arange(4)) % 4]  # [A, 4, 2]
    touch = jnp.max((_same(beside, state.block[None]) & state.standing) * needs, axis=-1) / 3.0
    to_goal = (settings.size - 1 - state.position[:, 1:, None]) * WAYS[0]  # [A, 1, 2]
    to_block = own(state.block[None] - state.position[:, None]).reshape(members, -1, 2) * scale
    there = jnp.ones_like(to_block[..., :1])
    blocks = jnp.where(state.standing[:, None], jnp.concatenate([there, to_block], axis=-1), 0.0)
    mate = (np.arange(members)[:, None] + np.arange(1, members)) % members  # [A, A - 1]
    to_mate = own(state.position[mate] - state.position[:, None]).reshape(members, -1, 2) * scale
    mate_way = own(ways[state.heading[mate]]).reshape(members, -1, 2)
    obs = jnp.concatenate(
        [
            state.position * (2.0 * scale) - 1.0,
            ways[state.heading],
            jnp.full((members, 1), 1.0 - state.clock / settings.episode_limit),
            own(to_goal) * scale,
            touch,
            blocks.reshape(members, -1),
            jnp.concatenate([to_mate, mate_way], axis=-1).reshape(members, -1),
        ],
        axis=1,
    )
    alive = jnp.full(members, ~over)
    return TeamView(obs=(obs.astype(jnp.float32),), action_mask=_allowed(settings, state) | over, alive=alive)


def _draw(settings: PushBlockSettings, state: PushBlockState) -> Scene:
    """Draw the goal, the inner part, blocks with the number of agents they need, and agents with their direction."""
    size, half = float(settings.size), settings.size / 2
    inner, goal = Box((half, half), (size - 2, size - 2), "#e6e0d4"), Box((half, size - 0.5), (size, 1.0), "#a8d5a2")
    shapes: list[Shape] = [inner, goal]
    for need, (x, y), standing in zip(_needs(settings), state.block, state.standing, strict=True):
        if standing:
            shapes.append(Box((x + 0.5, y + 0.5), (0.9, 0.9), _COLOURS[need - 1], label=str(need)))
    for index, ((x, y), heading) in enumerate(zip(state.position, state.heading, strict=True)):
        shift = 0.15 * (index - (settings.members - 1) / 2)  # of agents that share a cell, all are seen
        centre, (ahead_x, ahead_y) = (float(x) + 0.5 + shift, float(y) + 0.5), WAYS[heading]
        shapes.append(Disc(centre, 0.25, "#264653"))
        shapes.append(Line(centre, (centre[0] + 0.3 * ahead_x, centre[1] + 0.3 * ahead_y), 0.06, "#ffffff"))
    return Scene((size, size), tuple(shapes))

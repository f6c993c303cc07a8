"""Wall Jump: the way over each wall by hand, who acts, and what a player sends of both behaviors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.unity.simulator import make_unity
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.jax_envs import make_scene
from jaxrl.jax_envs.contract import check_environment, check_jax_env
from jaxrl.jax_envs.interface import TeamActions, start_areas
from jaxrl.jax_envs.scene import SceneStep
from jaxrl.jax_envs.served.launcher import make_player
from jaxrl.jax_envs.wall_jump import BIG, LIMIT, SMALL, WallJumpState, make_wall_jump
from jaxrl.tools.watch.film import watch
from jaxrl.types import Action
from tests import trainer
from tests.jax_envs.toy_jax_env import quick_jit

pytestmark = pytest.mark.timeout(400)
SCENE = make_wall_jump()
STAY, LEFT, RIGHT = range(3)
compiled_step = quick_jit(SCENE.step)


def at(x: float, *, block: float = 10.0, wall: float = 8.0, big: bool = True, y: float = 0.0) -> WallJumpState:
    wall_height, centre, feet, place = (jnp.float32(value) for value in (wall, x, y, block))
    return WallJumpState(jnp.bool_(big), wall_height, centre, feet, jnp.float32(0), place, jnp.int32(0))


def act(state: WallJumpState, move: int, jump: int = 0, times: int = 1) -> tuple[WallJumpState, SceneStep]:
    actions = TeamActions(jnp.zeros((1, 0)), jnp.array([[move, jump]], jnp.int32))
    for _ in range(times):
        state, step = compiled_step(jax.random.key(0), state, {SMALL: actions, BIG: actions})
    return state, step


def places(state: WallJumpState) -> tuple[float, ...]:
    return tuple(round(float(number), 4) for number in (state.x, state.y, state.block))


def test_the_agent_pushes_the_block_as_far_as_the_wall() -> None:
    assert places(act(at(3.0), RIGHT, times=4)[0]) == (7.0, 0.0, 10.0)
    assert places(act(at(7.5), RIGHT, times=4)[0]) == (9.5, 0.0, 12.0)  # half as fast
    assert places(act(at(7.5), RIGHT, times=40)[0]) == (19.5, 0.0, 22.0)
    assert places(act(at(12.5), LEFT, times=40)[0]) == (4.5, 0.0, 2.0)


def test_a_jump_is_four_and_a_half_high_and_only_from_where_one_stands() -> None:
    state, heights = at(3.0), []
    for _ in range(12):
        state, _ = act(state, STAY, 1)
        heights.append(round(float(state.y), 2))
    assert heights == [1.5, 2.7, 3.6, 4.2, 4.5, 4.5, 4.2, 3.6, 2.7, 1.5, 0.0, 0.0]


def test_a_high_wall_needs_the_block_and_a_small_one_does_not() -> None:
    def over(state: WallJumpState) -> bool:
        for _ in range(60):
            state, step = act(state, RIGHT, 1)
            if bool(step.over):
                return bool(step.behaviors[BIG].terminated[0] | step.behaviors[SMALL].terminated[0])
        return False

    assert not over(at(23.0, block=4.0))
    assert over(at(22.0, block=22.0, y=4.0))
    assert over(at(18.0, block=4.0, wall=4.0, big=False))
    assert over(at(18.0, block=4.0, wall=0.0, big=False))


@pytest.mark.parametrize("big", [True, False])
def test_goal_edge_and_limit_end_the_episode_of_the_one_that_acts(big: bool) -> None:
    who, other = (BIG, SMALL) if big else (SMALL, BIG)
    for state, move, reward in ((at(33.5, big=big), RIGHT, 0.9975), (at(0.5, big=big), LEFT, -1.0025)):
        _, step = act(state, move)
        done, absent = step.behaviors[who], step.behaviors[other]
        assert bool(step.over) and done.terminated.tolist() == [True] and not done.truncated.any()
        assert float(done.reward[0]) == pytest.approx(reward) and not done.view.alive.any()
        assert float(absent.reward[0]) == 0.0 and not (absent.terminated | absent.truncated | absent.view.alive).any()
    _, step = act(at(3.0, big=big)._replace(clock=jnp.int32(LIMIT - 1)), STAY)
    done = step.behaviors[who]
    assert bool(step.over) and done.truncated.tolist() == [True] and not done.terminated.any()
    _, step = act(at(3.0, big=big), STAY)
    assert not step.over and step.behaviors[who].view.alive.all() and not step.behaviors[other].view.alive.any()
    assert float(step.stats["Environment/Wall Height"]) == 8.0


def test_three_of_five_walls_are_high_and_parameters_set_the_heights() -> None:
    parameters = {"no_wall_height": 0.5, "small_wall_height": 2.0, "big_wall_height": 6.0}
    state, views = quick_jit(jax.vmap(SCENE.reset, (0, None)))(jax.random.split(jax.random.key(0), 2000), parameters)
    assert 0.56 < float(state.big.mean()) < 0.64
    assert {*np.unique(state.wall[state.big])} == {6.0} and {*np.unique(state.wall[~state.big])} == {0.5, 2.0}
    np.testing.assert_array_equal(views[BIG].alive[:, 0], state.big)
    np.testing.assert_array_equal(views[SMALL].alive[:, 0], ~state.big)
    np.testing.assert_allclose(views[BIG].obs[0][state.big][:, 0, 4], 0.75)
    assert not np.any(views[BIG].obs[0][~state.big])


def test_it_is_what_is_asked_for() -> None:
    check_jax_env(SCENE)


@pytest.mark.slow
def test_it_keeps_the_contract_in_play() -> None:
    found = check_environment(make_scene("jax:wall_jump"), areas=4, steps=LIMIT)
    assert found.problems == [] and found.remarks == [] and found.episodes >= 4


@pytest.mark.slow
def test_the_film_tells_who_acts(tmp_path: Path) -> None:
    found = watch("jax:wall_jump", run=None, out=tmp_path / "film.png", seed=1, episodes=2, steps=250)
    assert found.behavior == "SmallWallJump, BigWallJump" and (tmp_path / "film.png").stat().st_size > 1000
    assert all(len(episode) == 2 and 0.0 in episode for episode in found.returns)  # one of the two was absent


@trainer.MARKS[-1]
def test_a_player_sends_both_behaviors_of_one_scene(tmp_path: Path) -> None:
    """Its program is not the one here, and XLA rounds each in its own way: numbers agree, their last bits need not."""
    areas, seed = 12, 7
    arguments = {"file_name": str(make_player("wall_jump", tmp_path)), "base_port": trainer.free_ports(1)}
    arguments |= {"num_areas": areas, "log_folder": str(tmp_path)}
    with EnvPool(partial(make_unity, arguments, seed, True, False), 1, inline=True) as pool:
        pool.reset({})
        (result,) = pool.recv()
        spec = SCENE.parts[0].spec
        assert result.new_specs == {f"{SMALL}?team=0": spec, f"{BIG}?team=0": spec}
        parameters = {name: np.full(areas, value, np.float32) for name, value in SCENE.parameters.items()}
        _, views = start_areas(SCENE, jax.random.fold_in(jax.random.key(seed), 0), areas, parameters)
        ids = []
        for part in SCENE.parts:
            shown, view = result.steps[f"{part.name}?team=0"].deciding, views[part.name]
            np.testing.assert_allclose(shown.obs[0], np.asarray(view.obs[0])[np.asarray(view.alive)], atol=1e-6)
            ids += shown.agent_id.tolist()
        assert len(ids) == len(set(ids)) == areas
        for _ in range(3):
            left = {
                name: Action(np.zeros((n, 0), np.float32), np.tile(np.array([[LEFT, 0]], np.int32), (n, 1)))
                for name, n in ((name, len(steps.deciding.agent_id)) for name, steps in result.steps.items())
            }
            pool.send(0, left)
            (result,) = pool.recv()
        rewards = np.concatenate([steps.deciding.reward for steps in result.steps.values()])
        assert np.allclose(rewards[rewards > -1.0], -0.0025)

"""Checks that an environment keeps the contract of `interface.py`: arrays by tracing, episodes by random play."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl.jax_envs.interface import JaxEnv, TeamActions, TeamStep, TeamView, advance_areas, start_areas
from jaxrl.jax_envs.scene import (
    BehaviorStep,
    JaxScene,
    SceneStep,
    Sizes,
    by_behavior,
    parts_of,
    scene_of,
    step_of_behavior,
)
from jaxrl.own_code import calling
from jaxrl.types import ActionSpec, JaxrlError


class JaxEnvError(JaxrlError):
    """A JAX environment breaks the contract of `jax_envs.interface`."""


def check_jax_env(env: JaxEnv | JaxScene) -> None:
    """Trace reset and step once, without computing anything.

    Raises:
      JaxEnvError: a sensor of another dtype than float32 or uint8; a scene whose behaviors share a name; a function
        cannot be compiled, or what it returns has not the structure, shapes or dtypes asked for.
    """
    names = [part.name for part in parts_of(env)]
    if not names or len(set(names)) < len(names):
        raise JaxEnvError(f"{env.name}: its behaviors are called {names}: give it one at least, each a name of its own")
    for part in parts_of(env):
        for sensor in part.spec.observations:
            if sensor.dtype not in ("float32", "uint8"):
                raise JaxEnvError(
                    f"{part.name}: sensor '{sensor.name}' has dtype {sensor.dtype}, asked for is float32, or uint8 for "
                    "an image: change its ObservationSpec"
                )
    key, parameters = jax.random.key(0), {name: np.float32(value) for name, value in env.parameters.items()}
    state, view = _trace(env, "reset", env.reset, key, parameters)
    _compare(env, "the view that reset returns", view, by_behavior(env, _view))
    new_state, step = _trace(env, "step", env.step, key, state, by_behavior(env, _actions))
    _compare(env, "the state after a step", new_state, state)
    over: Any = _array((), jnp.bool_)
    figures: Any = dict.fromkeys(getattr(step, "stats", {}), _array((), jnp.float32))
    steps = by_behavior(env, _step)
    if isinstance(env, JaxEnv):
        asked = TeamStep(**steps._asdict(), over=over, stats=figures)
    else:
        asked = SceneStep(steps, over, figures)
    _compare(env, "what step returns", step, asked)


def _actions(env: Sizes) -> TeamActions:
    count, action = env.teams * env.members, env.spec.action
    return TeamActions(
        continuous=_array((count, action.continuous_size), jnp.float32),
        discrete=_array((count, len(action.discrete_branches)), jnp.int32),
    )


def _step(env: Sizes) -> BehaviorStep:
    count = env.teams * env.members
    flags, numbers = _array((count,), jnp.bool_), _array((count,), jnp.float32)
    return BehaviorStep(_view(env), numbers, numbers, flags, flags)


Flags = dict[str, Array]
"""Breaches of the contract seen in random play, bool [], by the name of their sentence."""

_SENTENCES = {
    "nobody": "reset: nobody is alive: somebody must ask for an action; set `alive` in the view that it returns",
    "forbidden": "action_mask: forbids every choice of a branch for a living member: leave one allowed",
    "not_finite": "an observation, a reward or a figure in stats is NaN or infinite: mend the arithmetic",
    "stranger_paid": "reward or group_reward of a member that was neither alive nor pausing before the step: give 0",
    "stranger_ended": "terminated or truncated for a member that was neither alive nor pausing before the step: set it "
    "for those who are there",
    "still_alive": "a member that ended is still `alive` in the view of that step: set it False, the episode or not",
    "over_alone": "`over`, but nobody ended in that step: set terminated or truncated for those who were alive",
    "left_over": "`over`, but a member that was alive, or paused, has not ended: set terminated or truncated for "
    "everybody; of a member that goes before, in the step with which it is gone, or it is taken for one that pauses",
    "undeclared": "a step says `truncated`, the JaxEnv does not say that steps may: give it `truncates=True`",
    "contradictory": "a member is terminated and truncated in one step: it ended for good, or was cut off, not both",
    "returned": "nobody is alive or pauses and the episode is not over: set `over`, so that the next one begins",
}
_PAUSED = "paused"
"""Name of a flag that is no breach: some member has paused."""


class Findings(NamedTuple):
    """Results of a check, one sentence each."""

    problems: list[str]  # no learner can use such an environment
    remarks: list[str]  # may be intended, but seldom are
    episodes: int  # that have ended in play


def check_environment(env: JaxEnv | JaxScene, areas: int = 16, steps: int = 200, seed: int = 0) -> Findings:
    """Play `steps` random allowed decisions in some areas and report what breaks the contract.

    Raises JaxEnvError as `check_jax_env`, which it calls first.
    """
    check_jax_env(env)
    flags, episodes, alike = jax.jit(lambda key: _played(scene_of(env), key, areas, steps))(jax.random.key(seed))
    remarks = _remarks(bool(flags[_PAUSED]), int(episodes), bool(alike), areas, steps)
    return Findings(
        problems=[f"{env.name}: {text}" for name, text in _SENTENCES.items() if bool(flags[name])],
        remarks=[f"{env.name}: {text}" for text in remarks],
        episodes=int(episodes),
    )


def _remarks(paused: bool, episodes: int, alike: bool, areas: int, steps: int) -> list[str]:
    remarks = []
    if paused:
        remarks.append(
            "members pause: they are not alive for a while and have not ended; their decisions stay open meanwhile. "
            "If they are gone instead, set terminated or truncated with the step that takes them"
        )
    if episodes == 0:
        remarks.append(
            f"no episode has ended in {steps} decisions of {areas} areas: if none ever does, end them by a limit "
            "(truncated), or there are no returns to show"
        )
    if alike:
        remarks.append(
            "all areas see the same from start to end although their keys and actions differ: draw what is random "
            "from the key of reset or step, and let actions matter"
        )
    return remarks


def _played(scene: JaxScene, key: Array, areas: int, steps: int) -> tuple[Flags, Array, Array]:
    """Play at random. Return flags over all steps, the count of ended episodes, and whether areas never differed."""
    start, play = jax.random.split(key)
    values = {name: jnp.full(areas, value, jnp.float32) for name, value in scene.parameters.items()}
    state, view = start_areas(scene, start, areas, values)
    flags = dict.fromkeys((*_SENTENCES, _PAUSED), jnp.bool_(False)) | {"nobody": ~_anybody(view).all()}

    def step(carry: Any, key: Array) -> tuple[Any, tuple[Array, Array]]:
        state, view, pausing, flags = carry
        actions = _random(scene, view, key, areas)
        state, moved = advance_areas(scene, state, actions, values)
        now, pausing = _broken(scene, view, pausing, moved.step)
        now["nobody"] = (moved.step.over & ~_anybody(moved.view)).any()
        flags = {name: flag | now[name] for name, flag in flags.items()}
        return (state, moved.view, pausing, flags), (moved.step.over.sum(dtype=jnp.int32), _alike(moved.view))

    pausing = [jnp.zeros((areas, part.teams * part.members), bool) for part in scene.parts]
    (_, _, _, flags), (over, alike) = jax.lax.scan(step, (state, view, pausing, flags), jax.random.split(play, steps))
    return flags, over.sum(), alike.all() & _alike(view) if areas > 1 else jnp.bool_(False)


def _broken(
    scene: JaxScene, before: dict[str, TeamView], pausing: list[Array], step: SceneStep
) -> tuple[Flags, list[Array]]:
    """Return the flags of one step and the members that pause after it, by behavior; arrays are [E, A, ...].

    `pausing` are the members that pause before the step. An episode is over for all behaviors together.
    """
    steps = [(part, before[part.name], step_of_behavior(step, part.name)) for part in scene.parts]
    flags_by_behavior = [_broken_by(*of_behavior, pauses) for of_behavior, pauses in zip(steps, pausing, strict=True)]
    there = [before.alive | pauses for (_, before, _), pauses in zip(steps, pausing, strict=True)]
    endings = [step.terminated | step.truncated for _, _, step in steps]
    pausing_after = [
        was & ~ended & ~step.view.alive & ~step.over[:, None]
        for was, ended, (_, _, step) in zip(there, endings, steps, strict=True)
    ]
    was, ended, pauses = (jnp.concatenate(x, axis=-1) for x in (there, endings, pausing_after))
    lives = jnp.concatenate([step.view.alive for _, _, step in steps], axis=-1) | pauses
    flags = jax.tree.map(lambda *of_behavior: jnp.stack(of_behavior).any(), *flags_by_behavior)
    return flags | {
        "over_alone": (step.over & ~ended.any(-1)).any(),
        "left_over": (step.over[:, None] & was & ~ended).any() & (step.over & ended.any(-1)).any(),
        "returned": (~step.over & ~lives.any(-1)).any(),
        _PAUSED: pauses.any(),
    }, pausing_after


def _broken_by(env: Sizes, before: TeamView, step: TeamStep, pauses: Array) -> Flags:
    """Return the breaches of one behavior by itself; `pauses` are the members that paused before the step."""
    was, over = before.alive, step.over[:, None]
    there = was | pauses
    ended = step.terminated | step.truncated
    numbers = [step.reward, step.group_reward, *step.stats.values(), *before.obs, *step.view.obs]  # first ones too
    finite = jnp.stack([jnp.isfinite(x).all() for x in numbers]).all()
    ends = np.cumsum(env.spec.action.discrete_branches, dtype=int)
    allowed = [part.any(-1) for part in jnp.split(before.action_mask, ends[:-1], axis=-1)] if len(ends) else []
    return {
        "forbidden": jnp.stack([(was & ~branch).any() for branch in allowed]).any() if allowed else jnp.bool_(False),
        "not_finite": ~finite,
        "stranger_paid": (~there & ((step.reward != 0) | (step.group_reward != 0))).any(),
        "stranger_ended": (~there & ended).any(),
        "still_alive": (ended & step.view.alive & (there | over)).any(),
        "undeclared": step.truncated.any() & (not env.truncates),
        "contradictory": (step.terminated & step.truncated).any(),
    }


def _anybody(views: dict[str, TeamView]) -> Array:
    """Return whether an agent of some behavior is alive, bool [E]."""
    return jnp.stack([view.alive.any(-1) for view in views.values()]).any(0)


def _alike(views: dict[str, TeamView]) -> Array:
    """Return whether all areas see what the first one sees."""
    return jnp.stack([(obs == obs[:1]).all() for view in views.values() for obs in view.obs]).all()


def _random(scene: JaxScene, view: dict[str, TeamView], key: Array, areas: int) -> dict[str, TeamActions]:
    """Draw allowed actions of all areas. The key is consumed."""
    keys = jax.random.split(key, (len(scene.parts), areas))
    drawn = zip(scene.parts, keys, strict=True)
    return {part.name: jax.vmap(partial(random_actions, part.spec.action))(view[part.name], k) for part, k in drawn}


def random_actions(action: ActionSpec, view: TeamView, key: Array) -> TeamActions:
    """Draw actions of one area: continuous ones uniform in [-1, 1], discrete ones uniform among those allowed.

    The key is consumed.
    """
    ends = np.cumsum(action.discrete_branches, dtype=int)
    keys = jax.random.split(key, len(ends) + 1)
    members = view.alive.shape[0]
    logits = jnp.where(view.action_mask, 0.0, -jnp.inf)
    branches = [
        jax.random.categorical(keys[i + 1], logits[:, end - size : end])
        for i, (end, size) in enumerate(zip(ends, action.discrete_branches, strict=True))
    ]
    discrete = jnp.stack(branches, axis=1) if branches else jnp.zeros((members, 0))
    continuous = jax.random.uniform(keys[0], (members, action.continuous_size), minval=-1.0)
    return TeamActions(continuous=continuous, discrete=discrete.astype(jnp.int32))


def _view(env: Sizes) -> TeamView:
    count = env.teams * env.members
    return TeamView(
        obs=tuple(_array((count, *sensor.shape), sensor.dtype) for sensor in env.spec.observations),
        action_mask=_array((count, env.spec.action.mask_size), jnp.bool_),
        alive=_array((count,), jnp.bool_),
    )


def _array(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def _trace(env: JaxEnv | JaxScene, name: str, function: Any, *arguments: Any) -> Any:
    with calling(f"{env.name}: {name}", raises=JaxEnvError):
        try:
            result = jax.eval_shape(function, *arguments)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise JaxEnvError(
                f"{env.name}: {name} cannot be compiled: {reason} Use jax.numpy and lax.cond in place of Python's own "
                "branches and numpy, with shapes that do not depend on values."
            ) from error
    if not isinstance(result, tuple) or len(result) != 2:
        raise JaxEnvError(f"{env.name}: {name} returns {result}, asked for is a pair of a state and what is seen")
    return result


def _compare(env: JaxEnv | JaxScene, what: str, got: Any, asked: Any) -> None:
    """Raise JaxEnvError with the first difference in structure, shapes or dtypes."""
    if jax.tree.structure(got) != jax.tree.structure(asked):
        raise JaxEnvError(
            f"{env.name}: {what} has structure {jax.tree.structure(got)}, asked for is {jax.tree.structure(asked)}"
        )
    leaves, wanted = jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(asked)
    for (path, leaf), want in zip(leaves, wanted, strict=True):
        if leaf.shape != want.shape or leaf.dtype != want.dtype:
            raise JaxEnvError(
                f"{env.name}: {what}{jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}, asked for is "
                f"{want.dtype}{list(want.shape)}"
            )

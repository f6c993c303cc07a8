"""A player process for a JAX environment: `python -m jaxrl.jax_envs.served.serve dungeon_escape --mlagents-port 5005`.

Joins the two sides: an environment's pure functions, compiled here, and `envs.player`, which speaks with the trainer.
A process of its own, so it sets up JAX for itself: on the CPU, with one thread, since the trainer needs the cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxrl.compilation import enable_compilation_cache, quick_options
from jaxrl.envs.foreign.arguments import keyword_arguments
from jaxrl.envs.player.link import EDITOR_PORT, PlayerOptions
from jaxrl.envs.player.player import ServedScene, serve
from jaxrl.envs.player.teams import AreasOutcome
from jaxrl.jax_envs import environment_of
from jaxrl.jax_envs.interface import (
    Areas,
    EnvParams,
    JaxEnv,
    TeamActions,
    TeamStep,
    TeamView,
    advance_areas,
    start_areas,
)
from jaxrl.jax_envs.scene import JaxScene, Sizes, scene_of, step_of_behavior
from jaxrl.types import Action, JaxrlError

_logger = logging.getLogger(__name__)


class JittedAreas:
    """E areas of a JAX environment behind numpy: the `Simulation` that a player serves. Outcomes and actions stand in
    the order of the behaviors.

    The program for a step is compiled by a thread, as soon as the first reset has shown its arguments: while the
    trainer makes its learner, the player has nothing else to do.
    """

    def __init__(self, env: JaxEnv | JaxScene, areas: int, seed: int) -> None:
        """Compile the environment's functions; `seed` and the number of resets decide all that is random."""
        self._seed = np.uint32(seed)
        self._resets = 0
        self._areas: Areas | None = None
        scene = scene_of(env)
        self._start = jax.jit(partial(_start, scene, areas), compiler_options=quick_options())  # runs seldom
        self._advance = jax.jit(partial(advance_areas, scene), donate_argnums=0)
        self._no_actions = {part.name: _no_actions(areas, part) for part in scene.parts}
        self._compiler = ThreadPoolExecutor(1, "jaxrl-compile")
        self._compiled: Future[None] | None = None

    def reset(self, parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Begin a new episode in every area. A later reset draws other dungeons than the first."""
        arguments = (self._seed, np.uint32(self._resets), dict(parameters))
        self._areas, view = self._start(*arguments)
        self._resets += 1
        if self._compiled is None:
            self._compiled = self._compiler.submit(self._try, *arguments)
        views = jax.tree.map(np.asarray, view)
        return tuple(_first_step(views[name]) for name in self._no_actions)

    def step(self, actions: Sequence[Action], parameters: Mapping[str, np.ndarray]) -> tuple[AreasOutcome, ...]:
        """Step every area once.

        Raises:
            JaxrlError: no reset came first.
        """
        if self._areas is None or self._compiled is None:
            raise JaxrlError("the trainer asked for a step before the first reset; send the command RESET first")
        self._compiled.result()
        chosen = [TeamActions(action.continuous, action.discrete) for action in actions]  # pyright: ignore
        sent = dict(zip(self._no_actions, chosen, strict=True))
        self._areas, result = self._advance(self._areas, sent, dict(parameters))
        result = jax.tree.map(np.asarray, result)
        return tuple(_played_step(step_of_behavior(result.step, name), result.view[name]) for name in sent)

    def _try(self, seed: np.uint32, resets: np.uint32, parameters: dict[str, np.ndarray]) -> None:
        """Step areas that nobody needs, so that the program exists."""
        areas, _ = self._start(seed, resets, parameters)
        jax.block_until_ready(self._advance(areas, self._no_actions, parameters))


def _start(
    scene: JaxScene, areas: int, seed: Array, resets: Array, parameters: EnvParams
) -> tuple[Areas, dict[str, TeamView]]:
    return start_areas(scene, jax.random.fold_in(jax.random.key(seed), resets), areas, parameters)


def _no_actions(areas: int, env: Sizes) -> TeamActions:
    action, agents = env.spec.action, env.teams * env.members
    continuous: Any = np.zeros((areas, agents, action.continuous_size), np.float32)
    discrete: Any = np.zeros((areas, agents, len(action.discrete_branches)), np.int32)
    return TeamActions(continuous=continuous, discrete=discrete)


def make_served(env: JaxEnv | JaxScene) -> ServedScene:
    """Wrap `env` in the form that the player serves."""
    return ServedScene(env.name, scene_of(env).parts, env.parameters, partial(JittedAreas, env))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the trainer is done. Returns the exit code: 0, or 1 after an error, which is in the log."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.log_file:
        _redirect_output(options.log_file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    set_up_jax()
    player = PlayerOptions(port=options.port, decision_period=options.decision_period)
    try:
        env = environment_of(options.environment, **keyword_arguments(options.arguments))
        serve(make_served(env), player)
    except JaxrlError as error:
        _logger.error("%s", error)
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a Unity player's command line. Options for the game itself are ignored, except `key=value`, which are the
    environment's arguments.
    """
    parser = argparse.ArgumentParser(prog="jaxrl.jax_envs.served.serve", allow_abbrev=False, description=__doc__)
    parser.add_argument("environment", metavar="NAME", help="of one of jaxrl's own, or FILE.py:FUNCTION")
    parser.add_argument("--mlagents-port", dest="port", type=int, default=EDITOR_PORT, help="port of the trainer")
    parser.add_argument("--decision-period", type=int, default=1, help="steps from one decision to the next")
    parser.add_argument("-logFile", "-logfile", dest="log_file", help="where all output goes")
    parser.add_argument("-nographics", action="store_true", help="accepted: there are no graphics")
    parser.add_argument("-batchmode", action="store_true", help="accepted: there are no dialogues")
    options, others = parser.parse_known_args(arguments)
    options.arguments = [text for text in others if text.partition("=")[0].isidentifier() and "=" in text]
    if options.decision_period < 1:
        parser.error(f"--decision-period {options.decision_period}: must be at least 1")
    return options


def _redirect_output(path: str) -> None:
    """Send this process's output, also what libraries write themselves, to a file, as a Unity player does."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    os.close(file)


def set_up_jax() -> None:
    """Set up JAX before the first array. The trainer's JAX_PLATFORMS may name the one accelerator: ignore it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["PJRT_NPROC"] = "1"
    jax.config.update("jax_platforms", os.environ.get("JAXRL_PLAYER_PLATFORMS", "cpu"))
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # nothing to do meanwhile; 0.2 instead of 0.24 ms a step
    enable_compilation_cache()


def _first_step(view: TeamView) -> AreasOutcome:
    """Return the outcome of a reset: agents begin, nobody has ended, nothing was earned."""
    alive: Any = view.alive
    nothing: Any = np.zeros(alive.shape, np.float32)
    nobody: Any = np.zeros(alive.shape, bool)
    over: Any = np.zeros(len(alive), bool)
    return _played_step(TeamStep(view, nothing, nothing, nobody, nobody, over, {}), view)


def _played_step(step: TeamStep, view: TeamView) -> AreasOutcome:
    """Convert a step to an outcome of numpy arrays, leading axis E."""
    return AreasOutcome(
        ended=np.asarray(step.terminated | step.truncated),
        truncated=step.truncated,  # pyright: ignore
        reward=step.reward,  # pyright: ignore
        group_reward=step.group_reward,  # pyright: ignore
        last_obs=step.view.obs,  # pyright: ignore
        alive=view.alive,  # pyright: ignore
        action_mask=view.action_mask,  # pyright: ignore
        obs=view.obs,  # pyright: ignore
        over=step.over,  # pyright: ignore
        stats=step.stats,  # pyright: ignore
    )


if __name__ == "__main__":
    sys.exit(main())

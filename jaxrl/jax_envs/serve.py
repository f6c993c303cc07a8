"""A player process for a JAX environment: `python -m jaxrl.jax_envs.serve dungeon_escape --mlagents-port 5005`.

Joins the two sides: an environment's pure functions, compiled here, and `envs.player`, which speaks with the trainer.
A process of its own, so it sets up JAX for itself: on the CPU, with one thread, since the trainer needs the cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxrl.cache import cache_folder
from jaxrl.envs.player import EDITOR_PORT, PlayerOptions, ServedEnvironment, serve
from jaxrl.envs.player_teams import PlayedStep
from jaxrl.jax_envs import ENVIRONMENTS
from jaxrl.jax_envs.interface import Areas, AreasStep, JaxEnv, TeamActions, TeamView, advance_areas, start_areas
from jaxrl.types import Action, JaxrlError

_logger = logging.getLogger(__name__)


class CompiledAreas:
    """E areas of a JAX environment behind numpy: the `Simulation` that a player serves."""

    def __init__(self, env: JaxEnv, areas: int, seed: int) -> None:
        """`seed` and the number of resets decide all that is random."""
        self._seed_key = jax.random.key(seed)
        self._resets = 0
        self._areas: Areas | None = None
        self._start = jax.jit(lambda key, parameters: start_areas(env, key, areas, parameters))
        self._advance = jax.jit(
            lambda running, actions, parameters: advance_areas(env, running, actions, parameters), donate_argnums=0
        )

    def reset(self, parameters: Mapping[str, np.ndarray]) -> PlayedStep:
        """Begin a new episode in every area. A later reset draws other dungeons than the first."""
        key = jax.random.fold_in(self._seed_key, self._resets)
        self._resets += 1
        self._areas, view = self._start(key, dict(parameters))
        return _first_step(jax.tree.map(np.asarray, view))

    def step(self, actions: Action, parameters: Mapping[str, np.ndarray]) -> PlayedStep:
        """One step of every area.

        Raises:
            JaxrlError: no reset came first.
        """
        if self._areas is None:
            raise JaxrlError("the trainer asked for a step before the first reset; send the command RESET first")
        team_actions = TeamActions(continuous=actions.continuous, discrete=actions.discrete)  # pyright: ignore
        self._areas, result = self._advance(self._areas, team_actions, dict(parameters))
        return _played_step(jax.tree.map(np.asarray, result))


def make_served(env: JaxEnv) -> ServedEnvironment:
    """`env` as the player wants it."""
    return ServedEnvironment(
        name=env.name,
        spec=env.spec,
        members=env.members,
        parameters=env.parameters,
        open=lambda areas, seed: CompiledAreas(env, areas, seed),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the trainer is done. Returns the exit code: 0, or 1 after an error, which is in the log."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.log_file:
        _redirect_output(options.log_file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _set_up_jax()
    player = PlayerOptions(port=options.port, decision_period=options.decision_period)
    try:
        serve(make_served(ENVIRONMENTS[options.environment]()), player)
    except JaxrlError as error:
        _logger.error("%s", error)
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """A Unity player's command line. What else it may hold is for a game to know, so it is ignored."""
    parser = argparse.ArgumentParser(prog="jaxrl.jax_envs.serve", allow_abbrev=False, description=__doc__)
    parser.add_argument("environment", choices=sorted(ENVIRONMENTS))
    parser.add_argument("--mlagents-port", dest="port", type=int, default=EDITOR_PORT, help="port of the trainer")
    parser.add_argument("--decision-period", type=int, default=1, help="steps from one decision to the next")
    parser.add_argument("-logFile", "-logfile", dest="log_file", help="where all output goes")
    parser.add_argument("-nographics", action="store_true", help="accepted: there are no graphics")
    parser.add_argument("-batchmode", action="store_true", help="accepted: there are no dialogues")
    options, _ = parser.parse_known_args(arguments)
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


def _set_up_jax() -> None:
    """Must run before the first array. The trainer's JAX_PLATFORMS is not for us: it may name the one accelerator."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {single}".strip()
    jax.config.update("jax_platforms", os.environ.get("JAXRL_PLAYER_PLATFORMS", "cpu"))
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _first_step(view: TeamView) -> PlayedStep:
    """A reset: agents begin, nobody has ended, nothing was earned."""
    alive = np.asarray(view.alive)
    nothing, nobody = np.zeros(alive.shape, np.float32), np.zeros(alive.shape, bool)
    return PlayedStep(
        ended=nobody,
        truncated=nobody,
        reward=nothing,
        group_reward=nothing,
        last_obs=view.obs,  # pyright: ignore
        alive=alive,
        action_mask=view.action_mask,  # pyright: ignore
        obs=view.obs,  # pyright: ignore
        over=np.zeros(len(alive), bool),
        stats={},
    )


def _played_step(result: AreasStep) -> PlayedStep:
    step = result.step
    return PlayedStep(
        ended=np.asarray(step.terminated | step.truncated),
        truncated=step.truncated,  # pyright: ignore
        reward=step.reward,  # pyright: ignore
        group_reward=step.group_reward,  # pyright: ignore
        last_obs=step.view.obs,  # pyright: ignore
        alive=result.view.alive,  # pyright: ignore
        action_mask=result.view.action_mask,  # pyright: ignore
        obs=result.view.obs,  # pyright: ignore
        over=step.over,  # pyright: ignore
        stats=step.stats,  # pyright: ignore
    )


if __name__ == "__main__":
    sys.exit(main())

"""What SAC learns on small tasks of known best return: three seeds in one program each, returns every 2,048 steps.

    python benchmarks/sac_tasks.py

hybrid  8 decisions of a branch of 3, of which one is right and shown and a wrong one is masked, another each time, and
        of a number a, best half of a number x that is shown: 1 for the right branch, less (a - x / 2)². Best 8.
memory  The memory probe: a digit to be remembered over 4 decisions. Best 1; who forgets earns 0.5.
both    As hybrid, but branch and x of all 8 decisions are shown with the first alone. Best 8; who forgets earns 3.9 at
        most: 1 + 7 (1/2 - 1/12), with one of two branches right, and a = 0.
search  On a line from -0.8 a step of up to 0.2 each way, and a branch that grabs: within 0.1 of 0.7 that pays 1 and
        ends the episode, elsewhere it costs 0.05. 32 decisions. Best 1; nothing shows the way before the first success.

stop    On a line a branch goes on, a step of up to 0.3 each way, or stops and is paid 1 - 4 |x - 0.5|, at least 0. At
        most 32 decisions. Best 1. A policy that counts its own entropy as a reward would rather go on.

    python benchmarks/sac_tasks.py search        # the named tasks alone

Each without and with `original_losses: true`, of hybrid actions also with `backup_entropy: true`; the ones with memory
also without.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl import make_environment, make_jitted_trainer, make_sac, make_settings
from jaxrl.cli.device import choose_device
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView, team_step
from tests.helpers import make_spec

LENGTH, BRANCH = 8, 3
MEMORY = {"memory": {"memory_size": 32, "sequence_length": 16}}


class Shown(NamedTuple):
    """One area."""

    right: Array  # int32 [], the branch
    number: Array  # float32 [], within (-1, 1)
    mask: Array  # bool [3]
    clock: Array  # int32 []


def make_hybrid(*, once: bool = False) -> JaxEnv:
    """The task; with `once`, one branch and number for all decisions, shown with the first."""

    def drawn(key: Array, clock: Array, before: Shown | None = None) -> Shown:
        of_right, of_number, of_mask = jax.random.split(key, 3)
        right, number = jax.random.randint(of_right, (), 0, BRANCH), jax.random.uniform(of_number, (), minval=-1.0)
        if once and before is not None:
            right, number = before.right, before.number
        wrong = (right + jax.random.randint(of_mask, (), 1, BRANCH)) % BRANCH
        return Shown(right, number, jnp.arange(BRANCH) != wrong, clock)

    def view(state: Shown, alive: Array) -> TeamView:
        obs = jnp.append(jax.nn.one_hot(state.right, BRANCH), state.number)
        obs = jnp.where(once & (state.clock > 0), 0.0, obs)
        return TeamView((obs[None],), state.mask[None], alive[None])

    def reset(key: Array, parameters: EnvParams | None = None) -> tuple[Shown, TeamView]:
        state = drawn(key, jnp.int32(0))
        return state, view(state, jnp.bool_(True))

    def step(key: Array, state: Shown, actions: TeamActions) -> tuple[Shown, TeamStep]:
        right = actions.discrete[0, 0] == state.right
        reward = jnp.where(right, 1.0, 0.0) - jnp.square(actions.continuous[0, 0] - 0.5 * state.number)
        after = drawn(key, state.clock + 1, state)
        over = after.clock >= LENGTH
        return after, team_step(view(after, ~over), reward=reward, terminated=over, figures={})

    return JaxEnv("Hybrid", make_spec((BRANCH + 1,), continuous=1, branches=(BRANCH,)), 1, {}, reset, step)


class Walked(NamedTuple):
    """One area of `search`."""

    place: Array  # float32 []
    clock: Array  # int32 []


def make_search() -> JaxEnv:
    """The task."""

    def view(state: Walked, alive: Array) -> TeamView:
        return TeamView((state.place[None, None],), jnp.ones((1, 2), bool), alive[None])

    def reset(key: Array, parameters: EnvParams | None = None) -> tuple[Walked, TeamView]:
        state = Walked(jnp.float32(-0.8), jnp.int32(0))
        return state, view(state, jnp.bool_(True))

    def step(key: Array, state: Walked, actions: TeamActions) -> tuple[Walked, TeamStep]:
        moved = 0.2 * jnp.clip(actions.continuous[0, 0], -1.0, 1.0)
        after = Walked(jnp.clip(state.place + moved, -1.0, 1.0), state.clock + 1)
        grabs = actions.discrete[0, 0] == 1
        found = grabs & (jnp.abs(after.place - 0.7) < 0.1)
        late = ~found & (after.clock >= 32)
        reward = jnp.where(found, 1.0, jnp.where(grabs, -0.05, 0.0))
        return after, team_step(
            view(after, ~(found | late)), reward=reward, terminated=found, truncated=late, figures={}
        )

    return JaxEnv("Search", make_spec((1,), continuous=1, branches=(2,)), 1, {}, reset, step, truncates=True)


def make_stop() -> JaxEnv:
    """The task."""

    def view(state: Walked, alive: Array) -> TeamView:
        return TeamView((state.place[None, None],), jnp.ones((1, 2), bool), alive[None])

    def reset(key: Array, parameters: EnvParams | None = None) -> tuple[Walked, TeamView]:
        state = Walked(jax.random.uniform(key, (), minval=-1.0), jnp.int32(0))
        return state, view(state, jnp.bool_(True))

    def step(key: Array, state: Walked, actions: TeamActions) -> tuple[Walked, TeamStep]:
        stops = actions.discrete[0, 0] == 1
        moved = jnp.where(stops, 0.0, 0.3 * jnp.clip(actions.continuous[0, 0], -1.0, 1.0))
        after = Walked(jnp.clip(state.place + moved, -1.0, 1.0), state.clock + 1)
        late = ~stops & (after.clock >= 32)
        reward = jnp.where(stops, jnp.maximum(1.0 - 4.0 * jnp.abs(after.place - 0.5), 0.0), 0.0)
        return after, team_step(
            view(after, ~(stops | late)), reward=reward, terminated=stops, truncated=late, figures={}
        )

    return JaxEnv("Stop", make_spec((1,), continuous=1, branches=(2,)), 1, {}, reset, step, truncates=True)


def learned(env: JaxEnv, steps: int, network: dict[str, Any], **hyper: Any) -> list[np.ndarray]:
    """Mean returns of three seeds in windows of 2,048 steps."""
    given = {"batch_size": 128, "buffer_size": 20_000, "learning_rate": 1e-3, "steps_per_update": 4.0, **hyper}
    shape = {"hidden_units": 64, "num_layers": 2, **network}
    settings = make_settings("sac", hyperparameters=given, network_settings=shape, max_steps=10**6)
    trainer = make_jitted_trainer(env, make_sac(env.spec, settings), settings, areas=16, seeds=3)
    state, found = trainer.init(range(3)), []
    pieces, before = 0, 0
    while before < steps:
        state, log = trainer.run(state, 8 if not network else 2)
        pieces, before = pieces + 1, int(np.asarray(state.train.step).min())
        found.append((before, log.reward))
    return found


def main() -> None:
    """Print a line for each."""
    choose_device(None)
    probe = make_environment("jax:probe_memory")
    tasks = [
        ("hybrid", make_hybrid(), 16_384, {}),
        ("memory", probe, 12_288, MEMORY),
        ("memory, without", probe, 12_288, {}),
        ("both", make_hybrid(once=True), 40_960, MEMORY),
        ("both, without", make_hybrid(once=True), 40_960, {}),
        ("search", make_search(), 32_768, {}),
        ("stop", make_stop(), 65_536, {}),
    ]
    chosen = [task for task in tasks if not sys.argv[1:] or task[0].split(",")[0] in sys.argv[1:]]
    for name, env, steps, network in chosen:
        variants: list[dict[str, bool]] = [{}, {"original_losses": True}]
        if env.spec.action.continuous_size:
            variants.append({"backup_entropy": True})
        for keys in variants:
            found = learned(env, steps, network, **keys)
            picked = found[:: max(len(found) // 8, 1)]
            curve = ", ".join(f"{at}: {np.mean(x):.2f} ± {np.std(x):.2f}" for at, x in [*picked, found[-1]])
            print(f"{', '.join([name, *keys])}: {curve}", flush=True)


if __name__ == "__main__":
    main()

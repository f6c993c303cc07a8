"""What exploiters are worth: a game in which self-play stays where it is, because nobody tries what would beat it.

Raid. Both sides choose in each of T turns, unseen: gather, march or guard. Who has marched in every turn raids a side
that has never guarded and wins 1 (two raids: nobody does). Else a side wins a tenth of what it has gathered more.

Who gathers in every turn is beaten by a raid, which one guard would stop for a tenth. From equal shares a raid happens
once in 3^T games, and most are stopped; later everybody gathers, and nobody marches. The game is won by gathering in 3,
guarding once in 10 and raiding in 1 of 14 games (T = 4). Exploitability is what the best of these three earns against a
policy, computed from its probabilities: 1.0 for gathering alone, 0.1 for guarding once, 0 at the equilibrium.

PPO of the compiled loop, or of the host loop (--host), with and without a league, over seeds with intervals of 95 %,
and how many policies of exploiters have joined the pool. All sides learn from as many games of their own.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxrl import make_settings
from jaxrl.algorithms import make_algorithm
from jaxrl.jax_envs.interface import EnvParams, JaxEnv, TeamActions, TeamStep, TeamView
from jaxrl.training.compiled.trainer import make_jitted_trainer
from jaxrl.training.host.run import host_loop
from jaxrl.types import Action, ActionSpec, BehaviorSpec, ObservationSpec
from tests.envs.duel_env import DuelEnv, DuelSettings
from tests.toy_runs import configured, environment

GATHER, MARCH, GUARD = range(3)
TURNS, SHARE = 4, 0.1
UPDATE = 1024
"""Decisions of the learner in an update."""
HOST_AREAS, HOST_SWAP = 16, 256
"""In the host loop all areas meet one opponent, which comes in the middle of a game, so that raids fail in the first
one: it plays four games in each of 16 areas, and an update learns from four opponents."""


class Side(NamedTuple):
    """What both have done so far, [2] each."""

    turn: Array  # int32 []
    gathered: Array
    marched: Array
    guarded: Array


def observed(turn: Any, marched: Any, guarded: Any) -> Array:
    """[..., T + 2]: the turn, whether nothing but marches was done, and whether there was a guard."""
    shown = [jax.nn.one_hot(turn, TURNS), (marched == turn)[..., None], (guarded > 0)[..., None]]
    return jnp.concatenate([jnp.asarray(x, jnp.float32) for x in shown], axis=-1)


def paid(gathered: Any, raids: Any, guarded: Any) -> Any:
    """What the first of two sides wins, of arrays [2, ...]."""
    one, two = raids[0] & ~guarded[1], raids[1] & ~guarded[0]
    rest = SHARE * (gathered[0] - gathered[1])
    return jnp.where(one & two, 0.0, jnp.where(one, 1.0, jnp.where(two, -1.0, rest)))


def make_raid() -> JaxEnv:
    """The game: two teams of one."""
    spec = BehaviorSpec((ObservationSpec("own", (TURNS + 2,)),), ActionSpec(0, (3,)))

    def view(side: Side, alive: Any) -> TeamView:
        seen = observed(jnp.full(2, side.turn), side.marched, side.guarded)
        return TeamView((seen,), jnp.ones((2, 3), bool), jnp.broadcast_to(alive, 2))

    def reset(key: Any, parameters: EnvParams) -> tuple[Side, TeamView]:
        nothing = jnp.zeros(2, jnp.int32)
        side = Side(jnp.int32(0), nothing, nothing, nothing)
        return side, view(side, True)

    def step(key: Any, side: Side, actions: TeamActions) -> tuple[Side, TeamStep]:
        did = [actions.discrete[:, 0] == action for action in (GATHER, MARCH, GUARD)]
        side = Side(side.turn + 1, side.gathered + did[0], side.marched + did[1], side.guarded + did[2])
        over = side.turn == TURNS
        won = jnp.where(over, paid(side.gathered, side.marched == TURNS, side.guarded > 0), 0.0)
        ends, nothing = jnp.full(2, over), jnp.zeros(2)
        return side, TeamStep(view(side, ~over), jnp.stack([won, -won]), nothing, ends, jnp.zeros(2, bool), over, {})

    return JaxEnv("Raid", spec, 1, {}, reset, step, teams=2)


class RaidEnv(DuelEnv):
    """The game in the host loop: the areas of one worker."""

    @property
    def spec(self) -> BehaviorSpec:
        return BehaviorSpec((ObservationSpec("own", (TURNS + 2,)),), ActionSpec(0, (3,)))

    def step(self, actions: Any) -> Any:
        for side, done in self._done.items():
            done[:, self._clock] = actions[side].discrete[:, 0]
        self._clock += 1
        if self._clock < TURNS:
            return self._message(None)
        both = [np.stack(of) for of in zip(*map(_counted, self._done.values()), strict=True)]
        won, ids = np.asarray(paid(*both), np.float32)[:, None], self._ids
        self._begin()
        return self._message({side: (ids[side], sign * won) for side, sign in zip(ids, (1, -1), strict=True)})

    def _begin(self) -> None:
        super()._begin()
        self._done = {side: np.full((self.settings.areas, TURNS), -1) for side in self.settings.sides}

    def _observe(self, side: str) -> tuple[np.ndarray]:
        done = self._done[side]
        turn = np.full(len(done), self._clock)
        return (np.asarray(observed(turn, (done == MARCH).sum(-1), (done == GUARD).sum(-1))),)


PLANS = np.array(list(product(range(3), repeat=TURNS)))
"""[P, T], all that a side may do."""


def _counted(plans: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of plans [..., T]: gathered, whether it is a raid, whether it guards."""
    return (plans == GATHER).sum(-1), (plans == MARCH).all(-1), (plans == GUARD).any(-1)


def exploitability(chance: np.ndarray) -> np.ndarray:
    """[...] of the probabilities of all plans, [..., P]."""
    answers = np.array([[GATHER] * TURNS, [GUARD] + [GATHER] * (TURNS - 1), [MARCH] * TURNS])
    pairs = zip(_counted(answers), _counted(PLANS), strict=True)
    both = [np.stack(np.broadcast_arrays(a[:, None], b)) for a, b in pairs]
    return (chance @ np.asarray(paid(*both)).T).max(-1)


def chances(log_prob: np.ndarray) -> np.ndarray:
    """[S, P] of log-probabilities of each action at each turn of each plan, [S, P, T]."""
    return np.exp(log_prob.sum(-1))


def keys_of(own: dict[str, Any], beta: float, rate: float, swap_steps: int = 1) -> dict[str, Any]:
    """Of the behavior, in both loops."""
    constant = {f"{key}_schedule": "constant" for key in ("learning_rate", "beta", "epsilon")}
    return {
        "max_steps": 10**9,
        "self_play": {"save_steps": 5 * UPDATE, "team_change": 10**8, "swap_steps": swap_steps, "window": 40, **own},
        "hyperparameters": {
            "batch_size": 256, "buffer_size": UPDATE, "beta": beta, "learning_rate": rate, **constant,
        },
        "network_settings": {"hidden_units": 32, "num_layers": 1},
    }  # fmt: skip


def log_prob_of(algorithm: Any) -> Any:
    """policy → the log-probability of each action at each turn of each plan, [P, T]."""
    score = algorithm.score_action
    before = np.pad(PLANS, ((0, 0), (1, 0)), constant_values=-1)[:, :TURNS]  # what was done in the turn before
    marched, guarded = np.cumsum(before == MARCH, -1), np.cumsum(before == GUARD, -1)
    obs = observed(np.broadcast_to(np.arange(TURNS), PLANS.shape), jnp.asarray(marched), jnp.asarray(guarded))
    every = Action(jnp.zeros((*PLANS.shape, 1, 0)), jnp.asarray(PLANS)[..., None, None])

    def log_prob(policy: Any) -> Any:
        _, extras = score(policy, (obs[:, :, None],), jnp.ones((*PLANS.shape, 1, 3), bool), (), every)
        return extras["log_prob"][..., 0, 0]

    return log_prob


def play_in_host(own: dict[str, Any], seed: int, updates: int, keys: dict[str, Any]) -> tuple[np.ndarray, int]:
    """Chances [T, P] of all plans after every 20th update of one run of the host loop, and how many have joined."""
    workers, found, done = 2 if "league" in own else 1, [], 0
    behavior = {"trainer_type": "ppo", "summary_freq": 10**6, "checkpoint_interval": 10**8, **keys}
    make = partial(RaidEnv, settings=DuelSettings(("Raid?team=0", "Raid?team=1"), areas=HOST_AREAS))
    with tempfile.TemporaryDirectory() as folder:
        settings = configured(Path(folder), "run", {"env_settings": {"seed": seed}}, Raid=behavior)
        with environment(make=make, workers=workers) as started, host_loop(settings, started=started) as loop:
            for turn in loop.iterate():
                done += "Raid" in turn.learned
                if "Raid" in turn.learned and done % 20 == 0:
                    main = loop.behaviors["Raid"]
                    log_prob = np.asarray(jax.jit(log_prob_of(main.algorithm))(main.state.policy), np.float64)
                    found.append(chances(log_prob))
                if done == updates:
                    break
            standings = loop.opponents.league.standings.values()
            return np.array(found), sum(each.joined for each in standings)


def play(own: dict[str, Any], seeds: int, updates: int, beta: float, rate: float) -> tuple[np.ndarray, Any]:
    """Chances [T, S, P] of all plans after every 20th update, and the state at the end."""
    env = make_raid()
    settings = make_settings("ppo", **keys_of(own, beta, rate))
    algorithm = make_algorithm(env.spec, settings)
    trainer = make_jitted_trainer(env, algorithm, settings, areas=64, seeds=seeds)
    log_prob = jax.jit(jax.vmap(log_prob_of(algorithm)))
    state, found = trainer.init(list(range(seeds))), []
    for _ in range(updates // 20):
        state, _ = trainer.run(state, 20)
        found.append(chances(np.asarray(log_prob(state.train.policy), np.float64)))
    return np.array(found), state


def interval(values: np.ndarray) -> str:
    """Mean over seeds with its interval of 95 %."""
    return f"{values.mean():.3f} ± {1.96 * values.std(ddof=1) / len(values) ** 0.5:.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--beta", type=float, default=0.4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--renew", type=int, default=60, help="updates after which an exploiter begins anew")
    parser.add_argument("--host", action="store_true", help="in the host loop, one seed after the other")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="these kinds alone, by name")
    options = parser.parse_args()
    pfsp = {"opponent_sampling": "pfsp"}
    leagues = {
        begin: {"league": {"exploiters": 1, "renew_steps": options.renew * UPDATE, "begin": begin}}
        for begin in ("fresh", "main")
    }
    kinds = {
        "newest alone": {"play_against_latest_model_ratio": 1.0},
        "half newest": {},
        "half newest, pfsp": pfsp,
        "half newest, pfsp, league": pfsp | leagues["fresh"],
        "half newest, pfsp, league of copies": pfsp | leagues["main"],
    }
    for name, own in kinds.items():
        if options.only and name not in options.only:
            continue
        size = 2 if "league" in own else 1
        if options.host:
            keys = keys_of(own, options.beta, options.rate, swap_steps=HOST_SWAP)
            runs = [play_in_host(own, seed, options.updates, keys) for seed in range(options.seeds)]
            mine, left = np.stack([chance for chance, _ in runs], axis=1), np.array([count for _, count in runs])
        else:
            found, state = play(own, size * options.seeds, options.updates, options.beta, options.rate)
            mine, left = found[:, ::size], np.asarray(state.rivals.league.joined)[::size] if size > 1 else np.zeros(1)
        late = exploitability(mine[len(mine) // 2 :])
        _, raids, guards = (np.asarray(x) for x in _counted(PLANS))
        said = f"raids {(mine[-1] @ raids).mean():.2f}, guards {(mine[-1] @ guards).mean():.2f}"
        joined = "" if size == 1 else f", {left.mean():.0f} have joined"
        print(f"{name:<37} last {interval(late[-1])}, second half {interval(late.mean(0))}, {said}{joined}", flush=True)

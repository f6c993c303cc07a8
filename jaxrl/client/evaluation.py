"""What the policy of a run earns in a JAX environment: one number per episode, decided by a seed."""

from __future__ import annotations

from pathlib import Path

from jaxrl.client.policy import load
from jaxrl.client.policy_inputs import PolicyError
from jaxrl.jax_envs import make_environment


def evaluate(
    run: str | Path,
    environment: str,
    *,
    episodes: int,
    seed: int = 0,
    deterministic: bool = False,
    trust: bool = False,
) -> list[float]:
    """The return of each episode, the mean over its teams.

    A team's return is the sum of its group rewards and of all its members' own rewards, as in the caption of a film.

    Args:
      run: results folder of a run, whose latest checkpoint acts.
      environment: `jax:NAME`, or the function of a file that makes one.
      episodes: how many.
      seed: decides everything random.
      deterministic: take the mean or most likely action; False: as the run's settings say, usually a sample.
      trust: import code that the folder of the run names, as in `load`.

    Raises:
      PolicyError: the policy does not fit the environment, no episodes, or one that does not end.
      JaxrlError: the environment is unknown, or the run cannot be used, see `load`.
    """
    env = make_environment(environment)
    played = load(run, env, deterministic=deterministic, trust=trust).rollout(env, episodes, seed=seed)
    if not played.finished.all():
        raise PolicyError(f"{environment}: an episode went on for {played.lengths.max():,} decisions; it has no return")
    own = played.returns.reshape(episodes, env.teams, env.members).sum(axis=-1)
    return [float(one) for one in (played.group_returns + own).mean(axis=-1)]

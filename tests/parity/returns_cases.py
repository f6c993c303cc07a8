"""Family a: returns and schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.learning import returns, schedules
from tests.parity.cases import Case
from tests.parity.compare import Comparison


def run_returns(case: Case) -> Comparison:
    """λ-returns, GAE and discounted sums of all sub-cases."""
    comparison = Comparison()
    for sub in case.meta["subcases"]:
        x = case.below(f"{sub['k']}/")
        reward, value = jnp.asarray(x["rewards"]), jnp.asarray(x["values"])
        gamma, lambd, bootstrap = jnp.asarray(x["gamma_lambda_next"])
        for name, array in _all_returns(reward, value, bootstrap, gamma, lambd).items():
            comparison.add(f"{sub['k']}/{name}", array, x[name])
    return comparison


@jax.jit
def _all_returns(reward, value, bootstrap, gamma, lambd) -> dict[str, jax.Array]:
    advantage = returns.gae(reward, value, bootstrap, gamma, lambd)
    return {
        "lambda_return": returns.lambda_return(reward, value, bootstrap, gamma, lambd),
        "gae": advantage,
        "gae_return": advantage + value,
        "discounted": returns.discounted_sum(reward, bootstrap, gamma),
    }


def run_schedules(case: Case) -> Comparison:
    """Every row of the table under both schedules; compared element by element, so that small rates count."""
    comparison = Comparison()
    steps = jnp.asarray(case.arrays["steps"], jnp.int32)
    for kind in ("linear", "constant"):
        rows = []
        for initial, minimum, last in case.arrays["initial_min_max"].tolist():
            rows.append(jax.vmap(schedules.make_schedule(kind, initial, minimum, int(last)))(steps))
        comparison.add(kind, jnp.stack(rows), case.arrays[kind], floor=0.0, elementwise=True)
    return comparison

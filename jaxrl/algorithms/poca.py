"""MA-POCA: multi-agent posthumous credit assignment (Cohen et al. 2021, arXiv 2111.05992).

A team shares one reward. The critic looks at all living members by attention: V(all observations) is the team's value,
b_i (own observation, the others' observations and actions) is member i's counterfactual baseline. The target is the
λ-return of V, the advantage R − b_i. A member that ends while its team lives bootstraps from the team's next value, so
it is credited for what the team earns after its death; absent members are masked, there are no absorbing states.

Parity. Equal to ML-Agents 1.1.0: networks and their initialisation, both losses and their weights (0.5 · (value +
0.5 · baseline)), the value loss that is a plain squared error (the original's clip compares with the return itself and
never acts), the clipped baseline loss, log-probability ratios per action column, advantages normalised once per
update, Adam, schedules, the running maximum of the team size.
Different on purpose: (1) a member that ended bootstraps from the survivors; the original adds its own last observation
and, when it ends alone, shows its mates one decision late. (2) A row stores a team once and V is computed once per team
state. (3) All rows are taken together when buffer_size is exceeded; the original waits for time_horizon. (4) A
minibatch is batch_size // A states, so it holds fewer agent steps when members are dead.
"""

from __future__ import annotations

from jaxrl.algorithms import counterfactual
from jaxrl.algorithms.interface import Algorithm
from jaxrl.networks.models import TeamCritic
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


def make_poca(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """MA-POCA for one behavior: its four functions with networks and settings bound."""
    critic = TeamCritic(spec, settings.network_settings, tuple(settings.reward_signals))
    return counterfactual.make(critic, spec, settings)

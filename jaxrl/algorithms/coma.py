"""COMA with absorbing states: the comparison of the MA-POCA paper (Cohen et al. 2021, arXiv 2111.05992).

After COMA (Foerster et al. 2018, arXiv 1705.08926): each member's advantage is the return less a counterfactual
baseline that sees everything but its own action. Losses, λ-returns, posthumous credit and all else are MA-POCA's, see
`poca.py` and `counterfactual.py`; the critic alone differs. It is fully connected, with a place for each of
`team_capacity` members; members that are not there stand in their place as an absorbing state, zeros and a flag (see
`networks.joint`), where MA-POCA's attention leaves them out. Value and baseline are two networks of hidden_units and
num_layers, initialised as ML-Agents' PPO critic.
"""

from __future__ import annotations

from jaxrl.algorithms import counterfactual
from jaxrl.algorithms.interface import Algorithm
from jaxrl.networks.joint import JointCritic
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


def make_coma(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """COMA for one behavior: its four functions with networks and settings bound.

    `prepare` and `update` raise `networks.joint.TeamCapacityError` for rows with more members than `team_capacity`.
    """
    streams, capacity = tuple(settings.reward_signals), settings.hyperparameters.team_capacity
    return counterfactual.make(JointCritic(spec, settings.network_settings, streams, capacity), spec, settings)

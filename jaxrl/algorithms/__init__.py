"""Algorithms by the name they have in `trainer_type`. A new algorithm is one file and one line here."""

from jaxrl.algorithms.poca import make_poca
from jaxrl.algorithms.ppo import make_ppo

ALGORITHMS = {"ppo": make_ppo, "poca": make_poca}

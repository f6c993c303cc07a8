"""An algorithm of one's own, made as jaxrl's are: `trainer_type: my_file.py:make_x`."""

from __future__ import annotations

import jax

from jaxrl.algorithms import Make
from jaxrl.algorithms.connected import connected
from jaxrl.algorithms.interface import Algorithm
from jaxrl.own_code import OwnCodeError, calling
from jaxrl.settings import BehaviorSettings
from jaxrl.types import BehaviorSpec


def make_own(name: str, function: Make, spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """What `function` makes, with the connectors and the `postprocess` of the settings around it.

    The function is given the spec that the policy sees, and settings without those two: it may call `make_ppo` and the
    like without having them twice.

    Raises OwnCodeError if it raises or returns something else than an Algorithm that can be initialised.
    """

    def make(seen: BehaviorSpec, given: BehaviorSettings) -> Algorithm:  # `with_traced_settings` gives traced numbers
        plain = given.model_copy(update={"connectors": (), "postprocess": None})
        with calling(f"trainer_type: {name}"):
            algorithm = function(seen, plain)
        if not isinstance(algorithm, Algorithm):
            raise OwnCodeError(f"trainer_type: {name} returns a {type(algorithm).__name__}, expected a jaxrl.Algorithm")
        with calling(f"trainer_type: {name}: `init` of its Algorithm"):
            jax.eval_shape(algorithm.init, jax.random.key(0))
        if algorithm.places != given.places:
            raise OwnCodeError(
                f"hyperparameters.share_policy: got false, expected true with trainer_type {name}, whose Algorithm has "
                "one policy: give its Parts an actor and `places` as poca.parts_of does"
            )
        return algorithm

    make.__name__ = name  # which refusals begin with
    return connected(make)(spec, settings)

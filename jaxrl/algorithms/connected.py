"""Wrap an algorithm, also a user's own, with the connectors and the `postprocess` function of its settings."""

from __future__ import annotations

from functools import wraps

import jax

from jaxrl.algorithms import ALGORITHMS, TRAINER_TYPES, Make
from jaxrl.algorithms.interface import Algorithm, TrainState, WithTracedSettings
from jaxrl.algorithms.postprocessing import postprocessed, resolve
from jaxrl.connectors import make_chain
from jaxrl.connectors.chain import Chain, frozen
from jaxrl.own_code import OwnCodeError, calling
from jaxrl.settings import BehaviorSettings, SettingsError
from jaxrl.settings.traced import with_values
from jaxrl.types import BehaviorSpec


def connected(make: Make) -> Make:
    """Wrap `make`, which takes the policy's spec, to take the environment's spec, with connectors and `postprocess`.

    The statistics of connectors are part of the policy. `postprocess` changes rollouts before they are stored. The
    result raises ConnectorError for connectors that do not fit, JaxrlError if the function does not exist, and
    SettingsError for hyperparameters of another algorithm or demonstrations beside connectors that change decisions.
    """

    @wraps(make)
    def make_connected(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
        name = make.__name__.removeprefix("make_")
        if name in tuple(ALGORITHMS):
            _refuse_foreign(name, settings)
        chain = make_chain(spec, settings.connectors)
        if chain is not None:
            _refuse_demonstrations(chain, settings)
        algorithm = make(spec if chain is None else chain.spec, settings)
        again = WithTracedSettings(lambda values: make_connected(spec, with_values(settings, values)), algorithm.learn)
        algorithm = algorithm._replace(with_traced_settings=again)
        if settings.postprocess is not None:
            algorithm = postprocessed(algorithm, resolve(settings.postprocess), settings.postprocess)
        if chain is None:
            return algorithm

        def init(key: jax.Array) -> TrainState:
            state = algorithm.init(key)
            return state.replace(policy=state.policy.replace(connectors=chain.shared))

        return algorithm._replace(init=init, connectors=chain)

    return make_connected


def _refuse_foreign(name: str, settings: BehaviorSettings) -> None:
    """Raise SettingsError if `make_<name>` is given hyperparameters of another algorithm."""
    wanted, hyper = TRAINER_TYPES[name].hyperparameters, settings.hyperparameters
    missing = [key for key in wanted.model_fields if not hasattr(hyper, key)]
    if missing:
        raise SettingsError(
            f"hyperparameters: those of {settings.trainer_type} lack {', '.join(missing)}: "
            f"make the settings with make_settings({name!r}, ...)",
            f"make_{name}",
        )


def _refuse_demonstrations(chain: Chain, settings: BehaviorSettings) -> None:
    """Raise SettingsError if a connector changes observations or actions that are compared with demonstrations."""
    used = "gail" in settings.reward_signals or settings.behavioral_cloning is not None
    for i, link in enumerate(chain.links if used else ()):
        if link.observe is not None or link.act is not None:
            raise SettingsError(
                f"connectors[{i}]: got {chain.names[i]}, but the demonstrations of gail and behavioral_cloning hold "
                "what the environment shows and gets, without connectors: remove one of the two"
            )


def make_own(name: str, function: Make, spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make the algorithm of a user's `function`, with the connectors and the `postprocess` of the settings around it.

    The function gets the policy's spec, and settings without those two, so that it may call `make_ppo` and others
    without applying them twice.

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

    make.__name__ = name  # error messages begin with it
    return connected(make)(spec, settings)


def without_learning(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm for evaluation, in which the statistics of its connectors do not change."""
    if algorithm.connectors is None:
        return algorithm
    return algorithm._replace(connectors=frozen(algorithm.connectors))


def deterministic(spec: BehaviorSpec, settings: BehaviorSettings) -> Algorithm:
    """Make the algorithm that acts without noise, changing statistics, and critic memory.

    It takes `TrainState.policy` as it is.
    """
    network = settings.network_settings.model_copy(update={"deterministic": True})
    plays = settings.model_copy(update={"network_settings": network, "behavioral_cloning": None})
    algorithm = ALGORITHMS[settings.trainer_type](spec, plays)
    return without_learning(algorithm)._replace(critic_step=None)

"""An environment that shows what `sensors.py` lists, and a player that serves it to `host_loop.py`.

python benchmarks/sensors_player.py nature_cnn --mlagents-port 5005
"""

from __future__ import annotations

import argparse

import jax
import numpy as np
from sensors import SENSORS

from jaxrl.envs.player.link import PlayerOptions
from jaxrl.envs.player.player import serve
from jaxrl.jax_envs.interface import JaxEnv
from jaxrl.jax_envs.probes import Sensor, make_probe
from jaxrl.jax_envs.served.serve import make_served, set_up_jax
from jaxrl.types import ObservationSpec

EPISODE = 50  # decisions


def make_sensors_environment(name: str) -> JaxEnv:
    """One agent that is shown noise as its episodes of `EPISODE` decisions begin, and may answer anything."""

    def sensor(spec: ObservationSpec) -> Sensor:
        if spec.dtype == "uint8":
            return Sensor(spec, 2, lambda key, _: jax.random.bits(key, spec.shape, np.uint8))
        if spec.name == "goal":
            return Sensor(
                spec, 2, lambda key, _: jax.nn.one_hot(jax.random.randint(key, (), 0, *spec.shape), *spec.shape)
            )
        return Sensor(spec, 2, lambda key, _: jax.random.normal(key, spec.shape))

    return make_probe("Bench", tuple(map(sensor, SENSORS[name].observations)), delay=EPISODE - 1)


def main() -> None:
    """Serve one of them to whoever listens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SENSORS)
    parser.add_argument("--mlagents-port", type=int, required=True)
    options, _ = parser.parse_known_args()
    set_up_jax()
    serve(make_served(make_sensors_environment(options.name)), PlayerOptions(port=options.mlagents_port))


if __name__ == "__main__":
    main()

"""Host time of a team of two behaviors beside that of one behavior with the same members, with the updates.

    python benchmarks/team_host.py
    python benchmarks/team_host.py --rows 64 --messages 400

Rows hold 3 members with 34 numbers and 7 actions each, who all ask with every message; of the team one is of the first
behavior and two of the second. What stands before the loop's `Policies.act` and behind its `Updates.use_up` is the same
and left out: a message is booked, decided on and appended, and an update follows whenever buffer_size decisions are
there. Both take turns of --messages, so that another load of the machine hits both; columns are microseconds of CPU
time of the process for a message (all threads), and milliseconds for an update, medians over --turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median

import jax
from act_latency import SPEC, message

from jaxrl import make_settings
from jaxrl.algorithms import ALGORITHMS
from jaxrl.cli.device import choose_device
from jaxrl.rollout.booking.missing import some
from jaxrl.rollout.booking.slots import Source
from jaxrl.settings import BehaviorSettings, EnvironmentSettings
from jaxrl.training.host.behavior import Behavior, make_behavior
from jaxrl.training.host.programs import compile_programs
from jaxrl.training.host.team import Kind, make_team_of
from jaxrl.types import BehaviorMessage

Messages = Mapping[Source, BehaviorMessage]
ONE, FIRST, SECOND = (Source(0, f"{name}?team=0") for name in ("One", "First", "Second"))


def settings_for(rows: int) -> BehaviorSettings:
    """An update with every 20th message."""
    quick = {"batch_size": 512, "buffer_size": 20 * 3 * rows, "num_epoch": 3}
    return make_settings("poca", network_settings={"hidden_units": 128, "num_layers": 2}, hyperparameters=quick)


def one_behavior(rows: int) -> tuple[Behavior, Callable[[Messages], object], Messages]:
    """What learns, what acts, and a message."""
    settings = settings_for(rows)
    algorithm = ALGORITHMS["poca"](SPEC, settings)
    programs = compile_programs(algorithm, settings.segment_limit)
    behavior = make_behavior("One", SPEC, settings, algorithm, programs, jax.random.key(0), training=True)
    return behavior, behavior.act, {ONE: message(rows)}


def two_behaviors(rows: int) -> tuple[Behavior, Callable[[Messages], object], Messages]:
    """The same of a team."""
    kinds = {}
    for number, name in enumerate(("First", "Second")):
        settings = settings_for(rows).model_copy(update={"team": "bench"})
        algorithm = ALGORITHMS["poca"](SPEC, settings)
        programs = compile_programs(algorithm, settings.segment_limit)
        kinds[name] = Kind(SPEC, settings, algorithm, programs, jax.random.key(number))
    team = make_team_of("bench", kinds, areas=1, environment=EnvironmentSettings())
    whole = message(rows)
    places = [[i for i in range(3 * rows) if (i % 3 == 0) == first] for first in (True, False)]
    parts = [whole._replace(deciding=some(whole.deciding, of)) for of in places]
    return team.behaviors[0], team.act, dict(zip((FIRST, SECOND), parts, strict=True))


def turn(behavior: Behavior, act: Callable[[Messages], object], messages: Messages, count: int) -> tuple[float, float]:
    """CPU seconds of a message and of an update."""
    acting, learning, updates = 0.0, 0.0, 0
    for _ in range(count):
        begun = time.process_time()
        act(messages)
        acted = time.process_time()
        acting += acted - begun
        if behavior.due():
            behavior.learner.await_program(behavior.actor)
            behavior.learn()
            learning, updates = learning + time.process_time() - acted, updates + 1
    return acting / count, learning / max(updates, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    choose_device("cpu")
    cases = {"one behavior": one_behavior(options.rows), "team of two": two_behaviors(options.rows)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for number in range(options.turns + 1):
        for name, case in cases.items():
            times = turn(*case, options.messages)
            if number:  # the first one compiles
                found[name].append(times)
    told = {name: [median(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    for name, (message_time, update) in told.items():
        print(f"{name:14s} {1e6 * message_time:8.0f} us a message {1e3 * update:8.1f} ms an update")
    ratios = [b / a for a, b in zip(*told.values(), strict=True)]
    whole = [20 * times[0] + times[1] for times in told.values()]
    print(f"ratio: message {ratios[0]:.2f}, update {ratios[1]:.2f}, both {whole[1] / whole[0]:.2f}")


if __name__ == "__main__":
    main()

"""Memory in the host's rows: whose it is, through deaths, silence, moves, pages and updates.

A policy that counts its decisions tells what it remembers by value: its action is the number that it remembers. And a
real network gives the same numbers from what is stored before each state as along whole sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_streams import SOURCES, Part, RandomStream
from row_collector import SPEC as GIVEN
from script import ONE

from jaxrl.algorithms import ALGORITHMS, make_settings, preparing
from jaxrl.algorithms.interface import Algorithm, Decision, PolicyState, acting
from jaxrl.algorithms.ppo import make_ppo
from jaxrl.learning.sequences import cut
from jaxrl.networks import actions
from jaxrl.networks.memory import Sequences, part
from jaxrl.networks.models import Actor as Network
from jaxrl.networks.models import TeamCritic
from jaxrl.rollout.buffer.trajectory_state import rollout_of
from jaxrl.settings import BehaviorSettings
from jaxrl.training.host import acting_policy as actors
from jaxrl.training.host.acting_policy import ActingPolicy
from jaxrl.training.host.paged_buffer import Wanted
from jaxrl.training.host.programs import compile_programs
from jaxrl.types import Action, ActionSpec, BehaviorMessage, DimensionProperty
from tests.helpers import decision_steps, make_spec, message, ppo_settings, terminal_steps

SPEC = make_spec((3,), continuous=1)
ENTITIES = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
OBSERVATIONS = (GIVEN.observations[0], GIVEN.observations[1]._replace(dimension_property=ENTITIES))
STREAM_SPEC = GIVEN._replace(observations=OBSERVATIONS)


def counting(team_rows: bool) -> ActingPolicy:
    """Each agent does the number of decisions that it has made in its episode."""

    def act(_policy: Any, obs: Any, mask: jax.Array, carry: Any, _key: Any) -> Decision:
        action = Action(carry["n"], jnp.zeros((*mask.shape[:-1], 0), jnp.int32))
        noted = {"log_prob": jnp.zeros((*mask.shape[:-1], 1))}
        return Decision(action, action, noted, {"n": carry["n"] + 1.0})

    algorithm = make_ppo(SPEC, ppo_settings())._replace(
        act=act, noise=None, memories=(("n", (1,)),), team_rows=team_rows
    )
    programs = compile_programs(algorithm, 64).actor
    policy = jax.jit(algorithm.init)(jax.random.key(3)).policy
    return ActingPolicy("Toy", SPEC, algorithm, programs, policy, [1, 2], Wanted(16))


def ask(
    actor: ActingPolicy, agents: Sequence[int], groups: Sequence[int] | None = None, end: Sequence[int] = ()
) -> list[int]:
    """What the agents that ask remember."""
    ended = terminal_steps(SPEC, end, groups=None if groups is None else [7] * len(end))
    deciding = decision_steps(SPEC, agents, groups=groups)
    found = actor.act({ONE: message(SPEC, ended, deciding)})[0][ONE]
    return found.continuous[:, 0].astype(int).tolist()


@pytest.mark.parametrize("team_rows", [True, False], ids=["teams", "single"])
def test_memory_survives_silence_and_ends_with_the_episode(team_rows: bool) -> None:
    actor = counting(team_rows)
    assert ask(actor, [1, 2, 3]) == [0, 0, 0]
    assert ask(actor, [1, 3]) == [1, 1]
    assert ask(actor, [1]) == [2]
    assert ask(actor, [1, 2, 3]) == [3, 1, 2], "2 and 3 were silent for a while"
    assert ask(actor, [1, 2], end=[3]) == [4, 2]
    assert ask(actor, [1, 2, 3]) == [5, 3, 0], "agent 3 begins anew"
    assert ask(actor, [1, 2, 3], end=[1]) == [0, 4, 1], "and so does who ends and asks in one message"


def test_memory_survives_updates_and_pages() -> None:
    """40 decisions of one agent beside one that asks once: its row goes on in other pages; then an update."""
    actor = counting(False)
    ask(actor, [1, 2])
    for n in range(1, 41):
        assert ask(actor, [1]) == [n]
    actor.discard()
    assert ask(actor, [1, 2]) == [41, 1]


REMEMBERING = [
    {"type": "frame_stack", "frames": 3, "sensors": ["self"]},
    {"type": "previous_action"},
    {"type": "previous_reward"},
    {"type": "normalize_rewards", "gamma": 0.5},
]
WATCHED = STREAM_SPEC._replace(action=ActionSpec(5, (3,)))


def telling(team_rows: bool) -> ActingPolicy:
    """Each agent does what it is shown: n, the n before, reward before, serials of the older two frames."""

    def act(_policy: Any, obs: Any, mask: jax.Array, carry: Any, _key: Any) -> Decision:
        stacked, _, before, reward = obs
        seen = jnp.concatenate([carry["n"], before[..., :1], reward, stacked[..., 1:2], stacked[..., 4:5]], axis=-1)
        action = Action(seen, jnp.zeros((*mask.shape[:-1], 1), jnp.int32))
        return Decision(action, action, {"log_prob": jnp.zeros((*mask.shape[:-1], 6))}, {"n": carry["n"] + 1.0})

    algorithm = make_ppo(WATCHED, make_settings("ppo", connectors=REMEMBERING))
    algorithm = algorithm._replace(act=act, noise=None, memories=(("n", (1,)),), team_rows=team_rows)
    assert algorithm.connectors is not None
    policy = PolicyState(params=(), normalizer=(), connectors=algorithm.connectors.shared)
    return ActingPolicy("Toy", WATCHED, algorithm, compile_programs(algorithm, 64).actor, policy, [1, 2], Wanted(6000))


def test_an_agent_is_shown_the_same_whatever_team_and_row_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of single agents stay where they are; in rows of teams agents move, and places are taken again.

    What a mover has earned is told to the learner with the next state of its old team, and counts once: in the end
    statistics are the same.
    """
    monkeypatch.setattr(actors, "first_sizes", lambda _, team_rows: (16, [4]) if team_rows else (32, [1]))
    alone, teams = telling(False), telling(True)
    stream, moves = RandomStream(5), 0
    for number in range(60):
        messages = stream.message()
        shown = alone.act(messages)[0]
        for source, ours in teams.act(messages)[0].items():
            np.testing.assert_array_equal(ours.continuous, shown[source].continuous, err_msg=f"{number}: {source}")
        moves += len(teams.paged.slots._moved)  # pyright: ignore[reportOptionalMemberAccess]
    assert moves > 20
    left = {source: [agent for key in stream.teams if key[0] == source for agent in stream.teams[key]]
            for source in SOURCES}  # fmt: skip
    end = {source: stream._arrays(Part(ended=[(agent, False) for agent in agents])) for source, agents in left.items()}
    for actor in (alone, teams):
        actor.act(end)
    ours, theirs = (actor.statistics[-1] for actor in (teams, alone))
    assert ours.count == theirs.count > 500
    np.testing.assert_allclose(np.stack(ours[:2]), np.stack(theirs[:2]), rtol=1e-4)


def memory_settings(trainer: str, kind: str) -> BehaviorSettings:
    memory = {"memory_size": 4, "sequence_length": 5, "memory_type": kind}
    return make_settings(
        trainer,
        network_settings={"hidden_units": 4, "num_layers": 1, "memory": memory},
        hyperparameters={"batch_size": 64, "buffer_size": 512},
    )


def small(messages: dict[Any, BehaviorMessage]) -> dict[Any, BehaviorMessage]:
    """Numbers of order 1, so that no gate is saturated."""

    def scaled(steps: Any) -> Any:
        return steps._replace(obs=tuple(np.sin(o) for o in steps.obs))

    return {
        source: steps._replace(ended=scaled(steps.ended), deciding=scaled(steps.deciding))
        for source, steps in messages.items()
    }


def played(algorithm: Algorithm, state: Any, messages: int) -> Any:
    actor = ActingPolicy(
        "Toy",
        STREAM_SPEC,
        algorithm,
        compile_programs(algorithm, 7).actor,
        acting(algorithm, state),
        [1, 2],
        Wanted(6000),
    )
    stream = RandomStream(11)
    for _ in range(messages):
        actor.act(small(stream.message()))
    return rollout_of(actor.buffer)


@pytest.mark.parametrize(("trainer", "kind"), [pytest.param("poca", "lstm", marks=pytest.mark.slow), ("ppo", "gru")])
def test_what_was_stored_gives_the_numbers_of_acting_and_those_along_sequences(trainer: str, kind: str) -> None:
    """Random messages with joins, deaths, ends, moves and silence; 1e-5 between stepping and sequences.

    The log-probabilities noted when acting come from memory that was stepped; from what is stored before a state they
    must come out again; and so from the memory that goes along sequences cut from the rows, value and baseline too.
    """
    settings = memory_settings(trainer, kind)
    algorithm = ALGORITHMS[trainer](STREAM_SPEC, settings)
    state = jax.jit(algorithm.init)(jax.random.key(3))
    rollout = played(algorithm, state, 60)
    assert int(rollout.acted.sum()) > 200 and bool((rollout.begin & (rollout.carry["actor"] != 0).any(-1)).any()) == (
        trainer == "poca"
    ), "somebody moved between teams, which has rows of single agents unmoved"
    network = Network(STREAM_SPEC, settings.network_settings)
    nothing = jnp.zeros((*rollout.acted.shape, 1))
    length = settings.network_settings.memory.sequence_length
    make_batch = jax.jit(partial(preparing.make_batch, length=length))
    batch = make_batch(rollout, rollout.obs, nothing, advantage=nothing, baseline=nothing)
    assert batch.acted.sum() == rollout.acted.sum() and batch.acted.shape[1] == 5

    def noted(params: Any, x: Any, memory: Any) -> jax.Array:
        dist = network.apply(params, x.obs, part(memory, "actor"))
        return actions.log_prob(dist, x.action, x.action_mask, STREAM_SPEC.action)

    log_prob = jax.jit(noted)(state.policy.params, rollout, rollout.carry)
    at = np.asarray(rollout.acted)
    np.testing.assert_allclose(np.asarray(log_prob)[at], np.asarray(rollout.extras["log_prob"])[at], atol=1e-5)
    along = jax.jit(noted)(state.policy.params, batch, batch.memory)
    at = np.asarray(batch.acted)
    np.testing.assert_allclose(np.asarray(along)[at], np.asarray(batch.log_prob)[at], atol=1e-5)
    if trainer == "poca":
        _critics_agree(settings, state, batch)


def _critics_agree(settings: BehaviorSettings, state: Any, batch: Any) -> None:
    """Value and baseline from what is stored before each state, and along the sequences."""
    critic = TeamCritic(STREAM_SPEC, settings.network_settings, ("extrinsic",))
    encoding = actions.one_hot(batch.action, STREAM_SPEC.action)
    evaluate = jax.jit(partial(critic.apply, state.critic))
    team = (batch.obs, encoding, batch.present, jnp.float32(4.0))
    along = evaluate(*team, part(batch.memory, "critic"))
    stepped = evaluate(*team, batch.memory.stored["critic"])
    at = np.asarray(batch.acted)
    for ours, theirs in zip(along, stepped, strict=True):
        np.testing.assert_allclose(np.asarray(ours)[at], np.asarray(theirs)[at], atol=1e-5)


def test_a_row_that_is_cut_keeps_its_order_and_puts_nothing_in_front() -> None:
    """Seven states, of which 1 and 4 do not count, in sequences of 3: 0 2 3 | 5 6 1 | 4, zeros fill the rest."""
    counts = jnp.array([True, False, True, True, False, True, True])[:, None, None]
    (found,) = cut((jnp.arange(7.0)[:, None, None],), counts, 3)
    assert found[:, :, 0].tolist() == [[0, 2, 3], [5, 6, 1], [4, 0, 0]]
    flags = Sequences(counts, counts, counts)
    assert cut(flags, counts, 9).stored.shape == (1, 7, 1), "a rollout shorter than a sequence is one"

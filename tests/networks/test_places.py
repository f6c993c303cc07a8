"""A policy for each member of a team: as many actors as places, in one pytree."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.networks.memory import Sequences
from jaxrl.networks.models import Actor
from jaxrl.networks.places import PlacedActors, actor_of, of_place
from jaxrl.settings import MemorySettings, NetworkSettings
from tests.helpers import make_spec
from tests.jax_envs.toy_jax_env import quick_jit

SPEC = make_spec((3,), (2,), continuous=2, branches=(2, 3))
PLAIN = NetworkSettings(hidden_units=4, num_layers=1)
REMEMBERS = NetworkSettings(hidden_units=4, num_layers=1, memory=MemorySettings(sequence_length=4, memory_size=4))


def drawn(places: int, settings: NetworkSettings) -> Any:
    first = () if settings.memory is None else jnp.zeros((1, 1, 4))
    obs = tuple(jnp.zeros((1, 1, *sensor.shape)) for sensor in SPEC.observations)
    return quick_jit(partial(actor_of(SPEC, settings, places).init, obs=obs, memory=first))(jax.random.key(0))


def made(places: int, settings: NetworkSettings = PLAIN) -> tuple[PlacedActors, Any]:
    """Actors, and parameters in which nothing is zero."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), drawn(places, settings))
    return actor_of(SPEC, settings, places), params


def seen(*lead: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    return tuple(rng.normal(size=(*lead, *sensor.shape)).astype(np.float32) for sensor in SPEC.observations)


def test_every_member_has_the_actor_of_its_place() -> None:
    """What an `Actor` with the parameters of place A mod P says: of a team with one member less, of two teams too."""
    actors, params = made(3)
    actor, leads = Actor(SPEC, PLAIN), [(3,), (2, 2), (2, 6)]

    @quick_jit
    def both(params: Any) -> Any:
        found = [actors.apply(params, seen(*lead), (), method=Actor.step) for lead in leads]
        alone = [
            [actor.apply(of_place(params, i % 3), tuple(x[..., i, :] for x in seen(*lead))) for i in range(lead[-1])]
            for lead in leads
        ]
        return found, alone

    found, alone = both(params)
    for (dist, carry), each in zip(found, alone, strict=True):
        assert carry == ()
        for member, theirs in enumerate(each):
            for name, value in theirs._asdict().items():
                ours = getattr(dist, name)[..., member, :]
                np.testing.assert_allclose(ours, np.broadcast_to(value, ours.shape), atol=1e-6, err_msg=name)
        assert not np.allclose(dist.log_sigma[..., 0, :], dist.log_sigma[..., 1, :])
    with pytest.raises(ValueError, match="4 members are no whole teams of 3 places"):
        actors.apply(params, seen(4))


def test_each_member_remembers_with_its_own_actor() -> None:
    """One decision on from a memory, and along sequences [N, L, A]."""
    actors, params = made(2, REMEMBERS)
    actor, rng = Actor(SPEC, REMEMBERS), np.random.default_rng(2)
    obs, before = seen(5, 4, 2), rng.normal(size=(5, 4, 2, 4)).astype(np.float32)
    begin, moves = rng.random((5, 4, 2)) < 0.2, rng.random((5, 4, 2)) < 0.8

    @quick_jit
    def both(params: Any) -> Any:
        ours = [actors.apply(params, obs, before, method=Actor.step)[1]]
        ours.append(actors.apply(params, obs, Sequences(before, begin, moves)).mean)
        alone = []
        for member in range(2):
            own, mine = of_place(params, member), tuple(x[:, :, member] for x in obs)
            stored, *flags = (x[:, :, member] for x in (before, begin, moves))
            after: Any = actor.apply(own, mine, stored, method=Actor.step)
            dist: Any = actor.apply(own, mine, Sequences(stored, *flags))
            alone.append((after[1], dist.mean))
        return ours, [jnp.stack(x, axis=2) for x in zip(*alone, strict=True)]

    for ours, theirs in zip(*both(params), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_places_are_drawn_apart() -> None:
    """Equal at first, they would stay so where all members see and earn the same."""
    kernels = [x for x in jax.tree.leaves(drawn(2, PLAIN)) if x.ndim == 3]
    assert kernels and not any(np.allclose(x[0], x[1]) for x in kernels)

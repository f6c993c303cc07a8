"""X4, X5, X6, X7, A14, M9, M20: each connector alone, in numbers, and what every chain keeps."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.connectors import MAKERS, make_chain, register, running
from jaxrl.connectors import chain as chains
from jaxrl.connectors.interface import Connector, ConnectorError, State
from jaxrl.settings.connectors import CONNECTORS, ConnectorSettings
from jaxrl.training.host import connectors
from jaxrl.types import Action, ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.connectors.chains import Stream, chain_of, floats
from tests.connectors.connected_loops import settings_with
from tests.helpers import make_spec

SPACE = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE
IMAGE = ObservationSpec("camera", (2, 2, 3), (DimensionProperty.NONE, SPACE, SPACE), dtype="uint8")
EVERY = (
    {"type": "clip", "low": -2.0, "high": 2.0},
    {"type": "normalize"},
    {"type": "normalize_rewards"},
    {"type": "frame_stack", "frames": 2},
    {"type": "previous_action"},
    {"type": "previous_reward"},
)


def test_x6_clip_of_observations_names_its_sensors() -> None:
    stream = Stream(chain_of(make_spec((2,), (1,)), {"type": "clip", "low": -1, "high": 2, "sensors": ["sensor_0"]}), 1)
    a, b = stream.decide(floats([-3.0, 5.0]), floats([9.0]))
    np.testing.assert_array_equal(a, [[-1.0, 2.0]])
    np.testing.assert_array_equal(b, [[9.0]])


def test_x6_scale_and_clip_of_rewards() -> None:
    """Own and group reward each: 0.1 · (30, -70) = (3, -7), within -5 and 5."""
    chain = chain_of(
        make_spec((1,)),
        {"type": "scale", "of": "rewards", "factor": 0.1},
        {"type": "clip", "of": "rewards", "low": -5, "high": 5},
    )
    stream = Stream(chain, 1)
    stream.decide(floats([0.0]), reward=floats([30.0, -70.0]))
    np.testing.assert_allclose(stream.paid, [[3.0, -5.0]], rtol=1e-6)


def test_x6_normalize_by_running_statistics() -> None:
    """Of the rows that came and no others: 2 and 4 have mean 3 and deviation 1; with 8 and 10 mean 6, variance 10."""
    stream = Stream(chain_of(make_spec((1,)), {"type": "normalize"}), 2)
    (seen,) = stream.decide(floats([2.0], [4.0]))
    np.testing.assert_allclose(seen, [[-1.0], [1.0]], rtol=1e-6)
    (last,) = stream.last(floats([5.0], [np.nan]))
    np.testing.assert_allclose(last[0], [2.0], rtol=1e-6)  # and takes no part in the statistics
    assert stream.state.shared[0]["0"].count == 2.0
    (seen,) = stream.decide(floats([8.0], [10.0]))
    np.testing.assert_allclose(seen, [[2.0 / math.sqrt(10.0)], [4.0 / math.sqrt(10.0)]], rtol=1e-6)


def test_x6_normalize_is_exact_far_from_zero() -> None:
    """1,800 rows of mean -3000 and deviation 0.5, one at a time at first, against numpy in float64."""
    rows = np.random.default_rng(0).normal(-3000.0, 0.5, (1800, 1)).astype(np.float32)
    state, update = running.init(1), jax.jit(running.update)
    for i in range(600):
        state = update(state, rows[i : i + 1], np.ones(1, bool))
    for i in range(600, 1800, 4):
        state = update(state, rows[i : i + 4], np.ones(4, bool))
    exact = rows.astype(np.float64)
    assert abs(float(state.mean[0]) - exact.mean()) < 0.01 * exact.std()
    np.testing.assert_allclose(math.sqrt(state.variance[0]), exact.std(), rtol=1e-3)


def test_x6_normalize_shows_zero_for_a_number_that_never_changes() -> None:
    """Also where float32 rounds its mean: what is divided by is not rounding."""
    for value in (0.0, 0.1, 1e5, -123456.7):
        stream = Stream(chain_of(make_spec((1,)), {"type": "normalize"}), 3)
        for _ in range(3):
            (seen,) = stream.decide(np.full((3, 1), value, np.float32))
        np.testing.assert_allclose(seen, 0.0, atol=0.6)
        assert np.isfinite(stream.last(np.full((3, 1), value + 1.0, np.float32))[0]).all()


def test_x6_statistics_of_a_long_run_do_not_drift() -> None:
    """Where float32 could not count on, older numbers fade: variance of ±1 stays 1 and the mean follows slowly."""
    state = running.Running(jnp.zeros(1), jnp.ones(1), jnp.float32(running.MOST))
    rows = jnp.array([[1.0], [-1.0]])
    after = jax.lax.fori_loop(0, 2000, lambda _, s: running.update(s, rows, jnp.ones(2, bool)), state)
    assert float(after.count) == running.MOST
    np.testing.assert_allclose((after.mean[0], after.variance[0]), (0.0, 1.0), atol=1e-3)
    moved = running.update(state, jnp.full((1, 1), 2.0**20), jnp.ones(1, bool))
    np.testing.assert_allclose(moved.mean, [2.0**20 / (2.0**20 + 1.0)], rtol=1e-6)


def test_x6_normalize_rewards_divides_by_the_deviation_of_the_return() -> None:
    """gamma 0.5. The return so far is 3 + 1 = 4, then 0.5 · 4 + 2 = 4, beside a 0 of variance 1 to begin with.

    After the first the mean is 2 and the variance (4 + 1 + 4) / 2; after both 8 / 3 and ((64 + 16 + 16) / 9 + 1) / 3.
    """
    stream = Stream(chain_of(make_spec((1,)), {"type": "normalize_rewards", "gamma": 0.5}), 1)
    stream.decide(floats([0.0]), begin=[True])
    stream.decide(floats([0.0]), reward=floats([3.0, 1.0]))
    np.testing.assert_allclose(stream.paid, np.array([[3.0, 1.0]]) / math.sqrt(9 / 2), rtol=1e-6)
    stream.decide(floats([0.0]), reward=floats([2.0, 0.0]))
    np.testing.assert_allclose(stream.paid, np.array([[2.0, 0.0]]) / math.sqrt((64 + 16 + 16 + 9) / 27), rtol=1e-6)
    stream.decide(floats([0.0]), begin=[True])
    stream.decide(floats([0.0]), reward=floats([1.0, 0.0]))
    assert stream.state.slots[0] == 1.0  # nothing of the episode before


def test_x6_flatten_images_of_whole_numbers_as_zero_to_one() -> None:
    spec = BehaviorSpec((IMAGE, ObservationSpec("v", (1,))), ActionSpec(1, ()))
    chain = chain_of(spec, {"type": "flatten"})
    assert [s.shape for s in chain.spec.observations] == [(12,), (1,)]
    picture = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3) * 17
    flat, _ = Stream(chain, 1).decide(picture, floats([0.0]))
    np.testing.assert_allclose(flat, [np.arange(12) * 17 / 255], rtol=1e-6)


def test_x6_images_in_bytes_are_left_alone_unless_named_and_then_count_as_zero_to_one() -> None:
    """51 of 255 is 0.2, twice that 0.4, and at most 0.3."""
    spec = BehaviorSpec((IMAGE, ObservationSpec("v", (1,))), ActionSpec(1, ()))
    picture = np.full((1, 2, 2, 3), 51, np.uint8)
    every = chain_of(spec, {"type": "scale", "factor": 2.0}, {"type": "clip", "low": -3, "high": 3})
    same, v = Stream(every, 1).decide(picture, floats([2.0]))
    assert same.dtype == np.uint8 and (same == 51).all() and v.tolist() == [[3.0]]
    named = ({"type": "scale", "factor": 2.0, "sensors": ["camera"]}, {"type": "clip", "low": 0, "high": 0.3})
    half = Stream(chain_of(spec, named[0]), 1).decide(picture, floats([2.0]))[0]
    np.testing.assert_allclose(half, np.full((1, 2, 2, 3), 0.4), rtol=1e-6)
    chain = chain_of(spec, *named)
    np.testing.assert_allclose(
        Stream(chain, 1).decide(picture, floats([2.0]))[0], np.full((1, 2, 2, 3), 0.3), rtol=1e-6
    )
    assert [sensor.dtype for sensor in chain.spec.observations] == ["float32", "float32"]
    with pytest.raises(ConnectorError, match=r"none of camera is a sensor of floats \(name an image to change it\)"):
        chain_of(spec._replace(observations=(IMAGE,)), {"type": "scale", "factor": 2.0})


def test_x6_entities_stay_entities_and_goals_stay_goals() -> None:
    """Rows of zeros, absent entities, stay zeros; a range without 0 would make them present."""
    tiles = ObservationSpec("tiles", (2, 2), (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE))
    wish = ObservationSpec("wish", (3,), (DimensionProperty.NONE,), ObservationType.GOAL_SIGNAL)
    view = IMAGE._replace(name="view", observation_type=ObservationType.GOAL_SIGNAL)
    spec = BehaviorSpec((tiles, wish, view), ActionSpec(1, ()))
    chain = chain_of(
        spec,
        {"type": "scale", "factor": 2.0, "sensors": ["tiles", "wish"]},
        {"type": "clip", "low": -1, "high": 1},
        {"type": "mask", "sensors": ["wish"], "columns": [0]},
        {"type": "one_hot", "sensor": "wish", "column": 0, "values": 2},
        {"type": "frame_stack", "frames": 2},
        {"type": "flatten", "sensors": ["view"]},
    )
    shown = chain.spec.observations
    assert shown[0] == tiles and shown[1].observation_type == shown[2].observation_type == ObservationType.GOAL_SIGNAL
    assert [sensor.shape for sensor in shown] == [(2, 2), (6,), (24,)]
    seen = Stream(chain, 1).decide(floats([[0.3, 3], [0, 0]]), floats([0, 0, 1]), np.zeros((1, 2, 2, 3), np.uint8))
    np.testing.assert_allclose(seen[0], [[[0.6, 1.0], [0.0, 0.0]]], rtol=1e-6)
    with pytest.raises(ConnectorError, match="tiles shows entities, of which absent ones are 0, and would become"):
        chain_of(spec, {"type": "clip", "low": 0.1, "high": 1})
    with pytest.raises(ConnectorError, match="expected a sensor with a fixed number of entries"):
        chain_of(spec, {"type": "frame_stack", "frames": 2, "sensors": ["tiles"]})
    with pytest.raises(ConnectorError, match=r"tiles is of shape \[2, 2\], expected a vector"):
        chain_of(spec, {"type": "normalize", "sensors": ["tiles"]})


def test_x6_one_hot_in_place_of_its_column() -> None:
    chain = chain_of(make_spec((3,)), {"type": "one_hot", "sensor": "sensor_0", "column": 1, "values": 3})
    (seen,) = Stream(chain, 3).decide(floats([7.0, 2.0, 8.0], [7.0, 0.0, 8.0], [7.0, 3.0, 8.0]))
    np.testing.assert_array_equal(seen, [[7, 0, 0, 1, 8], [7, 1, 0, 0, 8], [7, 0, 0, 0, 8]])


def test_x6_mask_hides_sensors_and_columns() -> None:
    spec = make_spec((4,), (2,))
    whole = chain_of(spec, {"type": "mask", "sensors": ["sensor_0"]})
    np.testing.assert_array_equal(Stream(whole, 1).decide(floats([1, 2, 3, 4]), floats([5, 6])), [[[5, 6]]])
    some = chain_of(spec, {"type": "mask", "sensors": ["sensor_0"], "columns": [2, 0]})
    np.testing.assert_array_equal(Stream(some, 1).decide(floats([1, 2, 3, 4]), floats([5, 6]))[0], [[2, 4]])


def test_x7_frame_stack_begins_with_zeros_and_ends_with_an_episode() -> None:
    """The oldest first. Row 1 begins a new episode with the third message; a last observation is looked at only."""
    stream = Stream(chain_of(make_spec((1,)), {"type": "frame_stack", "frames": 3}), 2)
    np.testing.assert_array_equal(stream.decide(floats([1], [10]), begin=[True, True])[0], [[0, 0, 1], [0, 0, 10]])
    np.testing.assert_array_equal(stream.decide(floats([2], [20]))[0], [[0, 1, 2], [0, 10, 20]])
    np.testing.assert_array_equal(stream.last(floats([3], [30]))[0], [[1, 2, 3], [10, 20, 30]])
    np.testing.assert_array_equal(stream.decide(floats([3], [40]), begin=[False, True])[0], [[1, 2, 3], [0, 0, 40]])


def test_x7_frames_of_images_stand_along_their_channels() -> None:
    hwc = ObservationSpec("old", (2, 3, 1), (SPACE, SPACE, DimensionProperty.NONE))
    chain = chain_of(BehaviorSpec((IMAGE, hwc), ActionSpec(1, ())), {"type": "frame_stack", "frames": 2})
    assert [s.shape for s in chain.spec.observations] == [(4, 2, 3), (2, 3, 2)]
    stream, picture = Stream(chain, 1), np.full((1, 2, 2, 3), 9, np.uint8)
    stream.decide(picture, floats(np.full((2, 3, 1), 1.0)), begin=[True])
    new, old = stream.decide(picture + 1, floats(np.full((2, 3, 1), 2.0)))
    assert new.dtype == np.uint8
    np.testing.assert_array_equal(new[0, :, 0, 0], [9, 9, 10, 10])
    np.testing.assert_array_equal(old[0, 0, 0], [1.0, 2.0])


@pytest.mark.parametrize("clips_first", [False, True])
def test_a14_m9_previous_action_is_the_raw_one_and_is_forgotten_with_the_episode(clips_first: bool) -> None:
    """C = 1 and branches of 2 and 3: six numbers, what was drawn last, not what was sent, wherever it was clipped."""
    spec = make_spec((1,), continuous=1, branches=(2, 3))
    links = {"type": "previous_action"}, {"type": "clip", "of": "actions", "low": -1, "high": 1}
    chain = chain_of(spec, *(reversed(links) if clips_first else links))
    assert chain.spec.observations[-1] == ObservationSpec("previous_action", (6,))
    stream = Stream(chain, 2)
    action = Action(floats([2.5], [-0.5]), np.array([[1, 2], [0, 1]], np.int32))
    _, before = stream.decide(floats([0], [0]), begin=[True, True], action=action)
    np.testing.assert_array_equal(before, np.zeros((2, 6)))
    np.testing.assert_array_equal(stream.sent, [[1.0], [-0.5]])  # M20: raw 2.5 is noted, 1 is sent
    _, after = stream.decide(floats([0], [0]), begin=[False, True])
    np.testing.assert_array_equal(after, [[2.5, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]])


def test_a14_m21_what_an_agent_did_itself_is_its_previous_action() -> None:
    """Drawn were 0 and 1 of three choices; the first agent took 2 instead."""
    chain = chain_of(make_spec((1,), branches=(3,)), {"type": "previous_action"})
    state, everybody = connectors.start(chain, chain.shared, (2, 1)), np.ones((2, 1), bool)
    drawn, did = (Action(np.zeros((2, 1, 0), np.float32), np.array([[[x]], [[1]]], np.int32)) for x in (0, 2))
    as_drawn = Action(jnp.asarray(drawn.continuous), jnp.asarray(drawn.discrete))
    state, _ = connectors.sent(chain, state, as_drawn, as_drawn, everybody)
    state = connectors.taken(chain, state, np.array([[True], [False]]), did, did)
    np.testing.assert_array_equal(state.state.slots[0], [[[0, 0, 1]], [[0, 1, 0]]])


def test_x7_previous_reward_is_own_and_group_reward_as_earlier_connectors_left_it() -> None:
    clip = {"type": "clip", "of": "rewards", "low": -1, "high": 1}
    stream = Stream(chain_of(make_spec((1,)), clip, {"type": "previous_reward"}), 1)
    assert stream.decide(floats([0]), begin=[True])[1] == [[0.0]]
    assert stream.decide(floats([0]), reward=floats([5.0, 0.25]))[1] == [[1.25]]
    assert stream.decide(floats([0]), reward=floats([1.0, 0.0]), begin=[True])[1] == [[0.0]]


def test_m21_what_the_environment_got_tells_what_was_sent_where_that_can_be_undone() -> None:
    """0 of [-1, 1] is 5 of [0, 10], and 0.5 is 1 of [-2, 2]; then x / 2 - 8.5 and x / 2 - 0.5."""
    first = {"type": "unsquash", "low": [0, -2], "high": [10, 2]}
    second = {"type": "unsquash", "low": [-9, -1], "high": [-8, 0]}
    chain = chain_of(make_spec((1,), continuous=2), first, {"type": "previous_action"}, second)
    assert chain.irreversible == ()
    to_environment = Action(floats([0.0, 0.5]), np.zeros((1, 0), np.int32))
    state = chains.start(chain, chain.shared, (1,))
    _, got = chains.sent(chain, state, to_environment, to_environment, jnp.ones(1, bool))
    np.testing.assert_allclose(got.continuous, [[-6.0, 0.0]])
    np.testing.assert_allclose(chains.undone(chain, got).continuous, to_environment.continuous, atol=1e-6)
    clip = {"type": "clip", "of": "actions", "low": -1, "high": 1}
    blind = chain_of(make_spec((1,), continuous=2), first, clip, {"type": "clip", "low": -1, "high": 1})
    assert blind.irreversible == ("clip",), "the one of actions"
    with pytest.raises(ValueError, match="clip: cannot be undone"):
        chains.undone(blind, got)


def test_x5_m20_unsquash_sends_the_range_of_each_dimension() -> None:
    """From [-1, 1] to [0, 10] and [-2, 2]; what is learned from stays what was drawn."""
    chain = chain_of(make_spec((1,), continuous=2), {"type": "unsquash", "low": [0, -2], "high": [10, 2]})
    stream = Stream(chain, 2)
    stream.decide(floats([0], [0]), action=Action(floats([-1.0, 1.0], [0.5, 0.0]), np.zeros((2, 0), np.int32)))
    np.testing.assert_allclose(stream.sent, [[0.0, 2.0], [7.5, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("connector", EVERY[2:], ids=lambda c: c["type"])
def test_x4_nothing_leaks_from_one_episode_into_the_next(connector: dict) -> None:
    """An episode of NaN, in observation, reward and action, and then one that is as if it were the first."""
    spec = make_spec((2,), continuous=1)
    nan, action = np.float32(np.nan), Action(floats([0.5]), np.zeros((1, 0), np.int32))
    chain = chain_of(spec, connector)
    poisoned, fresh = Stream(chains.frozen(chain), 1), Stream(chains.frozen(chain), 1)
    poisoned.decide(floats([nan, nan]), begin=[True], action=action._replace(continuous=floats([nan])))
    poisoned.decide(floats([nan, nan]), reward=floats([nan, nan]), action=action._replace(continuous=floats([nan])))
    for i, begin in enumerate((True, False, False)):
        obs, reward = floats([i, -i]), None if i == 0 else floats([i, 1.0])
        seen = [stream.decide(obs, begin=[begin], reward=reward, action=action) for stream in (poisoned, fresh)]
        jax.tree.map(np.testing.assert_array_equal, *seen)
        np.testing.assert_equal(poisoned.paid, fresh.paid)


def test_x4_rows_may_stand_in_any_order() -> None:
    """All of a chain at once, its statistics included: rows 0, 1, 2 as 2, 0, 1."""
    spec, order = make_spec((2,), continuous=1), np.array([2, 0, 1])
    one, other = Stream(chain_of(spec, *EVERY), 3), Stream(chain_of(spec, *EVERY), 3)
    rng = np.random.default_rng(0)
    for begin in ([True] * 3, [False] * 3, [False, True, False], [False] * 3):
        obs, reward = rng.normal(size=(2, 3, 2)).astype(np.float32)
        action = Action(rng.normal(size=(3, 1)).astype(np.float32), np.zeros((3, 0), np.int32))
        seen = one.decide(obs, begin=begin, reward=reward, action=action)
        moved = Action(*(x[order] for x in action))
        again = other.decide(obs[order], begin=np.array(begin)[order], reward=reward[order], action=moved)
        for a, b in zip(seen, again, strict=True):
            np.testing.assert_allclose(a[order], b, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(one.paid[order], other.paid, rtol=1e-5, atol=1e-6)


def test_x4_who_does_not_decide_moves_nothing_on() -> None:
    """Row 1 stands aside with NaN: neither its frames nor anybody's statistics notice."""
    chain = chain_of(make_spec((1,)), {"type": "normalize"}, {"type": "frame_stack", "frames": 2})
    state = chains.start(chain, chain.shared, (2, 1))
    deciding, nobody = jnp.array([[True], [False]]), jnp.zeros((2, 1), bool)
    after, _ = chains.observed(chain, state, (jnp.array([[[1.0]], [[jnp.nan]]]),), deciding, nobody)
    assert after.shared[0]["0"].count == 1.0 and np.isfinite(after.shared[0]["0"].mean).all()
    np.testing.assert_array_equal(after.slots[1]["0"][1], state.slots[1]["0"][1])


def test_x4_a_frozen_chain_learns_nothing() -> None:
    """For evaluation: shown with the statistics of training, 0 and 1, which stay."""
    stream = Stream(chains.frozen(chain_of(make_spec((1,)), {"type": "normalize"})), 1)
    np.testing.assert_array_equal(stream.decide(floats([3.0]))[0], [[3.0]])
    assert stream.state.shared[0]["0"].count == 0.0


class AddSettings(ConnectorSettings):
    """Of the test's own connector."""

    amount: float = 1.0


def test_x4_a_connector_of_ones_own_is_registered_by_name() -> None:
    def make(spec: BehaviorSpec, settings: AddSettings) -> Connector:
        def observe(state: State, obs: tuple, deciding: jax.Array) -> tuple[State, tuple]:
            return state, tuple(x + settings.amount for x in obs)

        return Connector(spec, observe=observe)

    register("add", AddSettings, make)
    try:
        chain = chain_of(make_spec((1,)), {"type": "add", "amount": 2.0})
        np.testing.assert_array_equal(Stream(chain, 1).decide(floats([3.0]))[0], [[5.0]])
        assert chain.unexportable == ("add",)
        with pytest.raises(ConnectorError, match="a connector of type add is there already"):
            register("add", AddSettings, make)
    finally:
        del CONNECTORS["add"], MAKERS["add"]


@pytest.mark.parametrize(
    ("connector", "text"),
    [
        (
            {"type": "clip", "low": 0, "high": 1, "sensors": ["eye"]},
            "sensors: got eye, expected one of sensor_0, camera",
        ),
        ({"type": "normalize", "sensors": ["camera"]}, r"camera is of shape \[2, 2, 3\], expected a vector"),
        ({"type": "one_hot", "sensor": "sensor_0", "column": 4, "values": 2}, "column: got 4, expected 0 to 3"),
        ({"type": "mask", "sensors": ["sensor_0", "camera"]}, "all are hidden"),
        ({"type": "mask", "sensors": ["sensor_0"], "columns": [9]}, "columns: got 9, expected 0 to 3"),
        ({"type": "unsquash", "low": 0, "high": 1}, "no continuous actions"),
        ({"type": "clip", "of": "actions", "low": 0, "high": 1}, "no continuous actions"),
    ],
)
def test_what_does_not_fit_is_named(connector: dict, text: str) -> None:
    spec = make_spec((4,), branches=(2,))
    spec = spec._replace(observations=(*spec.observations, IMAGE))
    with pytest.raises(ConnectorError, match=rf"behavior 'Ball': connectors\[0\] \({connector['type']}\): .*{text}"):
        make_chain(spec, settings_with(connector).connectors, "Ball")

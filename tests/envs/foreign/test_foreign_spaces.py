"""Spaces of observations and actions, what goes through them, infos and arguments: every number is known."""

from __future__ import annotations

from enum import Enum

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.foreign.actions import ActionWriter, bounded
from jaxrl.envs.foreign.arguments import ArgumentsError, fitted, keyword_arguments, take_switch
from jaxrl.envs.foreign.lives import LARGEST, plain
from jaxrl.envs.foreign.observations import ObservationError, ObservationReader, SpaceError
from jaxrl.envs.sensors import IMAGE_PROPERTIES


def read(space, observation):
    """Names and lists of an observation."""
    reader = ObservationReader(space)
    values = reader.read(observation)
    assert [value.shape for value in values] == [spec.shape for spec in reader.specs]
    assert [str(value.dtype) for value in values] == [spec.dtype for spec in reader.specs]
    return {spec.name: value.tolist() for spec, value in zip(reader.specs, values, strict=True)}


@pytest.mark.parametrize(
    ("space", "observation", "expected"),
    [
        (spaces.Box(-1, 1, (3,), np.float64), np.array([0.5, -1, 1]), [0.5, -1, 1]),
        (spaces.Box(0, 9, (2, 2), np.int64), np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
        (spaces.Box(0, 1, (), np.float32), np.float32(0.25), [0.25]),
        (spaces.Box(0, 1, (1, 2, 1), np.uint8), np.ones((1, 2, 1), np.uint8), [1, 1]),  # not up to 255: no image
        (spaces.Box(0, 255, (4,), np.uint8), np.array([0, 1, 2, 255], np.uint8), [0, 1, 2, 255]),
        (spaces.Discrete(3), 2, [0, 0, 1]),
        (spaces.Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 3], np.uint8), np.array([1, 0], np.uint8), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 3], start=[5, 1]), np.array([5, 3]), [1, 0, 0, 0, 1]),
        (spaces.MultiDiscrete([[2, 2]]), np.array([[1, 0]]), [0, 1, 1, 0]),
        (spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]], np.int8), [1, 0, 0, 1]),
    ],
)
def test_spaces_that_are_vectors(space, observation, expected):
    assert read(space, observation) == {"observation": expected}


@pytest.mark.parametrize(
    ("shape", "order", "expected"),
    [
        ((6, 8, 3), (2, 0, 1), (3, 6, 8)),
        ((6, 8), (0, 1), (1, 6, 8)),
        ((4, 6, 8), (0, 1, 2), (4, 6, 8)),  # stacked frames
        ((2, 6, 8, 3), (0, 3, 1, 2), (6, 6, 8)),  # of colours
        ((2, 3, 6, 8), (0, 1, 2, 3), (6, 6, 8)),
    ],
)
def test_images_stay_bytes_and_begin_with_their_channels(shape, order, expected):
    reader = ObservationReader(spaces.Box(0, 255, shape, np.uint8))
    (spec,) = reader.specs
    assert (spec.shape, spec.dimension_property, spec.dtype) == (expected, IMAGE_PROPERTIES, "uint8")
    image = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (seen,) = reader.read(image)
    np.testing.assert_array_equal(seen, image.transpose(order).reshape(expected))
    assert seen.dtype == np.uint8 and seen.flags.c_contiguous and not np.shares_memory(seen, image)


def test_a_sensor_for_each_part_named_by_its_path():
    space = spaces.Dict(
        {
            "hand": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
            "eye": spaces.Dict({"left": spaces.Box(0, 1)}),
        }
    )
    observation = {"eye": {"left": np.array([0.5])}, "hand": (1, np.array([0.25]))}
    assert read(space, observation) == {"eye/left": [0.5], "hand/0": [0, 1], "hand/1": [0.25]}


def test_an_array_that_is_read_is_a_copy():
    given = np.zeros(2, np.float32)
    (seen,) = ObservationReader(spaces.Box(0, 1, (2,))).read(given)
    given[:] = 9
    assert seen.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (spaces.Box(0, 1, (2,)), np.zeros(3), r"'observation': got shape \(3,\), expected \(2,\)"),
        (spaces.Box(0, 1, (2,)), "no", "'observation': could not convert"),
        (spaces.Box(0, 255, (4, 4), np.uint8), np.zeros((4, 4)), "of float64, expected .* of uint8"),
        (spaces.Discrete(3), 3, r"got 3, expected from \[0\] to \[2\]"),
        (spaces.Discrete(3), 0.5, "got 0.5, expected 1 whole"),
        (spaces.MultiDiscrete([2, 2]), np.array([1]), "expected 2 whole"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, "sensor 'a': there is no part 'a'"),
    ],
)
def test_observations_that_do_not_fit_are_named(space, observation, words):
    with pytest.raises(ObservationError, match=words):
        ObservationReader(space).read(observation)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(3), "observation space 'observation': Text.* is no Box"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "observation space 'a': Sequence"),
        (spaces.Box(0, 1, (0,)), "has no numbers in it"),
        (spaces.Dict({}), "holds nothing"),
    ],
)
def test_spaces_of_observations_that_are_not_read(space, words):
    with pytest.raises(SpaceError, match=words):
        ObservationReader(space)


@pytest.mark.parametrize(
    ("space", "continuous", "discrete", "expected"),
    [
        (spaces.Discrete(3, start=2), [], [1], 3),
        (spaces.MultiDiscrete([2, 3], start=[0, 4]), [], [1, 2], [1, 6]),
        (spaces.MultiBinary(2), [], [0, 1], [0, 1]),
        (spaces.Box(-2, 2, (1,)), [0.5], [], [1.0]),  # Pendulum
        (spaces.Box(np.array([0, -1], np.float32), np.array([10, 1], np.float32)), [-1, 1], [], [0, 1]),
        (spaces.Box(np.array([0, -1], np.float32), np.array([10, 1], np.float32)), [0.5, 0], [], [7.5, 0]),
        (spaces.Box(0, 4, (1,), np.int64), [0.4], [], [3]),  # 2.8, rounded
        (spaces.Box(3, 3, (1,)), [0.5], [], [3]),
    ],
)
def test_actions_in_their_spaces_and_back(space, continuous, discrete, expected):
    writer = ActionWriter(space)
    spec = writer.spec
    assert (spec.continuous_size, len(spec.discrete_branches)) == (len(continuous), len(discrete))
    value = writer.value(np.array(continuous, np.float32), np.array(discrete, np.int32))
    assert np.asarray(value).tolist() == expected and space.contains(value)
    again = writer.value(*writer.columns(value))
    np.testing.assert_array_equal(again, value)


ENDLESS = [
    (spaces.Box(5, np.inf, (1,)), "upper", [5, 9]),
    (spaces.Box(-np.inf, 5, (1,)), "lower", [1, 5]),
    (spaces.Box(-np.inf, np.inf, (1,)), "lower", [-4, 4]),
    (spaces.Box(-3.4e38, 3.4e38, (1,)), "lower", [-4, 4]),  # the largest numbers are no bounds
    (spaces.Box(0, np.inf, (1,), np.int32), "upper", [0, 4]),
]


@pytest.mark.parametrize(("space", "side", "ends"), ENDLESS)
def test_a_box_without_a_bound_is_refused_unless_a_scale_is_told(space, side, ends):
    whole = spaces.Dict([("turn", spaces.Discrete(2)), ("arm", spaces.Tuple([space]))])
    with pytest.raises(SpaceError, match=rf"action/arm/0 space: Box.* has no {side} bound.*action_scale=S"):
        ActionWriter(whole)
    writer = ActionWriter(bounded(whole, 4.0))
    sent = [writer.value(np.array([a], np.float32), np.array([0], np.int32)) for a in (-1, 1)]
    assert [value["arm"][0].tolist() for value in sent] == [[end] for end in ends]
    assert all(whole.contains(value) for value in sent)


def test_hybrid_actions_are_taken_apart_and_put_together():
    space = spaces.Dict(
        {
            "kind": spaces.Discrete(3),
            "where": spaces.Tuple([spaces.Box(-4, 4, (2,)), spaces.MultiBinary(1)]),
        }
    )
    writer = ActionWriter(space)
    assert (writer.spec.continuous_size, writer.spec.discrete_branches) == (2, (3, 2))
    value = writer.value(np.array([0.5, -1], np.float32), np.array([2, 1], np.int32))
    assert space.contains(value)
    assert value["kind"] == 2 and value["where"][0].tolist() == [2, -4] and value["where"][1].tolist() == [1]
    continuous, discrete = writer.columns(value)
    assert continuous.tolist() == [0.5, -1] and discrete.tolist() == [2, 1]
    with pytest.raises(ValueError, match="is no element of"):
        writer.columns(value | {"kind": 3})
    with pytest.raises(KeyError):
        writer.columns({"kind": 1})


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Text(3)}), spaces.Dict({})])
def test_spaces_of_actions_that_are_not_written(space):
    with pytest.raises(SpaceError, match=r"is no Box|nothing to choose"):
        ActionWriter(space)


def test_infos_that_are_small_and_plain_are_kept():
    array = np.arange(3)
    given = {
        "number": 1, "text": "a", "nothing": None, "numpy": np.float32(0.5), "array": array, "list": [1, 2.0],
        "dict": {"r": np.int64(3), 4: object()}, "object": object(), "large": np.zeros(LARGEST + 1),
        "long": "x" * (LARGEST + 1), "objects": [object()],
    }  # fmt: skip
    kept = plain(given)
    array[:] = 9
    assert kept.pop("array").tolist() == [0, 1, 2]  # a copy
    assert kept == {"number": 1, "text": "a", "nothing": None, "numpy": 0.5, "list": [1, 2.0], "dict": {"r": 3}}
    deep = {"a": {"b": {"c": {"d": {"e": 1}}}}}
    assert plain(deep) == {"a": {"b": {"c": {}}}}


def test_arguments_are_read_as_yaml():
    given = ("gravity=-9.8", "wind=true", "name=a=b", "sizes=[1, 2]", "nothing=")
    assert keyword_arguments(given) == {
        "gravity": -9.8, "wind": True, "name": "a=b", "sizes": [1, 2], "nothing": None,
    }  # fmt: skip
    assert keyword_arguments(None) == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--fast",), "env_settings.env_args: got '--fast', expected key=value"),
        (("a=1", "a=2"), "a is there twice"),
        (("a=[1",), r"the value of 'a=\[1' is no YAML"),
        (("a=[&b [x, x], *b]",), r"an alias \(\*name\) is not read"),
        (("a=2024-13-01",), "the value of 'a=2024-13-01' is no YAML"),
    ],
)
def test_arguments_that_cannot_be_read(given, words):
    with pytest.raises(ArgumentsError, match=words) as raised:
        keyword_arguments(given)
    assert "\n" not in str(raised.value)


class Size(Enum):
    SMALL = 1
    LARGE = 2


USUAL = {
    "n": 3, "x": 0.5, "on": False, "name": "a", "any": None, "must": ..., "size": Size.SMALL, "pair": (1, 2),
    "table": np.zeros((1, 2), np.float32), "more": {"fill": 0.25, "map": (9, 9)},
}  # fmt: skip


def test_arguments_take_the_types_of_what_they_replace():
    given = {"n": 4, "x": "1e-3", "on": True, "any": [1], "must": "m", "size": "large", "pair": [3, 4]}
    given["more"] = {"fill": 1}
    found = fitted("here", {**given, "table": [[1, 2], [3, 4]]}, USUAL)
    table = found.pop("table")
    assert table.dtype == np.float32 and table.tolist() == [[1, 2], [3, 4]]
    more = {"fill": 1.0, "map": (9, 9)}
    assert found == {**given, "x": 0.001, "size": Size.LARGE, "pair": (3, 4), "more": more}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("m", 1, "here: takes no argument m, it takes any, more, must, n"),
        ("n", 1.5, "argument n: got 1.5, expected a whole number, such as 3"),
        ("n", True, "argument n: got True, expected a whole number"),
        ("x", "low", "argument x: got 'low', expected a number, such as 0.5"),
        ("on", 1, "argument on: got 1, expected true or false"),
        ("name", 2, "argument name: got 2, expected text, such as a"),
        ("size", "huge", "argument size: got 'huge', expected one of small, large"),
        ("pair", 1, "argument pair: got 1, expected a list"),
        ("table", [1, 2], "argument table: .* expected numbers in 2 list"),
        ("more", {"fil": 1}, "takes no argument fil, did you mean fill"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_what_was_expected(key, value, words):
    with pytest.raises(ArgumentsError, match=words):
        fitted("here", {key: value}, USUAL)


def test_a_switch_is_taken_out_of_the_arguments():
    arguments = {"team_reward": True, "n": 1}
    assert take_switch(arguments, "team_reward", False) and arguments == {"n": 1}
    assert not take_switch(arguments, "team_reward", False)
    with pytest.raises(ArgumentsError, match="n: got 1, expected true or false"):
        take_switch(arguments, "n", False)

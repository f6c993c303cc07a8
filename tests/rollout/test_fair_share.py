"""Which episodes count: every place plays its share, whoever ends first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jaxrl.rollout.following.fair_share import FairShare


def play(lengths: list[int], count: int, *, new_ids: bool = False) -> Counter[int]:
    """How many episodes count of each area, whose episodes last so many steps each; all step side by side."""
    share, begun, step, number = FairShare[tuple[int, int]](count), dict.fromkeys(range(len(lengths)), 0), 0, 0
    running: dict[int, tuple[int, int]] = {}
    while not share.complete:
        for area, length in enumerate(lengths):
            if area in running and step - running[area][1] == length:
                share.end(running.pop(area))
        for area in begun.keys() - running.keys():
            running[area] = area, step
            share.begin(running[area], number if new_ids else area)
            number += 1
        step += 1
    return Counter(area for area, _ in share.chosen)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 40), st.booleans())
def test_every_area_plays_its_share_and_the_first_ones_what_is_left(lengths: list[int], count: int, new: bool) -> None:
    areas = len(lengths)
    expected = {area: count // areas + (area < count % areas) for area in range(areas)}
    assert play(lengths, count, new_ids=new) == {area: n for area, n in expected.items() if n}


def test_the_share_of_who_comes_late_is_not_played_by_others() -> None:
    """Of four, two places have begun two each when a third comes: its first takes the turn of the last of them."""
    share = FairShare[str](4)
    for turn in ("1", "2"):
        assert share.begin("a" + turn, "a") and share.begin("b" + turn, "b")
        share.end("a" + turn)
        share.end("b" + turn)
    assert share.complete
    assert share.begin("c1", "c", kind="of another kind") and share.chosen == ["a1", "b1", "c1", "a2"]
    assert (share.running, share.complete) == (["c1"], False)
    assert not share.begin("a3", "a")
    share.end("c1")
    assert share.complete


def test_what_breaks_off_is_played_again_and_what_is_cut_keeps_its_place() -> None:
    share = FairShare[str](2)
    share.begin("lost", "a")
    share.lose("lost")
    assert share.chosen == [] and share.has_empty
    share.begin("cut", "b", kind="others")
    share.finish("cut")
    assert share.chosen == ["cut"] and not share.running and not share.complete
    share.begin("again", "a")
    share.end("again")
    assert share.chosen == ["again", "cut"] and share.complete


def test_places_of_new_ids_are_those_that_have_been_empty_for_the_longest_time() -> None:
    """And none of another kind. After a reset all are empty, in their order."""
    share = FairShare[str](9)
    for item in ("a1", "b1"):
        share.begin(item, item)
    share.end("b1")
    share.end("a1")
    share.begin("x", "x", kind="others")
    share.begin("b2", "b2")
    share.begin("a2", "a2")
    assert share.chosen == ["a1", "b1", "x", "a2", "b2"]
    share.begin_anew()
    for item in ("a3", "b3"):
        share.begin(item, item)
    assert share.chosen == ["a1", "b1", "x", "a2", "b2", "a3", "b3"]

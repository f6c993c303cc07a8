"""`jaxrl demo view --env`: what was recorded in a JAX scene is played again, and drawn if it is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxrl.cli import main
from jaxrl.demonstrations import DemonstrationError
from jaxrl.demonstrations.episodes import Episode, episodes
from jaxrl.demonstrations.reading import files
from jaxrl.tools.watch.recorded import Place, recorded_frames
from jaxrl.types import JaxrlError

HALLWAY = Place("jax:hallway")
WALKS = files("demo:hallway")
"""Of the player's only area: an expert's episodes, from which those that were not good were taken out."""


@pytest.fixture(scope="module", autouse=True)
def of_the_session(runs: None) -> None:
    """The command turns the compilation cache on: that of the test session."""


@pytest.fixture(scope="module")
def walks() -> list[Episode]:
    return list(episodes(WALKS))


def test_the_states_of_what_was_recorded_are_drawn(tmp_path: Path, walks, capsys):
    out = tmp_path / "walk.gif"
    assert main(["demo", "view", "demo:hallway", "--episode", "30", "--env", "jax:hallway", "--out", str(out)]) == 0
    with Image.open(out) as film:
        assert film.n_frames == len(walks[29].reward) + 1
    frames = recorded_frames(HALLWAY, WALKS[0], list(enumerate(walks[:3], 1)), True)
    lengths = [len(one.reward) + 1 for one in walks[:3]]
    ends = np.cumsum(lengths) - 1
    assert [at for at, frame in enumerate(frames) if frame.ends] == ends.tolist()
    for number, (end, one) in enumerate(zip(ends, walks, strict=False), 1):
        told = f"episode {number}   step {len(one.reward)}   reward {one.reward.sum():.2f}"
        assert frames[end].caption.startswith(told)


def test_what_is_not_the_recorded_is_not_drawn(walks):
    one = walks[0]
    seen = [x.copy() for x in one.obs]
    seen[0][4] += 0.5  # what the fourth decision led to
    paid = one.reward.copy()
    paid[5] += 0.5
    for other, words in (
        (one._replace(obs=tuple(seen)), "episode 7: jax:hallway with seed 0 shows what was recorded up to decision 3,"),
        (one._replace(reward=paid), "up to decision 5, and something else after it. Name the scene, --seed"),
        (one._replace(obs=tuple(x + 9.0 for x in one.obs)), "never shows what was seen first in it, in 65,536 decis"),
    ):
        with pytest.raises(DemonstrationError) as caught:
            recorded_frames(HALLWAY, WALKS[0], [(7, other)], False)
        assert words in str(caught.value)


def test_scenes_that_cannot_be_played_again(walks, tmp_path, capsys):
    for place, kind, words in (
        (Place("jax:basic"), DemonstrationError, "as jax:basic has"),
        (Place("jax:dungeon_escape"), DemonstrationError, "several agents live in it"),
        (Place("jax:halway"), JaxrlError, "hallway"),
    ):
        with pytest.raises(kind, match=words):
            recorded_frames(place, WALKS[0], [(1, walks[0])], False)
    assert main(["demo", "view", "demo:hallway", "--env", "jax:hallway"]) == 1
    assert "name a film, such as --out film.gif" in capsys.readouterr().err
    assert main(["demo", "view", "demo:hallway", "--out", str(tmp_path / "a.gif")]) == 1
    assert "--env jax:NAME, the scene" in capsys.readouterr().err

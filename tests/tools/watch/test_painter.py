"""Pictures: colours of single pixels, films of the right length, and what cannot be painted or written."""

from __future__ import annotations

import math

import pytest
from PIL import Image

from jaxrl.jax_envs.drawing import Box, Disc, Line, Polygon, Scene
from jaxrl.tools.watch.painter import Frame, check_ending, paint, write_film
from jaxrl.types import JaxrlError

RED, BLUE, WHITE, BLACK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def painted(*shapes, size=(10.0, 5.0)) -> Image.Image:
    """A scene on white, 10 pixels to the unit."""
    return paint(Scene(size=size, shapes=shapes, background="white"), longest=100)


def test_shapes_stand_where_they_should_with_y_upwards():
    picture = painted(
        Disc((2.0, 1.0), 0.8, "red"),
        Box((8.0, 4.0), (3.0, 1.0), "#0000ff"),
        Line((1.0, 4.0), (4.0, 4.0), 0.4, "black"),
        Polygon(((5.0, 0.5), (7.0, 0.5), (6.0, 2.5)), "red"),
    )
    assert picture.size == (100, 50) and picture.mode == "RGB"
    # a point (x, y) is the pixel (10 x, 50 - 10 y)
    assert picture.getpixel((20, 40)) == RED and picture.getpixel((20, 30)) == WHITE
    assert picture.getpixel((67, 10)) == BLUE and picture.getpixel((80, 17)) == WHITE
    assert picture.getpixel((25, 10)) == BLACK and picture.getpixel((60, 35)) == RED


def test_a_box_turns_counter_clockwise():
    picture = painted(Box((5.0, 2.5), (4.0, 0.6), "red", angle=math.radians(30.0)))
    # its right end goes up: (5 + 1.8 cos 30°, 2.5 + 1.8 sin 30°) = (6.56, 3.4)
    assert picture.getpixel((65, 16)) == RED and picture.getpixel((65, 34)) == WHITE


def test_later_shapes_cover_earlier_ones_and_edges_are_smooth():
    picture = painted(Disc((5.0, 2.5), 2.0, "red"), Disc((5.0, 2.5), 1.0, "blue"))
    assert picture.getpixel((50, 25)) == BLUE and picture.getpixel((65, 25)) == RED
    shades = {colour for _, colour in picture.getcolors(10_000)}
    assert len(shades - {RED, BLUE, WHITE}) > 10  # mixtures at the edges


@pytest.mark.parametrize(("colour", "ink"), [("#101040", (255, 255, 255)), ("#ffff00", (47, 49, 54))])
def test_a_label_is_light_on_dark_and_dark_on_light_and_fits(colour, ink):
    plain, labelled = painted(Disc((5.0, 2.5), 2.0, colour)), painted(Disc((5.0, 2.5), 2.0, colour, label="12345678"))
    changed = [(x, y) for x in range(100) for y in range(50) if plain.getpixel((x, y)) != labelled.getpixel((x, y))]
    assert changed and all(math.hypot(x + 0.5 - 50, y + 0.5 - 25) < 20 for x, y in changed)
    assert min(sum(abs(a - b) for a, b in zip(labelled.getpixel(at), ink, strict=True)) for at in changed) < 150


def frames(count: int, caption: str = "") -> list[Frame]:
    """A disc that wanders to the right; the last frame ends an episode."""
    scenes = (Scene((10.0, 5.0), (Disc((1.0 + 8.0 * i / count, 2.0), 1.0, "green"),)) for i in range(count))
    return [Frame(scene, caption and f"{caption} {i}", ends=i == count - 1) for i, scene in enumerate(scenes)]


def test_a_film_shows_every_frame_and_stays_at_the_end(tmp_path):
    path = tmp_path / "new" / "film.gif"
    write_film(path, frames(20, "step"), frame_seconds=0.1, longest=100)
    with Image.open(path) as film:
        assert film.n_frames == 20 and film.info["loop"] == 0
        durations = []
        for place in range(film.n_frames):
            film.seek(place)
            durations.append(film.info["duration"])
        assert film.size == (100, 50 + 28)  # the caption has a bar of its own
        assert film.convert("RGB").getpixel((86, 30))[1] > 100  # the disc has arrived at x = 8.6
    assert durations == [100] * 19 + [1500]


def test_a_sheet_has_twelve_pictures_at_most_with_the_first_and_the_last(tmp_path):
    write_film(tmp_path / "sheet.PNG", frames(30), longest=100)
    with Image.open(tmp_path / "sheet.PNG") as sheet:
        assert sheet.format == "PNG" and sheet.size == (4 * 100 + 3 * 6, 3 * 50 + 2 * 6)
        green = (0, 128, 0)
        assert sheet.getpixel((10, 30)) == green and sheet.getpixel((318 + 87, 112 + 30)) == green
    write_film(tmp_path / "one.png", frames(1), longest=100)
    with Image.open(tmp_path / "one.png") as sheet:
        assert sheet.size == (100, 50)


def test_pictures_of_several_sizes_share_one_sheet(tmp_path):
    tall = Frame(Scene((5.0, 10.0), ()), "a caption that is wider than the narrow picture")
    write_film(tmp_path / "film.gif", [*frames(2), tall], longest=100)
    with Image.open(tmp_path / "film.gif") as film:
        assert film.size[0] > 200 and film.size[1] == 128 and film.n_frames == 3


def test_what_cannot_be_painted_or_written_is_named(tmp_path):
    with pytest.raises(JaxrlError, match=r"film\.mp4: .*\.gif or \.png"):
        check_ending(tmp_path / "film.mp4")
    with pytest.raises(JaxrlError, match=r"film\.mp4"):
        write_film(tmp_path / "film.mp4", frames(1))
    with pytest.raises(JaxrlError, match="at least one frame"):
        write_film(tmp_path / "film.gif", [])
    with pytest.raises(JaxrlError, match="'reddish': unknown"):
        painted(Disc((1.0, 1.0), 1.0, "reddish"))
    (tmp_path / "file").write_text("")
    with pytest.raises(JaxrlError, match=r"file/film\.gif: cannot be written"):
        write_film(tmp_path / "file" / "film.gif", frames(1))


def test_time_to_read_news_and_pictures_as_they_are(tmp_path):
    half = Image.new("RGB", (40, 20), "blue")
    half.paste((255, 0, 0), (0, 0, 20, 20))
    write_film(tmp_path / "a.gif", [Frame(half, "a"), Frame(half, "b", news=True), Frame(half, "c", ends=True)])
    with Image.open(tmp_path / "a.gif") as film:
        durations = []
        for place in range(film.n_frames):
            film.seek(place)
            durations.append(film.info["duration"])
        assert film.size == (480, 240 + 28)
    assert durations == [100, 900, 1500]
    picture = paint(half, longest=20)
    assert picture.size == (20, 10) and picture.getpixel((9, 5)) == RED and picture.getpixel((10, 5)) == BLUE

"""Pictures while it trains: M26 (drawn only if asked), X17 (what render may give, and a missing viewer), films."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from games import Stairs, choose, stairs_env
from PIL import Image

from jaxrl.envs.foreign.rendering import (
    GIF_FRAMES,
    DrawingOptions,
    Film,
    FilmError,
    Rendering,
    ViewerError,
    drawing_options,
    make_drawn,
)
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.settings import CheckpointSettings, RunSettings


class Album:
    """A viewer that keeps what it is shown."""

    def __init__(self) -> None:
        self.pictures: list[np.ndarray] = []
        self.closed = False

    def show(self, picture: np.ndarray) -> None:
        self.pictures.append(picture)

    def close(self) -> None:
        self.closed = True


def rendering(options: DrawingOptions, viewer) -> Rendering:
    return Rendering(options, "worker 0, area 0", open_viewer=viewer)


def test_m26_nothing_is_drawn_unless_asked_and_then_only_the_first_area_of_worker_0(tmp_path):
    films = DrawingOptions(film_every=1, folder=str(tmp_path))
    for worker, drawing, drawn in ((0, DrawingOptions(), 0), (1, films, 0), (0, films, 4)):
        games = Stairs(), Stairs()
        env = stairs_env(*games, worker=worker, drawing=drawing)
        message = env.reset()
        for _ in range(2):
            message = env.step(choose(message))
        env.close()
        assert [game.drawn for game in games] == [drawn, 0]  # two resets and two steps


def test_x17_pictures_are_shown_and_true_false_and_none_are_left_to_the_environment():
    album = Album()
    drawing = rendering(DrawingOptions(show=True), lambda: album)
    picture = np.zeros((4, 5, 3), np.uint8)
    for given in (picture, True, False, None, np.True_):
        drawing.draw(lambda given=given: given)
    assert len(album.pictures) == 1
    drawing.close()
    assert album.closed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros((4, 5, 3)), r"render gave float64 \(4, 5, 3\), expected a picture, uint8"),
        (np.zeros((4, 5), np.uint8), r"render gave uint8 \(4, 5\)"),
        ("ansi", "render gave a str"),
        ([np.zeros((4, 5, 3), np.uint8)], "render gave a list"),
    ],
)
def test_x17_anything_else_is_an_error(given, words):
    with pytest.raises(EnvironmentFailure, match=f"worker 0, area 0: {words}"):
        rendering(DrawingOptions(show=True), Album).draw(lambda: given)


def test_x17_without_a_viewer_it_warns_once_and_goes_on_undrawn(caplog):
    def no_display():
        raise ViewerError("no display")

    drawing, calls = rendering(DrawingOptions(show=True), no_display), []
    for _ in range(3):
        drawing.draw(lambda: calls.append(1) or np.zeros((4, 5, 3), np.uint8))
    assert len(calls) == 1
    assert [record.message for record in caplog.records] == ["worker 0, area 0: nothing is shown any more: no display"]


def test_a_real_window_without_a_display_is_no_fault(monkeypatch, caplog):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    drawing = Rendering(DrawingOptions(show=True), "here")
    drawing.draw(lambda: np.zeros((4, 5, 3), np.uint8))
    drawing.close()
    assert "here: nothing is shown any more: no window can be opened" in caplog.text


def test_films_of_every_second_episode_with_all_of_its_pictures(tmp_path):
    """Episode 0 has 2 steps, so 3 pictures of 15 rows, an odd number; episode 2, which the end of the run cuts, 2."""
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    env = stairs_env(Stairs(), worker=0, drawing=DrawingOptions(film_every=2, folder=str(tmp_path / "videos")))
    message = env.reset()
    for _ in range(6):
        message = env.step(choose(message))
    env.close()
    files = sorted((tmp_path / "videos").iterdir())
    assert [file.name for file in files] == ["episode-000000.mp4", "episode-000002.mp4"]
    assert [pictures_in(file, imageio_ffmpeg.get_ffmpeg_exe()) for file in files] == [3, 2]


def pictures_in(film, encoder):
    """How many pictures a film has: one line of text each."""
    command = [encoder, "-loglevel", "error", "-i", str(film), "-f", "framemd5", "-"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    return sum(not line.startswith("#") for line in lines)


def test_a_film_without_the_encoder_is_a_gif(tmp_path, monkeypatch):
    film = Film(tmp_path, 3, 10.0)
    monkeypatch.setattr(film, "_mp4", False)
    film._draft = tmp_path / ".episode-000003.gif"
    for shade in range(4):
        film.add(np.full((8, 9, 3), 60 * shade, np.uint8))
    path = film.finish()
    assert path == tmp_path / "episode-000003.gif"
    with Image.open(path) as image:
        assert (image.size, image.n_frames, image.info["duration"]) == ((9, 8), 4, 100)
    assert GIF_FRAMES >= 1000


def test_an_older_film_is_left_alone(tmp_path):
    (tmp_path / "episode-000000.mp4").write_text("older")
    (tmp_path / "episode-000000.gif").write_text("older")
    film = Film(tmp_path, 0, 10.0)
    film.add(np.zeros((8, 8, 3), np.uint8))
    path = film.finish()
    assert path is not None and path.stem == "episode-000000-2"
    assert Film(tmp_path, 5, 10.0).finish() is None


def test_a_film_that_cannot_be_written_is_given_up_with_a_warning(tmp_path, caplog):
    (tmp_path / "videos").write_text("a file")
    drawing = rendering(DrawingOptions(film_every=1, folder=str(tmp_path / "videos")), Album)
    for _ in range(3):
        drawing.begin(lambda: np.zeros((4, 4, 3), np.uint8))
    drawing.close()
    assert len(caplog.records) == 1 and "no more films" in caplog.text
    assert (tmp_path / "videos").read_text() == "a file"


def test_pictures_of_another_size_end_the_film(tmp_path):
    film = Film(tmp_path, 0, 10.0)
    film.add(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(FilmError, match=r"\(6, 4, 3\) follows one of \(4, 4, 3\)"):
        film.add(np.zeros((6, 4, 3), np.uint8))
    film.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_draws_itself_gives_no_film(tmp_path, caplog):
    drawing = rendering(DrawingOptions(film_every=1, folder=str(tmp_path)), Album)
    drawing.begin(lambda: None)
    drawing.begin(lambda: None)
    assert [record.message for record in caplog.records] == [
        "worker 0, area 0: no more films: its render gives None in place of pictures"
    ]


def test_the_copy_that_is_drawn_is_made_in_the_mode_that_it_offers():
    assert make_drawn(Stairs, DrawingOptions(show=True)).render_mode == "rgb_array"

    class Human(Stairs):
        metadata = {"render_modes": ["human"]}  # noqa: RUF012

    assert make_drawn(Human, DrawingOptions(show=True)).render_mode == "human"
    assert make_drawn(Human, DrawingOptions(film_every=1)).render_mode is None


def test_films_of_an_evaluation_go_beside_the_run():
    """--inference --resume writes nothing into the run that it plays."""
    plain = RunSettings(checkpoint_settings=CheckpointSettings(results_dir="results", run_id="first"))
    assert drawing_options(plain).folder == str(Path("results/first/videos").absolute())
    played = CheckpointSettings(results_dir="results", run_id="first", resume=True, inference=True)
    assert drawing_options(RunSettings(checkpoint_settings=played)).folder == str(
        Path("results/first-videos").absolute()
    )

"""Shows one copy of an environment while it trains: in a window, and in films of some episodes.

`render` may return a picture, uint8 [H, W, 3]; or True, False or None if the environment has drawn (as in RLlib).
Only a wrong picture ends a run: without a window, or with a full disk, training goes on undrawn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from jaxrl import platforms
from jaxrl.envs.interface import EnvironmentFailure

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings

PICTURES, ITSELF = "rgb_array", "human"
_FRAMES_PER_SECOND = 30.0

logger = logging.getLogger(__name__)
GIF_FRAMES = 1000
"""Largest number of pictures of a GIF, which is kept in memory until its end; later ones are left out."""
_ENCODER_SECONDS = 10.0


class DrawingOptions(NamedTuple):
    """Drawings of area 0 of worker 0."""

    show: bool = False  # in a window
    film_every: int = 0  # episodes from one film to the next; 0: none
    folder: str = ""  # for the films

    @property
    def wanted(self) -> bool:
        """Something is to be drawn."""
        return self.show or self.film_every > 0


NOTHING_DRAWN = DrawingOptions()


def drawing_options(settings: RunSettings) -> DrawingOptions:
    """Return the drawing options of a run's settings; films go into the run's folder.

    Films of an evaluation (inference and resume) go beside the folder: nothing is written into the evaluated run.
    """
    options, run = settings.env_settings, settings.checkpoint_settings
    played = run.inference and run.resume
    folder = Path(run.results_dir, f"{run.run_id}-videos" if played else f"{run.run_id}/videos").absolute()
    return DrawingOptions(show=options.render, film_every=options.video_every, folder=str(folder))


def make_drawn(make: Callable[..., Any], options: DrawingOptions) -> Any:
    """Make an environment of Gymnasium or PettingZoo that can be drawn: `make()`, made again in a mode that it offers.

    `make` takes `render_mode`. An environment without a usable mode is left unchanged and may give no pictures.
    """
    env = make()
    modes = (getattr(env, "metadata", None) or {}).get("render_modes", ())
    mode = PICTURES if PICTURES in modes else ITSELF if options.show and ITSELF in modes else None
    if mode is None:
        return env
    env.close()
    return make(render_mode=mode)


def checked_picture(given: Any, place: str, advice: str) -> np.ndarray:
    """Return `render`'s return value, if it is a picture. Raises EnvironmentFailure."""
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 3 and given.shape[2] == 3:
        return given
    kind = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else f"a {type(given).__name__}"
    raise EnvironmentFailure(
        f"{place}: render gave {kind}, expected a picture, uint8 (height, width, 3), or True, False or None; {advice}"
    )


class FilmError(Exception):
    """A film cannot be written. The text says why."""


class Film:
    """Grows picture by picture; the file appears under its own name when it is finished.

    Args:
        folder: is made with the first picture.
        episode: its number, in the name of the file. An existing file stays: the new one gets `-2`, and so on.
        frames_per_second: at most 50 in a GIF.
    """

    def __init__(self, folder: Path, episode: int, frames_per_second: float) -> None:
        self._folder = folder
        self._stem = f"episode-{episode:06d}"
        self._rate = frames_per_second
        self._mp4 = importlib.util.find_spec("imageio_ffmpeg") is not None
        self._draft = folder / f".{self._stem}{self._ending}"
        self._encoder: subprocess.Popen[bytes] | None = None
        self._shape: tuple[int, ...] = ()
        self._pictures: list[Image.Image] = []

    @property
    def _ending(self) -> str:
        return ".mp4" if self._mp4 else ".gif"

    def add(self, picture: np.ndarray) -> None:
        """Append uint8 [H, W, 3]. Raises FilmError for another size than before, or if it cannot be written."""
        if not self._shape:
            self._shape = picture.shape
        elif picture.shape != self._shape:
            raise FilmError(f"a picture of {picture.shape} follows one of {self._shape}")
        try:
            if self._mp4:
                self._encode(picture)
            elif len(self._pictures) < GIF_FRAMES:
                self._pictures.append(Image.fromarray(picture))
        except (OSError, RuntimeError) as error:
            raise FilmError(f"{self._draft} cannot be written ({error})") from error

    def finish(self) -> Path | None:
        """Finish the film and return the file; None: there was no picture. Raises FilmError."""
        if not self._shape:
            return None
        try:
            encoder, self._encoder = self._encoder, None
            if encoder is not None:
                self._end(encoder)
            else:
                self._write_gif()
            target = self._free_name()
            os.replace(self._draft, target)
        except (OSError, RuntimeError) as error:
            self.discard()
            raise FilmError(f"{self._draft} cannot be written ({error})") from error
        return target

    def discard(self) -> None:
        """Remove the unfinished film."""
        encoder, self._encoder = self._encoder, None
        with contextlib.suppress(OSError, RuntimeError):
            if encoder is not None:
                self._end(encoder)
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def _encode(self, picture: np.ndarray) -> None:
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # the encoder takes no odd sides
        if self._encoder is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._encoder = self._start(even.shape[1], even.shape[0])
        assert self._encoder.stdin is not None
        self._encoder.stdin.write(even.tobytes())

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        """Start the encoder in a session of its own: Ctrl-C must not end it before the film is complete."""
        import imageio_ffmpeg

        # Not imageio_ffmpeg.write_frames, which forks with code to run in between: with JAX in the process (inline
        # environments) that can deadlock.
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{width}x{height}", "-r", f"{self._rate:g}", "-i", "-"]
        command += ["-c:v", "libx264", "-pix_fmt", "yuv420p", str(self._draft)]
        none = subprocess.DEVNULL
        return platforms.begin(command, stdin=subprocess.PIPE, stdout=none, stderr=none)

    def _end(self, encoder: subprocess.Popen[bytes]) -> None:
        """Let the encoder write the rest. Raises RuntimeError if it fails, or takes too long."""
        assert encoder.stdin is not None
        try:
            encoder.stdin.close()
            code = encoder.wait(_ENCODER_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the encoder has not ended within {_ENCODER_SECONDS:g} seconds") from None
        finally:
            encoder.kill()  # without effect on one that has ended
            encoder.wait()
        if code:
            raise RuntimeError(f"the encoder ended with exit code {code}")

    def _write_gif(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        first, *others = self._pictures
        milliseconds = max(round(1000 / self._rate), 20)
        first.save(self._draft, "GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)

    def _free_name(self) -> Path:
        names = [self._stem, *(f"{self._stem}-{number}" for number in range(2, 1000))]
        free = (self._folder / (name + self._ending) for name in names)
        return next((path for path in free if not path.exists()), self._folder / (names[-1] + self._ending))


class ViewerError(Exception):
    """There is no window: no display, no tkinter, or the user has closed it."""


class Window:
    """A window, which opens when it is made. Raises ViewerError."""

    def __init__(self) -> None:
        try:
            import tkinter

            self._root: Any = tkinter.Tk()
            self._root.title("jaxrl")
            self._label: Any = tkinter.Label(self._root)
            self._label.pack()
        except Exception as error:  # any error of the window system
            raise ViewerError(f"no window can be opened ({error})") from error

    def show(self, picture: np.ndarray) -> None:
        """Show uint8 [H, W, 3]. Raises ViewerError."""
        try:
            from PIL import ImageTk

            photo = ImageTk.PhotoImage(Image.fromarray(picture), master=self._root)
            self._label.configure(image=photo)
            self._label.image = photo  # tkinter itself keeps no reference
            self._root.update()
        except Exception as error:  # a closed window raises at the next use
            raise ViewerError(f"the window is gone ({error})") from error

    def close(self) -> None:
        """Close the window. May be called twice."""
        root, self._root = self._root, None
        if root is not None:
            try:
                root.destroy()
            except Exception as error:
                raise ViewerError(f"the window cannot be closed ({error})") from error


class Rendering:
    """Draws one copy.

    Args:
        place: worker and area, for errors and warnings.
        frames_per_second: of its films.
        open_viewer: opens the window, a `Window` or its like, with the first picture.
    """

    def __init__(
        self,
        options: DrawingOptions,
        place: str,
        *,
        frames_per_second: float | None = None,
        open_viewer: Callable[[], Any] = Window,
    ) -> None:
        self._options = options
        self._place = place
        self._rate = frames_per_second or _FRAMES_PER_SECOND
        self._open_viewer = open_viewer
        self._viewer: Any = None
        self._shows = options.show
        self._films = options.film_every > 0
        self._film: Film | None = None
        self._episode = -1

    def begin(self, render: Callable[[], Any]) -> None:
        """Begin an episode. Raises EnvironmentFailure as `draw`."""
        self._finish()
        self._episode += 1
        if self._films and self._episode % self._options.film_every == 0:
            self._film = Film(Path(self._options.folder), self._episode, self._rate)
        self.draw(render)

    def draw(self, render: Callable[[], Any]) -> None:
        """Draw the present state, if a window or film needs it.

        Raises:
            EnvironmentFailure: the return value of `render` is no picture, nor True, False or None.
        """
        if not self._shows and self._film is None:
            return
        given = render()
        if given is None or isinstance(given, bool | np.bool_):
            if self._film is not None:
                self._give_up_films(f"its render gives {given} in place of pictures")
            return
        picture = checked_picture(given, self._place, "train without --render and --video, or mend it")
        if self._shows:
            self._show(picture)
        if self._film is not None:
            try:
                self._film.add(picture)
            except FilmError as error:
                self._give_up_films(str(error))

    def close(self) -> None:
        """Finish the film and close the window."""
        self._finish()
        if self._viewer is not None:
            self._viewer.close()

    def _show(self, picture: np.ndarray) -> None:
        try:
            if self._viewer is None:
                self._viewer = self._open_viewer()
            self._viewer.show(picture)
        except ViewerError as error:
            self._shows = False
            logger.warning("%s: nothing is shown any more: %s", self._place, error)

    def _give_up_films(self, reason: str) -> None:
        self._films = False
        film, self._film = self._film, None
        if film is not None:
            film.discard()
        logger.warning("%s: no more films: %s", self._place, reason)

    def _finish(self) -> None:
        film, self._film = self._film, None
        if film is None:
            return
        try:
            film.finish()
        except FilmError as error:
            self._give_up_films(str(error))

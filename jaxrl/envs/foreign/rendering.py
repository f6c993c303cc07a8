"""Pictures of one copy of an environment while it trains: in a window, and as films of some episodes.

What `render` may give (RLlib's rule): a picture, uint8 [H, W, 3]; or True, False or None, if the environment has drawn
by itself. Nothing here ends a run but a wrong picture: without a window, or with a full disk, it trains on undrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from jaxrl.envs.foreign.film import Film, FilmError
from jaxrl.envs.foreign.viewer import ViewerError, Window
from jaxrl.envs.interface import EnvironmentFailure

if TYPE_CHECKING:
    from jaxrl.settings import RunSettings

PICTURES, ITSELF = "rgb_array", "human"
_FRAMES_PER_SECOND = 30.0

logger = logging.getLogger(__name__)


class DrawingOptions(NamedTuple):
    """What is to be drawn of area 0 of worker 0."""

    show: bool = False  # in a window
    film_every: int = 0  # episodes from one film to the next; 0: none
    folder: str = ""  # of the films

    @property
    def wanted(self) -> bool:
        """Whether anything is."""
        return self.show or self.film_every > 0


NOTHING_DRAWN = DrawingOptions()


def drawing_options(settings: RunSettings) -> DrawingOptions:
    """What the settings of a run want to be drawn; films go into the run's folder.

    Those of an evaluation (inference and resume) go beside it: nothing is written into the run that is only played.
    """
    options, run = settings.env_settings, settings.checkpoint_settings
    played = run.inference and run.resume
    folder = Path(run.results_dir, f"{run.run_id}-videos" if played else f"{run.run_id}/videos").absolute()
    return DrawingOptions(show=options.render, film_every=options.video_every, folder=str(folder))


class Viewer(Protocol):
    """Something that shows pictures."""

    def show(self, picture: np.ndarray) -> None:
        """Show uint8 [H, W, 3]. Raises ViewerError."""
        ...

    def close(self) -> None:
        """May be called twice."""
        ...


def make_drawn(make: Callable[..., Any], options: DrawingOptions) -> Any:
    """An environment of Gymnasium or PettingZoo that can be drawn: `make()`, made again in the mode that it offers.

    `make` takes `render_mode`. One that offers nothing of use is left as it is: its `render` will tell.
    """
    env = make()
    modes = (getattr(env, "metadata", None) or {}).get("render_modes", ())
    mode = PICTURES if PICTURES in modes else ITSELF if options.show and ITSELF in modes else None
    if mode is None:
        return env
    env.close()
    return make(render_mode=mode)


def rate_of(env: Any) -> float | None:
    """Frames per second that an environment of Gymnasium or PettingZoo asks for."""
    return (getattr(env, "metadata", None) or {}).get("render_fps")


def checked_picture(given: Any, place: str, advice: str) -> np.ndarray:
    """What `render` gave, if that is a picture. Raises EnvironmentFailure."""
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 3 and given.shape[2] == 3:
        return given
    kind = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else f"a {type(given).__name__}"
    raise EnvironmentFailure(
        f"{place}: render gave {kind}, expected a picture, uint8 (height, width, 3), or True, False or None; {advice}"
    )


class Rendering:
    """Draws one copy.

    Args:
        place: worker and area, for errors and warnings.
        frames_per_second: of its films.
        open_viewer: opens the window, with the first picture.
    """

    def __init__(
        self,
        options: DrawingOptions,
        place: str,
        *,
        frames_per_second: float | None = None,
        open_viewer: Callable[[], Viewer] = Window,
    ) -> None:
        self._options = options
        self._place = place
        self._rate = frames_per_second or _FRAMES_PER_SECOND
        self._open_viewer = open_viewer
        self._viewer: Viewer | None = None
        self._shows = options.show
        self._films = options.film_every > 0
        self._film: Film | None = None
        self._episode = -1

    def begin(self, render: Callable[[], Any]) -> None:
        """An episode has begun. Raises EnvironmentFailure as `draw`."""
        self._finish()
        self._episode += 1
        if self._films and self._episode % self._options.film_every == 0:
            self._film = Film(Path(self._options.folder), self._episode, self._rate)
        self.draw(render)

    def draw(self, render: Callable[[], Any]) -> None:
        """Draw the present state, if anybody wants to see it.

        Raises:
            EnvironmentFailure: what `render` gives is no picture, nor True, False or None.
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

"""The film of one episode: mp4 where imageio-ffmpeg is installed, else an animated GIF."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

GIF_FRAMES = 1000
"""A GIF is kept in memory until its end: what comes after so many pictures is left out."""
_ENCODER_SECONDS = 10.0


class FilmError(Exception):
    """A film cannot be written. The text says why."""


class Film:
    """Grows picture by picture; the file appears under its own name when it is finished.

    Args:
        folder: is made with the first picture.
        episode: its number, in the name of the file. A file of that name is left alone: this one gets `-2`, and so on.
        frames_per_second: at most 50 in a GIF.
    """

    def __init__(self, folder: Path, episode: int, frames_per_second: float) -> None:
        self._folder = folder
        self._stem = f"episode-{episode:06d}"
        self._rate = frames_per_second
        self._mp4 = importlib.util.find_spec("imageio_ffmpeg") is not None
        self._draft = folder / f".{self._stem}{self._ending}"
        self._writer: Generator[None, Any, None] | None = None
        self._shape: tuple[int, ...] = ()
        self._pictures: list[Image.Image] = []

    @property
    def _ending(self) -> str:
        return ".mp4" if self._mp4 else ".gif"

    def add(self, picture: np.ndarray) -> None:
        """Append uint8 [H, W, 3]. Raises FilmError: another size than before, or it cannot be written."""
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
        """Write what is there and return the file; None: there was no picture. Raises FilmError."""
        if not self._shape:
            return None
        try:
            if self._writer is not None:
                self._writer.close()
            else:
                self._write_gif()
            target = self._free_name()
            os.replace(self._draft, target)
        except (OSError, RuntimeError) as error:
            self.discard()
            raise FilmError(f"{self._draft} cannot be written ({error})") from error
        return target

    def discard(self) -> None:
        """Leave no file."""
        writer, self._writer = self._writer, None
        with contextlib.suppress(OSError, RuntimeError):
            if writer is not None:
                writer.close()
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)

    def _encode(self, picture: np.ndarray) -> None:
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # the encoder takes no odd sides
        if self._writer is None:
            import imageio_ffmpeg

            self._folder.mkdir(parents=True, exist_ok=True)
            writer = imageio_ffmpeg.write_frames(
                str(self._draft),
                (even.shape[1], even.shape[0]),
                fps=max(round(self._rate), 1),
                macro_block_size=1,
                ffmpeg_log_level="error",
                ffmpeg_timeout=_ENCODER_SECONDS,
            )
            writer.send(None)
            self._writer = writer
        else:
            writer = self._writer
        writer.send(np.ascontiguousarray(even))

    def _write_gif(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        first, *others = self._pictures
        milliseconds = max(round(1000 / self._rate), 20)
        first.save(self._draft, "GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)

    def _free_name(self) -> Path:
        names = [self._stem, *(f"{self._stem}-{number}" for number in range(2, 1000))]
        free = (self._folder / (name + self._ending) for name in names)
        return next((path for path in free if not path.exists()), self._folder / (names[-1] + self._ending))

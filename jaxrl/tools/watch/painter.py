"""Paints scenes of environments with Pillow and writes them as an animated GIF or as a sheet of stills. No JAX here."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from jaxrl.jax_envs.drawing import Box, Disc, Line, Point, Polygon, Scene, Shape
from jaxrl.types import JaxrlError

ENDINGS = (".gif", ".png")
STILLS = 12
"""Largest number of pictures in a sheet."""
_FINER = 3  # pictures are painted this many times larger and then scaled down, which smooths all edges
_COLUMNS = 4  # of a sheet
_INK, _PAPER = "#2f3136", "#ffffff"
_CAPTION_HEIGHT, _CAPTION_SIZE = 28, 15  # pixels
_END_SECONDS, _NEWS_SECONDS = 1.5, 0.9  # time of the last picture of an episode, and at least of one with news
_SAMPLED = 9  # number of pictures from which the colours of a film are chosen


class Frame(NamedTuple):
    """Picture of a film."""

    scene: Scene | Image.Image  # or a finished picture
    caption: str = ""
    ends: bool = False  # the last one of an episode
    news: bool = False  # its caption has text that the one before had not: time to read it


def check_ending(path: Path) -> None:
    """Raise JaxrlError unless `path` ends with .gif or .png, in small or capital letters."""
    if path.suffix.lower() not in ENDINGS:
        raise JaxrlError(f"{path}: a film is written as {' or '.join(ENDINGS)}; choose a file name with such an ending")


def paint(scene: Scene | Image.Image, caption: str = "", *, longest: int = 480) -> Image.Image:
    """Return one RGB picture, `longest` pixels along its longer side, with the caption in a bar below it.

    Shapes are painted in their order, and clipped at the border of the scene. Raises JaxrlError for a colour that
    Pillow does not know.
    """
    if isinstance(scene, Image.Image):
        grown = max(scene.size) < longest
        picture = scene.resize(_pixels(scene, longest), Image.Resampling.NEAREST if grown else Image.Resampling.BOX)
        return _with_caption(picture, caption) if caption else picture
    scale, (width, height) = longest / max(scene.size), _pixels(scene, longest)
    canvas = Image.new("RGB", (width * _FINER, height * _FINER), _colour(scene.background))
    brush = ImageDraw.Draw(canvas)
    for shape in scene.shapes:
        _paint_shape(brush, shape, scale * _FINER, height * _FINER)
    picture = canvas.reduce(_FINER)
    return _with_caption(picture, caption) if caption else picture


def write_film(path: Path, frames: Sequence[Frame], *, frame_seconds: float = 0.1, longest: int = 480) -> None:
    """Write all frames as a GIF that repeats, or at most 12, evenly spread, as one PNG, by the ending of `path`.

    The last picture of an episode stays for 1.5 seconds, one with news for 0.9. Creates the parent folder and replaces
    an older file. Raises JaxrlError for another ending, without frames, or if the folder cannot be written.
    """
    check_ending(path)
    if not frames:
        raise JaxrlError(f"{path}: there is nothing to show, a film needs at least one frame")
    gif = path.suffix.lower() == ".gif"
    content = _gif(frames, frame_seconds, longest) if gif else _sheet(frames, longest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise JaxrlError(f"{path}: cannot be written ({error.strerror or error}); choose another file") from error


def _gif(frames: Sequence[Frame], frame_seconds: float, longest: int) -> bytes:
    """Return a GIF of all frames with one set of 256 colours, so that nothing flickers, and only changes are stored."""
    sample = _mosaic(list(_painted(spread(frames, _SAMPLED), longest)), 3)
    palette = sample.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    pictures = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in _painted(frames, longest))
    seconds = [_seconds(frame, frame_seconds) for frame in frames]
    first, content = next(pictures), io.BytesIO()
    first.save(
        content, "GIF", save_all=True, append_images=pictures, duration=[round(1000 * s) for s in seconds], loop=0
    )
    return content.getvalue()


def _seconds(frame: Frame, usual: float) -> float:
    return _END_SECONDS if frame.ends else max(usual, _NEWS_SECONDS) if frame.news else usual


def _sheet(frames: Sequence[Frame], longest: int) -> bytes:
    content, pictures = io.BytesIO(), list(_painted(spread(frames, STILLS), longest))
    _mosaic(pictures, _COLUMNS).save(content, "PNG", optimize=True)
    return content.getvalue()


def spread(found: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many of the items, at equal distances, the first and the last among them."""
    places = np.unique(np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int))
    return [found[place] for place in places]


def _mosaic(pictures: Sequence[Image.Image], columns: int) -> Image.Image:
    """Return a sheet of pictures of one size side by side on white, row by row."""
    columns, gap = min(columns, len(pictures)), 6
    width, height = pictures[0].size
    rows = math.ceil(len(pictures) / columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), _PAPER)
    for place, picture in enumerate(pictures):
        row, column = divmod(place, columns)
        sheet.paste(picture, (column * (width + gap), row * (height + gap)))
    return sheet


def _painted(frames: Sequence[Frame], longest: int) -> Iterator[Image.Image]:
    """Yield the pictures, all as wide as the widest and as high as the highest, in the middle of white."""
    bar = _CAPTION_HEIGHT if any(frame.caption for frame in frames) else 0
    sizes = [_pixels(frame.scene, longest) for frame in frames]
    width = max(*(size[0] for size in sizes), *(_caption_width(frame.caption) for frame in frames))
    height = max(size[1] for size in sizes) + bar
    for frame in frames:
        picture = paint(frame.scene, frame.caption, longest=longest)
        if picture.size != (width, height):
            sheet = Image.new("RGB", (width, height), _PAPER)
            sheet.paste(picture, ((width - picture.width) // 2, (height - picture.height) // 2))
            picture = sheet
        yield picture


def _pixels(scene: Scene | Image.Image, longest: int) -> tuple[int, int]:
    scale = longest / max(scene.size)
    return max(round(scene.size[0] * scale), 1), max(round(scene.size[1] * scale), 1)


def _paint_shape(brush: ImageDraw.ImageDraw, shape: Shape, scale: float, height: int) -> None:
    """Paint one shape on a canvas of `scale` pixels per unit, whose row 0 is at the top."""

    def pixel(point: Point) -> Point:
        return point[0] * scale, height - point[1] * scale

    colour = _colour(shape.colour)
    match shape:
        case Disc(centre, radius, _, label):
            brush.circle(pixel(centre), radius * scale, fill=colour)
            _write_label(brush, label, pixel(centre), 1.5 * radius * scale, 1.1 * radius * scale, colour)
        case Box(centre, (across, along), _, angle, label):
            brush.polygon([pixel(corner) for corner in _corners(centre, across, along, angle)], fill=colour)
            _write_label(brush, label, pixel(centre), 0.85 * across * scale, 0.6 * along * scale, colour)
        case Line(start, end, width):
            brush.line([pixel(start), pixel(end)], fill=colour, width=max(round(width * scale), 1))
            for point in (start, end):
                brush.circle(pixel(point), 0.5 * width * scale, fill=colour)
        case Polygon(corners):
            brush.polygon([pixel(corner) for corner in corners], fill=colour)


def _corners(centre: Point, across: float, along: float, angle: float) -> list[Point]:
    cosine, sine = math.cos(angle), math.sin(angle)
    half = [(x * across / 2, y * along / 2) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    return [(centre[0] + cosine * x - sine * y, centre[1] + sine * x + cosine * y) for x, y in half]


def _write_label(
    brush: ImageDraw.ImageDraw, label: str, middle: Point, width: float, size: float, colour: tuple[int, ...]
) -> None:
    """Write in letters `size` high or smaller, no wider than `width`; dark on light, light on dark."""
    if not label or size < 1.0:
        return
    size = min(size, size * width / max(_font(round(size)).getlength(label), 1.0))
    red, green, blue = colour[:3]
    ink = _INK if 0.3 * red + 0.59 * green + 0.11 * blue > 150 else _PAPER
    brush.text(middle, label, fill=ink, font=_font(max(round(size), 1)), anchor="mm")


def _with_caption(picture: Image.Image, caption: str) -> Image.Image:
    """Return the picture on a white sheet, wide enough for the caption below it."""
    sheet = Image.new("RGB", (max(picture.width, _caption_width(caption)), picture.height + _CAPTION_HEIGHT), _PAPER)
    sheet.paste(picture, ((sheet.width - picture.width) // 2, 0))
    middle = picture.height + _CAPTION_HEIGHT // 2
    ImageDraw.Draw(sheet).text((10, middle), caption, fill=_INK, font=_font(_CAPTION_SIZE), anchor="lm")
    return sheet


def _caption_width(caption: str) -> int:
    return math.ceil(_font(_CAPTION_SIZE).getlength(caption)) + 20 if caption else 0


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, so that pictures are alike on all machines."""
    return ImageFont.load_default(size)


@cache
def _colour(name: str) -> tuple[int, ...]:
    try:
        return ImageColor.getrgb(name)
    except ValueError:
        raise JaxrlError(f"colour {name!r}: unknown; a scene names CSS colours or #rrggbb") from None

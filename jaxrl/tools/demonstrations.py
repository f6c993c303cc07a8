"""Demonstrations to look at: tables of their episodes and decisions, and films of what a camera saw or of the scene."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from jaxrl.demonstrations import DemonstrationError
from jaxrl.demonstrations.episodes import Episode, episodes
from jaxrl.demonstrations.reading import read
from jaxrl.demonstrations.records import kind_of
from jaxrl.settings.demonstrations import DETECT
from jaxrl.tools.watch.painter import Frame, check_ending, write_film

_SECONDS = 0.1  # of a picture
_LONGEST = 480  # pixels
_FRAMES = 600
_NUMBERS = 8  # of a sensor or an action in one line

SceneFrames = Callable[[Path, Sequence[tuple[int, Episode]], bool], list[Frame]]
"""(a file of the agent, episodes with their numbers, whether pictures tell these) -> pictures of the states."""


def table(files: Sequence[Path], number: int | None, demo_actions: str = DETECT) -> Iterator[str]:
    """A line for each episode of the files; with `number` (from 1 on) for each of its decisions instead.

    Raises DemonstrationError: a file that cannot be used, or no such episode.
    """
    _check(files, number, demo_actions)
    if number is None:
        yield f"{'episode':>7}  {'decisions':>9}  {'reward':>9}  {'group':>9}  ended  file"
        for at, file, one in _numbered(files, demo_actions):
            how = "over" if one.terminated else "cut" if one.truncated else "open"
            paid = f"{one.reward.sum():>9.3f}  {one.group_reward.sum():>9.3f}"
            yield f"{at:>7}  {len(one.reward):>9}  {paid}  {how:<5}  {file}"
        return
    _, _, one = _chosen(files, number, demo_actions)
    yield f"{'decision':>8}  {'reward':>9}  {'group':>9}  action; observations"
    for time, (reward, group) in enumerate(zip(one.reward, one.group_reward, strict=True)):
        done = _words(np.concatenate([one.action.continuous[time], one.action.discrete[time]]))
        seen = "; ".join(_words(x[time]) if x.ndim < 4 else f"image {x.shape[1:]}" for x in one.obs)
        yield f"{time:>8}  {reward:>9.3f}  {group:>9.3f}  {done}; {seen}"


def film(
    files: Sequence[Path],
    number: int | None,
    out: Path,
    scene: SceneFrames | None = None,
    demo_actions: str = DETECT,
) -> None:
    """What the first camera saw in all episodes, or in one of them, as .gif or .png; with a `scene` what that draws.

    Raises DemonstrationError: as `table`, or there is no camera; JaxrlError: `out` cannot be written; what `scene`
    raises.
    """
    check_ending(out)
    _check(files, number, demo_actions)
    sensors = kind_of(files[0]).spec.observations
    cameras = [i for i, sensor in enumerate(sensors) if len(sensor.shape) == 3]
    if scene is None and not cameras:
        raise DemonstrationError(
            f"{files[0]}: no sensor is a camera, so there is no picture in it; --env jax:NAME, the scene in which "
            "`jaxrl record` made it, is drawn instead"
        )
    every = number is None
    chosen = _numbered(files, demo_actions) if every else iter([_chosen(files, number, demo_actions)])
    if scene is None:
        frames = list(islice(_frames(chosen, cameras[0]), _FRAMES))
    else:
        frames = scene(files[0], _first(chosen), every)[:_FRAMES]
    write_film(out, frames, frame_seconds=_SECONDS, longest=_LONGEST)


def _first(chosen: Iterable[tuple[int, Path, Episode]]) -> list[tuple[int, Episode]]:
    """As many as fill a film."""
    kept, pictures = [], 0
    for number, _, one in chosen:
        kept.append((number, one))
        pictures += len(one.reward) + 1
        if pictures >= _FRAMES:
            break
    return kept


def _check(files: Sequence[Path], number: int | None, demo_actions: str) -> None:
    for file in files:
        read(file, demo_actions)
    if number is not None and number < 1:
        raise DemonstrationError(f"--episode: got {number}, expected a number from 1 on")


def _numbered(files: Sequence[Path], demo_actions: str) -> Iterator[tuple[int, Path, Episode]]:
    every = ((file, one) for file in files for one in episodes([file], demo_actions))
    for number, (file, one) in enumerate(every, 1):
        yield number, file, one


def _chosen(files: Sequence[Path], number: int, demo_actions: str) -> tuple[int, Path, Episode]:
    count = 0
    for found in _numbered(files, demo_actions):
        count = found[0]
        if count == number:
            return found
    raise DemonstrationError(f"--episode: got {number}, but there are {count}")


def _frames(chosen: Iterable[tuple[int, Path, Episode]], camera: int) -> Iterator[Frame]:
    for number, _, one in chosen:
        earned = np.concatenate([[0.0], np.cumsum(one.reward + one.group_reward)])
        for time, pixels in enumerate(one.obs[camera]):
            caption = f"episode {number}   step {time}   reward {earned[time]:.2f}"
            yield Frame(_picture(pixels), caption, ends=time == len(one.reward))


def _picture(pixels: np.ndarray) -> Image.Image:
    """Of [C, H, W]: three channels as colours, else the first as grey."""
    whole = pixels if pixels.dtype == np.uint8 else np.rint(255 * np.clip(pixels, 0.0, 1.0)).astype(np.uint8)
    if len(whole) == 3:
        return Image.fromarray(np.ascontiguousarray(whole.transpose(1, 2, 0)))
    return Image.fromarray(np.ascontiguousarray(whole[0])).convert("RGB")


def _words(numbers: np.ndarray) -> str:
    flat = numbers.reshape(-1)
    more = f" ... {len(flat)} in all" if len(flat) > _NUMBERS else ""
    return " ".join(f"{x:g}" for x in np.round(flat[:_NUMBERS].astype(float), 4)) + more

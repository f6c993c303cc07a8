"""Shows demonstrations: tables of their episodes and decisions, and films of a camera's pictures or of the scene."""

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
"""(a file of the agent, episodes with their numbers, pictures show the numbers) -> pictures of the states."""


def table(files: Sequence[Path], number: int | None, demo_actions: str = DETECT) -> Iterator[str]:
    """Yield a line for each episode of the files; with `number` (from 1 on) for each of its decisions instead.

    Raises DemonstrationError if a file cannot be used, or there is no such episode.
    """
    _check(files, number, demo_actions)
    if number is None:
        yield f"{'episode':>7}  {'decisions':>9}  {'reward':>9}  {'group':>9}  ended  file"
        for at, file, episode in _numbered(files, demo_actions):
            how = "over" if episode.terminated else "cut" if episode.truncated else "open"
            paid = f"{episode.reward.sum():>9.3f}  {episode.group_reward.sum():>9.3f}"
            yield f"{at:>7}  {len(episode.reward):>9}  {paid}  {how:<5}  {file}"
        return
    _, _, episode = _chosen(files, number, demo_actions)
    yield f"{'decision':>8}  {'reward':>9}  {'group':>9}  action; observations"
    for time, (reward, group) in enumerate(zip(episode.reward, episode.group_reward, strict=True)):
        action = _words(np.concatenate([episode.action.continuous[time], episode.action.discrete[time]]))
        seen = "; ".join(_words(x[time]) if x.ndim < 4 else f"image {x.shape[1:]}" for x in episode.obs)
        yield f"{time:>8}  {reward:>9.3f}  {group:>9.3f}  {action}; {seen}"


def film(
    files: Sequence[Path],
    number: int | None,
    out: Path,
    scene: SceneFrames | None = None,
    demo_actions: str = DETECT,
) -> None:
    """Write the first camera's pictures of all episodes, or of one, as .gif or .png; with a `scene` its drawings.

    Raises DemonstrationError as `table`, or without a camera; JaxrlError if `out` cannot be written; errors of `scene`.
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
    """Return as many episodes as fill a film."""
    episodes, pictures = [], 0
    for number, _, episode in chosen:
        episodes.append((number, episode))
        pictures += len(episode.reward) + 1
        if pictures >= _FRAMES:
            break
    return episodes


def _check(files: Sequence[Path], number: int | None, demo_actions: str) -> None:
    for file in files:
        read(file, demo_actions)
    if number is not None and number < 1:
        raise DemonstrationError(f"--episode: got {number}, expected a number from 1 on")


def _numbered(files: Sequence[Path], demo_actions: str) -> Iterator[tuple[int, Path, Episode]]:
    every = ((file, episode) for file in files for episode in episodes([file], demo_actions))
    for number, (file, episode) in enumerate(every, 1):
        yield number, file, episode


def _chosen(files: Sequence[Path], number: int, demo_actions: str) -> tuple[int, Path, Episode]:
    count = 0
    for numbered in _numbered(files, demo_actions):
        count = numbered[0]
        if count == number:
            return numbered
    raise DemonstrationError(f"--episode: got {number}, but there are {count}")


def _frames(chosen: Iterable[tuple[int, Path, Episode]], camera: int) -> Iterator[Frame]:
    for number, _, one in chosen:
        earned = np.concatenate([[0.0], np.cumsum(one.reward + one.group_reward)])
        for time, pixels in enumerate(one.obs[camera]):
            caption = f"episode {number}   step {time}   reward {earned[time]:.2f}"
            yield Frame(_picture(pixels), caption, ends=time == len(one.reward))


def _picture(pixels: np.ndarray) -> Image.Image:
    """Return a picture of pixels [C, H, W]: three channels as colours, else the first as grey."""
    whole = pixels if pixels.dtype == np.uint8 else np.rint(255 * np.clip(pixels, 0.0, 1.0)).astype(np.uint8)
    if len(whole) == 3:
        return Image.fromarray(np.ascontiguousarray(whole.transpose(1, 2, 0)))
    return Image.fromarray(np.ascontiguousarray(whole[0])).convert("RGB")


def _words(numbers: np.ndarray) -> str:
    flat = numbers.reshape(-1)
    more = f" ... {len(flat)} in all" if len(flat) > _NUMBERS else ""
    return " ".join(f"{x:g}" for x in np.round(flat[:_NUMBERS].astype(float), 4)) + more

"""`jaxrl zoo`: lists and plays the trained policies that come with jaxrl. JAX is imported to play one alone."""

from __future__ import annotations

import argparse
import statistics

from jaxrl.types import JaxrlError

_PLAY = "play"
_TICKS = "▁▂▃▄▅▆▇█"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add [NAME], or play NAME with its flags."""
    parser.description = (
        "List the trained policies that come with jaxrl; with NAME, all about one; with play NAME, its return on "
        "evaluation seeds, beside what its card says. `jaxrl watch jax:ENV --run zoo:NAME` makes a film."
    )
    parser.add_argument(
        "words", nargs="*", metavar="[play] NAME", help="such as dungeon_escape, or play dungeon_escape"
    )
    parser.add_argument("--episodes", type=int, metavar="N", help="play: so many (default: as many as the card has)")
    parser.add_argument("--seed", type=int, metavar="N", help="play: decides all chance (default: that of the card)")


def run(given: argparse.Namespace) -> int:
    """Print the list, one card, or the returns; return 1 if the returns of a card's episodes differ from it."""
    words = list(given.words)
    playing = words[:1] == [_PLAY]
    if len(words) > 1 + playing or words == [_PLAY]:
        raise JaxrlError(f"jaxrl zoo {' '.join(words)}: expected nothing, NAME or play NAME; jaxrl zoo lists the names")
    if not playing and (given.episodes, given.seed) != (None, None):
        raise JaxrlError("--episodes and --seed are for jaxrl zoo play NAME")
    if playing:
        return _play(words[1], given.episodes, given.seed)
    if words:
        _show(words[0])
    else:
        _list()
    return 0


def _list() -> None:
    from jaxrl.artifacts.zoo import cards

    rows = [("name", "environment", "trained by", "steps", "return", "random", "size")]
    below = [""]
    for card in cards():
        evaluation = card.evaluation
        returns = f"{evaluation.mean:.2f} ± {evaluation.error:.2f}", f"{evaluation.random:.2f}"
        rows.append(
            (card.name, card.environment, card.algorithm, f"{card.steps:,}", *returns, f"{card.size / 1000:,.0f} kB")
        )
        below.append(f"    {card.command}")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, command in zip(rows, below, strict=True):
        words, numbers = zip(row[:3], widths[:3], strict=True), zip(row[3:], widths[3:], strict=True)
        cells = [*(f"{text:<{width}}" for text, width in words), *(f"{text:>{width}}" for text, width in numbers)]
        print("  ".join(cells), command, sep="\n" if command else "")
    print(
        "\nAll about one: jaxrl zoo NAME. Its return: jaxrl zoo play NAME. A film: jaxrl watch jax:ENV --run zoo:NAME"
    )


def _show(name: str) -> None:
    from jaxrl.artifacts.zoo import card

    entry = card(name)
    curve, result = entry.curve.values, entry.evaluation
    acts = "most likely actions" if result.deterministic else "sampled actions"
    earned = f"{result.mean:.3f} ± {result.error:.3f} in {result.episodes} episodes of seed {result.seed}, {acts}"
    lines = {
        "about": entry.about,
        "environment": f"{entry.environment}, behavior {entry.behavior}",
        "algorithm": f"{entry.algorithm}, {entry.steps:,} agent decisions",
        "made by": entry.command,
        "with": ", ".join(f"{key.removesuffix('_version')} {value}" for key, value in entry.versions.items()),
        "return": f"{earned}; random actions earn {result.random:.3f}",
        "curve": f"{entry.curve.tag}: {curve[0]:.3g} {_sparkline(curve)} {curve[-1]:.3g}",
        "onnx": str(entry.onnx),
        "checkpoint": f"{entry.folder} ({entry.size / 1000:.0f} kB in all)",
        "film": f"jaxrl watch {entry.environment} --run zoo:{entry.name} --out {entry.name}.gif",
        "its return": f"jaxrl zoo play {entry.name}",
    }
    for key, value in lines.items():
        print(f"{key + ':':<13}{value}")


def _play(name: str, episodes: int | None, seed: int | None) -> int:
    from jaxrl.artifacts.zoo import card
    from jaxrl.cli.device import compute_on_cpu

    entry = card(name)
    if episodes is not None and episodes < 1:
        raise JaxrlError(f"--episodes: got {episodes}, expected at least 1")
    said = entry.evaluation
    episodes, seed = said.episodes if episodes is None else episodes, said.seed if seed is None else seed
    compute_on_cpu()
    from jaxrl.client.policy import evaluate

    returns = evaluate(entry.folder, entry.environment, episodes=episodes, seed=seed, deterministic=said.deterministic)
    mean, error = statistics.fmean(returns), statistics.pstdev(returns) / episodes**0.5
    what = f"{episodes} episodes of seed {seed}"
    print(f"{entry.environment}, zoo:{name}: return {mean:.3f} ± {error:.3f} in {what}")
    card_says = f"Its card says {said.mean:.3f} ± {said.error:.3f}"
    if (episodes, seed) != (said.episodes, said.seed):
        print(f"{card_says} in {said.episodes} episodes of seed {said.seed}.")
        return 0
    # Another processor rounds otherwise, and an episode in which one choice changes is another episode.
    agrees = abs(mean - said.mean) <= 1e-3 * abs(said.mean) + 3.0 * said.error
    print(f"{card_says} for these episodes: {'so it is' if agrees else 'that differs'}.")
    return 0 if agrees else 1


def _sparkline(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(_TICKS[min(int((value - low) / width * len(_TICKS)), len(_TICKS) - 1)] for value in values)

"""How time and memory grow with agents, teams, behaviors, workers, seeds, areas, observations and episodes.

    python benchmarks/scale.py                        # all rows, half an hour of a core
    python benchmarks/scale.py agents areas           # these alone
    python benchmarks/scale.py --quick --json FILE --draw FILE.png

Networks of 8 units and environments that cost next to nothing (`crowd.py`), so that what grows is what jaxrl itself
does; 16 decisions of each agent in an update, updates included. Each point is a process of its own: CPU microseconds
for each agent step and the most memory it held. `over` is the cost of a unit (an agent step; of one number of its
observation in those rows) over that of the cheapest smaller point: up to 1.3 counts as linear. Of memory it is the
growth from point to point, where that is 16 MiB or more. `start` are CPU seconds until everybody has learned twice,
without a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crowd import Crowd

LINEAR, GROWTH = 1.3, 16.0
"""Cost of a unit over that of smaller points; and MiB that tell something of memory."""


EPISODES = (10_000, 100_000, 1_000_000, 10_000_000)


class Row(NamedTuple):
    """One way to grow: what a point of size n is, and how many units of work it has for each agent step."""

    what: str
    sizes: tuple[int, ...]
    point: Callable[[int], tuple[str, Crowd, dict[str, Any]]]  # (loop, crowd, arguments of its function)
    quick: int = 2  # sizes with --quick
    memory_units: Callable[[int], float] = float
    time_units: Callable[[int], float] = lambda n: 1.0


ROWS = {
    "agents": Row(
        "agents in one environment, host loop", (16, 64, 256, 1024, 4096, 10_000), lambda n: ("host", Crowd(n), {})
    ),
    "team": Row(
        "members of a team, MA-POCA, host loop, 128 agents",
        (2, 4, 8, 16, 32, 64),
        lambda n: ("host", Crowd(128, team=n), {"trainer": "poca"}),
    ),
    "behaviors": Row(
        "behaviors of 4 agents, equal specs, host loop",
        (1, 2, 5, 10, 20, 50),
        lambda n: ("host", Crowd(4, behaviors=n), {}),
    ),
    "unlike": Row(
        "behaviors of 4 agents, each with another spec, host loop",
        (1, 2, 5, 10, 20, 50),
        lambda n: ("host", Crowd(4, behaviors=n, alike=False), {}),
    ),
    "scene": Row(
        "behaviors of 4 agents, each with another spec, compiled loop",
        (1, 2, 5, 10, 20, 50),
        lambda n: ("compiled", Crowd(4, behaviors=n, alike=False), {}),
    ),
    "inline": Row(
        "workers of 4 agents in the trainer's process", (1, 4, 16, 64), lambda n: ("host", Crowd(4), {"workers": n})
    ),
    "processes": Row(
        "workers of 4 agents, processes in lockstep",
        (1, 4, 16, 64),
        lambda n: ("host", Crowd(4), {"workers": n, "inline": False}),
    ),
    "async": Row(
        "workers of 4 agents, processes, whoever is ready",
        (1, 4, 16, 64),
        lambda n: ("host", Crowd(4), {"workers": n, "inline": False, "mode": "async"}),
    ),
    "seeds": Row(
        "seeds of 16 areas, compiled loop", (1, 4, 16, 64, 256), lambda n: ("compiled", Crowd(1), {"seeds": n})
    ),
    "areas": Row(
        "areas of one agent, compiled loop",
        (1, 16, 256, 4096, 65_536),
        lambda n: ("compiled", Crowd(1), {"areas": n}),
    ),
    "numbers": Row(
        "numbers of an observation, host loop, 16 agents",
        (10, 100, 1000, 10_000, 100_000),
        lambda n: ("host", Crowd(16, numbers=n), {}),
        time_units=float,
    ),
    "numbers_compiled": Row(
        "numbers of an observation, compiled loop, 16 areas",
        (10, 100, 1000, 10_000, 100_000),
        lambda n: ("compiled", Crowd(1, numbers=n), {}),
        time_units=float,
    ),
    "episode": Row(
        "decisions of an episode, host loop, 256 agents",
        (256, 64, 16, 4, 1),
        lambda n: ("host", Crowd(256, episode=n), {}),
        memory_units=lambda n: 0.0,
    ),
    "vanished": Row(
        "agents that end after 11 decisions (0) or vanish then without an ending (1), 64 of 3,000 numbers, host loop",
        (0, 1),
        lambda n: ("host", Crowd(64, numbers=3000, episode=11, tells=n == 0), {"played": 30_000}),
        memory_units=lambda n: 0.0,
    ),
    "episodes": Row(
        "episodes of one decision that are over, host loop, 256 agents",
        EPISODES,
        lambda n: ("host", Crowd(256, episode=1), {"played": n}),
        memory_units=lambda n: 0.0,
    ),
    "episodes_compiled": Row(
        "episodes of one decision that are over, compiled loop, 4,096 areas",
        EPISODES,
        lambda n: ("compiled", Crowd(1, episode=1), {"areas": 4096, "played": n}),
        memory_units=lambda n: 0.0,
    ),
}


def measured(row: str, size: int, seconds: float) -> dict[str, Any]:
    """A point in a process of its own, without a cache of programs."""
    command = [sys.executable, __file__, "--point", row, str(size), "--seconds", str(seconds)]
    place = {**os.environ, "JAXRL_COMPILATION_CACHE": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=place)
    if ended.returncode:
        raise SystemExit(f"{row} {size}:\n{ended.stderr[-3000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def point(row: str, size: int, seconds: float) -> dict[str, Any]:
    """The same here."""
    from scale_points import compiled_point, host_point

    loop, crowd, arguments = ROWS[row].point(size)
    return {"host": host_point, "compiled": compiled_point}[loop](crowd, seconds=seconds, **arguments)


def judged(row: Row, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`over` and `memory_over` of each point, from those before it; None where nothing is told."""
    cost = [point["us"] / row.time_units(point["size"]) for point in points]
    found, least = [], float("inf")
    for i, point in enumerate(points):
        over = cost[i] / min(cost[:i]) if i else None
        bytes_each, memory_over = None, None
        if i:
            grown = point["mib"] - points[i - 1]["mib"]
            units = row.memory_units(point["size"]) - row.memory_units(points[i - 1]["size"])
            if grown >= GROWTH and units:
                bytes_each = grown * 2**20 / units
                memory_over = bytes_each / least if least < float("inf") else None
                least = min(least, bytes_each)
        found.append({**point, "over": over, "bytes_each": bytes_each, "memory_over": memory_over})
    return found


def table(name: str, points: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        f"### {name}: {ROWS[name].what}",
        "",
        "| size | us per agent step | over | MiB | bytes for each more | over | start, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for at in points:
        more = "" if at["bytes_each"] is None else f"{at['bytes_each']:,.0f}"
        lines.append(
            f"| {at['size']:,} | {at['us']:,.2f} | {_over(at['over'])} | {at['mib']:,.0f} | {more} | "
            f"{_over(at['memory_over'])} | {at['start']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _over(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"**{ratio:.2f}**" if ratio > LINEAR else f"{ratio:.2f}"


def draw(path: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    """Cost of a unit over that of the smallest point, one panel for each row, with the line of 1.3."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(len(found), 3)
    figure, axes = plt.subplots(-(-len(found) // columns), columns, figsize=(4 * columns, 2.6 * len(found) / columns))
    panels = [axes] if len(found) == 1 else list(axes.flat)
    for panel, (name, points) in zip(panels, found.items(), strict=False):
        row, sizes = ROWS[name], [point["size"] for point in points]
        cost = [point["us"] / row.time_units(point["size"]) for point in points]
        panel.loglog(sizes, [one / cost[0] for one in cost], "o-", label="CPU time of a unit")
        panel.loglog(sizes, [point["mib"] / points[0]["mib"] for point in points], "s--", label="memory in all")
        panel.axhline(LINEAR, color="grey", linewidth=0.8)
        panel.set_title(row.what, fontsize=7)
        panel.tick_params(labelsize=7)
        panel.minorticks_off()
    panels[0].legend(fontsize=7)
    for panel in panels[len(found) :]:
        panel.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=list(ROWS), metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes, short windows")
    parser.add_argument("--most", type=float, default=float("inf"), help="no larger sizes")
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of a window")
    parser.add_argument("--json", type=Path, help="append the numbers to this file")
    parser.add_argument("--draw", type=Path, help="a .png of all rows")
    parser.add_argument("--point", nargs=2, metavar=("ROW", "SIZE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        print(json.dumps(point(given.point[0], int(given.point[1]), given.seconds)))
        return
    unknown = sorted({*given.rows} - {*ROWS})
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    found: dict[str, list[dict[str, Any]]] = {}
    for name in given.rows:
        row = ROWS[name]
        sizes = [size for size in row.sizes if size <= given.most][: row.quick if given.quick else None]
        seconds = 0.2 if given.quick else given.seconds
        found[name] = judged(row, [{"size": size, **measured(name, size, seconds)} for size in sizes])
        print(table(name, found[name]), flush=True)
        if given.json:
            with given.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"row": name, **at}) + "\n" for at in found[name])
    if given.draw:
        draw(given.draw, found)


if __name__ == "__main__":
    main()

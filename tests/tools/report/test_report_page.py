"""The page and the picture: self-contained, complete, and the same each time."""

import argparse
import base64
import json
import logging
import math
import re
import sys
from html.parser import HTMLParser

import pytest
from PIL import Image

from jaxrl.artifacts.metrics import statistics as tags
from jaxrl.cli.report import run as report_command
from jaxrl.tools.report import curves, films
from jaxrl.tools.report.events import ReportError, read_folder
from jaxrl.tools.report.report import write_report
from jaxrl.tools.report.sweep import score_of
from tests.tools.report.report_folders import write_events, write_run

VOID = {"meta", "br", "img"}
NAMESPACE = "http://www.w3.org/2000/svg"  # a name, not an address


class Checker(HTMLParser):
    """Every element is closed, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[list[str]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("link", "iframe")
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href") or (value or "").startswith(("data:", "#"))
            self.ids += [str(value)] if name == "id" else []
        if tag == "tr":
            self.cells.append([])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1].append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    poca = [write_run(results, f"<poca>$-{s}", seed=s, scores=(0.0, 0.5 + 0.1 * s)) for s in (1, 2, 3)]
    ppo = [write_run(results, f"_ppo-{s}", seed=s, scores=(0.1, 0.2), trainer="ppo") for s in (1, 2)]
    remarks = write_report([*poca, *ppo, ppo[0]], results / "report.html")
    assert remarks == []
    first = (results / "report.html").read_text()
    write_report([*poca, *ppo], results / "report.html")
    assert (results / "report.html").read_text() == first  # no dates, no random ids; a run given twice counts once
    return first


def test_the_page_is_self_contained(page):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert "http" not in page.replace(NAMESPACE, "") and "@import" not in page and not re.search(r"url\((?!#)", page)
    assert "fetch(" not in page and "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_the_data_in_it(page):
    data = data_of(page)
    assert data["experiments"] == ["<poca>$", "_ppo"]  # a "<" ends no script
    (behavior,) = data["behaviors"]
    reward, entropy = behavior["panels"]
    assert (reward["title"], entropy["title"]) == ("Group Cumulative Reward", "Entropy")
    poca, ppo = reward["curves"]
    assert poca["step"] == [1000, 2000] and poca["mean"] == [0.0, 0.7] and poca["seeds"] == 3
    assert poca["low"][1] == pytest.approx(0.6) and poca["high"][1] == pytest.approx(0.8)
    assert ppo["mean"] == [0.1, 0.2]
    points = [p for p in data["points"] if p["tag"] == reward["tag"] and p["run"] == "<poca>$-2"]
    assert points == [
        {
            "experiment": 0,
            "run": "<poca>$-2",
            "behavior": "Walker",
            "seed": "2",
            "tag": "Environment/Group Cumulative Reward",
            "step": [1000, 2000],
            "value": [0.0, 0.699999988],  # as float32 has it
        }
    ]


def test_of_too_many_values_only_means_stay(page, tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "POINTS", 7)  # two tags of two runs with two summaries each have eight
    write_report([write_run(tmp_path, "a"), write_run(tmp_path, "b")], tmp_path / "report.html")
    small = (tmp_path / "report.html").read_text()
    assert data_of(small)["points"] is None and "means and intervals (more than" in small
    assert "every summary of every seed" in page


def test_a_tag_without_a_finite_value_gets_no_panel_and_is_named(tmp_path):
    run = write_run(tmp_path, "a")
    write_events(run / "Walker", {1000: math.nan, 2000: math.inf}, tag="Losses/Value Loss")
    write_events(run / "Walker", {1000: math.nan, 2000: 3.0}, tag="Losses/Policy Loss")
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    panels = {panel["title"]: panel["curves"][0]["mean"] for panel in data_of(text)["behaviors"][0]["panels"]}
    assert set(panels) == {"Group Cumulative Reward", "Entropy", "Policy Loss"}
    assert panels["Policy Loss"] == [None, 3.0]
    assert "Left out, as they have no finite value: Losses/Value Loss." in text


def test_films_stand_in_the_page_or_beside_it(tmp_path, monkeypatch):
    runs = [write_run(tmp_path, name) for name in ("a", "b", "c")]
    for run, names in zip(
        runs, (["episode-000002.gif", "episode-000010.gif"], ["episode-000001.mp4"], []), strict=True
    ):
        (run / "videos").mkdir()
        for name in names:
            (run / "videos" / name).write_bytes(name.encode())
    (runs[2] / "videos" / ".episode-000000.mp4").write_bytes(b"half a film")
    write_report(runs, tmp_path / "out" / "report.html")
    text = (tmp_path / "out" / "report.html").read_text()
    last, moving = (base64.b64encode(name).decode() for name in (b"episode-000010.gif", b"episode-000001.mp4"))
    assert f'<img src="data:image/gif;base64,{last}"' in text
    assert f'<video src="data:video/mp4;base64,{moving}" controls loop muted playsinline>' in text
    assert text.count("base64,") == 2  # neither older films nor one under way
    monkeypatch.setattr(films, "LARGEST", 17)
    made = {runs[2]: films.Film(runs[0] / "videos" / "episode-000002.gif", "c: played", stays=False)}
    write_report(runs, tmp_path / "out" / "report.html", made)
    text = (tmp_path / "out" / "report.html").read_text()
    assert 'a: episode-000010, too large for this page: <a href="../a/videos/episode-000010.gif">' in text
    assert "c: played, too large for this page: `jaxrl watch --run` makes it again." in text and text.count("<a ") == 2


def test_the_time_split_is_drawn_in_shares(page):
    assert page.count('title="environment: 40%" style="width:40.00%;') == 5


def test_its_tables(page):
    checker = Checker()
    checker.feed(page)
    rows = {tuple(row[:2]): row[2:] for row in checker.cells}
    assert rows["<poca>$", "<poca>$-1, <poca>$-2, <poca>$-3"] == ["3: 1, 2, 3", "2,000", "jaxrl 0.1.0, jax 0.10.2"]
    seeds, mean, interquartile, area = rows["Group Cumulative Reward", "<poca>$"]
    assert (seeds, mean) == ("3", "0.7 [0.6, 0.8]")  # final scores 0.6, 0.7, 0.8
    assert interquartile == mean  # nothing to cut off three seeds
    assert area.startswith("0.175 ")  # 0 up to step 1,000, then a mean of 0.35
    assert rows["_ppo", "0 [0, 0]"] == ["–"]  # every poca seed ends above every ppo seed
    assert rows["<poca>$", "–"] == ["1 [1, 1]"]
    assert rows["_ppo-1", "200"] == ["10.0 s", "4.0 s (40%)", "2.0 s (20%)", "3.0 s (30%)", "1.0 s (10%)"]
    assert rows["behaviors.Walker.trainer_type", "poca"] == ["ppo"]
    assert sum(row[0].startswith(("env_settings", "checkpoint")) for row in checker.cells) == 0


def test_a_picture_of_runs_that_lack_files(tmp_path):
    lone = write_run(tmp_path, "lone", configuration=False)
    (lone / "run_logs" / "timers.json").unlink()
    short = [write_run(tmp_path, f"b{n}", seed=n, scores=(0.0,) * n) for n in (1, 2)]
    remarks = write_report([lone, *short], tmp_path / "new" / "report.PNG")
    with Image.open(tmp_path / "new" / "report.PNG") as image:
        assert image.format == "PNG" and image.width > 1000
    assert len(remarks) == 3
    assert "no configuration.yaml" in remarks[0] and "no timers.json" in remarks[1]
    assert "seeds end between step 1,000 and 2,000" in remarks[2]


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run = write_run(tmp_path, "a")
    with pytest.raises(ReportError, match=re.escape("pip install 'jaxrl[plots]', or write .html")):
        write_report([run], tmp_path / "report.png")
    write_report([run], tmp_path / "report.html")  # draws its own curves
    assert "panels-0-first" in (tmp_path / "report.html").read_text()


def test_members_of_a_population_are_no_independent_seeds(tmp_path):
    """They learned from each other: no interval anywhere, and the page says why."""
    evolved, other = write_run(tmp_path, "evolved", seeds=5), write_run(tmp_path, "plain", seeds=5, trainer="ppo")
    (evolved / "population.csv").write_text("step,member,parent,score\n")
    remarks = write_report([evolved, other], tmp_path / "r.html")
    assert len(remarks) == 1 and remarks[0].startswith("evolved: its seeds are members of a population")
    text = (tmp_path / "r.html").read_text()
    for panel in data_of(text)["behaviors"][0]["panels"][:1]:
        by_place = {found["experiment"]: found for found in panel["curves"]}
        assert "low" not in by_place[0] and "low" in by_place[1]
    checker = Checker()
    checker.feed(text)
    final = {row[1]: row for row in checker.cells if row and row[0] == "Group Cumulative Reward"}
    assert "[" not in "".join(final["evolved"]) and "[" in final["plain"][3]
    assert ["plain", "0.5", "–"] in checker.cells, "P(improvement) without an interval"


def test_group_rewards_that_nobody_earned_decide_nothing(tmp_path):
    """MA-POCA writes them from the first episode on, zeros where teams are paid individually alone."""
    runs = []
    for name, own in (("a", 1.0), ("b", 2.0)):
        run = write_run(tmp_path, name, scores=(0.0, 0.0), trainer=name)
        write_events(run / "Walker", {1000: own, 2000: own}, tag=tags.CUMULATIVE_REWARD)
        runs.append(run)
    write_report(runs, tmp_path / "r.html")
    checker = Checker()
    checker.feed((tmp_path / "r.html").read_text())
    scores = [row[:4] for row in checker.cells if row and row[0].endswith("Cumulative Reward")]
    assert scores == [["Cumulative Reward", "a", "1", "1"], ["Cumulative Reward", "b", "1", "2"]]
    assert ["b", "1", "–"] in checker.cells, "b is better by what agents earn"
    assert score_of([read_folder(run / "Walker") for run in runs]) == tags.CUMULATIVE_REWARD


def test_no_two_panels_have_one_title(tmp_path):
    """With `evaluation` there are two cumulative rewards."""
    run = write_run(tmp_path, "a")
    write_events(run / "Walker", {1000: 1.0}, tag="Evaluation/Group Cumulative Reward")
    write_report([run], tmp_path / "r.html")
    titles = [panel["title"] for panel in data_of((tmp_path / "r.html").read_text())["behaviors"][0]["panels"]]
    assert titles == ["Group Cumulative Reward (Environment)", "Entropy", "Group Cumulative Reward (Evaluation)"]


def test_films_of_a_sweep(tmp_path, caplog, monkeypatch):
    """As the docs have it: its folder stands for its runs, each of which is played, or named with the reason."""
    names = [write_run(tmp_path, name).name for name in ("a", "b")]
    points = [{"scores": {"1": 0.5}, "runs": [name]} for name in names]
    (tmp_path / "sweep.json").write_text(json.dumps({"points": points}))
    logger = logging.getLogger("jaxrl")
    monkeypatch.setattr(logger, "propagate", True)  # and both as they were before, afterwards
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    report_command(argparse.Namespace(runs=[str(tmp_path)], out=str(tmp_path / "r.html"), films=True, trust=False))
    told = [record.getMessage() for record in caplog.records if ": no film: " in record.getMessage()]
    assert [text.partition(":")[0] for text in told] == [str(tmp_path / name) for name in names]
    assert [found["run"] for found in data_of((tmp_path / "r.html").read_text())["points"][::2]] == names

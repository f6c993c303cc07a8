"""The page and the picture: self-contained, complete, and the same each time."""

import re
import sys
from html.parser import HTMLParser

import pytest
from PIL import Image

from jaxrl.report.events import ReportError
from jaxrl.report.report import write_report
from tests.report.report_folders import write_run

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Every element is closed, and nothing is fetched or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[list[str]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "iframe", "img")
        for name, value in attrs:
            assert not name.startswith("on") and name != "src"
            assert name != "href" or (value or "").startswith("#")
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
    assert "http" not in page and "@import" not in page and not re.search(r"url\((?!#)", page)
    assert page.count("<svg") == 2  # the curves of one behavior, and the time split


def test_it_is_readable_on_dark_and_light(page):
    assert "prefers-color-scheme: dark" in page and "currentColor" in page
    assert not re.search(r"#(000000|ffffff|767472)", page)  # no ink of its own color


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
    with pytest.raises(ReportError, match=re.escape("pip install 'jaxrl[plots]'")):
        write_report([write_run(tmp_path, "a")], tmp_path / "report.html")

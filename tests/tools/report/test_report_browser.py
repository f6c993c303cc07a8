"""The report's page in a real browser: values under the pointer, the data as a file, and the width of a telephone."""

import csv
import io
import json
from pathlib import Path

import pytest

from jaxrl.tools.report.report import write_report
from tests.browser import NARROW, opened_browser, opened_page, overflow
from tests.tools.report.report_folders import write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    long = "a-run-with-a-name-that-is-longer-than-a-telephone-is-wide-by-far"
    runs = [write_run(results, f"{long}-{s}", seed=s, scores=(0.0, 0.5 + 0.1 * s)) for s in (1, 2)]
    runs.append(write_run(results, 'a "quoted", name', scores=(0.25, 0.125), trainer="ppo"))
    write_report(runs, results / "report.html")
    return results / "report.html"


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as opened:
        yield opened


def test_values_appear_under_the_pointer_and_with_arrow_keys(browser, report):
    with opened_page(browser, report.as_uri()) as page:
        panel = page.locator(".panel").first
        tip, drawing = panel.locator(".tip"), panel.locator("svg")
        assert tip.is_hidden()
        box = drawing.bounding_box()
        drawing.hover(position={"x": box["width"] - 25, "y": 80})
        assert "step 2,000" in tip.inner_text() and "0.65 [0.6, 0.7]" in tip.inner_text()
        assert "0.125" in tip.inner_text()
        page.mouse.move(0, 0)
        assert tip.is_hidden()
        drawing.focus()
        page.keyboard.press("ArrowRight")
        assert "step 1,000" in tip.inner_text()
        page.keyboard.press("ArrowRight")
        assert "step 2,000" in tip.inner_text()


def test_experiments_are_hidden_and_seeds_shown(browser, report):
    with opened_page(browser, report.as_uri()) as page:
        panel = page.locator(".panel").first
        assert panel.locator("path.line").count() == 2
        page.get_by_label("single seeds").check()
        assert panel.locator("path.thin").count() == 3
        page.get_by_role("button", name="quoted").click()
        assert panel.locator("path.line:not(.thin)").count() == 1 and panel.locator("path.thin").count() == 2


def test_the_data_can_be_saved(browser, report):
    with opened_page(browser, report.as_uri()) as page:
        with page.expect_download() as saved:
            page.get_by_role("button", name="Data as CSV").click()
        rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text(encoding="utf-8"))))
        assert len(rows) == 3 * 2 * 2  # runs, tags, summaries
        mine = [row for row in rows if row["run"] == 'a "quoted", name' and row["tag"].endswith("Reward")]
        assert [(row["step"], row["value"]) for row in mine] == [("1000", "0.25"), ("2000", "0.125")]
        with page.expect_download() as saved:
            page.get_by_role("button", name="Data as JSON").click()
        data = json.loads(Path(saved.value.path()).read_text(encoding="utf-8"))
        assert set(data) == {"experiments", "behaviors", "points"}
        assert data["points"][0]["value"] == [0.0, 0.600000024]


def test_on_a_telephone_panels_stand_below_each_other_and_nothing_is_wider(browser, report):
    with opened_page(browser, report.as_uri(), NARROW) as page:
        assert overflow(page) == 0
        boxes = [panel.bounding_box() for panel in page.locator(".panel").all()]
        assert len(boxes) == 2 and boxes[0]["x"] == boxes[1]["x"] and boxes[1]["y"] > boxes[0]["y"] + 200
        assert all(box["width"] > 300 for box in boxes)
        page.locator(".panel svg").first.hover(position={"x": 320, "y": 80})
        tip = page.locator(".tip").first.bounding_box()
        assert tip["x"] >= 0 and tip["x"] + tip["width"] <= NARROW
    with opened_page(browser, report.as_uri()) as page:
        assert overflow(page) == 0
        first, second = (panel.bounding_box() for panel in page.locator(".panel").all())
        assert first["y"] == second["y"]

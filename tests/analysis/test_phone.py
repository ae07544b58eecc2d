"""The HTML pages of `explain` and `report` in Chromium: on a phone, in light and in the dark."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from softprompts.analysis.explain import Explanation, Neighbour, RoutingReport, TokenReport
from softprompts.analysis.explain_page import page
from softprompts.analysis.folder_report import report

from ..serving.studio.test_browser import FAINT
from .test_summary import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An explanation with long words, and the summary of a cohort with many columns."""
    folder = tmp_path_factory.mktemp("pages")
    near = [Neighbour("▁internationalisation", 0.31)] * 5
    tokens = [
        TokenReport(prompt, place, near, moved=2.29, loss_without=0.9956 - prompt)
        for prompt in range(2)
        for place in range(8)
    ]
    explanation = Explanation(
        tokens=tokens,
        duplicates=[],
        labels={"positive": 1, "negative": 0},
        shared={"internationalisation": 16},
        nearest_cosine=0.31,
        random_cosine=0.24,
        loss=0.5,
        rows=60,
        routing=[RoutingReport(0, 60, {"positive": 31, "negative": 29}, ["long" * 60])],
        confidence=0.9,
        entropy=0.1,
    )
    title = "helpdesk/sentiment_of_customers_and_their_complaints-prompt-tuning-seed0"
    (folder / "explanation.html").write_text(page(explanation, title), "utf-8")
    for task in ("superglue/multirc", "superglue/record", "superglue/wsc.fixed"):
        for seed, preset in ((0, "residual"), (1, "residual"), (0, "smop"), (1, "smop")):
            run = folder / "cohort" / f"{task.replace('/', '-')}-{preset}-{seed}"
            write_run(run, task, seed, 80.0, preset=preset)
    report(folder / "cohort")
    return [folder / "explanation.html", folder / "cohort" / "summary.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_a_phone_and_is_legible(
    browser: "Browser", pages: list[Path], scheme: str
) -> None:
    for path in pages:
        context = browser.new_context(**PHONE, color_scheme=scheme)  # type: ignore[arg-type]
        shown = context.new_page()
        shown.goto(path.as_uri())
        assert shown.evaluate(SIDEWAYS) <= 0, path.name
        assert shown.evaluate(FAINT) == [], path.name
        context.close()

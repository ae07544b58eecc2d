"""The studio in Chromium: as one uses it, on a phone, in the dark, and by keyboard."""

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.config.serve import ServeSettings
from softprompts.library.library import Library
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.keys import Keys

from ...conftest import write_toy
from ...models import TOY
from ...scripts import load_script
from ..http_server import Running, running
from .conftest import ALL, PAGES, TEXT

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

PATHS = (*PAGES[:-1], "/prompts/reviews", "/prompts/mixture", "/prompts/no-such-prompt")
DARK = {"color_scheme": "dark"}
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}

# Controls and headers without a name, pictures without a text, tables without a caption.
UNNAMED = """() => [
  ...[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]
    .filter((e) => !e.labels.length && !e.ariaLabel),
  ...[...document.querySelectorAll('a, button')]
    .filter((e) => !e.textContent.trim() && !e.querySelector('img[alt]')),
  ...document.querySelectorAll('img:not([alt])'),
  ...[...document.querySelectorAll('svg[role=img]')].filter((e) => !e.querySelector('title')),
  ...[...document.querySelectorAll('table')]
    .filter((e) => !e.caption && !e.closest('details')),
  ...[...document.querySelectorAll('th')].filter((e) => !e.textContent.trim()),
].map((e) => e.outerHTML)"""

FAINT = load_script("benchmarks/studio_pages.py").FAINT


@contextmanager
def opened(
    browser: "playwright.Browser", server: Running, **options: object
) -> Iterator["playwright.Page"]:
    """A page of a fresh browser; errors and requests to other places are none."""
    context = browser.new_context(base_url=server.url, **options)
    page, problems = context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "warning" else None)
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(server.url) else problems.append(request.url)
        ),
    )
    yield page
    assert problems == []
    context.close()


@pytest.mark.parametrize("options", [{}, DARK, PHONE], ids=["desktop", "dark", "phone"])
def test_every_page_is_legible_and_named_for_screen_readers(
    browser: "playwright.Browser", server: Running, options: dict[str, object]
) -> None:
    with opened(browser, server, **options) as page:
        for path in PATHS if options is not PHONE else (*PATHS, PAGES[-1]):  # large tables
            page.goto(f"/studio{path}")
            playwright.expect(page.locator("[aria-busy]")).to_have_count(0)
            assert page.evaluate(UNNAMED) == [], path
            assert page.evaluate(FAINT) == [], path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            headings = page.locator("h1, h2, h3").evaluate_all("all => all.map((e) => e.tagName)")
            assert headings.count("H1") == 1
            assert headings[0] == "H1"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (options is not DARK)


def test_prompts_are_found_and_tried_by_keyboard_alone(
    browser: "playwright.Browser", server: Running
) -> None:
    with opened(browser, server) as page:
        page.goto("/studio")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("rev")  # the search box is the first control
        page.get_by_role("status").filter(has_text=re.compile("of 1 prompt$")).wait_for()
        assert "q=rev" in page.url
        page.get_by_role("checkbox", name="Try reviews").focus()
        page.keyboard.press("Space")
        page.keyboard.press("Enter")
        page.wait_for_url("**/studio/playground?prompt=reviews")
        page.get_by_label("Text", exact=True).focus()
        page.keyboard.type(TEXT)
        page.get_by_role("checkbox", name="mixture").check()
        page.get_by_role("button", name="Run").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Ensemble").wait_for()
        assert page.get_by_role("article").count() == 3
        playwright.expect(page.get_by_role("button", name="Run")).to_be_focused()
        assert page.get_by_label("Text", exact=True).input_value() == TEXT
        page.get_by_role("article").get_by_role("link", name="reviews").click()
        page.get_by_role("table", name="The words nearest").wait_for()
        page.get_by_role("button", name="Answer its validation rows again").focus()
        page.keyboard.press("Space")
        page.get_by_text("validation rows are wrong").wait_for()
        focused = page.locator(":focus")
        playwright.expect(focused).to_contain_text("rows are wrong")  # not lost


def test_sources_are_found_without_loading_the_page_again(
    browser: "playwright.Browser", server: Running
) -> None:
    with opened(browser, server) as page:
        page.goto("/studio/sources")
        page.evaluate("window.same = true")
        page.get_by_label("Labelled examples").fill(f"text,label\n{TEXT},positive\nno,negative")
        page.get_by_role("button", name="Find sources").click()
        page.get_by_role("link", name="reviews").wait_for()
        start = page.get_by_role("button", name="Tune on these rows, starting from")
        best = start.inner_text().rpartition(" ")[2]
        page.get_by_label("Labelled examples").fill("text\nx")
        page.get_by_role("button", name="Find sources").click()
        page.get_by_role("alert").filter(has_text="The rows have one column").wait_for()
        assert page.evaluate("window.same")
        page.get_by_label("Labelled examples").fill(f"text,label\n{TEXT},positive\nno,negative")
        page.get_by_role("button", name="Find sources").click()
        start.click()
        playwright.expect(page.get_by_label("Start from")).to_have_value(best)
        page.get_by_role("button", name="Remove these rows").click()


def test_what_is_too_large_is_refused_in_a_sentence(
    browser: "playwright.Browser", tiny: Backbone, library: Path
) -> None:
    settings = ServeSettings(studio=True, max_body=0.01)
    with (
        running(AsyncEngine(tiny, library), settings) as server,
        opened(browser, server) as page,
    ):
        page.goto("/studio/tune")
        rows = {"name": "rows.csv", "mimeType": "text/csv", "buffer": b"text,label\n" * 1000}
        page.get_by_label("A file of rows").set_input_files(rows)
        playwright.expect(page.get_by_label("Rows", exact=True)).not_to_have_value("")
        page.get_by_role("button", name="Preview rows").click()
        page.get_by_role("alert").filter(has_text="The rows are larger than 0.01 MiB").wait_for()
        page.goto("/studio/playground?prompt=reviews")  # where the server refuses it
        page.get_by_label("Text", exact=True).fill("text " * 3000)
        page.get_by_role("button", name="Run").click()
        page.get_by_role("alert").filter(has_text="The request is larger than").wait_for()


def test_a_prompt_is_tuned_on_an_uploaded_file_and_served_at_once(
    browser: "playwright.Browser", server: Running, library: Path, tmp_path: Path
) -> None:
    file = write_toy(tmp_path)
    with opened(browser, server) as page:
        page.goto("/studio/tune")
        page.get_by_label("A file of rows").set_input_files(file)
        rows = page.get_by_label("Rows", exact=True)
        playwright.expect(rows).to_have_value(file.read_text(encoding="utf-8"))
        page.get_by_role("button", name="Preview rows").click()
        assert page.get_by_label("Column of the text").input_value() == "review"
        assert page.get_by_label("Column of the label").input_value() == "mood"
        first = page.get_by_role("table", name="The first 5 of 24 rows").get_by_role("row")
        assert [row.split("\t")[-2:] for row in first.all_inner_texts()[1:]] == [
            [f"{text}, visit 0", label] for text, label in TOY[:5]
        ]
        facts = page.get_by_role("table", name="Estimate")
        assert "22 to train, 2 to validate" in facts.inner_text()
        assert "about" in facts.get_by_role("row", name="Time").inner_text()
        page.get_by_label("Name of the prompt").fill("reviews")
        page.get_by_label("Steps").fill("4")
        page.get_by_label("Start from").select_option("reviews")
        page.get_by_role("button", name="Start tuning").click()
        page.get_by_role("alert").filter(has_text="There is a prompt reviews already").wait_for()
        page.get_by_label("Name of the prompt").fill("fresh")
        page.get_by_label("Steps").fill("300")
        page.get_by_role("button", name="Start tuning").click()
        page.get_by_role("button", name="Stop").wait_for()
        # the server answers meanwhile
        with urllib.request.urlopen(f"{server.url}/studio/prompts/reviews") as reply:
            assert reply.status == 200
        status = page.get_by_role("status")
        status.filter(has_text=re.compile(r"Step \d+ of 300, about .* left; accuracy")).wait_for()
        page.get_by_role("img", name="accuracy by training step").wait_for()  # as it goes
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("It was stopped in the studio. The prompt fresh is served now").wait_for()
        playwright.expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        page.get_by_role("link", name="Try it").click()
        assert page.get_by_role("checkbox", name="fresh").is_checked()
        page.get_by_label("Text", exact=True).fill(TEXT)
        page.get_by_role("button", name="Run").click()
        page.get_by_role("heading", name="fresh").wait_for()
        page.goto("/studio/tune")
        page.get_by_role("link", name="reviews.csv").click()
        page.get_by_text("The prompt fresh is served now").wait_for()
        page.get_by_role("button", name="Rows and settings").click()
        page.get_by_role("button", name="Remove these rows").click()
        playwright.expect(page.get_by_role("link", name="reviews.csv")).to_have_count(0)
    Library(library).remove("fresh")


def test_a_browser_asks_for_the_key(
    browser: "playwright.Browser", tiny: Backbone, library: Path
) -> None:
    with running(
        AsyncEngine(tiny, library), ServeSettings(studio=True), Keys([(ALL, [])])
    ) as server:
        credentials = {"username": "anyone", "password": ALL}
        with opened(browser, server, http_credentials=credentials) as page:
            page.goto("/studio/playground")
            page.get_by_label("Text", exact=True).fill(TEXT)
            page.get_by_role("checkbox", name="reviews reviews.csv").check()
            page.get_by_role("button", name="Run").click()
            page.get_by_role("article").get_by_role("link", name="reviews").wait_for()

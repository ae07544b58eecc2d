"""The comparison of the studio's pages with Gradio's can be repeated."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from ...scripts import ROOT, load_script

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

RECORD = ROOT / "benchmarks" / "results" / "studio-pages-cpu.json"


def test_the_page_has_the_table_of_the_record() -> None:
    script = load_script("benchmarks/studio_pages.py")
    page = (ROOT / "results" / "serving.md").read_text()
    assert script.table(json.loads(RECORD.read_text())) in page


@pytest.mark.slow
def test_the_studio_is_measured_though_gradio_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    if not (os.environ.get("SOFTPROMPTS_CHROMIUM") or any(map(shutil.which, names))):
        pytest.skip("There is no Chromium.")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    output = tmp_path / "record.json"
    options = ["--times", "1", "--gradio", str(tmp_path / "no-python"), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["studio_pages.py", *options])
    assert load_script("benchmarks/studio_pages.py").main() == 0
    printed = capsys.readouterr().out
    assert "Gradio cannot be imported by" in printed
    record = json.loads(output.read_text())
    assert "gradio" not in record
    studio = record["studio"]
    assert (studio["requests"], studio["elsewhere"], studio["unnamed"]) == (4, 0, [])
    assert studio["works_without_javascript"] is studio["policy"] is True
    assert f"| requests, KiB to load the page | 4, {studio['kib']:.0f} |" in printed

"""The studio's playground beside a page of the same controls in Gradio, in headless Chromium.

    python -m venv gradio-env && gradio-env/bin/pip install gradio
    python benchmarks/studio_pages.py --gradio gradio-env/bin/python --output studio-pages.json

Both pages have a text box, checkboxes, a button, an answer with probabilities, and a table (in the
studio: a list). Each is loaded several times with an empty cache, and once more to answer. Then
Chromium's accessibility tree shows what has no name for screen readers, and faint texts are listed.
Without --gradio, only the studio is measured.

Needs Playwright, and a Chromium on the PATH or in SOFTPROMPTS_CHROMIUM.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from softprompts.backbone import load_backbone
from softprompts.bench.measure import environment
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json

PROMPTS = 4
TEXT = "The parcel never arrived. I want my money back!"
READY_SECONDS = 60.0

CONTROLS = frozenset(
    {
        *("button", "link", "textbox", "searchbox", "checkbox", "radio", "combobox", "listbox"),
        *("group", "radiogroup", "table", "grid", "columnheader", "image", "meter", "progressbar"),
    }
)
"""The roles, in Chromium's accessibility tree, of what should have a name."""

FAINT = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      layers.push(parse(getComputedStyle(e).backgroundColor));
    }
    return layers.reverse().reduce((under, [r, g, b, a = 1]) =>
      [r, g, b].map((v, i) => v * a + under[i] * (1 - a)), [255, 255, 255]);
  };
  const texts = [...document.querySelectorAll('body *')].filter((e) => e.offsetParent &&
    [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && !e.closest('svg'));
  return texts.filter((e) => {
    const [one, other] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5;
  }).map((e) => e.outerHTML.slice(0, 120));
}"""
"""Texts whose contrast with what is behind them is below that of WCAG's level AA. The tests of the
studio use it, too."""

GRADIO = """
import sys
import gradio

names = sys.argv[2].split(",")

def answer(text, prompts):
    return {"positive": 0.6, "negative": 0.4}, [[name, "positive"] for name in prompts]

with gradio.Blocks(title="Playground") as page:
    gradio.Markdown("# Playground")
    text = gradio.Textbox(label="Text", lines=4)
    prompts = gradio.CheckboxGroup(names, label="Prompts")
    button = gradio.Button("Run")
    label = gradio.Label(label="Answer")
    table = gradio.Dataframe(headers=["prompt", "answer"], label="Answers")
    button.click(answer, [text, prompts], [label, table])
page.launch(server_port=int(sys.argv[1]), quiet=True)
"""
"""The page in Gradio; its answers are made up."""

PACKAGES = """
import json
import sys
from importlib.metadata import PackageNotFoundError, distribution

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement

sizes, left = {}, [(sys.argv[1], tuple(sys.argv[2:]))]
seen = set()
while left:
    name, extras = left.pop()
    if (name, extras) in seen:
        continue
    seen.add((name, extras))
    try:
        found = distribution(name)
    except PackageNotFoundError:
        continue
    files = [file.locate() for file in found.files or ()]
    sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
    for line in found.requires or ():
        needed = Requirement(line)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras)):
            left.append((needed.name.lower().replace("_", "-"), tuple(sorted(needed.extras))))
print(json.dumps(sizes))
"""
"""The packages that one needs, itself included, with their bytes."""


@dataclass
class Site:
    """A page that is being served."""

    url: str
    choices: list[str]
    """The names of its checkboxes."""
    answered: str
    """The selector of what appears with an answer."""


# -- the two sites ---------------------------------------------------------------------------------


@contextlib.contextmanager
def studio() -> Iterator[Site]:
    """`softprompts serve --studio` with random prompts for t5-tiny."""
    from serving_library import write_libraries

    backbone = load_backbone("t5-tiny", "fp32", "cpu")
    with TemporaryDirectory() as name:
        write_libraries(backbone, Path(name), [PROMPTS], length=20, seed=0)
        library = Path(name) / str(PROMPTS)
        command = ["serve", "--library", str(library), "--model", "t5-tiny", "--device", "cpu"]
        command += ["--studio", "--port", "0", "--json", "--quiet"]
        server = subprocess.Popen(
            [sys.executable, "-m", "softprompts", *command], stdout=subprocess.PIPE, text=True
        )
        with stopped_at_the_end(server):
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            names = sorted(folder.name for folder in library.iterdir())
            yield Site(f"{url}/studio/playground", names, "article")


@contextlib.contextmanager
def gradio(python: str) -> Iterator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    names = [f"prompt {number}" for number in range(PROMPTS)]
    with TemporaryDirectory() as folder:
        variables = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", "HOME": folder}
        command = [python, "-c", GRADIO, str(port), ",".join(names)]
        with stopped_at_the_end(subprocess.Popen(command, env=variables)):
            url = f"http://127.0.0.1:{port}"
            wait_for(url)
            yield Site(url, names, "[data-testid=label-output-value]")


@contextlib.contextmanager
def stopped_at_the_end(process: subprocess.Popen[Any]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.terminate()


def wait_for(url: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > until:
                raise UserError(f"Nothing answers at {url}.") from None
            time.sleep(0.1)


# -- measuring -------------------------------------------------------------------------------------


def measured(browser: Any, site: Site, times: int) -> dict[str, Any]:
    loads = [loaded(browser, site) for _ in range(times)]
    return {
        **{name: loads[-1][name] for name in ("requests", "kib", "elsewhere", "policy")},
        "seconds": [load["seconds"] for load in loads],
        "seconds_median": statistics.median(load["seconds"] for load in loads),
        **answered(browser, site),
        "works_without_javascript": works_without_javascript(browser, site),
    }


def loaded(browser: Any, site: Site) -> dict[str, Any]:
    """One load with an empty cache: requests, KiB as sent, and seconds until the form works."""
    context = browser.new_context()
    page, finished, elsewhere = context.new_page(), [], []
    origin = re.match(r"https?://[^/]+", site.url)
    assert origin is not None
    page.on("requestfinished", lambda request: finished.append(request))
    page.on(
        "request",
        lambda request: None if request.url.startswith(origin[0]) else elsewhere.append(request),
    )
    began = time.perf_counter()
    reply = page.goto(site.url, wait_until="commit")
    page.get_by_role("button", name="Run", exact=True).click(trial=True)
    page.get_by_role("textbox").first.fill(TEXT)
    seconds = time.perf_counter() - began
    page.wait_for_load_state("networkidle")
    sizes = [request.sizes() for request in finished]
    kib = sum(size["responseHeadersSize"] + size["responseBodySize"] for size in sizes) / 1024
    policy = "content-security-policy" in reply.headers
    context.close()
    return {
        "requests": len(finished),
        "kib": kib,
        "elsewhere": len(elsewhere),
        "policy": policy,
        "seconds": seconds,
    }


def ask(page: Any, site: Site) -> None:
    """Fill in the form and wait for the answer."""
    page.goto(site.url)
    page.get_by_role("textbox").first.fill(TEXT)
    for name in site.choices[:2]:
        page.get_by_role("checkbox", name=name).check()
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator(site.answered).first.wait_for()


def answered(browser: Any, site: Site) -> dict[str, Any]:
    """What the page with an answer lacks."""
    context = browser.new_context()
    page = context.new_page()
    ask(page, site)
    page.wait_for_load_state("networkidle")
    record = {"unnamed": unnamed(page), "faint": page.evaluate(FAINT)}
    context.close()
    return record


def unnamed(page: Any) -> list[str]:
    """The roles of what screen readers cannot name."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    shown = [node for node in tree["nodes"] if not node["ignored"]]
    roles = [node["role"]["value"] for node in shown if not node["name"]["value"].strip()]
    return [role for role in roles if role in CONTROLS]


def works_without_javascript(browser: Any, site: Site) -> bool:
    from playwright.sync_api import Error

    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(5000)
    try:
        ask(context.new_page(), site)
    except Error:
        return False
    finally:
        context.close()
    return True


def packages(python: str, name: str, *extras: str) -> dict[str, int]:
    """The packages that one needs where `python` runs, with their bytes."""
    command = [python, "-c", PACKAGES, name, *extras]
    sizes: dict[str, int] = json.loads(subprocess.check_output(command, text=True))
    return sizes


def beyond(sizes: dict[str, int], served: dict[str, int]) -> dict[str, Any]:
    """Those of them that serving does not need."""
    others = {name: size for name, size in sizes.items() if name not in served}
    return {"packages": sorted(others), "packages_mib": sum(others.values()) / 2**20}


def table(record: dict[str, Any]) -> str:
    """Markdown, as in results/serving.md."""
    sites = [record[name] for name in ("studio", "gradio") if name in record]
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "requests, KiB to load the page": lambda site: f"{site['requests']}, {site['kib']:.0f}",
        "seconds until the form works (median)": lambda site: f"{site['seconds_median']:.1f}",
        "controls, pictures and groups without a name for screen readers": lambda site: (
            f"{len(site['unnamed'])}"
        ),
        "texts below WCAG AA contrast": lambda site: f"{len(site['faint'])}",
        "works without JavaScript": lambda site: _yes(site["works_without_javascript"]),
        "sends a Content-Security-Policy": lambda site: _yes(site["policy"]),
        "packages beyond those of `serve`": lambda site: (
            f"{len(site['packages'])}, {site['packages_mib']:.0f} MiB"
        ),
    }
    head = ["", *(name for name in ("studio", "Gradio") if name.lower() in record)]
    lines = [f"| {' | '.join(head)} |".replace("|  |", "| |"), "|---" * len(head) + "|"]
    lines += [f"| {name} | {' | '.join(map(show, sites))} |" for name, show in shown.items()]
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def gradio_version(python: str) -> str | None:
    """None, with a message, if Gradio is not installed there."""
    command = [python, "-c", "import gradio; print(gradio.__version__)"]
    try:
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.CalledProcessError):
        print(f"Gradio cannot be imported by {python}; only the studio is measured.")
        return None


def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = filter(None, map(shutil.which, names))
    path = os.environ.get("SOFTPROMPTS_CHROMIUM") or next(found, None)
    if path is None:
        raise UserError("There is no Chromium; install one, or name it in SOFTPROMPTS_CHROMIUM.")
    return path


def main() -> int:
    settings = arguments()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UserError("Playwright is not installed; install it with pip.") from None
    import torch

    version = gradio_version(settings.gradio) if settings.gradio else None
    served = packages(sys.executable, "softprompts", "serve")
    record: dict[str, Any] = {**environment(torch.device("cpu"), "fp32"), "times": settings.times}
    record["load_average"] = os.getloadavg()[0]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        record["versions"]["chromium"] = browser.version
        with studio() as site:
            extra = packages(sys.executable, "softprompts", "studio")
            record["studio"] = measured(browser, site, settings.times) | beyond(extra, served)
        if version is not None:
            record["versions"]["gradio"] = version
            with gradio(settings.gradio) as site:
                needed = packages(settings.gradio, "gradio")
                record["gradio"] = measured(browser, site, settings.times) | beyond(needed, served)
        browser.close()
    if settings.output:
        write_json(settings.output, record)
    print(table(record))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gradio", metavar="PYTHON", help="an interpreter that has Gradio")
    parser.add_argument("--times", type=int, default=5, help="loads of each page")
    parser.add_argument("--output", type=Path, help="a JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error.spelled(as_flag), file=sys.stderr)
        sys.exit(2)

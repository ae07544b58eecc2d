"""The studio over HTTP: what its pages say, who may see them, and runs on uploaded rows."""

import asyncio
import base64
import io
import json
import re
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.config.serve import ServeSettings
from softprompts.errors import UserError
from softprompts.library.library import Library
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.engine import make_engine
from softprompts.serving.keys import Keys
from softprompts.serving.prompt_store import LoadedPrompt
from softprompts.serving.studio import map_page, tuner
from softprompts.serving.studio.columns import guess_columns, parse_rows
from softprompts.serving.studio.markup import element, table
from softprompts.serving.studio.spelling import as_field
from softprompts.serving.studio.tuner import STOPPED, Events, Order, tune
from softprompts.serving.studio.tuning_runs import LOG, TuningRun, TuningRuns, _follow

from ..http_server import Running, running
from ..test_engine import MOODS, tuned
from .conftest import ALL, PAGES, TEXT, toy_settings

SOME = "a-key-for-some-prompts"


def get(url: str, form: Any = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of a page, or of a form that is sent to it."""
    data = None if form is None else urllib.parse.urlencode(form, doseq=True).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, names)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode(), dict(reply.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def basic(key: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{key}".encode()).decode()


# -- pages -----------------------------------------------------------------------------------------


def test_pages_are_whole_and_take_nothing_from_outside(server: Running) -> None:
    for path in (*PAGES, "/prompts/reviews", "/prompts/reviews/words", "/prompts/mixture"):
        status, page, headers = get(f"{server.url}/studio{path}")
        assert status == 200, path
        assert page.startswith("<!doctype html>"), path
        assert page.count("<h1>") == 1
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert not re.search(r"""(src|href|action)=["'](https?:)?//""", page)
        assert "style=" not in page
        for file in re.findall(r'(?:src|href)="(/studio/static/[^"]+)"', page):
            assert get(server.url + file)[0] == 200


def test_the_library_is_searched_by_name_task_and_label(server: Running) -> None:
    def names(query: str) -> list[str]:
        page = get(f"{server.url}/studio?{query}")[1]
        return re.findall(r'href="/studio/prompts/([^"]+)"', page)

    assert names("") == ["free", "mixture", "pair", "reviews"]
    assert names("q=REV") == ["reviews"]
    assert names("q=film") == ["pair"]
    assert names("q=negative+mood") == ["mixture", "reviews"]
    assert names("q=nothing-like-it") == []
    assert names("sort=score")[0] == "reviews"  # the others were not scored
    for number in ("2", "-1", "x", "%C2%B2", "9" * 5000):
        assert len(names(f"page={number}")) == 4, "the only page"


def test_a_prompts_page_shows_its_card_curve_and_confusion(server: Running) -> None:
    page = get(f"{server.url}/studio/prompts/reviews")[1]
    for part in ("reviews.csv:mood", "Learning curve", "accuracy by training step", "majority"):
        assert part in page
    confusion = re.search(r"Rows by target.*?</table>", page)
    assert confusion is not None
    counts = re.findall(r'class="number shade-\d+">(\d+)<', confusion[0])
    assert sum(map(int, counts)) == 2  # the validation rows
    assert 'href="/studio/prompts/reviews/similar"' in page
    page = get(f"{server.url}/studio/prompts/reviews/similar", X_Fragment="1")[1]
    assert set(re.findall(r"/studio/prompts/(\w+)", page)) == {"mixture", "pair", "free"}
    status, page, _ = get(f"{server.url}/studio/prompts/no%3Cb%3Esuch")
    assert status == 404
    assert "<b>such" not in page
    assert '<a href="/studio">see the library</a>' in page


def test_nearest_words_and_errors_are_those_of_the_prompt(server: Running, library: Path) -> None:
    words = get(f"{server.url}/studio/prompts/reviews/words", X_Fragment="1")[1]
    assert words.count('<th scope="row">') == 3  # tokens
    assert "<html" not in words
    mixture = get(f"{server.url}/studio/prompts/mixture/words")[1]
    assert "Between steps 2 and 4 its confidence went from 40% to 70%" in mixture
    page = get(f"{server.url}/studio/prompts/reviews/errors")[1]
    found = re.search(r"(\d) of (\d) validation rows are wrong", page)
    assert found is not None
    card = json.loads((library / "reviews" / "prompt.json").read_text())
    right = round(card["metrics"]["accuracy"] / 100 * int(found[2]))
    assert int(found[1]) == int(found[2]) - right


def test_the_playground_answers_as_predict_does(server: Running, library: Path) -> None:
    chosen = ["reviews", "mixture", "pair", "free"]
    form = {"text": TEXT, "prompt": chosen}
    page = get(f"{server.url}/studio/playground", form, Origin=server.url)[1]
    cards = dict(re.findall(r'<article class="card[^"]*"><h2>(.*?)</h2>(.*?)</article>', page))
    cards = {re.sub("<.*?>", "", name): text for name, text in cards.items()}
    assert set(cards) == {*chosen, "Ensemble"}
    engine = make_engine([library / name for name in chosen[:2]], verbose=False)
    names = list(engine.tuned)
    expected = {
        "reviews": engine.probabilities([(names[0], TEXT)])[0],
        "mixture": engine.probabilities([(names[1], TEXT)])[0],
        "Ensemble": engine.mean_probabilities(names, [TEXT])[0],
    }
    for name, probabilities in expected.items():
        shown = {
            label: float(share)
            for label, share in re.findall(
                r'<li><span>(\w+)</span>.*?class="number">([\d.]+)%', cards[name]
            )
        }
        assert shown == pytest.approx({k: 100 * v for k, v in probabilities.items()}, abs=0.11)
        assert f'class="answer">{max(probabilities, key=probabilities.__getitem__)}<' in cards[name]
    assert "Routed to prompt" in cards["mixture"]
    assert "reads the columns kind, text" in cards["pair"]
    row = {"text": json.dumps({"kind": "is it", "text": TEXT}), "prompt": "pair"}
    assert 'class="answer">' in get(f"{server.url}/studio/playground", row)[1]


@pytest.mark.usefixtures("slow_submissions")
def test_the_prompts_of_the_playground_share_a_pass(
    tiny: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"mood {number}" for number in range(5)]
    for number, name in enumerate(names):
        prompt = tuned(tiny, number, MOODS, scoring="labels", length=3 + number)
        prompt.save(tmp_path / "library" / name)
    engine = AsyncEngine(tiny, tmp_path / "library")
    load = engine.store.load

    def load_slowly(name: str) -> LoadedPrompt:
        time.sleep(0.05 * names.index(name))  # so that the first is there before the others
        return load(name)

    monkeypatch.setattr(engine.store, "load", load_slowly)
    with running(engine, ServeSettings(studio=True)) as server:
        for _ in range(2):  # from disk, and from memory
            before = server.engine.stats()
            page = get(f"{server.url}/studio/playground", {"text": TEXT, "prompt": names})[1]
            assert page.count('class="answer"') == 1 + len(names), "and the ensemble"
            after = server.engine.stats()
            assert (after.passes - before.passes, after.rows - before.rows) == (1, 5)


def test_sources_are_found_by_examples_whatever_their_columns(server: Running) -> None:
    rows = "\n".join(["said,mood it is", f"{TEXT},positive", "never again,negative"])
    page = get(f"{server.url}/studio/sources", {"rows": rows})[1]
    assert "column said, labels in mood it is" in page
    found = re.findall(r'<th scope="row"><a href="/studio/prompts/(\w+)"', page)
    assert set(found) >= {"reviews", "mixture"}
    assert "pair" not in found
    rows = "text,label\nx,sun\ny,rain"
    page = get(f"{server.url}/studio/sources", {"rows": rows})[1]
    assert re.findall(r'<th scope="row"><a href="/studio/prompts/(\w+)"', page) == ["free"]
    status, page, _ = get(f"{server.url}/studio/sources", {"rows": "text\nx"})
    assert (status, "The rows have one column" in page) == (400, True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"text": "x", "label": "sun"}\n{"text": "y"}', "Row 2 has no label; complete it"),
        ('{"label": "sun"}\n{"text": "y", "label": "rain"}', "Row 1 has no text; complete it"),
        ("{}", "The rows have no columns; they need a text and a label"),
    ],
)
def test_rows_that_lack_columns_are_named(rows: str, message: str, server: Running) -> None:
    status, page, _ = get(f"{server.url}/studio/sources", {"rows": rows})
    assert (status, message in page) == (400, True)


def test_the_map_has_all_prompts_in_clusters(server: Running) -> None:
    page = get(f"{server.url}/studio/map")[1]
    picture = re.findall(r'<svg[^>]*class="map".*?</svg>', page)[0]
    colours = dict(re.findall(r'<title>(\w+): cluster .*?</title><circle class="(.*?)"', picture))
    assert set(colours) == {"free", "mixture", "pair", "reviews"}
    assert {name for name, colour in colours.items() if colour != "shade-none"} == {"reviews"}
    groups = re.findall(r'<th scope="row">([A-Z])</th><td>(.*?)</td>', page)
    listed = [name for _, links in groups for name in re.findall(">([^<]+)</a>", links)]
    assert sorted(listed) == ["free", "mixture", "pair", "reviews"]


def test_two_prompts_are_in_the_middle_of_their_map() -> None:
    (left, one), (right, other) = map_page._places(torch.eye(2, 3)).tolist()
    assert {left, right} == {0.0, 1.0}
    assert one == other == 0.5


def test_the_colours_of_a_map_span_its_scores() -> None:
    scores = {"worst": 40.0, "middle": 45.0, "best": 50.0}
    shades = [map_page._shade(name, scores) for name in [*scores, "not scored"]]
    assert shades == ["shade-0", "shade-5", "shade-10", "shade-none"]
    legend = map_page._legend(scores)
    assert legend is not None
    assert "Score 40.0" in legend
    assert legend.count("<circle") == 11


def test_a_study_has_its_tables_and_heatmaps(server: Running) -> None:
    page = get(f"{server.url}/studio/studies/spot-small")[1]
    assert "from glue/mnli" in page
    figures = re.findall(r'<img src="([^"]+)" alt="Figure: ([^;"]+)', page)
    assert figures[0][1] == "transfer"
    request = urllib.request.urlopen(server.url + figures[0][0])
    with request as reply:
        assert reply.read(4) == b"\x89PNG"
    for path in ("/studies/..%2F..", "/studies/spot-small/figures/99"):
        assert get(f"{server.url}/studio{path}")[0] == 404


# -- who may see them ------------------------------------------------------------------------------


def test_keys_are_asked_for_and_limit_what_is_seen(tiny: Backbone, library: Path) -> None:
    keys = Keys([(ALL, []), (SOME, ["mix*"])])
    settings = ServeSettings(studio=True)
    with running(AsyncEngine(tiny, library), settings, keys) as server:
        url = f"{server.url}/studio"
        for path in ("", "/map", "/static/studio.js", "/prompts/reviews", "/tune"):
            for sent in ({}, {"Authorization": basic("a-key-nobody-has-given")}):
                status, _, headers = get(url + path, **sent)
                assert (status, headers["www-authenticate"][:5]) == (401, "Basic"), path
        assert get(url, Authorization=basic(ALL))[1].count("/studio/prompts/") == 4
        assert get(url, Authorization=f"Bearer {ALL}")[0] == 200
        page = get(url, Authorization=basic(SOME))[1]
        assert re.findall(r"/studio/prompts/(\w+)", page) == ["mixture"]
        statuses = {
            "/prompts/reviews": 404,
            "/prompts/mixture": 200,
            "/prompts/mixture/errors": 403,
            "/tune": 403,
            "/studies": 403,
        }
        for path, expected in statuses.items():
            assert get(url + path, Authorization=basic(SOME))[0] == expected, path
        page = get(f"{url}/prompts/mixture/similar", Authorization=basic(SOME))[1]
        assert "There is no other prompt" in page
        form = {"text": TEXT, "prompt": "reviews"}
        page = get(f"{url}/playground", form, Authorization=basic(SOME))[1]
        assert "There is no prompt" in page
        rows = {"rows": "text,label\nx,sun\ny,rain"}
        page = get(f"{url}/sources", rows, Authorization=basic(SOME))[1]
        assert "No prompt answers with these labels (sun, rain)" in page
        # forms of other sites must not reach the API with a browser's key
        assert get(f"{server.url}/v1/models", Authorization=basic(ALL))[0] == 401


def test_forms_of_other_sites_are_refused(server: Running) -> None:
    form = {"rows": "text,label\na,b", "file": "x.csv"}
    for origin in ("http://elsewhere.example", "null"):
        assert get(f"{server.url}/studio/tune", form, Origin=origin)[0] == 403


def test_there_is_no_studio_unless_asked_for(tiny: Backbone, library: Path) -> None:
    with running(AsyncEngine(tiny, library)) as server:
        assert get(f"{server.url}/studio")[0] == 404


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "text", "label", "free_text"),
    [
        ("label,text\nspam,Win a prize now\nham,See you", "text", "label", False),
        ("id,stars,review\n1,5,Great food\n2,1,Never again\n3,5,Lovely", "review", "stars", False),
        ("a\tb\nlong text here\tx\nanother long one\tx\nthird\ty", "a", "b", False),
        ('{"text": "one two", "y": 1}\n{"text": "three", "y": 0}', "text", "y", False),
        ('{"y": 1}\n{"text": "one two", "y": 1}\n{"text": "three", "y": 0}', "text", "y", False),
        (
            "article,summary\n" + "\n".join(f"a long text {i} {i},short {i}" for i in range(30)),
            "article",
            "summary",
            True,
        ),
    ],
)
def test_columns_are_guessed(rows: str, text: str, label: str, free_text: bool) -> None:
    guess = guess_columns(parse_rows(rows))
    assert (guess.text, guess.label, guess.free_text) == (text, label, free_text)


def test_an_upload_shows_its_first_rows(server: Running) -> None:
    lines = [f'"text {number}, with a comma",kind {number % 2}' for number in range(1, 31)]
    upload = {"rows": "\n".join(["said,kind", *lines]), "file": "messages.csv"}
    page = get(f"{server.url}/studio/tune", upload)[1]
    assert "<h1>messages.csv</h1>" in page
    caption, shown = re.findall(r"<table.*?<caption>(.*?)</caption>(.*?)</table>", page)[0]
    assert caption == "The first 5 of 30 rows"
    assert re.findall(r"<th[^>]*>([^<]*)</th>", shown)[:3] == ["Row", "said (text)", "kind (label)"]
    assert re.findall(r"<td>(text [^<]*)</td><td>(kind [^<]*)</td>", shown) == [
        (f"text {number}, with a comma", f"kind {number % 2}") for number in range(1, 6)
    ]
    (remove,) = re.findall(r'action="(/studio/tune/[^"]+/remove)"', page)
    assert get(server.url + remove, {})[0] == 200


@pytest.mark.parametrize(
    ("rows", "ending"),
    [
        ("text,label\na,b", ".csv"),
        ("text\tlabel\na\tb", ".tsv"),
        ('{"text": "a", "label": "b"}', ".jsonl"),
        ('[{"text": "a", "label": "b"}]', ".json"),
    ],
)
def test_pasted_rows_may_have_any_format(rows: str, ending: str, server: Running) -> None:
    page = get(f"{server.url}/studio/tune", {"rows": rows, "file": ""})[1]
    assert f"<h1>rows{ending}</h1>" in page
    assert "<td>a</td><td>b</td>" in page
    (again,) = re.findall(r'action="(/studio/tune/[^"]+/start)"', page)
    for steps in ("many", "9" * 5000):
        status, page, _ = get(server.url + again, {"name": "x", "steps": steps})
        assert status == 400
        assert "it must be a number" in page
    (remove,) = re.findall(r'action="(/studio/tune/[^"]+/remove)"', page)
    assert get(server.url + remove, {})[0] == 200


def test_errors_name_settings_as_the_form_does(server: Running) -> None:
    rows = "text,label\n" + "\n".join(f"a text {number},b {number}" for number in range(30))
    page = get(f"{server.url}/studio/tune", {"rows": rows, "file": ""})[1]
    (start,) = re.findall(r'action="(/studio/tune/[^"]+/start)"', page)
    form = {"name": "x", "steps": "4", "text": "text", "label": "label"}
    status, page, _ = get(server.url + start, form)
    assert status == 400
    assert (
        "name another with &quot;Column of the label&quot;, or set &quot;The labels are free text "
        "to generate&quot; if it is text to generate."
    ) in page
    page = get(server.url + start, {**form, "name": "reviews"})[1]
    assert "There is a prompt reviews already; choose another name." in page


def test_a_tuner_names_settings_as_the_form_does(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, output = Order({}, "nowhere", str(library), "reviews"), io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{json.dumps(asdict(order))}\n"))
    monkeypatch.setattr("sys.__stdout__", output)
    assert tuner.main() == 2
    assert 'choose another "Name of the prompt"' in json.loads(output.getvalue())["text"]
    assert as_field("tuning.steps", "32") == '"Steps": 32'
    assert as_field("tuning.max_length") == "max length"


def test_uploads_keep_to_their_folder(tmp_path: Path) -> None:
    runs = TuningRuns(tmp_path)
    run = runs.upload("../../etc/my rows.CSV", "text,label\na,b\n")
    assert run.file.resolve().parent.parent == (tmp_path / ".studio").resolve()
    assert run.file.suffix == ".csv"
    assert [one.identity for one in TuningRuns(tmp_path).all()] == [run.identity]
    for name, rows in (("rows.exe", "text"), ("rows.csv", " ")):
        with pytest.raises(UserError):
            runs.upload(name, rows)
    with pytest.raises(UserError, match="There are no rows"):
        runs.find("../.studio")
    runs.remove(run)
    assert not run.folder.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="The server cannot write to its library"):
        TuningRuns(tmp_path / "file").upload("rows.csv", "text,label\na,b\n")


@pytest.mark.parametrize(
    ("steps", "evaluate_every", "stop_at", "last", "evaluations"),
    [(1000, 1, 2, 3, 2), (1000, 500, 1, 2, 1), (4, 2, None, 4, 2)],
    ids=["with its best prompt", "before its first evaluation", "by itself"],
)
def test_a_run_ends(
    tmp_path: Path,
    steps: int,
    evaluate_every: int,
    stop_at: int | None,
    last: int,
    evaluations: int,
) -> None:
    settings = toy_settings(tmp_path, steps=steps, evaluate_every=evaluate_every)
    output, stop = io.StringIO(), threading.Event()
    events = Events(output, stop)
    on_step = events.on_step

    def stop_soon(run: Any) -> None:
        on_step(run)
        if run.step == stop_at:
            stop.set()

    events.on_step = stop_soon  # type: ignore[method-assign]
    tune(Order(settings, str(tmp_path / "run"), str(tmp_path / "library"), "new"), events)
    card = Library(tmp_path / "library").entry("new").card
    assert (card.stopped, card.steps) == (None if stop_at is None else STOPPED, last)
    assert not (tmp_path / "run").exists()
    run = TuningRun("x", tmp_path / "x.csv", "running", "new")
    for line in output.getvalue().splitlines():
        run.take(json.loads(line))
    assert (run.state, run.steps, run.step) == ("done", steps, last)
    assert len(run.history) == evaluations
    assert ("stopped in the studio" in run.note) == (stop_at is not None)


def test_a_run_that_resumes_has_its_whole_curve(tmp_path: Path) -> None:
    class Killed(Events):
        def on_evaluation(self, run: Any) -> None:
            super().on_evaluation(run)
            if run.step == 4:
                raise KeyboardInterrupt

    settings = toy_settings(tmp_path, steps=6, evaluate_every=2, checkpoint_every=2)
    order = Order(settings, str(tmp_path / "run"), str(tmp_path / "library"), "new")
    with pytest.raises(KeyboardInterrupt):
        tune(order, Killed(io.StringIO(), threading.Event()))
    output = io.StringIO()
    tune(order, Events(output, threading.Event()))
    run = TuningRun("x", tmp_path / "x.csv", "running", "new")
    for line in output.getvalue().splitlines():
        run.take(json.loads(line))
    assert run.first_step == 2
    assert [entry["step"] for entry in run.history] == [2, 4, 6]


@pytest.mark.parametrize("steps", [0, 1000], ids=["that has just failed", "under way"])
def test_a_server_that_shuts_down_waits_for_a_run(tmp_path: Path, steps: int) -> None:
    async def start_and_close() -> TuningRun:
        runs = TuningRuns(tmp_path / "library")
        upload = runs.upload("rows.csv", "text,label\na,b\n")
        await runs.start(upload, "new", toy_settings(tmp_path, steps=steps))
        run = runs.find(upload.identity)
        while run.active and not run.step:
            await asyncio.sleep(0.01)
        await runs.close()
        return run

    run = asyncio.run(start_and_close())
    assert run.state == "failed"
    assert run.process is not None
    assert run.process.returncode == (2 if steps == 0 else -signal.SIGTERM)
    assert ("Steps" in run.note) == (steps == 0)


def test_uploads_are_listed_while_others_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, stat = TuningRuns(tmp_path), Path.stat
    first = runs.upload("rows.csv", "text,label\na,b\n")

    def meanwhile(path: Path, **options: Any) -> Any:
        if path == first.file:
            runs._runs["other"] = TuningRun("other", tmp_path / "removed.csv")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", meanwhile)
    assert runs.all() == runs.all() == [first]


def test_uploads_are_shown_though_one_is_removed_meanwhile(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = get(f"{server.url}/studio/tune", {"rows": "text,label\na,b", "file": ""})[1]
    (identity,) = re.findall(r'action="/studio/tune/([^"]+)/remove"', page)
    listed = TuningRuns.all

    def list_and_remove(runs: TuningRuns) -> list[TuningRun]:
        found = listed(runs)
        for run in found:
            if run.identity == identity:
                runs.remove(run)
        return found

    monkeypatch.setattr(TuningRuns, "all", list_and_remove)
    assert get(f"{server.url}/studio/tune")[0] == 200


def test_a_run_that_cannot_be_started_leaves_its_rows_as_they_were(tmp_path: Path) -> None:
    runs = TuningRuns(tmp_path)
    upload = runs.upload("rows.csv", "text,label\na,b\n")
    (upload.folder / LOG).mkdir()
    with pytest.raises(UserError, match="The run cannot be started: Is a directory"):
        asyncio.run(runs.start(upload, "new", {}))
    assert runs.active is None
    assert runs.find(upload.identity).state == "ready"


def test_a_later_server_knows_what_was_tuned(tmp_path: Path) -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b'{"event": "done", "stopped": null, "advice": null}\n'

    uploaded = TuningRuns(tmp_path).upload("rows.csv", "text,label\na,b\n")
    later = TuningRuns(tmp_path).find(uploaded.identity)
    assert (later.state, later.name) == ("ready", "")
    uploaded.state, uploaded.name = "running", "new"
    process: Any = SimpleNamespace(stdout=events(), wait=AsyncMock(return_value=0))
    asyncio.run(_follow(uploaded, process))
    later = TuningRuns(tmp_path).find(uploaded.identity)
    assert (later.state, later.name) == ("done", "new")


def test_markup_is_escaped() -> None:
    shown = element("a", "<b>", ["&", 1], href='"x', class_=None, hidden=True)
    assert shown == '<a href="&quot;x" hidden>&lt;b&gt;&amp;1</a>'
    assert "&lt;i&gt;" in table("c", ["<i>"], [["x"]])

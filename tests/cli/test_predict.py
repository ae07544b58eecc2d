"""`softprompts predict`: rows keep their columns, bad rows are reported, prompts share a pass."""

import csv
import datetime
import io
import json
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

import softprompts
from softprompts.cli import main
from softprompts.tasks import read_rows

from ..conftest import write_toy

QUICK = [
    *("--steps", "2", "--batch-size", "4", "--preset", "prompt-tuning"),
    *("--prompt.length", "3", "--max-length", "40", "--device", "cpu", "--quiet", "--no-baselines"),
]
CPU = ["--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts on own data with ids."""
    folder = tmp_path_factory.mktemp("predict")
    path = write_toy(folder)
    header, *lines = path.read_text().splitlines()
    lines = [f"id,{header}", *(f"r{number},{line}" for number, line in enumerate(lines))]
    path.write_text("\n".join(lines) + "\n")
    train = ["--train", str(path), "--text", "review", "--label", "mood"]
    assert main(["tune", *train, *QUICK, "--seed", "0,1", "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text('id,review,prediction\n7,"good food, again",x\n8,,y\n9,a dull film,z\n')
    return path


def test_own_data_is_answered_with_labels(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = json.loads((runs / "seed=0" / "prompt.json").read_text())
    assert (card["scoring"], card["invalid"]) == ("labels", 0)
    assert main(["predict", str(runs / "seed=0"), "anything", *CPU]) == 0
    assert capsys.readouterr().out.strip() in ("positive", "negative")
    command = ["predict", str(runs / "seed=0"), "anything", "--scoring", "generate", *CPU]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() not in ("positive", "negative")
    assert "1 of 1 answers of seed=0 match no label" in shown.err
    assert "use --scoring labels" in shown.err


@pytest.mark.parametrize("own_rows", [True, False])
def test_rows_with_wrong_answers_keep_their_ids(own_rows: bool, runs: Path, tmp_path: Path) -> None:
    """Those of a given file, and the held-out rows of the file that the prompt was tuned on."""
    given, output = runs / "reviews.csv", tmp_path / "wrong.csv"
    if not own_rows:
        given = tmp_path / "test.csv"
        rows = [f"{n},{n}/3,{'good food' if n % 2 else 'bad'},positive\n" for n in range(1, 6)]
        twice = "6,6/3,never again,negative\n7,7/3,never again,negative\n8,8/3,,positive\n"
        given.write_text("id,row,review,mood\n" + "".join(rows) + twice)
    file = [] if own_rows else ["--file", str(given), "--skip-bad-rows"]
    with given.open(newline="") as table:
        ids = {row["id"]: (row["review"], row["mood"]) for row in csv.DictReader(table)}
    assert main(["evaluate", str(runs / "seed=0"), *file, "--errors", str(output), *CPU]) == 0
    with output.open(newline="") as table:
        wrong = list(csv.DictReader(table))
    assert wrong
    assert [ids[row["id"]] for row in wrong] == [(row["input"], row["target"]) for row in wrong]
    assert len({row["id"] for row in wrong}) == len(wrong)
    if not own_rows:
        assert all(row["row"] == f"{row['id']}/3" for row in wrong), "the file's own column"
        assert "row_2" in wrong[0]


def test_a_bad_row_is_reported_or_left_unanswered(
    runs: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.csv"
    command = ["predict", str(runs / "seed=0"), "--file", str(rows), "--output", str(output), *CPU]
    assert main(command) == 2
    assert "new.csv:3: the column 'review' is empty. Correct it, or" in capsys.readouterr().err
    assert not output.exists()
    assert main([*command, "--skip-bad-rows"]) == 0
    assert "1 row is not answered" in capsys.readouterr().err
    with output.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table] == ["7", "8", "9"], "in order, ids and all"
    assert [row["prediction"] for row in table] == ["x", "y", "z"], "the file's own column"
    assert [row["prediction_2"] in ("positive", "negative") for row in table] == [
        *(True, False, True),
    ]
    assert table[1]["prediction_2"] == table[1]["probability"] == ""
    assert 0.5 <= float(table[0]["probability"]) <= 1


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".parquet"])
def test_several_prompts_have_a_column_each(
    suffix: str, runs: Path, rows: Path, tmp_path: Path
) -> None:
    output = tmp_path / f"out{suffix}"
    names = ["seed=0", "seed=1"]
    prompts = ",".join(str(runs / name) for name in names)
    command = ["predict", prompts, "--file", str(rows), "--output", str(output)]
    assert main([*command, "--skip-bad-rows", *CPU]) == 0
    if suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(output).to_pylist()
    elif suffix == ".jsonl":
        table = [json.loads(line) for line in output.read_text().splitlines()]
    else:
        table = list(csv.DictReader(output.read_text().splitlines(), delimiter="\t"))
    texts = ["good food, again", "a dull film"]
    for name in names:
        alone = softprompts.load(runs / name, device="cpu").predict(texts)
        assert [row[name] for row in table] == [alone[0], table[1][name], alone[1]]
        assert not table[1][name]
    assert set(table[0]) == {"id", "review", "prediction", *names}


@pytest.mark.parametrize(
    ("name", "models"),
    [("other-model", "t5-tiny and other-model"), ("t5-tiny", "two versions of t5-tiny")],
)
def test_prompts_of_different_backbones_are_refused_before_a_model_is_loaded(
    name: str,
    models: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, other = runs / "seed=0", shutil.copytree(runs / "seed=1", tmp_path / "other")
    card = json.loads((other / "prompt.json").read_text())
    card["backbone"] |= {"name": name, "fingerprint": "0" * 32}
    (other / "prompt.json").write_text(json.dumps(card))
    message = f"The prompts {first} and {other} belong to different backbones ({models});"
    monkeypatch.setattr("softprompts.tuning.tuned.load_backbone", None)
    for command in (["predict", f"{first},{other}", "x"], ["ensemble", str(first), str(other)]):
        assert main([*command, *CPU]) == 2
        assert message in capsys.readouterr().err


def test_a_blank_line_of_standard_input_keeps_its_place(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", str(runs / "seed=0"), *CPU]
    monkeypatch.setattr("sys.stdin", io.StringIO("good\n\nbad\n\n"))
    assert main([*command, "-"]) == 2
    assert main([*command, "good", ""]) == 2
    assert capsys.readouterr().err.count("text 2: the column 'review' is empty.") == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("good\n\nbad\n\n"))
    assert main([*command, "-", "--skip-bad-rows"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [bool(answer) for answer in shown] == [True, False, True]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    assert main([*command, "-"]) == 2
    assert "There is nothing to answer" in capsys.readouterr().err


def from_bytes(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")


def test_rows_with_dates_are_printed_as_json(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"review": "good", "day": datetime.date(2024, 5, 6), "price": Decimal("1.50")}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "odd.parquet")
    command = ["predict", str(runs / "seed=0"), "--json", *CPU, "--file"]
    assert main([*command, str(tmp_path / "odd.parquet")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["row"] == {"review": "good", "day": "2024-05-06", "price": "1.50"}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_nested_dates_are_kept_beside_the_answers(suffix: str, runs: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    days = [datetime.date(2024, 5, 6)]
    table = pyarrow.Table.from_pylist([{"review": "good", "days": days}])
    parquet.write_table(table, tmp_path / "odd.parquet")
    command = ["predict", str(runs / "seed=0"), "--file", str(tmp_path / "odd.parquet"), *CPU]
    output = tmp_path / f"out{suffix}"
    assert main([*command, "--output", str(output)]) == 0
    (row,) = read_rows(str(output))
    expected = {".csv": '["2024-05-06"]', ".jsonl": ["2024-05-06"], ".parquet": days}
    assert row.values["days"] == expected[suffix]


@pytest.mark.parametrize("output", ["out.csv", "out.jsonl", None])
def test_half_of_an_emoji_in_another_column_is_written_escaped(
    output: str | None, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"review": "good", "title": "\\ud83d"}\n')
    command = ["predict", str(runs / "seed=0"), "--file", str(rows), *CPU]
    if output is None:
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["row"]["title"] == "\ud83d"
        return
    assert main([*command, "--output", str(tmp_path / output)]) == 0
    assert capsys.readouterr().out == f"1 row is in {tmp_path / output}\n"
    (row,) = read_rows(str(tmp_path / output))
    assert row.values["title"] == ("\ud83d" if output == "out.jsonl" else "\\ud83d")


@pytest.mark.parametrize(
    "other",
    ['{"review": "bad", "id": "two"}', '{"title": "\\ud83d"}', f'{{"title": {10**30}}}'],
)
def test_rows_that_do_not_fit_into_parquet_are_refused_before_the_model_is_loaded(
    other: str,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("softprompts.tuning.tuned.load_backbone", None)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f'{{"review": "good", "id": 1}}\n{other}\n')
    command = ["predict", str(runs / "seed=0"), "--file", str(rows), *CPU]
    assert main([*command, "--output", str(tmp_path / "out.parquet")]) == 2
    assert "The rows cannot be written as Parquet" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_standard_input_is_read_as_a_file_would_be(
    kind: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, data = [{"review": "café"}, {"review": "naïve"}], io.BytesIO()
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), data)
    else:
        text = json.dumps(rows, ensure_ascii=False, indent=1)
        data.write((text if kind == "json" else "review\ncafé\nnaïve\n").encode("cp1252"))
    monkeypatch.setattr("sys.stdin", from_bytes(data.getvalue()))
    command = ["predict", str(runs / "seed=0"), "--file", "-", "--encoding", "cp1252", "--json"]
    assert main([*command, *CPU]) == 0
    shown = [json.loads(line)["input"] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["café", "naïve"]


def test_rows_come_from_standard_input(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", str(runs / "seed=0"), "--file", "-", *CPU]
    for text in ("id,review\n1,good\n2,bad\n", '{"review": "good"}\n{"review": "bad"}\n'):
        monkeypatch.setattr("sys.stdin", from_bytes(text.encode()))
        assert main([*command, "--json"]) == 0
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["input"] for line in shown] == ["good", "bad"]
        assert shown[0]["row"]["review"] == "good"
    monkeypatch.setattr("sys.stdin", from_bytes(b"review\ngood\n,\n"))
    assert main(command) == 2
    assert "standard input:3 has 2 cells, but the header has 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out.xlsx", "name a file that ends in .csv, .tsv, .jsonl, .parquet."),
        ("new.csv", "--output is the same file as --file; name another."),
        (".", "name a file"),
    ],
)
def test_a_wrong_output_is_refused_at_once(
    output: str, message: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", ".", "--file", str(rows), "--output", str(rows.parent / output)]
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_ensembles_in_python(runs: Path) -> None:
    folders = [runs / "seed=0", runs / "seed=1"]
    texts = ["good food", "a dull film", "a bad week"]
    tuned = [softprompts.load(folder, device="cpu") for folder in folders]
    rows = list(zip(*(prompt.probabilities(texts) for prompt in tuned), strict=True))
    mean = [{label: (a[label] + b[label]) / 2 for label in a} for a, b in rows]
    for row, expected in zip(softprompts.probabilities(tuned, texts), mean, strict=True):
        assert row == pytest.approx(expected, abs=1e-4)
    best = [max(row, key=lambda label: row[label]) for row in mean]
    assert softprompts.ensemble(folders, texts, by="probability") == best
    first = tuned[0].predict(texts)
    assert softprompts.ensemble(tuned, texts) == first, "of two, the first decides"
    alone = softprompts.probabilities(folders[0], texts)
    assert alone[0] == pytest.approx(tuned[0].probabilities(texts)[0], abs=1e-4)
    with pytest.raises(softprompts.UserError, match="by is 'votes'; did you mean vote"):
        softprompts.ensemble(tuned, texts, by="votes")  # type: ignore[arg-type]
    with pytest.raises(softprompts.UserError, match="named twice"):
        softprompts.ensemble([folders[0], folders[0]], texts)
    with pytest.raises(softprompts.UserError, match="name at least one"):
        softprompts.ensemble([], texts)

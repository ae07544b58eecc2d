"""`softprompts report`: a page from the command line, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from softprompts.cli import main

SAVED = Path(__file__).parents[1] / "saved"
WITHOUT_TORCH = """
import sys
from softprompts.cli import main
code = main(sys.argv[1:])
print(*sorted({"torch", "transformers", "numpy"} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def test_a_report_is_written_without_torch(tmp_path: Path) -> None:
    output = tmp_path / "page"
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "report", SAVED / "cohort", "--output", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr.strip()) == (0, "")
    assert "| lr 0.3 | 81.2 ± 0.0 ≈ |" in process.stdout
    assert f"the page is {output / 'summary.html'}" in process.stdout
    assert sorted(path.name for path in output.iterdir()) == [
        "summary.html",
        "summary.json",
        "summary.md",
    ]


def test_json_has_the_tables_and_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["report", str(SAVED / "study"), "--output", str(tmp_path), "--json"]
    assert main([*argv, "--against", "no transfer"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["kind"] == "study"
    assert printed["files"][0] == str(tmp_path / "summary.html")
    assert {row["reference"] for row in printed["tables"][0]["differences"]} == {"no transfer"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        ([str(SAVED / "data")], "holds no finished run"),
        ([str(SAVED / "cohort"), "--against", "lr 0.2"], "There is no arm 'lr 0.2'"),
        ([str(SAVED / "cohort"), "--output", ""], "The output folder has no name"),
    ],
)
def test_bad_input_is_one_sentence(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *argv]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (SAVED / "cohort" / "summary.html").exists()

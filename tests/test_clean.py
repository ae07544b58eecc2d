"""recipes/t5-tiny/clean.py: evaluation data does not stay in the pretraining corpus."""

import bz2
import gzip
import json
import subprocess
import sys
from pathlib import Path

CLEAN = Path(__file__).parents[1] / "recipes" / "t5-tiny" / "clean.py"
EVALUATED = "The quick brown fox jumps over the lazy dog and runs into the dark wood again"
SHORT_EVALUATED = "a truly wonderful little film"


def test_text_that_shares_ten_consecutive_words_is_removed(tmp_path: Path) -> None:
    corpus, data = tmp_path / "corpus", tmp_path / "data" / "glue"
    corpus.mkdir()
    data.mkdir(parents=True)
    row = {"premise": EVALUATED, "answers": [{"text": SHORT_EVALUATED}], "label": 1}
    with gzip.open(data / "test.jsonl.gz", "wt") as rows:
        rows.write(json.dumps(row) + "\n")
    kept = [
        "A first document.",
        "Its second paragraph: the quick brown fox jumps over the lazy dog.",
        "",
        "Another, on foxes.",
    ]
    removed = f"Once upon a time: {EVALUATED.upper().replace(' ', ', ')}!"
    (corpus / "text-0.txt").write_text("\n".join([*kept[:2], removed, *kept[2:]]) + "\n")
    examples = [
        ["a", "Is it good? fine", "yes"],
        ["a", f"Say more. {EVALUATED}", "no"],
        ["b", SHORT_EVALUATED.title(), "positive"],
        ["b", "a film", "x"],
    ]
    (corpus / "tasks.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    flags = ["--corpus", corpus, "--data", tmp_path / "data", "--output", tmp_path / "out"]
    subprocess.run([sys.executable, CLEAN, *flags], check=True, timeout=120)
    text = bz2.decompress((tmp_path / "out" / "text.txt.bz2").read_bytes()).decode()
    assert text == "\n".join(kept) + "\n"  # nine words in a row are not ten
    left = bz2.decompress((tmp_path / "out" / "tasks.jsonl.bz2").read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in left] == [examples[0], examples[3]]
    report = json.loads((tmp_path / "out" / "clean.json").read_text())
    assert report["tasks.jsonl"] == {"unit": "examples", "before": 4, "after": 2}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "text.txt.bz2",
        "tasks.jsonl.bz2",
        "clean.json",
    }

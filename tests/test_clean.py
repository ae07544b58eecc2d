"""recipes/t5-tiny/clean.py: nothing that a model is judged on stays in what it learns from."""

import bz2
import gzip
import json
import subprocess
import sys
from pathlib import Path

CLEAN = Path(__file__).parents[1] / "recipes" / "t5-tiny" / "clean.py"
JUDGED = "The quick brown fox jumps over the lazy dog and runs into the dark wood again"
SHORT = "a truly wonderful little film"


def test_what_shares_ten_words_in_a_row_is_left_out(tmp_path: Path) -> None:
    corpus, data = tmp_path / "corpus", tmp_path / "data" / "glue"
    corpus.mkdir()
    data.mkdir(parents=True)
    with gzip.open(data / "test.jsonl.gz", "wt") as rows:
        rows.write(json.dumps({"premise": JUDGED, "answers": [{"text": SHORT}], "label": 1}) + "\n")
    kept = [
        "A first document.",
        "Its second paragraph: the quick brown fox jumps over the lazy dog.",
        "",
        "Another, on foxes.",
    ]
    dropped = f"Once upon a time: {JUDGED.upper().replace(' ', ', ')}!"
    (corpus / "text-0.txt").write_text("\n".join([*kept[:2], dropped, *kept[2:]]) + "\n")
    pairs = [
        ["a", "Is it good? fine", "yes"],
        ["a", f"Say more. {JUDGED}", "no"],
        ["b", SHORT.title(), "positive"],
        ["b", "a film", "x"],
    ]
    (corpus / "tasks.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    asked = ["--corpus", corpus, "--data", tmp_path / "data", "--output", tmp_path / "out"]
    subprocess.run([sys.executable, CLEAN, *asked], check=True, timeout=120)
    text = bz2.decompress((tmp_path / "out" / "text.txt.bz2").read_bytes()).decode()
    assert text == "\n".join(kept) + "\n"  # nine words in a row are not ten
    left = bz2.decompress((tmp_path / "out" / "tasks.jsonl.bz2").read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in left] == [pairs[0], pairs[3]]
    told = json.loads((tmp_path / "out" / "clean.json").read_text())
    assert told["tasks.jsonl"] == {"unit": "examples", "before": 4, "after": 2}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "text.txt.bz2",
        "tasks.jsonl.bz2",
        "clean.json",
    }

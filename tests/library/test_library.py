"""The library: adding, searching, corrupted prompts, and several writers at once."""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softprompts.errors import UserError
from softprompts.files.tensors import read_tensors
from softprompts.library import check_present
from softprompts.library.library import Entry, Library
from softprompts.library.search import SIMILARITIES, summary

from ..conftest import another_user, golden
from ..processes import ForkServer
from .prompts import FINGERPRINT, make_prompt

SPOT = golden("spot_similarity")


def names(library: Library) -> list[str]:
    return [entry.name for entry in library.entries()]


def test_an_added_prompt_is_a_copy_without_the_training_state(tmp_path: Path) -> None:
    run = make_prompt(tmp_path / "run", torch.randn(1, 3, 8), embedding=torch.randn(1, 3, 8))
    (run / "checkpoint.safetensors").write_bytes(b"large")
    (run / "metrics.jsonl").write_text("{}\n")
    library = Library(tmp_path / "library")
    added = library.add(run, "mine")
    assert {path.name for path in added.folder.iterdir()} == {
        "prompt.json", "prompt.safetensors", "embedding.safetensors", "metrics.jsonl",
    }  # fmt: skip
    for path in added.folder.iterdir():
        assert path.read_bytes() == (run / path.name).read_bytes()
    assert library.entry("mine").card.task.name == "run"
    assert library.add(run).name == "run"
    assert names(library) == ["mine", "run"]
    assert library.entries("another backbone") == []


def test_a_name_is_overwritten_only_on_request(tmp_path: Path) -> None:
    first, second = (
        make_prompt(tmp_path / "first", torch.zeros(1, 2, 4) + 1),
        make_prompt(tmp_path / "second", torch.zeros(1, 2, 4) + 2),
    )
    library = Library(tmp_path / "library")
    library.add(first, "p")
    with pytest.raises(UserError, match="already holds p"):
        library.add(second, "p")
    assert float(library.entry("p").vectors().mean()) == 1
    library.add(second, "p", overwrite=True)
    assert float(library.entry("p").vectors().mean()) == 2
    (library.folder / "note").write_text("a file")
    library.add(second, "note", overwrite=True)
    assert {path.name for path in library.folder.iterdir()} == {"p", "note", ".lock"}


@pytest.mark.parametrize(
    "card",
    [
        {"prompt": {"length": 2, "count": "many"}},
        {"prompt": {"length": 2, "count": 1, "route": 5}},
        {"prompt": {"length": True, "count": 1}},
        {"metrics": {"accuracy": float("nan")}},
        {"metrics": {"accuracy": "good"}},
        {"task": {"name": ""}},
        {"backbone": "t5"},
    ],
    ids=str,
)
def test_a_corrupted_card_is_not_an_entry(tmp_path: Path, card: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"The card .* is corrupted"):
        Entry.of(make_prompt(tmp_path / "run", torch.ones(1, 2, 4), **card))


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "a b", "x" * 201, "a\x00b", "ü"]
)
def test_names_stay_in_the_library(tmp_path: Path, name: str) -> None:
    run, library = (
        make_prompt(tmp_path / "run", torch.randn(1, 2, 4)),
        Library(tmp_path / "library"),
    )
    for use in (lambda: library.add(run, name), lambda: library.entry(name)):
        with pytest.raises(UserError, match="cannot be the name of a prompt"):
            use()
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize("word", ["seeds-sed0", "seed0"])
def test_a_similar_name_or_the_only_one_with_the_word_is_suggested(
    tmp_path: Path, word: str
) -> None:
    for name in ("seeds-seed0", "seeds-seed1"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match="did you mean seeds-seed0"):
        check_present(word, tmp_path)
    with pytest.raises(UserError, match=f"{tmp_path}; `softprompts prompts list"):
        check_present("seed", tmp_path)


def test_other_folders_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    empty = make_prompt(tmp_path / "empty", torch.zeros(1, 0, 4))
    broken = make_prompt(tmp_path / "broken", torch.randn(1, 2, 4))
    (broken / "prompt.safetensors").write_bytes((broken / "prompt.safetensors").read_bytes()[:-8])
    wide = make_prompt(tmp_path / "wide", torch.randn(1, 2, 4), embedding=torch.randn(1, 2, 5))
    no_backbone = make_prompt(tmp_path / "no_backbone", torch.randn(1, 2, 4), backbone={})
    for run, why in (
        (empty, "has no prompt vectors"),
        (broken, "corrupted"),
        (wide, "do not match its card"),
        (no_backbone, "is corrupted"),
        (tmp_path / "nowhere", "There is no prompt at"),
    ):
        with pytest.raises(UserError, match=why):
            library.add(run)
    assert not library.folder.exists()


# -- searching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", sorted(SIMILARITIES))
def test_search_gives_the_similarities_of_the_paper(tmp_path: Path, similarity: str) -> None:
    library = Library(tmp_path / "library")
    for number, rows in enumerate(SPOT["prompts"]):
        library.add(make_prompt(tmp_path / f"p{number}", torch.tensor(rows)[None]))
    expected = SPOT["retrieval"][similarity]
    for _ in range(2):  # with a new index, and with a saved one
        matches = library.search(torch.tensor(SPOT["target_prompt"]), FINGERPRINT, similarity)
        assert [match.entry.name for match in matches] == [
            f"p{number}" for number in expected["ranking"]
        ]
        similarities = {match.entry.name: match.similarity for match in matches}
        assert [similarities[f"p{number}"] for number in range(len(similarities))] == pytest.approx(
            expected["similarity_to_target"], abs=1e-6
        )


@settings(max_examples=40, deadline=None)
@given(
    mixture_size=st.tuples(*[st.integers(1, 5)] * 2),
    other_size=st.tuples(*[st.integers(1, 5)] * 2),
    seed=st.integers(0, 999),
)
def test_all_tokens_of_mixtures_and_longer_prompts_count(
    mixture_size: tuple[int, int], other_size: tuple[int, int], seed: int
) -> None:
    """K prompts of P tokens count as K * P tokens; summaries give the similarity of the tokens."""
    rng = torch.Generator().manual_seed(seed)
    mixture, other = (
        torch.randn(*size, 6, generator=rng, dtype=torch.float64)
        for size in (mixture_size, other_size)
    )
    dots = (summary(mixture) * summary(other)).sum(1)
    for dot, similarity in zip(dots.tolist(), SIMILARITIES.values(), strict=True):
        assert dot == pytest.approx(
            similarity(mixture.reshape(-1, 6), other.reshape(-1, 6)), abs=1e-12
        )


def test_search_compares_embeddings_of_one_backbone(tmp_path: Path) -> None:
    library, query = Library(tmp_path / "library"), torch.eye(4)[0].expand(1, 2, 4)
    far = torch.eye(4)[1].expand(1, 2, 4).contiguous()
    near = query.contiguous()
    library.add(make_prompt(tmp_path / "embedded-near", far, embedding=near))
    library.add(make_prompt(tmp_path / "embedded-far", near, embedding=far))
    library.add(make_prompt(tmp_path / "final-near", near.repeat(3, 1, 1)))
    library.add(
        make_prompt(tmp_path / "another-backbone", torch.ones(1, 2, 9), fingerprint="e" * 32)
    )
    matches = library.search(query, FINGERPRINT)
    assert [match.entry.name for match in matches] == [
        "embedded-near",
        "final-near",
        "embedded-far",
    ], "equally similar prompts are ordered by name"
    assert [round(match.similarity, 6) for match in matches] == [1, 1, 0]
    assert [match.entry.card.embedded_at for match in matches] == [5, 7, 5]
    assert [
        match.entry.name
        for match in library.search(query, FINGERPRINT, k=1, without=["embedded-near"])
    ] == ["final-near"]
    assert library.search(query, "d" * 32) == []
    for wrong, why in (
        ({"similarity": "likeness"}, "no similarity 'likeness'; choose one of"),
        ({"k": 0}, "at least 1"),
        ({"vectors": torch.zeros(1, 2, 5)}, "of width 4"),
        ({"vectors": torch.zeros(1, 0, 4)}, "cannot be compared"),
    ):
        with pytest.raises(UserError, match=why):
            library.search(**{"vectors": query, "fingerprint": FINGERPRINT, **wrong})


def ranking(library: Library) -> list[tuple[str, float]]:
    return [
        (match.entry.name, round(match.similarity, 5))
        for match in library.search(torch.eye(4)[0].expand(1, 1, 4), FINGERPRINT)
    ]


def test_the_index_follows_added_removed_and_replaced_prompts(tmp_path: Path) -> None:
    library, axes = Library(tmp_path / "library"), torch.eye(4)[:, None, None]
    same, cross = axes[0], axes[1]
    library.add(make_prompt(tmp_path / "a", cross))
    assert ranking(library) == [("a", 0)]
    library.add(make_prompt(tmp_path / "b", same))
    assert ranking(library) == [("b", 1), ("a", 0)]
    library.add(make_prompt(tmp_path / "a2", same), "a", overwrite=True)
    assert ranking(library) == [("a", 1), ("b", 1)]
    shutil.rmtree(library.folder / "a")
    assert ranking(library) == [("b", 1)]
    shutil.copy(
        tmp_path / "a" / "prompt.safetensors", library.folder / "b" / "prompt.safetensors"
    )  # by hand
    assert ranking(library) == [("b", 0)]
    shutil.rmtree(library.folder / "b")
    assert ranking(library) == []
    library.add(tmp_path / "a")
    assert ranking(library) == [("a", 0)]


@pytest.mark.parametrize("first", ["broken", "good"])
def test_a_prompt_of_another_width_is_skipped(tmp_path: Path, first: str) -> None:
    """Of cards that all match their vectors, the width that most have counts."""
    warnings: list[str] = []
    library = Library(tmp_path / "library", warnings.append)
    for name in sorted(["broken", "good"], key=first.__ne__):
        prompt = make_prompt(library.folder / name, torch.ones(1, 1, 9 if name == "broken" else 4))
        if name == "broken":
            card = json.loads((prompt / "prompt.json").read_text())
            card["backbone"]["hidden"] = 4
            (prompt / "prompt.json").write_text(json.dumps(card))
        with contextlib.suppress(UserError):
            ranking(library)
    assert ranking(library) == [("good", 0.5)]
    assert "does not match its card" in warnings[-1]
    shutil.rmtree(library.folder / "broken")
    make_prompt(library.folder / "alien", torch.ones(1, 1, 9))
    make_prompt(library.folder / "other", torch.ones(1, 1, 4))
    assert ranking(library) == [("good", 0.5), ("other", 0.5)]
    assert "alien differ in width from" in warnings[-1]
    shutil.rmtree(library.folder / "good")
    shutil.rmtree(library.folder / "other")
    assert len(library.search(torch.ones(1, 1, 9), FINGERPRINT)) == 1, (
        "it is compared once the others are gone"
    )


def test_copies_of_a_prompt_are_equally_similar_and_ordered_by_name(tmp_path: Path) -> None:
    library, rng = Library(tmp_path / "library"), torch.Generator().manual_seed(0)
    run = make_prompt(tmp_path / "run", torch.randn(1, 5, 257, generator=rng))
    for number in range(23):
        library.add(run, f"copy-{number:02}")
    for _ in range(20):
        matches = library.search(torch.randn(1, 5, 257, generator=rng), FINGERPRINT)
        assert [match.entry.name for match in matches] == names(library)
        assert len({match.similarity for match in matches}) == 1


def test_vectors_of_any_magnitude_are_compared(tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    library.add(make_prompt(tmp_path / "huge", torch.full((1, 4, 4), 3e38)))
    library.add(make_prompt(tmp_path / "small", torch.full((1, 4, 4), 1e-6)))
    for similarity in SIMILARITIES:
        matches = library.search(torch.full((1, 4, 4), -3e38), FINGERPRINT, similarity)
        assert [match.similarity for match in matches] == pytest.approx([-1, -1])


def test_a_corrupted_index_is_computed_again(tmp_path: Path) -> None:
    library = Library(tmp_path / "library")
    for name in "abc":
        library.add(make_prompt(tmp_path / name, torch.randn(1, 3, 4)))
    expected = ranking(library)
    (path,) = (library.folder / ".index").iterdir()
    content, note, rows = (
        path.read_bytes(),
        read_tensors(path)[1],
        read_tensors(path)[0]["rows"].clone(),
    )
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    renamed = content.replace(b'\\"a\\"', b'\\"z\\"')
    assert renamed != content
    for damage in (
        b"",
        b"not an index",
        content[: len(content) // 2],
        content[:-4],
        flipped,
        renamed,
    ):
        path.write_bytes(damage)
        assert ranking(library) == expected
        tensors, saved_note = read_tensors(path)
        assert saved_note == note, "computed again"
        assert torch.equal(tensors["rows"], rows)
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")
    assert ranking(library) == expected, "a search works without an index"


def test_a_search_reads_only_new_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(tmp_path / "library")
    for name in "abc":
        library.add(make_prompt(tmp_path / name, torch.randn(1, 3, 4)))
    ranking(library)
    library.add(make_prompt(tmp_path / "d", torch.randn(1, 3, 4)))
    summarized = []
    monkeypatch.setattr(
        "softprompts.library.library.summary",
        lambda vectors: (summarized.append(1), summary(vectors))[1],
    )
    assert len(ranking(library)) == 4
    assert len(summarized) == 2, "the new prompt, and the query"


def test_unusable_folders_are_reported_and_skipped(tmp_path: Path) -> None:
    warnings: list[str] = []
    library = Library(tmp_path / "library", warnings.append)
    for name in ("good", "cut", "blind", "odd"):
        library.add(make_prompt(tmp_path / name, torch.randn(1, 3, 4)))
    folder = library.folder
    (folder / "cut" / "prompt.safetensors").write_bytes(b"half")
    (folder / "blind" / "prompt.json").write_text('{"prompt": [')
    (folder / "odd" / "prompt.json").write_text('["no", "card"]')
    make_prompt(folder / "wide", torch.randn(1, 3, 9))
    (folder / "foreign").mkdir()
    (folder / "README").write_text("a file is not a prompt")
    os.mkdir(os.fsencode(folder) + b"/\xff name")
    assert names(library) == ["good", "wide"]
    assert len(warnings) == 5
    assert all(
        any(word in warning for warning in warnings)
        for word in ("cut", "blind", "odd", "foreign", "cannot be the name of a prompt")
    )
    for _ in range(2):
        warnings.clear()
        assert [name for name, _ in ranking(library)] == ["good"]
        assert len(warnings) == 6
        assert all(any(word in warning for warning in warnings) for word in ("cut", "wide"))
    with pytest.raises(UserError, match="cannot be read as JSON"):
        library.entry("blind")
    for content in (b"half", b"", None):
        path = folder / "cut" / "prompt.safetensors"
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(UserError, match=r"prompt.safetensors (is corrupted|does not exist)"):
            library.entry("cut")


def test_prompts_that_one_user_may_not_read_are_found_by_others(commons: Path) -> None:
    warnings: list[str] = []
    library = Library(commons / "library", warnings.append)
    for name in ("a", "b"):
        library.add(make_prompt(commons / name, torch.randn(1, 3, 4)))
    (library.folder / "a" / "prompt.safetensors").chmod(0o600)
    library.folder.chmod(0o777)
    with another_user():
        assert [name for name, _ in ranking(library)] == ["b"]
    assert "do not have permission to read" in warnings[0]
    assert sorted(name for name, _ in ranking(library)) == ["a", "b"], "its owner may"


# -- several writers -------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from softprompts.errors import UserError
from softprompts.library.library import Library
library, runs, me = Library(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
while not (runs / "go").exists():
    time.sleep(0.001)
for turn in range(25 if me != "3" else 10_000):  # the last one writes until it is killed
    number = turn % 25
    library.add(runs / f"{me}-{number}", overwrite=turn >= 25)
    library.add(runs / f"{me}-{number}", f"shared-{number}", overwrite=True)
    try:
        library.add(runs / f"{me}-{number}", f"first-{number}")
    except UserError:
        pass
"""


def test_four_processes_add_at_once_and_one_is_killed(
    tmp_path: Path, torch_server: ForkServer
) -> None:
    """A reader sees only complete prompts, while names are written once or many times."""
    for me in range(4):
        for number in range(25):
            make_prompt(
                tmp_path / "runs" / f"{me}-{number}", torch.full((1, 2, 4), me + 1.0), seed=me
            )
    warnings: list[str] = []
    library = Library(tmp_path / "library", warnings.append)
    argv = [str(library.folder), str(tmp_path / "runs")]
    processes = [torch_server.start([*argv, str(me)], code=WRITER) for me in range(4)]
    (tmp_path / "runs" / "go").touch()
    reads = 0
    while any(process.poll() is None for process in processes):
        present = {entry.name: entry for entry in library.entries()}
        for entry in present.values():
            assert float(entry.vectors().mean()) in (1, 2, 3, 4)
        library.search(torch.ones(1, 1, 4), FINGERPRINT)
        if len(present) > 60:
            processes[3].kill()
        reads += 1
    assert [process.stderr for process in processes[:3]] == ["", "", ""]
    assert [process.returncode for process in processes[:3]] == [0, 0, 0]
    assert processes[3].returncode == -9
    assert reads > 3
    assert warnings == [], "no incomplete prompt was ever seen"
    present_names = set(names(library))
    assert {f"{me}-{number}" for me in range(3) for number in range(25)} <= present_names
    assert {
        f"{kind}-{number}" for kind in ("shared", "first") for number in range(25)
    } <= present_names
    for entry in library.entries():
        assert float(entry.vectors().mean()) == entry.card.seed + 1, (
            "card and vectors belong to one run"
        )
    assert {path.name for path in library.folder.iterdir() if path.name.startswith(".")} == {
        ".lock",
        ".index",
    }
    assert len(library.search(torch.ones(1, 1, 4), FINGERPRINT)) == len(present_names)


@pytest.mark.parametrize("moment", ["copying", "replacing", "replaced"])
def test_a_writer_killed_while_replacing_leaves_a_complete_prompt(
    tmp_path: Path, moment: str
) -> None:
    """The next reader cleans up what each moment of a replacement leaves on disk."""
    library = Library(tmp_path / "library")
    library.add(make_prompt(tmp_path / "old", torch.zeros(1, 2, 4) + 1), "p")
    folder = library.folder
    make_prompt(folder / ".new-0123", torch.zeros(1, 2, 4) + 2)
    if moment == "copying":
        (folder / ".new-0123" / "prompt.json").unlink()
    else:
        (folder / "p").rename(folder / ".old-p")
        if moment == "replaced":
            (folder / ".new-0123").rename(folder / "p")
    assert float(library.entry("p").vectors().mean()) == (2 if moment == "replaced" else 1)
    assert {path.name for path in folder.iterdir()} == {"p", ".lock"}


def test_a_library_with_leftovers_can_be_read_without_write_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path / "library")
    library.add(make_prompt(tmp_path / "p", torch.ones(1, 2, 4)))
    make_prompt(library.folder / ".old-gone", torch.ones(1, 2, 4))

    def denied(*paths: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "rename", denied)
    assert names(library) == ["p"]


# -- ten thousand ----------------------------------------------------------------------------------

FRESH = """
import sys, time
from pathlib import Path
import torch
from softprompts.library.library import Library
begun = time.perf_counter()
matches = Library(Path(sys.argv[1])).search(torch.ones(1, 1, 512), "f" * 32, k=10)
print(time.perf_counter() - begun, len(matches), matches[0].entry.name)
"""


def test_ten_thousand_prompts_are_searched_in_under_a_second(
    tmp_path: Path, torch_server: ForkServer
) -> None:
    """Prompts of 20 tokens and T5-small's width, in one process and in a new one."""
    folder = tmp_path / "library"
    originals = [
        make_prompt(folder / f"p{number}", torch.randn(1, 20, 512)) for number in range(100)
    ]
    for number in range(100, 10_000):  # hard links to these, which are read like copies
        (folder / f"p{number}").mkdir()
        for part in originals[number % 100].iterdir():
            (folder / f"p{number}" / part.name).hardlink_to(part)
    shutil.rmtree(folder / "p4321")
    make_prompt(folder / "p4321", torch.ones(1, 20, 512))
    library, query = Library(folder), torch.ones(1, 1, 512)
    assert len(library.search(query, FINGERPRINT, k=10)) == 10

    def again() -> float:
        started = time.perf_counter()
        assert library.search(query, FINGERPRINT, k=10)[0].entry.name == "p4321"
        return time.perf_counter() - started

    def fresh() -> float:
        printed = torch_server.run([str(folder)], code=FRESH).stdout.split()
        assert (printed[1], printed[2]) == ("10", "p4321")
        return float(printed[0])

    assert min(again() for _ in range(3)) < 0.7
    assert min(fresh() for _ in range(2)) < 1.0
    shutil.rmtree(folder / "p4321")
    assert library.search(query, FINGERPRINT, k=1)[0].entry.name != "p4321"

"""How the folders beside this file were made: by version 0.1.0, at commit 30595c2, and by no other.

They prove that what that version saved still loads, answers alike and goes on, so they must not be
made again by later code. With a checkout of that commit, from within this folder:

    PYTHONPATH=CHECKOUT/src python make.py

All paths in them are relative to this folder. `finished/NAME` and `interrupted/NAME` are the same
command, one undisturbed and one stopped at its second checkpoint; that the second, resumed, comes
to the first is looked at here, so that the first is what tests compare with.
"""

import contextlib
import csv
import io
import itertools
import json
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
import transformers
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import softprompts
from softprompts.cli import main

HERE = Path(__file__).resolve().parent
TEXTS = [
    "the soup was great",
    "what a dull film, never again",
    "the staff was kind and the phone works",
    "broken",
]
DATA = ["--text", "text", "--label", "mood"]
OWN = ["--train", "data/reviews.csv", *DATA]
HELD = [*OWN, "--validation", "data/held-out.csv"]
QUICK = [
    *("--steps", "12", "--batch-size", "4", "--evaluate-every", "4", "--checkpoint-every", "3"),
    *("--embed-at", "5", "--max-length", "56", "--device", "cpu", "--quiet", "--json"),
]
T5, BERT, GPT2 = (["--model", f"models/{name}"] for name in ("t5", "bert", "gpt2"))
LABELS = ["--scoring", "labels"]
LATE, AT_THE_END = ["--embed-at", "10"], ["--evaluate-every", "12"]
"""So that an embedding, or the best prompt, is of a step after the interruption, which is at 6."""
RUNS: dict[str, list[str]] = {
    "mixture": [*OWN, *T5, "--prompt.length", "3", "--prompt.count", "4"],
    "prompt-tuning": [*HELD, *T5, *LABELS, "--preset", "prompt-tuning", "--prompt.length", "4"],
    "residual": [*OWN, *T5, *LATE, "--preset", "residual", "--prompt.shape.bottleneck", "24"],
    "residual-bert": [*HELD, *BERT, "--preset", "residual-bert", "--prompt.shape.bottleneck", "24"],
    "smop": [*OWN, *T5, *LABELS, *AT_THE_END, "--preset", "smop", "--prompt.length", "3"],
    "p-tuning": [*OWN, *T5, *LABELS, *LATE, "--preset", "p-tuning", "--prompt.shape.width", "24"],
    "model-tuning": [*HELD, *T5, *LABELS, *AT_THE_END, "--preset", "model-tuning", "--lr", "0.002"],
    "prompt-design": [
        *(*OWN, *T5, *LABELS, "--preset", "prompt-design", "--demonstrations", "1"),
        *("--instruction", "is it good"),
    ],
    "paper": [
        *(*OWN, *T5, "--preset", "prompt-tuning", "--paper", "--prompt.length", "6"),
        *("--accumulate", "2", "--clip", "1", "--seed", "3", *AT_THE_END),
    ],
    "gpt2": [
        *HELD,
        *GPT2,
        *LABELS,
        *AT_THE_END,
        "--preset",
        "prompt-tuning",
        "--prompt.start",
        "labels",
    ],
    "bert-words": [*HELD, *BERT, "--preset", "prompt-tuning", "--prompt.length", "4"],
}
"""A run for each preset, for its paper's settings, and for the other two families."""
COHORT = [
    *("tune", *HELD, *T5, *QUICK, *LABELS, "--preset", "prompt-tuning", "--prompt.length", "4"),
    *("--lr", "0.1,0.3", "--seed", "0,1", "--label", "topic"),
]
STUDY = {
    "name": "small",
    "backbones": ["models/t5"],
    "sources": [
        "helpdesk/intent",
        {"name": "mood", "train": "data/reviews.csv", "text": "text", "label": "mood"},
    ],
    "targets": ["helpdesk/urgency"],
    "seeds": [0, 1],
    "settings": {
        "preset": "prompt-tuning",
        "prompt": {"length": 3},
        "batch_size": 4,
        "max_length": 32,
        "cap": 24,
        "cap_validation": 24,
        "evaluate_every": 2,
        "checkpoint_every": 2,
        "embed_at": 3,
        "scoring": "labels",
        "device": "cpu",
    },
    "source": {"steps": 6},
    "target": {"steps": 4},
    "retrieval": {"best": [1, 2], "average": [2], "mixture": [1]},
    "cohort": 3,
}
TRANSFER = [
    *("transfer", *OWN, *T5, *QUICK, *LABELS, "--preset", "prompt-tuning", "--prompt.length", "4"),
    *("--library", "library", "--k", "2", "--baseline", "--output", "transfer"),
]
PRETRAIN = [
    *("pretrain", "--from", "models/t5", "--text", "data/text.txt", "--objectives", "prefix=1"),
    *("--steps", "6", "--batch-tokens", "128", "--input-length", "16", "--target-length", "16"),
    *("--checkpoint-every", "2", "--log-every", "2", "--held-out", "0.1", "--warmup", "2"),
    *("--processes", "1", "--device", "cpu", "--quiet", "--json", "--output", "pretrained"),
]


# -- data and models -------------------------------------------------------------------------------


def make_data() -> list[dict[str, str]]:
    """Reviews with a mood and a topic."""
    things = {
        "food": ["soup", "bread", "staff"],
        "film": ["film", "play"],
        "goods": ["phone", "lamp"],
    }
    words = {
        "positive": ["was great", "was kind", "works well", "is lovely"],
        "negative": ["was dull", "never again", "is broken", "was the worst"],
    }
    rows = [
        {"text": f"the {thing} {said}", "mood": mood, "topic": topic}
        for (topic, own), (mood, moods) in itertools.product(things.items(), words.items())
        for thing, said in itertools.product(own, moods)
    ]
    random.Random(0).shuffle(rows)
    Path("data").mkdir()
    for name, part in {"reviews": rows[:40], "held-out": rows[40:]}.items():
        with Path(f"data/{name}.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, ["text", "mood", "topic"], lineterminator="\n")
            table.writeheader()
            table.writerows(part)
    return rows


def save_models(rows: Sequence[dict[str, str]]) -> None:
    """Models of width 16: a T5 that has half learned the reviews, a random BERT, a random GPT-2."""
    lines = [f"{row['text']} {row['mood']} {row['topic']} is it good" for row in rows]
    Path("data/text.txt").write_text("\n".join(lines * 3) + "\n", encoding="utf-8")
    size = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    torch.manual_seed(0)
    tokens = byte_tokenizer(
        [*lines, *WORDS], pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    t5 = transformers.T5Config(
        vocab_size=len(tokens), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
    )  # fmt: skip
    _save(_taught(transformers.T5ForConditionalGeneration(t5), tokens, rows), tokens, "t5")
    tokens = byte_tokenizer(lines, eos_token="</s>", bos_token="<s>")
    gpt2 = transformers.GPT2Config(
        vocab_size=len(tokens), n_embd=16, n_layer=2, n_head=2, n_positions=64,
        initializer_range=0.3, bos_token_id=1, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    _save(transformers.GPT2LMHeadModel(gpt2), tokens, "gpt2")
    tokens = word_tokenizer(lines)
    bert = transformers.BertConfig(
        vocab_size=len(tokens),
        max_position_embeddings=64,
        pad_token_id=0,
        initializer_range=0.3,
        **size,
    )
    _save(transformers.BertForMaskedLM(bert), tokens, "bert")


def _taught(model: Any, tokenizer: Any, rows: Sequence[dict[str, str]]) -> Any:
    """A random model would be sure of one word, whatever its prompt; this one wavers among some."""
    lot, learner = random.Random(0), torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        batch = lot.sample(rows, 16)
        answers = [
            lot.choice([row["mood"], row["mood"], row["topic"], lot.choice(WORDS)]) for row in batch
        ]
        texts, targets = (
            tokenizer(part, return_tensors="pt", padding=True, return_token_type_ids=False)
            for part in ([row["text"] for row in batch], answers)
        )
        labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
        loss = model(**texts, labels=labels).loss
        loss.backward()
        learner.step()
        learner.zero_grad()
    print(f"the T5's loss is {loss.item():.2f}")
    return model.eval()


WORDS = (
    "high",
    "medium",
    "low",
    "cancel",
    "change",
    "idea",
    "question",
    "refund",
    "repair",
    "status",
    "thanks",
)
STEPS = 250


def _save(model: Any, tokenizer: Any, name: str) -> None:
    model.save_pretrained(f"models/{name}")
    tokenizer.save_pretrained(f"models/{name}")


def byte_tokenizer(lines: Sequence[str], **named: str) -> Any:
    """A byte-level BPE; a T5's puts </s> after every text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), list(named.values())
    learner = trainers.BpeTrainer(
        vocab_size=360, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(lines, learner)
    made.decoder = decoders.ByteLevel()
    if "pad_token" in named:
        end = [("</s>", made.token_to_id("</s>"))]
        made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=end)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named)


def word_tokenizer(lines: Sequence[str]) -> Any:
    names = ("pad", "unk", "cls", "sep", "mask")
    named = {f"{name}_token": f"[{name.upper()}]" for name in names}
    words = sorted(
        {word for line in lines for word in line.split()} - set("abcdefghijklmnopqrstuvwxyz")
    )
    letters = [f"{mark}{letter}" for mark in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz,"]
    pieces = {piece: index for index, piece in enumerate([*named.values(), *letters, *words])}
    made = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    around = [(name, pieces[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=around
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **named)


# -- commands --------------------------------------------------------------------------------------


def told(*argv: str, code: int = 0) -> Any:
    """What a command says as JSON."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ended = main([*argv])
    assert ended == code, (argv, ended)
    return json.loads(said.getvalue()) if said.getvalue() else None


@contextlib.contextmanager
def stopped(last: Callable[[Path, int], bool]) -> Iterator[None]:
    """Inside, Ctrl-C comes right after the checkpoint whose folder and number are `last`."""
    from softprompts.tuning import cohort

    saved, real = itertools.count(1), cohort.save_checkpoint

    def save(run: Any, folder: Path) -> None:
        real(run, folder)
        if last(folder, next(saved)):
            raise KeyboardInterrupt

    with mock.patch.object(cohort, "save_checkpoint", save):
        yield


@contextlib.contextmanager
def without_curves() -> Iterator[None]:
    """Pictures would be most of the bytes."""
    with mock.patch("softprompts.api.learning_curve", return_value=False):
        yield


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Inside, one is in a copy of all that was made so far."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(".", place, dirs_exist_ok=True)
        with contextlib.chdir(place):
            yield


def check_same(one: Path, other: Path, atol: float = 0.0) -> None:
    """Two runs' folders hold the same numbers."""
    for name in ("prompt.safetensors", "embedding.safetensors", "model/model.safetensors"):
        assert (one / name).exists() == (other / name).exists(), (one, name)
        if (one / name).exists():
            mine, theirs = load_file(one / name), load_file(other / name)
            torch.testing.assert_close(mine, theirs, rtol=0, atol=atol, msg=lambda m: f"{one}: {m}")
    mine, theirs = ((f / "metrics.jsonl").read_text().splitlines() for f in (one, other))
    if atol == 0:
        assert mine == theirs, one
    else:
        assert [json.loads(line)["accuracy"] for line in mine] == [
            json.loads(line)["accuracy"] for line in theirs
        ], one


# -- what is saved ---------------------------------------------------------------------------------


def make_runs() -> None:
    for name, settings in RUNS.items():
        told("tune", *QUICK, *settings, "--output", f"finished/{name}")
        if name != "mixture":  # one picture is enough: they would be most of the bytes
            Path(f"finished/{name}/curve.png").unlink()
        where = ["--output", f"interrupted/{name}"]
        if name == "prompt-design":  # which has no checkpoints
            with mock.patch("softprompts.api._finish", mock.Mock(side_effect=KeyboardInterrupt)):
                told("tune", *QUICK, *settings, *where, code=130)
        else:
            with stopped(lambda _, number: number == 2):
                told("tune", *QUICK, *settings, *where, code=130)
        assert not Path(f"interrupted/{name}/prompt.json").exists()
    signed = json.dumps({"process": 999999, "host": "host"})  # a killed process leaves its lock
    Path("interrupted/mixture/.at-work").write_text(signed)
    with copied():
        for name in RUNS:
            folder = f"interrupted/{name}"
            told(
                "tune", "--config", f"{folder}/config.yaml", "--output", folder, "--quiet", "--json"
            )
            check_same(Path(folder), Path(f"finished/{name}"))


def make_cohorts() -> None:
    """One that finished; one of which two runs have a later checkpoint than the others."""
    told(*COHORT, "--output", "cohort")
    with stopped(lambda _, number: number == 6):
        told(*COHORT, "--output", "cohort-half", code=130)
    with copied():
        told(*COHORT, "--output", "cohort-half")
        for run in Path("cohort").glob("*/"):
            check_same(Path("cohort-half") / run.name, run, 1e-5)


def make_adapters() -> None:
    """A prompt of ours for PEFT, and PEFT's own for us."""
    import peft

    told("prompts", "export", "finished/prompt-tuning", "--output", "peft/ours", "--json")
    torch.manual_seed(1)
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained("models/t5")
    asked = peft.PromptTuningConfig(
        task_type="SEQ_2_SEQ_LM", num_virtual_tokens=5, base_model_name_or_path="models/t5"
    )
    peft.get_peft_model(base, asked).save_pretrained("peft/theirs")
    Path("peft/theirs/README.md").unlink()
    told(*TAKEN, "--output", "peft/imported")
    with copied():
        told("prompts", "export", "peft/imported", "--output", "back", "--json")
        theirs = load_file("peft/theirs/adapter_model.safetensors")["prompt_embeddings"][:5]
        assert torch.equal(
            load_file("back/adapter_model.safetensors")["prompt_embeddings"][:5], theirs
        )


TAKEN = [
    *("prompts", "import", "peft/theirs", "--labels", "negative,positive", "--label", "mood"),
    *("--device", "cpu", "--json"),
]


def make_library() -> None:
    """Single runs, a cohort, a PEFT adapter; runs without a prompt are left out."""
    for name in RUNS:
        if name not in ("model-tuning", "prompt-design"):
            told("prompts", "import", f"finished/{name}", "--library", "library", "--json")
    told("prompts", "import", "cohort", "--library", "library", "--name", "topic", "--json")
    told(*TAKEN, "--library", "library", "--name", "theirs")
    for name in ("prompt-tuning", "gpt2"):  # so that there are indexes
        told("prompts", "search", name, "--library", "library", "--json")


def make_study() -> dict[str, Any]:
    """Nine cells are done, all sources among them; three are begun, two with a checkpoint."""
    Path("study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False), encoding="utf-8")
    began = itertools.count(1)
    with stopped(lambda folder, _: "average" in folder.parts and next(began) == 2):
        told("study", "run", "study.yaml", "--output", "study", "--quiet", "--json", code=130)
    half = told("study", "status", "study", "--json")
    with copied():
        told("study", "run", "study.yaml", "--output", "study", "--quiet", "--json")
        told("study", "report", "study", "--output", "report", "--json")
        ended = json.loads(Path("report/records.json").read_text())
        told("study", "run", "study.yaml", "--output", "other", "--quiet", "--json")
        told("study", "report", "other", "--output", "undisturbed", "--json")
        scores = [
            [told["score"] for told in json.loads(Path(f"{name}/records.json").read_text())]
            for name in ("report", "undisturbed")
        ]
        assert scores[0] == scores[1]
        cells = sorted(path.parent for path in Path("study").rglob("prompt.json"))
        asked = {path.as_posix(): answers(path) for path in cells}
    clocked = ("seconds", "cells_per_minute", "eta_seconds")
    return {
        "half": {name: value for name, value in half.items() if name not in clocked},
        "answers": asked,
        "records": [{n: v for n, v in one.items() if n not in clocked} for one in ended],
    }


def make_transfer() -> dict[str, Any]:
    """The probe is done and the sources are chosen; the runs from them are begun."""
    with stopped(lambda folder, number: folder.name.startswith("from-") and number > 6):
        told(*TRANSFER, code=130)
    with copied():
        return {"choice": told(*TRANSFER), "answers": answers(Path("transfer"))}


def make_pretraining() -> dict[str, Any]:
    """A model that is half pretrained."""
    from softprompts.pretraining import train

    real = train.Pretraining.save

    def save(run: Any, folder: Path) -> None:
        real(run, folder)
        if run.step == 4:
            raise KeyboardInterrupt

    with mock.patch.object(train.Pretraining, "save", save):
        told(*PRETRAIN, code=130)
    with copied():
        losses: dict[str, Any] = told(*PRETRAIN)["losses"]
        return losses


# -- what is expected ------------------------------------------------------------------------------


def answers(folder: Path) -> list[dict[str, Any]]:
    tuned = softprompts.load(folder, device="cpu")
    shares = tuned.probabilities(TEXTS)
    assert len({tuple(own.values()) for own in shares}) == len(TEXTS), folder
    assert any(max(own.values()) < 0.999 for own in shares), folder  # else any prompt would do
    return [
        {"prediction": said, "probabilities": {label: round(p, 6) for label, p in own.items()}}
        for said, own in zip(tuned.predict(TEXTS), shares, strict=True)
    ]


def scored(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = told("evaluate", folder, "--device", "cpu", "--quiet", "--json")
    return found


def library() -> dict[str, Any]:
    names = [
        entry["name"]
        for entry in told("prompts", "list", "--library", "library", "--json")["prompts"]
    ]
    searched = {
        f"{name} {by}": told(
            "prompts", "search", name, "--library", "library", "--by", by, "--json"
        )
        for name in names
        for by in ("per_token_average_cosine", "cosine_of_average_tokens")
    }
    return {
        "list": told("prompts", "list", "--library", "library", "--json"),
        "search": {
            asked: [[found["name"], round(found["similarity"], 6)] for found in result["found"]]
            for asked, result in searched.items()
        },
    }


def check_clean() -> None:
    """Nothing of the machine is in the files."""
    for path in (path for path in Path(".").rglob("*") if path.is_file()):
        held = path.read_bytes() if path.suffix not in (".py", ".png") else b""
        if path.suffix == ".safetensors":  # its header; any three bytes may stand among the numbers
            held = held[: 8 + int.from_bytes(held[:8], "little")]
        words = [str(HERE.parent), f"{tempfile.gettempdir()}/", f"{Path.home()}/", f"{HOST}-"]
        assert not any(word.encode() in held for word in words), path


HOST = socket.gethostname()


def make() -> None:
    kept = {"make.py", ".gitignore"}
    for old in [path for path in Path(".").iterdir() if path.name not in kept]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    save_models(make_data())
    make_runs()
    with without_curves():
        make_cohorts()
        make_adapters()
        make_library()
        expected = {
            "study": make_study(),
            "transfer": make_transfer(),
            "pretrained": make_pretraining(),
        }
    with copied():  # looking leaves indexes
        prompts = sorted(path.parent for path in Path(".").rglob("prompt.json"))
        expected |= {
            "texts": TEXTS,
            "commands": {
                "cohort": COHORT,
                "transfer": TRANSFER,
                "pretrain": PRETRAIN,
                "import": TAKEN,
            },
            "answers": {path.as_posix(): answers(path) for path in prompts},
            "evaluated": {name: scored(f"finished/{name}") for name in RUNS},
            "library": library(),
        }
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    check_clean()


if __name__ == "__main__":
    os.chdir(HERE)
    torch.set_num_threads(1)
    with (
        mock.patch("socket.gethostname", return_value="host"),
        mock.patch("softprompts.machine.device_name", return_value="CPU"),
    ):
        make()

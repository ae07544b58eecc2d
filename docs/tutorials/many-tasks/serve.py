"""Answers questions for all tasks: one by one, as they arrive, then in one batch of an Engine."""

import csv
import time
from pathlib import Path

import softprompts

with open("new.csv", newline="") as file:
    texts = [row["message"] for row in csv.DictReader(file)]
backbone = softprompts.load_backbone("t5-tiny")
prompts = {
    folder.name.removeprefix("shop-"): softprompts.load(folder, backbone=backbone)
    for folder in sorted(Path("library").glob("shop-*"))
}
questions = [(name, text) for text in texts for name in prompts]

start = time.perf_counter()
alone = [prompts[name].predict([text])[0] for name, text in questions]
between = time.perf_counter()
engine = softprompts.Engine(backbone, prompts, verbose=False)
together = engine.answer(questions)
end = time.perf_counter()
assert together == alone

print(f"{len(prompts)} prompts, {len(questions)} questions")
print(f"one by one: {between - start:.1f} s; with an Engine: {end - between:.1f} s")
for (name, _), answer in zip(questions[:8], together, strict=False):
    print(f"{name:<8}{answer}")

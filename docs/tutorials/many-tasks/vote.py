"""Compares three prompts for shop/price with their majority vote, on the validation rows."""

import csv
from pathlib import Path

import softprompts

with open("tasks/price.csv", newline="") as file:
    rows = list(csv.DictReader(file))[::5]  # the rows that shop.py keeps for validation
texts, targets = [row["message"] for row in rows], [row["label"] for row in rows]


def accuracy(answers: list[str]) -> str:
    right = sum(a == t for a, t in zip(answers, targets, strict=True))
    return f"{right} of {len(targets)} right"


backbone = softprompts.load_backbone("t5-tiny")
folders = sorted(Path("runs/price").glob("seed=*"))
prompts = [softprompts.load(folder, backbone=backbone) for folder in folders]
for folder, prompt in zip(folders, prompts, strict=True):
    print(f"{folder.name}: {accuracy(prompt.predict(texts))}")
print(f"vote:   {accuracy(softprompts.ensemble(prompts, texts))}")
probability = softprompts.ensemble(prompts, texts, by="probability")
print(f"mean:   {accuracy(probability)}")

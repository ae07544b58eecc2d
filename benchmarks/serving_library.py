"""The prompts that serving.py serves: libraries of random ones, on disk."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor

from open_loop import prompt_name
from softprompts.artifacts.file_names import CARD, PROMPT
from softprompts.artifacts.peft import write_adapter
from softprompts.artifacts.prompt_file import prompt_tensors
from softprompts.backbone import Backbone
from softprompts.prompt import folded_prompt
from softprompts.tuning.tuned import import_peft

LABELS = ("positive", "negative")


def write_libraries(
    backbone: Backbone, folder: Path, counts: Sequence[int], length: int, seed: int
) -> tuple[Tensor, int]:
    """A library for each count, of prompts of random words; returns the vectors of all prompts
    [N, P, H], and the bytes of the largest library.

    The first prompt is saved as usual; the others are its files with vectors of their own, written
    without waiting for the disk.
    """
    rng = torch.Generator().manual_seed(seed)
    pieces = backbone.common_pieces(5000)
    ids = pieces[torch.randint(len(pieces), (counts[-1], length), generator=rng)]
    vectors = backbone.input_embeddings(ids)
    first = folded_prompt(vectors[:1])
    with TemporaryDirectory() as adapter:
        write_adapter(Path(adapter), first, backbone.family, backbone.name)
        tuned = import_peft(adapter, backbone=backbone, labels=LABELS)
    model = folder / "first"
    model.mkdir()
    dataclasses.replace(tuned, prompt=first).save(model)
    card = (model / CARD).read_bytes()
    tensors = prompt_tensors(first.fold())
    (name,) = [name for name, tensor in tensors.items() if tensor.shape == vectors[:1].shape]
    for count in counts:
        for number in range(count):
            prompt = folder / str(count) / prompt_name(number)
            prompt.mkdir(parents=True)
            own = {**tensors, name: vectors[number : number + 1].clone()}
            save_file(own, prompt / PROMPT, metadata={"format": "pt"})
            (prompt / CARD).write_bytes(card)
    files = (folder / str(counts[-1])).rglob("*.*")
    return vectors, sum(file.stat().st_size for file in files)

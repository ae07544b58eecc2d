"""What serving.py measures, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass

from softprompts.errors import UserError

KINDS = ("labels", "generate")
PEERS = ("switching", "batched")


@dataclass(frozen=True)
class Cell:
    """One number of prompts, popularity, kind of answer, and host."""

    kind: str
    prompts: int
    popularity: str
    host: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.prompts} prompts ({self.popularity}), {self.host}"


def prompt_counts(text: str) -> list[int]:
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        counts = []
    if min(counts, default=0) < 1:
        raise UserError(f"--prompts is {text!r}; give whole numbers from 1 on, such as 1,100.")
    return sorted(set(counts))


def cells(counts: Sequence[int], kinds: Sequence[str], http: bool, peft: bool) -> list[Cell]:
    """What to measure, the most important first."""
    peers = list(PEERS) if peft else []
    most, fewest = counts[-1], counts[:1] if len(counts) > 1 else []

    def each(numbers: Sequence[int], hosts: Sequence[str], popularity: str) -> list[Cell]:
        return [Cell(k, n, popularity, h) for k in kinds for n in numbers for h in hosts]

    found = []
    found += each([most], ["ours", *peers[:1]], "uniform")
    found += each(fewest, ["ours"], "uniform") + each([most], peers[1:], "uniform")
    found += each(counts[1:-1], ["ours"], "uniform")
    found += each([most], ["http"] * http, "uniform")
    if most > 1:  # one request at a time takes the same time for any popularity
        found += each([most], [h for h in ("ours", *peers) if h != "switching"], "zipf")
    found += each(fewest, peers, "uniform")
    found += each(fewest, ["http"] * http, "uniform")
    return found + each(counts[1:-1], peers, "uniform")

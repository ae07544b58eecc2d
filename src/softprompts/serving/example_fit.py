"""How well prompts fit labelled examples: by the probability that they give to the targets."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..errors import UserError
from ..tasks import Example, Row, TextFormat
from ..tuning.evaluate import label_ids
from .concurrency import together
from .jobs import Job, Message, ignore, seconds_left
from .prompt_store import LoadedPrompt
from .requests import BadRequest, DeadlineExceeded, Fit, Limits, QueueFull, TooLong

PRIORITY = -1
"""A search uses all prompts, so requests for one prompt go first."""

Load = Callable[[str], Awaitable[LoadedPrompt]]
Ask = Callable[[Job], Awaitable[Message]]


async def all_fits(
    rows: Sequence[Mapping[str, object]],
    names: Sequence[str],
    load: Load,
    ask: Ask,
    deadline: float | None,
    limits: Limits,
) -> list[tuple[Fit, float]]:
    """The named prompts that can read the rows, the best first, each with the log-probability of
    all targets. They take up to half of the queue."""
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise BadRequest("A search needs labelled rows, such as {'text': ..., 'label': ...}.")
    turn, asked = asyncio.Semaphore(max(1, limits.queue // 2 // len(rows))), 0

    async def fit(name: str) -> tuple[Fit, float] | None:
        nonlocal asked
        async with turn:
            found = await _fit(name, rows, load, ask, deadline, limits)
        asked += 1
        return found

    try:
        async with asyncio.timeout(seconds_left(deadline)):
            fits = [found for found in await together(map(fit, names)) if found is not None]
    except (TimeoutError, DeadlineExceeded):
        raise DeadlineExceeded(
            f"The search timed out after {asked:,} of {len(names):,} prompts; send fewer rows, or "
            "give it more time."
        ) from None
    if not fits:
        columns = ", ".join(map(str, rows[0])) or "none"
        raise BadRequest(f"No prompt reads rows with these columns and labels: {columns}.")
    return sorted(fits, key=lambda pair: (-pair[0].score, pair[0].name))


async def _fit(
    name: str,
    rows: Sequence[Mapping[str, object]],
    load: Load,
    ask: Ask,
    deadline: float | None,
    limits: Limits,
) -> tuple[Fit, float] | None:
    """How well one prompt predicts the rows; None if it cannot read them."""
    try:
        prompt = await load(name)
        examples = _examples(prompt.tuned.form, rows, limits)
        ids = _target_ids(prompt, examples, limits)
    except TooLong:
        raise
    except (UserError, ValueError):  # gone, other columns, or a target that it cannot answer
        return None
    jobs = [
        Job(prompt, example.input, "search", PRIORITY, deadline, ignore, target)
        for (_, example), target in zip(examples, ids, strict=True)
    ]
    logs = await together(_patiently(ask, job) for job in jobs)
    total = sum(log for log in logs if isinstance(log, float))
    return Fit(name, total / sum(map(len, ids))), total


def _examples(
    form: TextFormat, rows: Sequence[Mapping[str, object]], limits: Limits
) -> list[tuple[int, Example]]:
    """The examples that a prompt reads the rows as, with the rows' numbers."""
    examples = [
        (number, example)
        for number, row in enumerate(rows, 1)
        for example in form.examples([Row(dict(row), f"row {number}")], split="validation")
    ]
    for number, example in examples:
        limits.check_length(example.input, f"The text of row {number}")
        limits.check_length(example.target, f"The target of row {number}")
    return examples


def _target_ids(
    prompt: LoadedPrompt, examples: Sequence[tuple[int, Example]], limits: Limits
) -> list[list[int]]:
    targets = [example.target for _, example in examples]
    ids = label_ids(prompt.predictor.backbone, targets, prompt.tuned.form.sentinel)
    for (number, _), target in zip(examples, ids, strict=True):
        if len(target) > limits.max_tokens:
            raise TooLong(
                f"The target of row {number} has {len(target):,} tokens; at most "
                f"{limits.max_tokens:,} are allowed."
            )
    return ids


async def _patiently(ask: Ask, job: Job) -> Message:
    """Ask again as long as the queue is full."""
    while True:
        try:
            return await ask(job)
        except QueueFull as error:
            await asyncio.sleep(error.retry_after)

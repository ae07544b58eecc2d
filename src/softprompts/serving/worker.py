"""The worker: one thread that owns the model, and serves the queue in rounds.

In each round it scores the labels of some rows, begins the answers of others, and generates more
tokens of every answer that has begun: one, or as many as take as long as all that did.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..backbone import Backbone, Conversation
from ..errors import UserError
from .device_tier import DeviceTier, ServedBank
from .fair_queue import FairQueue
from .jobs import Answer, Job, Message
from .prompt_store import Key
from .requests import Classified, Closed, DeadlineExceeded, Limits, QueueFull, TooLong
from .sampler import next_tokens
from .slots import Rows, SlottedRows, rows_for

log = logging.getLogger("softprompts.serving")

FIRST_TOKENS = 2048
"""Tokens of the first passes, until it is known how long they take."""
FEW_TOKENS = 512
"""Tokens that a pass may always have: with fewer, it takes hardly less time."""
FEW_STEPS = 8
"""Tokens for which answers may wait to begin together, beside eight times as many in progress."""
CHECK_EVERY = 0.02
"""Seconds between checks for jobs that have timed out."""

Deliver = Callable[[list[tuple[Job, Message]]], None]
"""Takes messages for jobs, from the worker's thread."""


class Group:
    """Answers that are generated together, in the order of their rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.answers = rows, list[Answer]()

    def leave(self, gone: Callable[[Answer], bool]) -> None:
        leaving = [row for row, answer in enumerate(self.answers) if gone(answer)]
        if leaving:
            self.answers = [self.answers[row] for row in self.rows.leave(leaving)]


class Worker:
    """Takes jobs from any thread; messages go to `deliver`."""

    def __init__(self, backbone: Backbone, limits: Limits, deliver: Deliver) -> None:
        self.backbone, self.limits, self.deliver = backbone, limits, deliver
        self.tier = DeviceTier(backbone, limits)
        self._max_positions = backbone.max_positions
        self._condition = threading.Condition()
        self._incoming: list[Job] = []
        self._closing = self._giving_up = self._disturbed = False
        self._next_check = 0.0
        self._scoring, self._starting = FairQueue[Job](), FairQueue[Job]()
        self._groups: list[Group] = []
        self._steps = 0  # since answers began last
        self._slots = self._width = 0  # taken in this round; tokens of the longest in them
        self._column_bytes = 0.0  # of the keys and values of one token, once known
        self._messages: list[tuple[Job, Message]] = []
        self._budget: float = min(FIRST_TOKENS, limits.batch_tokens)
        """Tokens that a pass may have, to take no longer than the latency allows."""
        self._seconds_per_job = 0.0
        self._retired: list[Key] = []
        self.passes = self.rows = self.last_batch = 0
        self.refused = self.cancelled = self.expired = self.failed = 0
        self.thread = threading.Thread(target=self._run, name="softprompts-worker", daemon=True)

    # -- from other threads ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Take a job; raises `QueueFull` or `Closed`."""
        with self._condition:
            if self._closing:
                raise Closed("The engine is shutting down and takes no more requests.")
            waiting = self.waiting
            if waiting >= self.limits.queue:
                self.refused += 1
                seconds = min(60.0, max(0.05, waiting * self._seconds_per_job))
                raise QueueFull(
                    f"{waiting} requests are waiting; try again in {seconds:.1f} seconds.", seconds
                )
            self._incoming.append(job)
            self._condition.notify()

    def cancel(self, job: Job) -> None:
        """Stop working on a job; nothing more is delivered for it."""
        with self._condition:
            if not job.done:
                job.cancelled = job.done = self._disturbed = True
                self.cancelled += 1
                self._condition.notify()

    def retire(self, key: Key) -> None:
        """Forget a version of a prompt."""
        with self._condition:
            self._retired.append(key)

    def close(self, finish: bool) -> None:
        """Take no more jobs, and end the thread when those taken are finished or given up."""
        with self._condition:
            self._closing, self._giving_up = True, self._giving_up or not finish
            self._condition.notify()

    @property
    def waiting(self) -> int:
        return len(self._incoming) + len(self._scoring) + len(self._starting)

    @property
    def decoding(self) -> int:
        return sum(len(group.answers) for group in self._groups)

    # -- the thread --------------------------------------------------------------------------------

    @torch.no_grad()
    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self.waiting or self._groups or self._disturbed):
                    if self._closing:
                        return
                    self._condition.wait()
                incoming, self._incoming = self._incoming, []
            began = time.perf_counter()
            try:
                self._round(incoming)
                self._drop_retired()
            except Exception as error:  # the thread must live, whatever happens
                self._fail_all(incoming, error)
            finished = sum(job.done for job, _ in self._messages)
            self._flush()
            if finished:
                spent = (time.perf_counter() - began) / finished
                before = self._seconds_per_job or spent
                self._seconds_per_job = 0.8 * before + 0.2 * spent

    def _round(self, incoming: list[Job]) -> None:
        self._admit(incoming)
        self._drop_stopped()
        began, most = time.perf_counter(), self.limits.batch_rows
        self._attempt(self._score, self._scoring.take(most, self._budget))
        if self._may_begin():
            answers = [answer for group in self._groups for answer in group.answers]
            self._slots = len(answers)
            self._width = max((a.job.tokens + a.job.max_tokens for a in answers), default=0)
            self._attempt(self._begin, self._starting.take(most, self._budget, self._has_slots))
        self._step_for(time.perf_counter() - began)

    def _may_begin(self) -> bool:
        """Whether answers may begin now, for whose first tokens all those in progress wait: if they
        are many enough, or have waited for a few tokens."""
        waiting = len(self._starting)
        return waiting * FEW_STEPS >= self.decoding or self._steps >= FEW_STEPS

    def _step_for(self, seconds: float) -> None:
        """Generate one more token, and more for as long as was spent on others."""
        until = time.perf_counter() + seconds
        self._step()
        while self._groups and time.perf_counter() < until:
            self._flush()
            self._step()

    def _step(self) -> None:
        """Generate one more token of every answer."""
        self._steps += 1
        for group in self._groups:
            try:
                self._extend(group)
            except Exception as error:
                self._fail([answer.job for answer in group.answers], error)
                group.answers = []
        self._groups = [group for group in self._groups if group.answers]

    def _attempt(self, work: Callable[[list[Job]], None], jobs: list[Job]) -> None:
        """Do the work, in halves if memory is short; an error is that of its jobs."""
        if not jobs:
            return
        try:
            work(jobs)
        except torch.OutOfMemoryError as error:
            self.backbone.free_memory()
            if len(jobs) == 1 or any(job.done or job.unfinished for job in jobs):
                self._fail(jobs, error)
                return
            for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
                self._attempt(work, half)
        except Exception as error:
            self._fail(jobs, error)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if not isinstance(error, UserError):
            log.error("a batch of %d requests failed", len(jobs), exc_info=error)
        for job in dict.fromkeys(jobs):
            self.failed += not job.done
            self._finish(job, error)
        self._disturbed = True  # some may have slots

    def _fail_all(self, incoming: Sequence[Job], error: Exception) -> None:
        answers = [answer for group in self._groups for answer in group.answers]
        jobs = [*incoming, *self._scoring, *self._starting, *(answer.job for answer in answers)]
        self._scoring, self._starting, self._groups = FairQueue[Job](), FairQueue[Job](), []
        self._fail(jobs, error)

    def _finish(self, job: Job, message: Message) -> None:
        """The last message for a job."""
        if not job.done:
            job.done = True
            self._messages.append((job, message))

    def _flush(self) -> None:
        if self._messages:
            messages, self._messages = self._messages, []
            self.deliver(messages)

    # -- the queue ---------------------------------------------------------------------------------

    def _admit(self, jobs: Sequence[Job]) -> None:
        """Tokenise the texts of new jobs together, and put them into the queue."""
        jobs = [job for job in jobs if not job.done]
        if not jobs:
            return
        bank, numbers = self._bank(jobs, load=False)
        texts = [(number, job.text) for number, job in zip(numbers, jobs, strict=True)]
        try:
            rows = bank.token_ids(texts)
        except Exception as error:  # a template that cannot be filled in
            if len(jobs) == 1:
                self._fail(jobs, error)
            else:
                for job in jobs:
                    self._admit([job])
            return
        for job, (_, row) in zip(jobs, rows, strict=True):
            try:
                job.row = self._checked(job, list(row))
            except UserError as error:
                self._fail([job], error)
                continue
            queue = self._scoring if job.sampling is None else self._starting
            queue.push(job, job.tenant, job.tokens, job.priority)

    def _checked(self, job: Job, row: list[int]) -> list[int]:
        """A job's row, truncated as `predict` truncates it, if the model can process it. Of a
        conversation, the newest words would be cut off, so it is not truncated."""
        predictor, whole = job.prompt.predictor, isinstance(job.text, Conversation)
        truncated = row if whole else predictor.truncate(row)
        if len(truncated) < len(row) and not self.limits.truncate:
            raise TooLong(
                f"The text has {len(row)} tokens; the prompt {job.prompt.name} reads at most "
                f"{predictor.budget}."
            )
        limit = self._max_positions
        if (job.sampling is not None or whole) and limit is not None:
            length = predictor.prompt.config.length + len(truncated)
            together = not self.backbone.model.config.is_encoder_decoder
            if job.max_tokens + together * length > limit:
                raise TooLong(
                    f"An answer of {job.max_tokens} tokens to a text of {len(truncated)} is more "
                    f"than the {limit} tokens that the model takes; ask for fewer."
                )
        return truncated

    def _drop_stopped(self) -> None:
        """Take cancelled and expired jobs out of the queue and out of their slots."""
        answers = [answer for group in self._groups for answer in group.answers]
        now = time.monotonic()
        if self._giving_up or now > self._next_check:
            self._next_check = now + CHECK_EVERY
            for job in [*self._scoring, *self._starting, *(answer.job for answer in answers)]:
                if self._giving_up:
                    self._finish(job, Closed("The engine was shut down."))
                elif not job.done and job.deadline is not None and job.deadline < now:
                    self.expired += 1
                    self._finish(job, DeadlineExceeded("The request timed out."))
            self._disturbed = True
        if self._disturbed:
            self._disturbed = False
            for queue in (self._scoring, self._starting):
                queue.remove(lambda job: job.done)
            for group in self._groups:
                group.leave(lambda answer: answer.job.done)
            self._groups = [group for group in self._groups if group.answers]

    def _drop_retired(self) -> None:
        """Take old versions of prompts off the device, once no row waits for them."""
        with self._condition:
            retired, self._retired = self._retired, []
            if retired:
                waiting = (*self._incoming, *self._scoring, *self._starting)
                used = {job.prompt.key for job in waiting}
                self._retired = [key for key in retired if key in used]
        for key in retired:
            if key not in self._retired:
                self.tier.drop(key)

    def _has_slots(self, job: Job) -> bool:
        """Whether there are slots for all answers of a job, and memory for their keys and
        values; then they are its."""
        assert job.sampling is not None
        slots = self._slots + job.sampling.n
        width = max(self._width, job.tokens + job.max_tokens)
        size = slots * width * self._column_bytes
        fits = slots <= self.limits.slots and size <= self.limits.cache_bytes
        if fits or not self._slots:
            self._slots, self._width = slots, width
            return True
        return False

    # -- the model ---------------------------------------------------------------------------------

    def _bank(self, jobs: Sequence[Job], load: bool = True) -> tuple[ServedBank, list[int]]:
        """A bank of the jobs' prompts, and the number of each job's prompt in it."""
        prompts = list(dict.fromkeys(job.prompt for job in jobs))
        index = {prompt: number for number, prompt in enumerate(prompts)}
        answer_length = max((job.max_tokens for job in jobs if job.sampling is not None), default=0)
        bank = self.tier.bank(prompts, answer_length, load)
        return bank, [index[job.prompt] for job in jobs]

    def _count(self, rows: int) -> None:
        self.passes, self.rows, self.last_batch = self.passes + 1, self.rows + rows, rows

    def _timed(self, began: float, jobs: Sequence[Job]) -> None:
        """Choose the tokens of the next pass by how long this one took."""
        tokens = sum(job.tokens for job in jobs)
        change = min(2.0, self.limits.latency / (time.perf_counter() - began))
        if change < 1:
            self._budget = max(FEW_TOKENS, min(self._budget, tokens) * change)
        else:
            self._budget = min(self.limits.batch_tokens, max(self._budget, tokens * change))

    def _score(self, jobs: list[Job]) -> None:
        """Choose labels, and score targets."""
        began = time.perf_counter()
        bank, numbers = self._bank(jobs)
        queries = [(number, job.row) for number, job in zip(numbers, jobs, strict=True)]
        for kind, batch in bank.split(queries, self.limits):
            rows = [jobs[index] for index in batch]
            scores = bank.score(kind, [queries[i] for i in batch], [job.candidates for job in rows])
            self._count(len(rows))
            values, logs = scores.tolist(), scores.log_softmax(1).exp().tolist()
            for row, job in enumerate(rows):
                if job.target is not None:
                    self._finish(job, values[row][0])
                    continue
                labels = job.prompt.predictor.labels
                best = max(range(len(labels)), key=values[row].__getitem__)
                route = bank.routes.get(row)
                classified = Classified(
                    labels[best],
                    dict(zip(labels, logs[row], strict=False)),
                    None if route is None else tuple(route),
                    job.tokens,
                )
                self._finish(job, classified)
        self._timed(began, jobs)

    def _begin(self, jobs: list[Job]) -> None:
        """Process prompts and texts, and generate the first token of each answer."""
        began, self._steps = time.perf_counter(), 0
        bank, numbers = self._bank(jobs)
        queries = [(number, job.row) for number, job in zip(numbers, jobs, strict=True)]
        for kind, batch in bank.split(queries, self.limits):
            state = bank.prefill(kind, [queries[index] for index in batch])
            self._count(len(batch))
            answers = [answer for index in batch for answer in jobs[index].start()]
            sources = [
                row for row, index in enumerate(batch) for _ in range(jobs[index].unfinished)
            ]
            self._add_tokens(state.logits[torch.tensor(sources).to(state.logits.device)], answers)
            begun = [row for row, answer in enumerate(answers) if not answer.finish_reason]
            if not begun:
                continue
            group = next((group for group in self._groups if group.rows.open), None)
            if group is None:
                group = Group(rows_for(self.backbone, state, self.limits.slots))
                self._groups.append(group)
            lengths = [answers[row].job.tokens for row in begun]
            try:
                group.rows.join(state, [sources[row] for row in begun], lengths, kind.cached)
            except Exception as error:  # the rows may have been moved in some layers only
                self._groups.remove(group)
                self._fail([answer.job for answer in group.answers], error)
                raise
            group.answers += [answers[row] for row in begun]
            if isinstance(group.rows, SlottedRows):
                self._column_bytes = group.rows.column_bytes()
        self._timed(began, jobs)

    def _extend(self, group: Group) -> None:
        """Generate one more token of each answer."""
        logits = group.rows.step([answer.ids[-1] for answer in group.answers])
        self._count(len(group.answers))
        self._add_tokens(logits, group.answers)
        group.leave(lambda answer: answer.finish_reason is not None)

    def _add_tokens(self, logits: Tensor, answers: Sequence[Answer]) -> None:
        for answer, choice in zip(answers, next_tokens(logits, answers), strict=True):
            piece, job = answer.add(*choice), answer.job
            if piece is not None and not job.done:
                self._messages.append((job, piece))
            if answer.finish_reason:
                job.unfinished -= 1
                if not job.unfinished:
                    self._finish(job, None)

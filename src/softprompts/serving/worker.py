"""The worker: one thread that owns the model, and serves the queue in rounds.

In each round it scores the labels of some rows, begins the answers of others, and generates more
tokens of every answer that has begun: one, or as many as take as long as all that did.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..backbone import Backbone, Conversation
from ..backbone.kv_cache import DecodingState
from ..errors import UserError
from ..tuning.bank import BatchKind, Query
from .device_tier import DeviceTier, ServedBank
from .fair_queue import FairQueue
from .jobs import Answer, Job, Message
from .pace import Pace
from .prompt_store import Key
from .recorded_rows import RecordedRows
from .recording import try_recording
from .requests import (
    Classified,
    Closed,
    DeadlineExceeded,
    Limits,
    QueueFull,
    Stopped,
    TooLong,
)
from .row_pool import index_of
from .sampler import next_tokens
from .slots import Rows, rows_for
from .turns import turns_of

log = logging.getLogger("softprompts.serving")

FEW_STEPS = 8
"""Tokens for which answers may wait to begin together, beside eight times as many in progress."""
CHECK_EVERY = 0.02
"""Seconds between checks for jobs that have timed out."""
EARLY = 0.01
"""Seconds by which a timer of an event loop may be early."""
STOPPED = "The engine stopped after an error; restart it."

Batch = tuple[ServedBank, BatchKind, list[Query], list[Job]]
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
        self.tier, self.turns = DeviceTier(backbone, limits), turns_of(backbone.model)
        self._max_positions = backbone.max_positions
        self._condition = threading.Condition()
        self._submitted: list[Job] = []  # but not handed over yet
        self._incoming: list[Job] = []
        self._taken: list[Job] = []  # in this round
        self._closing = self._giving_up = self._stopped = self._disturbed = False
        self._next_check = 0.0
        self._scoring, self._starting = FairQueue[Job](), FairQueue[Job]()
        self._groups: list[Group] = []
        self._steps = 0  # since answers began last
        self._slots = self._width = 0  # taken in this round; tokens of the longest in them
        self._column_bytes = 0.0  # of the keys and values of one token, once known
        self._messages: list[tuple[Job, Message]] = []
        self._finished = 0  # jobs in this round
        self._score_pace, self._begin_pace = (
            Pace(limits.latency, limits.batch_tokens) for _ in range(2)
        )
        self._sizes = 0  # of recorded passes, before this round
        self._seconds_per_job = 0.0
        self._retired: list[Key] = []
        self.passes = self.rows = self.last_batch = 0
        self.refused = self.cancelled = self.expired = self.failed = 0
        self.thread = threading.Thread(target=self._run, name="softprompts-worker", daemon=True)

    # -- from other threads ------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Take a job for the next `hand_over`; raises `QueueFull`, `Closed` or `Stopped`."""
        with self._condition:
            if self._stopped:
                raise Stopped(STOPPED)
            if self._closing:
                raise Closed("The engine is shutting down and accepts no more requests.")
            if self.thread.ident is None:
                raise Closed("The engine is not started; use it inside `async with`.")
            waiting = self.waiting
            if waiting >= self.limits.queue:
                self.refused += 1
                seconds = min(60.0, max(0.05, waiting * self._seconds_per_job))
                raise QueueFull(
                    f"{waiting} requests are waiting; try again in {seconds:.1f} seconds.", seconds
                )
            self._submitted.append(job)

    def hand_over(self) -> None:
        """Give the thread all jobs submitted so far. It takes them in the same round, so they share
        batches."""
        with self._condition:
            if self._submitted:
                self._incoming += self._submitted
                self._submitted.clear()
                self._condition.notify()

    def cancel(self, job: Job) -> None:
        """Stop working on a job; nothing more is delivered for it."""
        with self._condition:
            if not job.done:
                job.done = self._disturbed = True
                late = job.deadline is not None and job.deadline < time.monotonic() + EARLY
                self.expired += late
                self.cancelled += not late
                self._condition.notify()

    def retire(self, key: Key) -> None:
        with self._condition:
            self._retired.append(key)

    def close(self, finish: bool) -> None:
        """Take no more jobs, and end the thread when those taken are finished or given up."""
        with self._condition:
            self._closing, self._giving_up = True, self._giving_up or not finish
            self.hand_over()
            self._condition.notify()

    @property
    def waiting(self) -> int:
        accepted = len(self._submitted) + len(self._incoming)
        return accepted + len(self._scoring) + len(self._starting)

    @property
    def decoding(self) -> int:
        return sum(len(group.answers) for group in self._groups)

    # -- the thread --------------------------------------------------------------------------------

    @torch.no_grad()
    def _run(self) -> None:
        try:
            with self.turns:
                self.tier.recording = try_recording(self.backbone, self.limits)
            while self._wait():
                self._serve()
        except BaseException:  # nobody may wait for a thread that has ended
            with self._condition:
                self._stopped = True
                self.hand_over()
            self._fail_all([*self._taken, *self._incoming], Stopped(STOPPED))
            self._flush()
            raise

    def _wait(self) -> bool:
        """Wait for work; whether there is any, which there is not once all is done and the worker
        is closed."""
        with self._condition:
            while not any(
                (self._incoming, self._scoring, self._starting, self._groups, self._disturbed)
            ):
                if self._closing:
                    return False
                self._condition.wait()
        return True

    def _serve(self) -> None:
        began, self._finished, self._taken = time.perf_counter(), 0, []
        try:
            with self.turns as lasted:
                until = time.perf_counter() + lasted
                with self._condition:
                    self._taken, self._incoming = self._incoming, []
                self._round(until)
                self._drop_retired()
        except Exception as error:  # the thread must live, whatever happens
            self._fail_all(self._taken, error)
        self._flush()
        if self._finished:
            spent = (time.perf_counter() - began) / self._finished
            before = self._seconds_per_job or spent
            self._seconds_per_job = 0.8 * before + 0.2 * spent

    def _round(self, until: float) -> None:
        """A round. It may last until then, as long as that of another engine before."""
        self._admit(self._taken)
        self._drop_stopped()
        began, most = time.perf_counter(), self.limits.batch_rows
        self._attempt(self._score, self._scoring.take(most, self._score_pace.budget))
        if self._may_begin():
            answers = [answer for group in self._groups for answer in group.answers]
            self._slots = len(answers)
            self._width = max((a.job.tokens + a.job.max_tokens for a in answers), default=0)
            budget = self._begin_pace.budget
            self._attempt(self._begin, self._starting.take(most, budget, self._has_slots))
        self._step_for(time.perf_counter() - began, until)

    def _may_begin(self) -> bool:
        """Whether answers may begin now, for whose first tokens all those in progress wait: if they
        are many enough, or have waited for a few tokens."""
        waiting = len(self._starting)
        return waiting * FEW_STEPS >= self.decoding or self._steps >= FEW_STEPS

    def _step_for(self, seconds: float, until: float) -> None:
        """Generate one more token, and more for as long as was spent on others, here or by another
        engine before."""
        began = time.perf_counter()
        self._step()
        now = time.perf_counter()
        end, until = began + seconds, until - (now - began)  # a step early
        while self._groups and now < max(end, until):
            if now >= end:
                self.turns.extend()
            self._flush()
            self._step()
            now = time.perf_counter()

    def _step(self) -> None:
        """Generate one more token of every answer."""
        self._steps += 1
        for group in self._groups:
            try:
                self._extend(group)
            except Exception as error:
                self.tier.on_failed_step(error)
                self._fail([answer.job for answer in group.answers], error)
                group.answers = []
        self._groups = [group for group in self._groups if group.answers]

    def _attempt(self, work: Callable[[list[Job]], None], jobs: list[Job]) -> None:
        """Do the work, in halves if memory is short; an error is that of its jobs."""
        if not jobs:
            return
        short: Exception | None = None
        try:
            work(jobs)
        except torch.OutOfMemoryError as error:
            short = error.with_traceback(None)  # which would keep the tensors of the pass
        except Exception as error:
            self._fail(jobs, error)
        if short is None:
            return
        self.tier.free_memory()
        if len(jobs) == 1 or any(job.done or job.unfinished for job in jobs):
            self._fail(jobs, short)
            return
        for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
            self._attempt(work, half)

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
            self._finished += 1
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
            queue.push(job, job.tenant, job.size, job.priority)

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
        limit, length = self._max_positions, predictor.prompt.config.length + len(truncated)
        if job.target is not None and limit is not None and length + len(job.target) > limit:
            raise TooLong(
                f"A text of {len(truncated)} tokens and a target of {len(job.target)} are more "
                f"than the {limit} tokens that the model takes."
            )
        if (job.sampling is not None or whole) and limit is not None:
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
                accepted = (*self._submitted, *self._incoming)
                waiting = (*accepted, *self._scoring, *self._starting)
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
        if load:
            self.tier.load(prompts)
        bank = ServedBank(self.tier, prompts, answer_length)
        return bank, [index[job.prompt] for job in jobs]

    def _count(self, rows: int) -> None:
        self.passes, self.rows, self.last_batch = self.passes + 1, self.rows + rows, rows

    def _time(self, note: Callable[[int, float], None], jobs: Sequence[Job], began: float) -> None:
        """Note how long passes took; not if one was recorded, which takes longer."""
        if self.tier.recorded_sizes == self._sizes:
            note(sum(job.size for job in jobs), time.perf_counter() - began)

    def _batches(self, jobs: list[Job], pace: Pace) -> Iterator[Batch]:
        """Jobs in batches that one pass can answer; what all of them take sets the pace."""
        began, self._sizes = time.perf_counter(), self.tier.recorded_sizes
        bank, numbers = self._bank(jobs)
        queries = [(number, job.row) for number, job in zip(numbers, jobs, strict=True)]
        for kind, batch in bank.split(queries, [job.size for job in jobs], self.limits):
            yield bank, kind, [queries[index] for index in batch], [jobs[index] for index in batch]
        self._time(pace.choose, jobs, began)

    def _score(self, jobs: list[Job]) -> None:
        """Choose labels, and score targets."""
        for bank, kind, queries, batch in self._batches(jobs, self._score_pace):
            began = time.perf_counter()
            scores = bank.score(kind, queries, [job.candidates for job in batch])
            self._count(len(batch))
            # copied together, because each copy waits for the GPU
            values = torch.stack([scores, scores.log_softmax(1).exp()], dim=1).tolist()
            self._time(self._score_pace.add, batch, began)
            for row, (job, (logs, probabilities)) in enumerate(zip(batch, values, strict=True)):
                if job.target is not None:
                    self._finish(job, logs[0])
                    continue
                labels = job.prompt.predictor.labels
                best = max(range(len(labels)), key=logs.__getitem__)
                route = bank.routes.get(row)
                classified = Classified(
                    labels[best],
                    dict(zip(labels, probabilities, strict=False)),
                    None if route is None else tuple(route),
                    job.tokens,
                )
                self._finish(job, classified)
            self._flush()  # the next pass may take long

    def _begin(self, jobs: list[Job]) -> None:
        """Process prompts and texts, and generate the first token of each answer."""
        self._steps = 0
        for bank, kind, queries, batch in self._batches(jobs, self._begin_pace):
            began = time.perf_counter()
            state = bank.prefill(kind, queries)
            self._count(len(batch))
            answers = [answer for job in batch for answer in job.start()]
            sources = [row for row, job in enumerate(batch) for _ in range(job.unfinished)]
            self._add_tokens(state.logits[index_of(sources, state.logits.device)], answers)
            self._time(self._begin_pace.add, batch, began)
            begun = [row for row, answer in enumerate(answers) if not answer.finish_reason]
            if not begun:
                continue
            group = next((group for group in self._groups if group.rows.open), None)
            if group is None:
                group = Group(self._empty_rows(state))
                self._groups.append(group)
            lengths = [answers[row].job.tokens for row in begun]
            try:
                group.rows.join(state, [sources[row] for row in begun], lengths, kind.cached)
            except Exception as error:  # the rows may have been moved in some layers only
                self._groups.remove(group)
                self._fail([answer.job for answer in group.answers], error)
                raise
            group.answers += [answers[row] for row in begun]
            self._column_bytes = group.rows.column_bytes()

    def _empty_rows(self, state: DecodingState) -> Rows:
        recording = self.tier.recording
        if recording is not None and recording.works:
            return recording.empty_rows()
        return rows_for(self.backbone, state, self.limits.slots)

    def _extend(self, group: Group) -> None:
        logits = self._next_logits(group)
        self._count(len(group.answers))
        self._add_tokens(logits, group.answers)
        group.leave(lambda answer: answer.finish_reason is not None)

    def _next_logits(self, group: Group) -> Tensor:
        tokens = [answer.ids[-1] for answer in group.answers]
        try:
            return group.rows.step(tokens)
        except torch.OutOfMemoryError:
            if not isinstance(group.rows, RecordedRows):
                raise
        self.tier.free_memory()
        return group.rows.step(tokens)  # which has changed nothing yet

    def _add_tokens(self, logits: Tensor, answers: Sequence[Answer]) -> None:
        for answer, choice in zip(answers, next_tokens(logits, answers), strict=True):
            piece, job = answer.add(*choice), answer.job
            if piece is not None and not job.done:
                self._messages.append((job, piece))
            if answer.finish_reason:
                job.unfinished -= 1
                if not job.unfinished:
                    self._finish(job, None)

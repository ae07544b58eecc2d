"""Chat models: a text is the user's turn of the chat template, a target the assistant's.

Rows are [template; text; template], up to where the assistant's answer begins; a target ends with
the token that ends a turn. The ids are those of `apply_chat_template` on the full conversation,
unless its generation prompt begins a reasoning that the conversation leaves out (DeepSeek-R1).
"""

import contextlib
import datetime
import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import UserError, setting
from .backbone import Backbone
from .batch import Text
from .causal import Causal
from .kv_cache import DecodingState
from .speed.packed_rows import PackedRows

TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")
DATE = datetime.date(2024, 7, 26)
"""What templates get for today's date, with which answers would change; Llama 3's own default."""
TUNED = frozenset({"instruct", "chat", "it"})
UNTUNED = frozenset({"base", "pt"})
"""Words in the names of models that were tuned to follow instructions, and that were not."""
PROBES = ("x", "y", "the", "I")  # texts that begin and end unlike each other
MARK = "\ue000"  # stands for an answer; no template has it


class Conversation(str):
    """Several messages, of which the last is the user's. As a text it is their JSON."""

    __slots__ = ()

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, str]]) -> "Conversation":
        """Of messages as chat templates read them: with the keys role and content."""
        return cls(json.dumps([dict(message) for message in messages]))

    @property
    def messages(self) -> list[dict[str, str]]:
        return cast("list[dict[str, str]]", json.loads(self))

    def ending(self, text: str) -> "Conversation":
        """The same conversation with another text of the last message."""
        *earlier, last = self.messages
        return self.of([*earlier, {**last, "content": text}])


class Chat(Causal):
    """The same frozen model, with texts and targets as turns of a conversation."""

    def __init__(self, base: Causal) -> None:
        self.__dict__ |= base.__dict__
        self.base = base
        try:
            template = self.tokenizer.get_chat_template()
        except ValueError as error:  # several templates, none of them the default
            raise self._unusable(error) from None
        self.chat_template = TODAY.sub(lambda call: repr(DATE.strftime(call[2])), template)
        rows = self.token_ids(PROBES)
        self._opening = rows[0][: _shared(rows)]
        self._closing = _shared([row[::-1] for row in rows])
        (prompt,), (conversation,) = self._render(["x"]), self._render(["x"], [MARK])
        before, mark, after = conversation.partition(MARK)
        if not mark:
            raise self._unusable("it leaves out what the assistant says")
        self._prompt, self._after = prompt, len(after)
        self._before = len(prompt if before.startswith(prompt) else before)
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.get_added_vocab().values()}
        ids = self._ids([after])[0] if after else []
        ends = [position for position, index in enumerate(ids) if index in special]
        self.marks_ends = bool(ends)
        self.end_of_turn = ids[: ends[0] + 1] if ends else super().tokenise_targets([""])[0][-1:]

    def _unusable(self, why: object) -> UserError:
        return UserError(
            f"The chat template of {self.name} cannot be used ({why}); turn off "
            f"{setting('tuning.chat')}."
        )

    def _render(self, texts: Sequence[str], answers: Sequence[str] = ()) -> list[str]:
        """Conversations up to the answer, or with answers to their end, as strings."""
        turns = [
            text.messages if isinstance(text, Conversation) else [{"role": "user", "content": text}]
            for text in texts
        ]
        for turn, answer in zip(turns, answers, strict=False):
            turn.append({"role": "assistant", "content": answer})
        try:
            rendered = self.tokenizer.apply_chat_template(
                turns,
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=not answers,
                enable_thinking=False,  # targets have no reasoning (Qwen 3)
            )
        except Exception as error:  # a template is a program and can fail in any way
            if any(isinstance(text, Conversation) for text in texts):
                raise UserError(
                    f"The chat template of {self.name} does not take these messages ({error})."
                ) from None
            raise self._unusable(error) from None
        return cast("list[str]", rendered)

    def _ids(self, strings: Sequence[str]) -> list[list[int]]:
        """Templates write all special tokens themselves, <bos> included."""
        encoded = self.tokenizer(list(strings), add_special_tokens=False, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    # -- the model, which the base holds -----------------------------------------------------------

    @property
    def frozen(self) -> bool:  # type: ignore[override]
        return self.base.frozen

    @property
    def packed(self) -> PackedRows | None:
        return self.base.packed

    def decoding_step(self, state: DecodingState, steps: int) -> Any:
        return self.base.decoding_step(state, steps)

    def free_memory(self) -> None:
        self.base.free_memory()

    # -- texts -------------------------------------------------------------------------------------

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text in its template, up to where the answer begins."""
        return self._ids(self._render(texts)) if texts else []

    @property
    def special_token_counts(self) -> tuple[int, int]:
        """<bos>, if the template begins with it; and the template after the text."""
        added = self.base.special_token_counts[0] > 0
        return int(added and self._opening[:1] == [self.tokenizer.bos_token_id]), self._closing

    def truncate(self, row: Sequence[int], budget: int) -> list[int]:
        """Shortens the text; the template stays."""
        template = len(self._opening) + self._closing
        if budget <= template:
            raise UserError(
                f"The chat template takes {template} tokens, and the prompt leaves "
                f"{max(budget, 0)}; raise {setting('tuning.max_length')}, shorten the prompt, or "
                f"turn off {setting('tuning.chat')}."
            )
        return super().truncate(row, budget)

    def content_mask(self, text: Text) -> Tensor:
        columns = torch.arange(text.mask.shape[1], device=text.mask.device)
        end = text.mask.sum(1, keepdim=True) - self._closing
        return text.mask * ((columns >= len(self._opening)) & (columns < end))

    # -- targets -----------------------------------------------------------------------------------

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """As the assistant says them after the template, with the end of its turn."""
        if not texts:
            return []
        conversations = self._render(["x"] * len(texts), texts)
        answers = [said[self._before : len(said) - self._after] for said in conversations]
        prompt, *rows = self._ids([self._prompt, *(self._prompt + answer for answer in answers)])
        return [
            [
                *(row[len(prompt) :] if row[: len(prompt)] == prompt else self.pieces(answer)),
                *self.end_of_turn,
            ]
            for row, answer in zip(rows, answers, strict=True)
        ]

    @property
    def eos_ids(self) -> set[int]:
        return super().eos_ids | {self.end_of_turn[-1]}

    def decode(self, ids: Tensor) -> list[str]:
        """The end of a turn may be a token that the tokenizer does not call special."""
        ends = super().eos_ids | {*self.end_of_turn}
        rows = [[index for index in row if index not in ends] for row in ids.tolist()]
        return [t.strip() for t in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]


def has_chat_template(backbone: Backbone) -> bool:
    """Whether texts can be turns of a conversation with the model."""
    return isinstance(backbone, Causal) and bool(getattr(backbone.tokenizer, "chat_template", None))


def with_chat(backbone: Backbone, chat: bool | None) -> Backbone:
    """The same frozen model, with its chat template if `chat`."""
    if not chat:
        return backbone
    if not has_chat_template(backbone):
        raise UserError(
            f"{backbone.name} has no chat template; leave out {setting('tuning.chat')}, or choose "
            f"an instruction-tuned decoder-only {setting('model')}."
        )
    return cast(Backbone, _chat_family(type(backbone))(backbone))


@functools.cache
def _chat_family(family: type[Backbone]) -> Any:
    """A subclass of the backbone's own class, which may be a plugin's."""
    return type(f"Chat{family.__name__}", (Chat, family), {})


def chats_by_default(backbone: Backbone) -> bool:
    """Whether a model was tuned to follow instructions in a chat template.

    Its tokenizer has a template, and either its name has a word such as instruct, or the token
    that its template ends a turn with is one of the model's ends of sequence; unless its name says
    base.
    """
    words = set(re.split(r"[^a-z0-9]+", re.split(r"[/\\]", backbone.name.lower().rstrip("/"))[-1]))
    if not has_chat_template(backbone) or words & UNTUNED:
        return False
    with contextlib.suppress(UserError):  # the template cannot be used
        view = cast(Chat, with_chat(backbone, True))
        ends_alike = view.marks_ends and view.end_of_turn[-1] in backbone.eos_ids
        return bool(words & TUNED) or ends_alike
    return False


def _shared(rows: Sequence[Sequence[int]]) -> int:
    """How many ids all rows begin with."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda ids: len(set(ids)) == 1, columns))

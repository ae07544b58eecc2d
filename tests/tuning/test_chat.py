"""Runs, saved prompts and engines with chat templates, and prompts from before there were any."""

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone, with_chat
from softprompts.backbone.chat import Chat
from softprompts.cli import main
from softprompts.config import expand_lists, run_config
from softprompts.errors import UserError
from softprompts.serving.engine import Engine
from softprompts.tasks import load_task
from softprompts.transfer.recycle import recycle, recycled_card
from softprompts.transfer.settings import Recycling
from softprompts.tuning import Run
from softprompts.tuning.cohort import Cohort
from softprompts.tuning.tokens import cached_ids
from softprompts.tuning.tune import tune_cohort, tune_config
from softprompts.tuning.tuned import Tuned, load

from ..chat_models import chat_model

TEXTS = ["the food was great", "never again", "I love it"]


def settings(toy: Path, **tuning: Any) -> dict[str, Any]:
    return {
        "preset": "prompt-tuning",
        "device": "cpu",
        "task": {"train": str(toy), "text": "review", "label": "mood"},
        "prompt": {"length": 3},
        "tuning": {
            "steps": 4,
            "batch_size": 4,
            "evaluate_every": 4,
            "checkpoint_every": 2,
            "baselines": False,
            "max_length": 120,
            **tuning,
        },
    }


def tuned_with(toy: Path, folder: Path | None = None, **tuning: Any) -> Tuned:
    return tune_config(run_config(settings(toy, **tuning)), folder, backbone=chat_model())


def test_an_instruct_model_chats_by_default(toy_csv: Path, tmp_path: Path) -> None:
    tuned = tuned_with(toy_csv, tmp_path / "run")
    assert tuned.card.chat
    assert "chat: true" in (tmp_path / "run" / "config.yaml").read_text()
    again = load(tmp_path / "run", backbone=chat_model())
    assert again.probabilities(TEXTS) == tuned.probabilities(TEXTS)


def test_labels_are_scored_as_the_assistants_turn(toy_csv: Path) -> None:
    tuned, view = tuned_with(toy_csv, chat=True), with_chat(chat_model(), True)
    text = view.embed_rows(view.token_ids(TEXTS))
    vectors = tuned.prompt.table.expand(len(TEXTS), -1, -1)
    labels = tuned.form.labels
    shares = view.scores(vectors, text, [view.tokenise_targets(labels)] * len(TEXTS)).softmax(1)
    for row, expected in zip(tuned.probabilities(TEXTS), shares.tolist(), strict=True):
        assert [row[label] for label in labels] == pytest.approx(expected, rel=1e-4)
    plain = tuned_with(toy_csv, chat=False)
    assert not plain.card.chat
    assert plain.probabilities(TEXTS)[0] != pytest.approx(tuned.probabilities(TEXTS)[0], rel=1e-3)


def test_rows_are_conversations(toy_csv: Path) -> None:
    config = run_config(settings(toy_csv))
    task = load_task(config.task)
    run, view = Run(config, task, chat_model()), with_chat(chat_model(), True)
    assert list(run.inputs) == view.token_ids([example.input for example in task.train])
    assert list(run.targets) == view.tokenise_targets([example.target for example in task.train])


def test_cached_ids_depend_on_the_template() -> None:
    views = [with_chat(chat_model(family), True) for family in ("qwen-2.5", "smollm-2")]
    for backbone in (chat_model("qwen-2.5"), *views):
        ids = cached_ids(backbone, TEXTS).read(backbone, range(len(TEXTS)))
        assert [row.tolist() for row in ids] == backbone.token_ids(TEXTS)


def test_an_instruction_that_leaves_no_tokens_is_refused(toy_csv: Path) -> None:
    with pytest.raises(UserError, match=r"The chat template takes \d+ tokens.*raise max_length"):
        tuned_with(toy_csv, max_length=40)


# -- what others saved -----------------------------------------------------------------------------


def forget_chat(folder: Path) -> None:
    """Make a run one of a version that had no chat templates."""
    run = RunFolder(folder)
    card = json.loads((folder / "prompt.json").read_text())
    assert card["config"]["tuning"].pop("chat") is False
    (folder / "prompt.json").write_text(json.dumps(card))
    tensors, note = run.read_checkpoint()
    assert note["config"]["tuning"].pop("chat") is False
    run.write_checkpoint(tensors, note)


def test_a_prompt_from_before_answers_and_resumes_without(toy_csv: Path, tmp_path: Path) -> None:
    before = tuned_with(toy_csv, tmp_path / "run", chat=False, schedule="constant")
    forget_chat(tmp_path / "run")
    old = load(tmp_path / "run", backbone=chat_model())
    assert old.probabilities(TEXTS) == before.probabilities(TEXTS)
    assert tuned_with(toy_csv, tmp_path / "run", schedule="constant").cost is None
    longer = {"steps": 8, "schedule": "constant"}
    resumed = tuned_with(toy_csv, tmp_path / "run", **longer)
    assert resumed.cost is not None
    assert resumed.cost["from_step"] == 4
    assert resumed.card.config["tuning"]["chat"] is False
    at_once = tuned_with(toy_csv, chat=False, **longer)
    torch.testing.assert_close(resumed.prompt.table, at_once.prompt.table)
    with pytest.raises(UserError, match="chat was False and is now True"):
        tuned_with(toy_csv, tmp_path / "run", chat=True, **longer)


def test_a_new_run_of_a_cohort_is_like_those_from_before(toy_csv: Path, tmp_path: Path) -> None:
    tuned_with(toy_csv, tmp_path / "seed=0", chat=False)
    forget_chat(tmp_path / "seed=0")
    members = expand_lists({**settings(toy_csv), "seed": [0, 1]})
    runs = tune_cohort(members, tmp_path, backbone=chat_model())
    assert [run.card.chat for run in runs if isinstance(run, Tuned)] == [False, False]


# -- prompts side by side --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["prefix", "suffix"])
@pytest.mark.parametrize("preset", ["prompt-tuning", "smop"])
def test_runs_with_and_without_share_a_cohort_and_an_engine(
    toy_csv: Path, place: str, preset: str
) -> None:
    shared = settings(toy_csv) | {"preset": preset, "prompt": {"length": 3, "place": place}}
    members = expand_lists(shared | {"tuning": {**shared["tuning"], "chat": [False, True]}})
    runs = cast("list[Tuned]", tune_cohort(members, None, backbone=chat_model()))
    for member, tuned in zip(members, runs, strict=True):
        alone = tune_config(member.config, None, backbone=chat_model())
        torch.testing.assert_close(tuned.prompt.table, alone.prompt.table, rtol=1e-3, atol=1e-4)
    engine = Engine(chat_model(), {"plain": runs[0], "chat": runs[1]}, verbose=False)
    questions = [(name, text) for text in TEXTS for name in ("plain", "chat")]
    answers = iter(engine.probabilities(questions))
    generated = Engine(chat_model(), {"plain": runs[0], "chat": runs[1]}, scoring="generate")
    written = iter(generated.answer(questions))
    for text in TEXTS:
        for tuned in runs:
            (alone_answer,) = tuned.probabilities([text])
            assert next(answers) == pytest.approx(alone_answer, rel=1e-3)
            assert next(written) == tuned.predict([text], scoring="generate")[0]


def test_a_prompt_after_bos_is_cached_before_the_template(toy_csv: Path) -> None:
    """And a saved one is used alike with and without the cache."""
    model = chat_model("llama-3")
    config = run_config(settings(toy_csv), {"prompt": {"length": 3, "place": "after-bos"}})
    tuned = tune_config(config, None, backbone=model)
    view, bos = with_chat(model, True), model.tokenizer.bos_token_id
    bank = tuned.predictor()._bank
    assert bank.openings == [[bos]]
    assert all(bank._cached([(0, row) for row in view.token_ids(TEXTS)]))
    text = view.embed_rows(view.token_ids(TEXTS), "after-bos")
    vectors = tuned.prompt.table.expand(len(TEXTS), -1, -1)
    candidates = [view.tokenise_targets(tuned.form.labels)] * len(TEXTS)
    shares = view.scores(vectors, text, candidates).softmax(1)
    for row, expected in zip(tuned.probabilities(TEXTS), shares.tolist(), strict=True):
        assert list(row.values()) == pytest.approx(expected, rel=1e-3)


def test_a_router_reads_the_text_in_training_and_in_use(toy_csv: Path) -> None:
    config = run_config(settings(toy_csv), {"preset": "smop"})
    task = load_task(config.task)
    run = Run(config, task, chat_model())
    view, counts = cast(Chat, run.backbone_with_head), list[int]()
    run.prompt.register_forward_pre_hook(lambda _, inputs: counts.extend(inputs[1].sum(1).tolist()))
    batches = run.micro_batches()
    Cohort([run], [None]).step()
    template = len(view._opening) + view._closing
    assert counts == [len(row) - template for batch in batches for row in batch.inputs]
    counts.clear()
    run.predictor()(TEXTS)
    assert sorted(counts) == sorted(len(row) - template for row in view.token_ids(TEXTS))


def test_the_mean_prompt_of_a_mixture_is_that_of_the_texts(toy_csv: Path) -> None:
    config = run_config(settings(toy_csv), {"preset": "smop"})
    tuned = tune_config(config, None, backbone=chat_model())
    view = with_chat(chat_model(), True)
    text = view.embed_rows(view.token_ids(TEXTS))
    expected = tuned.prompt(text.embeds, view.content_mask(text)).mean(0)
    torch.testing.assert_close(tuned.averaged(TEXTS).prompt.table[0], expected.detach())


# -- other models ----------------------------------------------------------------------------------


def test_a_recycled_prompt_chats_if_the_new_model_can(toy_csv: Path) -> None:
    tuned, how = tuned_with(toy_csv), Recycling.of({"method": "words"})
    target = chat_model("smollm-2", "another-instruct")
    plain = chat_model("smollm-2", "without a template")
    plain.tokenizer.chat_template = None
    for backbone, expected in ((target, True), (plain, False)):
        prompt = recycle(tuned.prompt, tuned.backbone, backbone, how)
        card = recycled_card(tuned.card, "it", prompt, backbone, how, 1)
        assert card.chat is expected
        assert len(Tuned(prompt, backbone, card).predict(TEXTS, verbose=False)) == len(TEXTS)


def test_models_that_cannot_chat_are_refused(
    toy_csv: Path, t5: Backbone, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_config(settings(toy_csv, chat=True))
    with pytest.raises(UserError, match="random-t5 has no chat template; leave out chat"):
        tune_config(config, None, backbone=t5)
    assert not tune_config(run_config(settings(toy_csv)), None, backbone=t5).card.chat
    data = ["--train", str(toy_csv), "--text", "review", "--label", "mood", "--device", "cpu"]
    assert main(["tune", *data, "--chat", "--quiet"]) == 2
    assert "t5-tiny has no chat template; leave out --chat" in capsys.readouterr().err


def test_python_takes_yes_no_and_none(toy_csv: Path) -> None:
    config = run_config(settings(toy_csv))
    for value, expected in (("yes", True), ("no", False), ("none", None), (True, True)):
        changed = dataclasses.replace(config.tuning, chat=value)
        assert changed.chat is expected
    with pytest.raises(UserError, match="chat is 'maybe'; give yes or no"):
        dataclasses.replace(config.tuning, chat="maybe")  # type: ignore[arg-type]

"""Plain names of tasks in figures."""

from softprompts.tasks import BENCHMARKS
from softprompts.tasks.plain_names import plain_names


def test_figures_name_tasks_as_papers_do() -> None:
    names = ["spot_sources/squad", "glue/sst2", "glue/qnli+glue/qqp", "helpdesk/intent", "mine"]
    assert list(plain_names(names).values()) == [
        *("SQuAD", "SST-2", "QNLI+QQP", "helpdesk/intent", "mine")
    ]


def test_tasks_of_the_same_plain_name_keep_their_full_names() -> None:
    assert plain_names(["glue/rte", "superglue/rte"]) == {
        "glue/rte": "glue/rte",
        "superglue/rte": "superglue/rte",
    }


def test_every_task_of_the_transfer_study_has_a_plain_name() -> None:
    tasks = [*BENCHMARKS["spot-sources"], *BENCHMARKS["spot-targets"]]
    assert all("/" not in name for name in plain_names(tasks).values())

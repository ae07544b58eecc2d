"""Tasks: rows in, text pairs out; predictions in, metrics out."""

from .doubts import doubtful_classes, repeated_rows
from .load import check_task, load_task, own_split, preview_task
from .memory import register_data, register_rows, table_rows
from .metrics import has_metric, register_metric, rounded, score
from .named import DATA_VARIABLE, check_labelled, data_folder, has_rows, named_split
from .prefix_lm import PREFIX_LM
from .registry import BENCHMARKS, definition, definitions, register_task
from .sources import Row, is_file, read_predictions, read_rows
from .starter import STARTERS
from .task import MEAN, Task, mixture_names
from .task_definition import Definition, Example
from .text_format import TextFormat, check_template, prepend_sentinel

__all__ = [
    "BENCHMARKS",
    "DATA_VARIABLE",
    "MEAN",
    "PREFIX_LM",
    "STARTERS",
    "Definition",
    "Example",
    "Row",
    "Task",
    "TextFormat",
    "check_labelled",
    "check_task",
    "check_template",
    "data_folder",
    "definition",
    "definitions",
    "doubtful_classes",
    "has_metric",
    "has_rows",
    "is_file",
    "load_task",
    "mixture_names",
    "named_split",
    "own_split",
    "prepend_sentinel",
    "preview_task",
    "read_predictions",
    "read_rows",
    "register_data",
    "register_metric",
    "register_rows",
    "register_task",
    "repeated_rows",
    "rounded",
    "score",
    "table_rows",
]

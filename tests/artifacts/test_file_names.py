"""Files of runs, prompts, libraries, studies and transfers are named in `artifacts/` only."""

import ast
from pathlib import Path

import softprompts
from softprompts.artifacts import file_names, library_folder, run_folder, transfer_folder

SOURCE = Path(softprompts.__file__).parent
NAMES = {
    *(*run_folder.FILES, file_names.COHORT_TABLE),
    *(file_names.STUDY_FILE, file_names.PLAN, file_names.RESULT, file_names.LEASE),
    *(library_folder.INDEX, library_folder.LOCK, transfer_folder.CHOICE),
}


def test_files_are_named_in_one_place() -> None:
    named = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.value}"
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "artifacts"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert named == []

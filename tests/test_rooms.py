"""How the code is laid out: imports at the top, tests beside the rooms they test."""

import ast
from pathlib import Path

import softprompts

SOURCE, TESTS = Path(softprompts.__file__).parent, Path(__file__).parent
OPTIONAL = {
    *("datasets", "pyarrow", "matplotlib", "scipy", "ray", "sacrebleu", "rouge_score", "openai"),
    "torch.distributed",  # not part of every build of torch
    "numpy",  # slow to import, and bad input is refused without it
}


def late_imports(path: Path) -> set[str]:
    """The modules that functions of a file import; relative ones begin with a dot."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    names = set()
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def test_functions_import_only_optional_packages_and_commands_what_needs_torch() -> None:
    late = {path.relative_to(SOURCE): late_imports(path) for path in SOURCE.rglob("*.py")}
    unexpected = [
        f"{path}: {name}"
        for path, names in late.items()
        for name in names
        if not any(name == package or name.startswith(f"{package}.") for package in OPTIONAL)
        and not (path.parts[0] == "cli" and name.startswith("."))
    ]
    assert unexpected == []


def test_tests_mirror_the_source() -> None:
    def folders(root: Path) -> set[str]:
        return {str(path.parent.relative_to(root)) for path in root.rglob("*.py")}

    packages = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
    assert folders(TESTS) - packages <= {"saved", "golden"}
    assert packages - folders(TESTS) <= {"tasks/starter", "study/recipes"}


def test_tests_do_not_change_the_search_path() -> None:
    changed = ("sys.path." + "insert", "sys.path." + "append")
    files = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    assert [path for path in files if any(c in path.read_text("utf-8") for c in changed)] == []

"""The public names: all there, typed, documented, and loaded only when used."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import softprompts

from .processes import ForkServer

ROOT = Path(__file__).parents[1]
TYPES = """
import softprompts
reveal_type(softprompts.tune("helpdesk/intent", steps=3, prompt={"length": 2}))
reveal_type(softprompts.tune("helpdesk/intent", seed=[0, 1]))
reveal_type(softprompts.tune(["helpdesk/intent", "helpdesk/area"]))
reveal_type(softprompts.load("runs/intent"))
reveal_type(softprompts.transfer("helpdesk/intent", output="runs/x"))
reveal_type(softprompts.load_backbone())
reveal_type(softprompts.Study.load("study.yaml"))
"""


@pytest.mark.parametrize("name", softprompts.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(softprompts, name) is not None
    assert f"`{name}" in (ROOT / "docs" / "python.md").read_text() or name == "__version__"


def documented_signatures() -> list[tuple[str, Callable[..., Any], str]]:
    """What docs/python.md calls a function or a method, the thing itself, and its arguments."""
    signatures: list[tuple[str, Callable[..., Any], str]] = []
    for section in (ROOT / "docs" / "python.md").read_text().split("\n## ")[1:]:
        for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            for name, arguments in re.findall(r"^(\w+)\((.*?)\)(?: ->|$)", code, re.M | re.DOTALL):
                if name in softprompts.__all__:
                    signatures.append((name, getattr(softprompts, name), arguments))
        owner = getattr(softprompts, section.partition("`")[2].partition("`")[0], None)
        for name, arguments in re.findall(r"`(?:await )?(\w+)\(([^`]*)\)`", section):
            if inspect.isclass(owner) and hasattr(owner, name):
                method = getattr(owner, name)
                signatures.append((f"{owner.__name__}.{name}", method, f"self, {arguments}"))
    return signatures


@pytest.mark.parametrize(("name", "thing", "arguments"), documented_signatures())
def test_documented_signatures_are_those_of_the_code(
    name: str, thing: Callable[..., Any], arguments: str
) -> None:
    scope: dict[str, Any] = {}
    exec(f"def documented({arguments.replace('...', '')}): pass", scope)
    documented, code = (
        [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]
        for parameters in (
            inspect.signature(scope["documented"]).parameters.values(),
            inspect.signature(thing).parameters.values(),
        )
    )
    is_partial = "..." in arguments or "." in name
    assert documented == (code[: len(documented)] if is_partial else code)


def test_the_signatures_of_classes_and_functions_are_documented() -> None:
    names = {name for name, _, _ in documented_signatures()}
    assert {"tune", "Engine", "Tuned.predict", "AsyncEngine.classify", "Library.search"} <= names


def test_the_table_of_the_page_lists_all_its_sections() -> None:
    top, *sections = (ROOT / "docs" / "python.md").read_text().split("\n## ")
    titles = [section.partition("\n")[0] for section in sections]
    anchors = [title.lower().replace("`", "").replace(" ", "-") for title in titles]
    assert [anchor for anchor in anchors if f"(#{anchor})" not in top] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        softprompts.tuna  # noqa: B018


def test_without_its_extra_the_server_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "softprompts.serving.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(
        softprompts.UserError, match=r"needs uvicorn; run pip install 'softprompts\[serve\]'"
    ):
        softprompts.create_app  # noqa: B018


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, softprompts; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_transfer_is_the_function_whatever_was_imported_before(torch_server: ForkServer) -> None:
    code = (
        "import softprompts, softprompts.transfer.strategies\n"
        "from softprompts.transfer.sources import start_mismatch\n"
        "assert callable(softprompts.transfer), softprompts.transfer"
    )
    assert torch_server.run([], code=code).returncode == 0


@pytest.mark.slow
def test_a_type_checker_knows_what_comes_back(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(TYPES)
    command = [sys.executable, "-m", "mypy"]  # as `make test`, whose cache makes it quick
    checked = subprocess.run(
        [*command, str(tmp_path / "use.py")], capture_output=True, text=True, cwd=ROOT, check=False
    )
    revealed = [
        line.partition('"')[2].rstrip('"').replace("softprompts.tuning.", "")
        for line in checked.stdout.splitlines()
        if "Revealed type" in line
    ]
    many = "list[tuned.Tuned | run.RunFailedError]"
    assert revealed == [
        "tuned.Tuned", many, many, "tuned.Tuned", "tuned.Tuned",
        "softprompts.backbone.backbone.Backbone", "softprompts.study.study.Study",
    ], checked.stdout  # fmt: skip

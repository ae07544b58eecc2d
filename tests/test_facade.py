"""The public names: all there, typed, documented, and loaded only when used."""

import subprocess
import sys
from pathlib import Path

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


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        softprompts.tuna  # noqa: B018


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

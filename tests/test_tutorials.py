"""docs/tutorials: their commands exist, without torch, and so do the files they link."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
PARSE = """
import json, sys
from softprompts.cli import load_command
from softprompts.cli.flags import parse_run
from softprompts.config import expand_lists

wrong = []
for command, *rest in json.load(sys.stdin):
    try:
        actions = getattr(load_command(command), "ACTIONS", {})
        parser = (actions[rest[0]] if actions else load_command(command).main).parser()
        if command in ("tune", "transfer"):
            expand_lists(*parse_run(parser, rest).layers)
        else:
            parser.parse_args(rest[1:] if actions else rest)
    except Exception as error:
        wrong.append([" ".join([command, *rest]), str(error)])
assert "torch" not in sys.modules
print(json.dumps(wrong))
"""


def console_commands(page: str) -> list[list[str]]:
    """The `softprompts` commands after the `$` of a page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", page, flags=re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
    return [command[1:] for command in words if command[0] == "softprompts"]


def wrong_commands(commands: list[list[str]]) -> list[list[str]]:
    process = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return list(json.loads(process.stdout))


def test_every_command_of_the_tutorials_parses_without_torch() -> None:
    pages = {path.name: console_commands(path.read_text()) for path in TUTORIALS}
    assert set(pages) == {"first-hour.md", "many-tasks.md", "paper-table.md"}
    assert all(len(commands) >= 4 for commands in pages.values()), pages
    assert wrong_commands([command for commands in pages.values() for command in commands]) == []


def test_a_wrong_command_of_a_tutorial_is_noticed() -> None:
    page = (
        "```console\n$ softprompts tune --task a \\\n    --stepz 5\n$ softprompts study rnu x\n```"
    )
    commands = console_commands(page)
    assert commands == [["tune", "--task", "a", "--stepz", "5"], ["study", "rnu", "x"]]
    assert [command for command, _ in wrong_commands(commands)] == list(map(" ".join, commands))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.name)
def test_linked_files_and_pictures_of_the_tutorials_exist(path: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(path.read_text())]
    local = [path.parent / link for link in links if link and not link.startswith("http")]
    assert [str(file) for file in local if not file.exists()] == []
    pictures = [file for file in local if file.suffix == ".png"]
    assert pictures, "a tutorial shows what its commands draw"
    assert all(picture.stat().st_size < 80_000 for picture in pictures)
    data = path.with_suffix("")
    assert set(data.iterdir()) - {data / "__pycache__"} <= set(local), "every input file is linked"


def test_the_tutorials_are_linked() -> None:
    for page, folder in ((ROOT / "README.md", "docs/tutorials/"), (ROOT / "docs/index.md", "")):
        text = page.read_text()
        for path in TUTORIALS:
            assert f"({folder or 'tutorials/'}{path.name})" in text, page


def test_files_shown_in_the_tutorials_are_the_ones_beside_them() -> None:
    """A reader who copies from the page and one who copies the file do the same."""
    page = (ROOT / "docs/tutorials/paper-table.md").read_text()
    shown = re.search(r"^```yaml\n(.*?)^```", page, flags=re.M | re.S)
    assert shown is not None
    file = (ROOT / "docs/tutorials/paper-table/table.yaml").read_text()
    assert yaml.safe_load(shown[1]) == yaml.safe_load(file)

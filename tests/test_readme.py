"""What a newcomer needs first is in the README: how to get it, enter it, and read its words."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_commands_are_in_order() -> None:
    block = README.partition("```bash\n")[2].partition("```")[0]
    commands = [line.partition("#")[0].split() for line in block.splitlines()]
    assert [words[0] for words in commands] == ["git", "cd", "make", "."]
    assert commands[0][:2] == ["git", "clone"]
    assert commands[2] == ["make", "demo"]
    assert "demo:" in (ROOT / "Makefile").read_text()
    assert commands[3] == [".", ".venv/bin/activate"]


def test_the_readme_concedes_what_the_page_on_choosing_does() -> None:
    text = " ".join(README.split())
    assert "a bag of words beats a prompt on a 14M model. Prompts pay off with" in text
    assert "bag of words" in (ROOT / "docs/choosing.md").read_text()


def test_our_own_words_are_explained() -> None:
    assert "](docs/glossary.md)" in README
    glossary = (ROOT / "docs/glossary.md").read_text()
    ours = "fold router unit cohort card fingerprint backbone preset library study"
    assert [word for word in ours.split() if f"**{word}**" not in glossary] == []

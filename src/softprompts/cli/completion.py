"""The command `softprompts completion`: scripts for shells, which ask back what may come next."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from ..config.kinds import TABLES
from ..errors import UserError, as_flag
from . import COMMANDS, run_command
from .command import ACTIONS, Parser, make_parser

EXAMPLES = """eval "$(softprompts completion bash)"       # in ~/.bashrc
  eval "$(softprompts completion zsh)"        # in ~/.zshrc, after compinit
  softprompts completion fish | source        # in ~/.config/fish/config.fish"""

SCRIPTS = {
    "bash": """_softprompts() {
  local IFS=$'\\n'
  COMPREPLY=($(softprompts completion next "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _softprompts softprompts""",
    "zsh": """_softprompts() {
  local -a found
  found=("${(@f)$(softprompts completion next "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
  if [[ -n "$found" ]]; then compadd -Q -a found; else _files; fi
}
compdef _softprompts softprompts""",
    "fish": """function __softprompts_next
  set -l words (commandline -opc) (commandline -ct)
  softprompts completion next $words[2..-1] 2>/dev/null
end
complete -c softprompts -a '(__softprompts_next)'""",
}


def main(argv: Sequence[str]) -> int:
    """Print a completion script for bash, zsh or fish."""
    if argv and argv[0] == "next":
        print("\n".join(complete(argv[1:] or [""])))
        return 0
    parser = make_parser("completion", EXAMPLES, main.__doc__)
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")
    options = parser.parse_args(argv)
    if options.shell not in SCRIPTS:
        raise UserError(
            f"There is no script for {options.shell!r}; choose one of {', '.join(SCRIPTS)}."
        )
    print(SCRIPTS[options.shell])
    return 0


def complete(words: Sequence[str]) -> list[str]:
    """What the last word may become; nothing where a file name is expected."""
    *before, last = words
    if not before:
        return _matching(last, COMMANDS)
    if len(before) == 1 and before[0] in ACTIONS and not last.startswith("-"):
        return _matching(last, ACTIONS[before[0]])
    parser = _parser_of(before)
    if parser is None:
        return []
    previous = parser._option_string_actions.get(before[-1])
    if previous is not None and previous.nargs != 0:
        start, comma, part = last.rpartition(",")
        values = getattr(previous, "words", None) or previous.choices or ()
        return [f"{start}{comma}{value}" for value in _matching(part, map(str, values))]
    return _matching(last, [*parser._option_string_actions, *_options_of_kinds(before, parser)])


def _matching(start: str, names: Any) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _options_of_kinds(words: Sequence[str], parser: Parser) -> list[str]:
    """The options of the kinds that the command names, such as --prompt.shape.bottleneck."""
    found = []
    for table in TABLES.values():
        flag = as_flag(table.path)
        if flag in words[:-1] and flag in parser._option_string_actions:
            kind = words[words.index(flag) + 1]
            if kind in list(table):
                found += [f"{flag}.{option}" for option in table.schema(kind)["properties"]]
    return found


def _parser_of(words: Sequence[str]) -> Parser | None:
    """The parser that a command would use: it is caught when the command starts to parse."""
    command, *rest = words
    argv = rest[:1] if command in ACTIONS else []
    with Parser.caught() as caught, contextlib.redirect_stdout(io.StringIO()):
        with contextlib.suppress(Parser.Caught, UserError):
            run_command(command, argv)
    return caught[0] if caught else None

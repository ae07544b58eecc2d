"""The command `softprompts completion`: scripts with which shells ask what may come next."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from ..config import TABLES
from ..errors import as_flag
from . import COMMANDS, load_command
from .command import Parser, action, argument

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


def _parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """`next` and the words so far, which may be anything, are what the scripts ask."""
    if argv[:1] == ["next"]:
        return argparse.Namespace(shell="next", words=argv[1:] or [""])
    return parser.parse_args(argv)


@action(
    "completion",
    """eval "$(softprompts completion bash)"       # in ~/.bashrc
  eval "$(softprompts completion zsh)"        # in ~/.zshrc, after compinit
  softprompts completion fish | source        # in ~/.config/fish/config.fish""",
    argument("shell", metavar="SHELL", choices=list(SCRIPTS), help="bash, zsh or fish"),
    parse=_parse,
)
def main(options: argparse.Namespace) -> int:
    """Print a completion script for bash, zsh or fish."""
    asked = options.shell == "next"
    print("\n".join(complete(options.words)) if asked else SCRIPTS[options.shell])
    return 0


def complete(words: Sequence[str]) -> list[str]:
    """The completions of the last word; none where a file name is expected."""
    *before, last = words
    if not before:
        return _matching(last, COMMANDS)
    if before[0] not in COMMANDS:
        return []
    command = load_command(before[0])
    actions = getattr(command, "ACTIONS", {"": command.main})
    name = before[1] if "" not in actions and len(before) > 1 else ""
    if name not in actions:
        return [] if name else _matching(last, actions)
    parser = actions[name].parser()
    previous = parser._option_string_actions.get(before[-1])
    if previous is not None and previous.nargs != 0:
        start, comma, part = last.rpartition(",")
        return [f"{start}{comma}{value}" for value in _matching(part, _values(previous))]
    if len(before) == 1 and not last.startswith("-"):
        return _matching(last, _values(next(iter(parser._get_positional_actions()), None)))
    return _matching(last, [*parser._option_string_actions, *_options_of_kinds(before, parser)])


def _values(argument: Any) -> list[str]:
    values = getattr(argument, "words", None) or getattr(argument, "choices", None) or ()
    return [str(value) for value in values]


def _matching(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _options_of_kinds(words: Sequence[str], parser: Parser) -> list[str]:
    """The options of the kinds that the command names, such as --prompt.shape.bottleneck."""
    options = []
    for table in TABLES.values():
        flag = as_flag(table.path)
        if flag in words[:-1] and flag in parser._option_string_actions:
            kind = words[words.index(flag) + 1]
            if kind in list(table):
                options += [f"{flag}.{option}" for option in table.schema(kind)["properties"]]
    return options

"""What commands are made of: a parser whose errors are sentences, actions, common arguments."""

import argparse
import gc
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import coerce
from ..config.model_shapes import SHAPES, listing_shapes
from ..config.run import DEFAULT_MODEL, check_device, model_error
from ..errors import UserError, choices, closest
from ..files import checked_path, find_path, safe_name
from ..library import NAME_LIMIT, check_exists, check_present, default_folder
from . import ALIASES

if TYPE_CHECKING:
    from ..artifacts.card import Card
    from ..tuning.tuned import Tuned


class Parser(argparse.ArgumentParser):
    """A parser whose errors are sentences."""

    def error(self, message: str) -> Any:
        rest = message.removeprefix("unrecognized arguments: ")
        if rest != message and rest.startswith("-"):
            raise self.unknown_flag(rest.split()[0])
        raise UserError(f"{message[0].upper()}{message[1:]}; see {self.prog} --help.")

    def unknown_flag(self, flag: str) -> UserError:
        flag = flag.partition("=")[0]
        similar = closest(flag.lstrip("-"), [f.lstrip("-") for f in self._option_string_actions])
        hint = f"did you mean --{similar}? See" if similar else "see"
        return UserError(f"There is no option {flag}; {hint} {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            typed = {str(word).partition("=")[0] for word in self._words}
            flags = [flag for flag in action.option_strings if flag in typed]
            name = (flags or action.option_strings or [str(action.metavar)])[-1]
            raise UserError(f"{name} is {value!r}; {choices(value, action.choices)}")

    def format_help(self) -> str:
        """With a short usage: what is required, and [options] for the rest."""
        if self.usage is None:
            required = [
                " ".join([*action.option_strings[:1], str(action.metavar or action.dest.upper())])
                for action in self._actions
                if action.required or not action.option_strings
            ]
            self.usage = " ".join([self.prog, *required, "[options]"])
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words: Sequence[str] = args or ()
        return super().parse_known_args(args, namespace)


Argument = Callable[[Any], object]
"""Adds an argument, or several that belong together, to a parser or a group of its arguments."""


def argument(*names: str, **options: Any) -> Argument:
    """One argument, as argparse's `add_argument` takes it."""
    return lambda parser: parser.add_argument(*names, **options)


def grouped(*arguments: Argument, title: str | None = None) -> Argument:
    """Arguments under a title of their own; without one, at most one of them may be given."""

    def add(parser: Any) -> None:
        group = parser.add_argument_group(title) if title else parser.add_mutually_exclusive_group()
        for add_one in arguments:
            add_one(group)

    return add


COMMON = (
    argument("--json", action="store_true", help="print the result as JSON"),
    argument("--quiet", action="store_true", help="show no progress"),
    argument("--debug", action="store_true", help="show the traceback of an error"),
    argument(
        "--plugin",
        metavar="FILE",
        help="load a Python file or module that registers tasks, metrics, prompt parts or model "
        "families; may be repeated",
    ),
)


Run = Callable[[argparse.Namespace], int]
Parse = Callable[[Parser, Sequence[str]], argparse.Namespace]


class Action:
    """A command, or one of a command's actions: it parses words and runs a function of the options,
    whose docstring is what the help says about it."""

    def __init__(self, run: Run, parse: Parse, make_parser: Callable[[], Parser]) -> None:
        self.run, self.parse, self.parser, self.__doc__ = run, parse, make_parser, run.__doc__

    def __call__(self, argv: Sequence[str]) -> int:
        return self.run(self.parse(self.parser(), argv))


def action(
    name: str,
    examples: str,
    *arguments: Argument,
    usage: str | None = None,
    parse: Parse = Parser.parse_args,
) -> Callable[[Run], Action]:
    """Make a function of options the action `softprompts NAME`; `usage` replaces the names of its
    positional arguments in the first line of its help."""

    def decorate(run: Run) -> Action:
        def make_parser() -> Parser:
            parser = Parser(
                prog=f"softprompts {name}",
                usage=usage and f"softprompts {name} {usage} [options]",
                description=inspect.getdoc(run),
                epilog=f"examples:\n  {examples}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            for add in (*COMMON, *arguments):
                add(parser)
            return parser

        return Action(run, parse, make_parser)

    return decorate


def run_action(
    command: str, actions: Mapping[str, Action], argv: Sequence[str], noun: str = "action"
) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        usage = f"softprompts {command} {noun.upper()}"
        rows = "\n".join(f"  {name:<10} {action.__doc__}" for name, action in actions.items())
        print(f"usage: {usage} [options]\n\n{rows}\n\n{usage} --help shows the options.")
        return 0
    if argv[0] not in actions:
        raise UserError(f"There is no {noun} {argv[0]!r}; {choices(argv[0], actions)}")
    return actions[argv[0]](argv[1:])


# -- arguments that several commands have ----------------------------------------------------------


def whole_number(name: str) -> Callable[[str], int]:
    """The type of an argument `--NAME`, of which there must be at least 1."""
    return lambda text: int(coerce(name, text, {"type": "integer", "minimum": 1}))


def output_folder(text: str, noun: str = "output folder", flag: str = "--output") -> Path:
    if not text.strip():
        raise UserError(f"The {noun} has no name; give one with {flag}.")
    path = checked_path(text)
    if path.is_file():
        what = noun.removesuffix(" folder")
        raise UserError(f"The {what} {path} is not a folder; choose another {flag}.")
    return path


def check_model(name: str) -> None:
    """Refuse a Hub model that is neither cached nor reachable, before torch is imported."""
    if name != DEFAULT_MODEL:
        from ..files.hub import missing_reason

        if (why := missing_reason(name)) is not None:
            raise model_error(name, why)


def check_model_or_shape(name: str) -> None:
    """The same where the name may be that of an architecture without weights."""
    if name not in SHAPES:
        with listing_shapes(name):
            check_model(name)


def check_card_model(card: "Card", model: str | None) -> None:
    """The same for the backbone on a prompt's card, or for `model` in its place."""
    if model is not None:
        check_model(model)
    elif card.model is None and card.path is not None:
        check_model(find_path(card.backbone.name, card.path.parent))


def check_one_backbone(folders: Sequence[Path], cards: Sequence["Card"]) -> None:
    """Refuse prompts of different backbones, which cannot answer together."""
    for folder, card in zip(folders, cards, strict=True):
        names = list(dict.fromkeys([cards[0].backbone.name, card.backbone.name]))
        if card.backbone.fingerprint != cards[0].backbone.fingerprint:
            models = " and ".join(names) if len(names) > 1 else f"two versions of {names[0]}"
            raise UserError(
                f"The prompts {folders[0]} and {folder} belong to different backbones ({models}); "
                "only prompts of one backbone can answer together."
            )


def model_flags(model: str, required: bool = False) -> tuple[Argument, ...]:
    """The flags of a command that loads a backbone; `model` is the help of --model."""
    return (
        argument("--model", required=required, help=model),
        argument(
            "--dtype",
            ALIASES["--dtype"],
            choices=["auto", "fp32", "bf16", "int8", "int4"],
            default="auto",
            help="precision of the frozen model (default auto: bf16 on a GPU, fp32 on a CPU; int8 "
            "or int4 if the prompt was tuned on it)",
        ),
        argument(
            "--device",
            type=check_device,
            default="auto",
            help="cpu, cuda, mps or auto (default); balanced: spread layers over all GPUs",
        ),
        argument(
            "--trust-remote-code", action="store_true", help="run code that comes with a Hub model"
        ),
    )


def add_library(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library",
        metavar="FOLDER",
        type=lambda text: output_folder(text, "library", "--library"),
        default=default_folder(),
        help="the library's folder (default: SOFTPROMPTS_LIBRARY, or library)",
    )


LIBRARY_PROMPT = argument(
    "prompt", metavar="PROMPT", help="a folder that tune or import wrote, or a name in the library"
)


def check_library_prompt(prompt: str, library: Path) -> None:
    """Refuse what is neither a folder nor a name in the library, before torch is imported."""
    if not prompt or len(prompt) > NAME_LIMIT or Path(prompt).is_dir():
        return  # the library has its own errors
    if prompt != safe_name(prompt):
        check_prompt_folder(Path(prompt), library)
    else:
        check_exists(library)
        if not any(name[0] == "." and prompt in name for name in os.listdir(library)):
            check_present(prompt, library)  # otherwise it may be restored first


def folder_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, or their paths where names are the same."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else list(map(str, paths))


def check_prompt_folder(path: Path, library: Path) -> None:
    """Refuse what is not a folder, before torch is imported."""
    if path.is_dir():
        return
    if path.is_file():
        raise UserError(
            f"{path} is a file, not a prompt's folder; name a folder that `softprompts tune` wrote."
        )
    folders = [folder for folder in (library, path.parent) if folder.is_dir()]
    found = [entry for folder in folders for entry in folder.iterdir() if entry.is_dir()]
    names = {entry.name: entry for entry in found}
    similar = closest(path.name, names)
    hint = (
        f"did you mean {names[similar]}?"
        if similar
        else "name a folder that `softprompts tune` wrote, or a library's prompt by its folder, "
        f"such as library/{path.name}."
    )
    raise UserError(f"There is no prompt at {path}; {hint}")


def _prompt_folder(text: str) -> Path:
    if not text.strip():
        raise UserError("The prompt has no name; give the folder that `softprompts tune` wrote.")
    return Path(text)


PROMPT = argument(
    "prompt", metavar="PROMPT", type=_prompt_folder, help="the folder that tune wrote"
)
BACKBONE = model_flags("the backbone, if it is not where the prompt's card says")
SCORING = argument(
    "--scoring",
    choices=["generate", "labels"],
    help="greedy generation or label scoring (default: as tuned)",
)
ENCODING = argument("--encoding", default="utf-8", help="encoding of --file (default utf-8)")


@contextmanager
def importing() -> Iterator[None]:
    """Inside, torch and transformers are imported without garbage collections, which take a seventh
    of the time; what is imported is never garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_tuned_prompt(options: argparse.Namespace) -> "Tuned":
    with importing():
        from ..tuning.tuned import load

    return load(
        options.prompt, options.model, options.dtype, options.device, options.trust_remote_code
    )

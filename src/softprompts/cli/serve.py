import argparse
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from ..artifacts.file_names import CARD
from ..config.serve import ServeSettings
from ..errors import UserError, listing
from ..files import find_path, read_json
from ..library import check_distinct, check_exists, default_folder
from ..serving.keys import Keys, check_open, read_keys
from ..serving.logs import JsonLog
from .command import action, argument, check_model, check_prompt_folder, model_flags, output_folder
from .flags import add_settings, given
from .output import print_result
from .serve_fleet import STOP_SIGNALS, check_fleet, serve_fleet

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


@action(
    "serve",
    """softprompts serve runs/intent runs/urgency
  softprompts serve --model google/flan-t5-small --library library --api-keys keys.txt
  softprompts serve --library library --studio
  softprompts serve --library library --ray local --replicas 2
  softprompts serve --library library --host 0.0.0.0 --port 8080 --max-queue 4096""",
    argument("prompts", nargs="*", metavar="PROMPT", type=Path, help="run folders that tune wrote"),
    argument(
        "--library",
        metavar="FOLDER",
        action="append",
        type=lambda text: output_folder(text, "library", "--library"),
        help="a folder of prompts, which may change while the server runs; may be repeated "
        "(default, without PROMPT: SOFTPROMPTS_LIBRARY, or library)",
    ),
    argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="auto",
        help="serve with replicas on the Ray cluster at ADDRESS (default auto: the one on this "
        "machine; local: start one here); its machines must share the folders",
    ),
    *model_flags("the backbone (default: the one on the prompts' cards)"),
    partial(add_settings, kind=ServeSettings, title="server"),
    usage="[PROMPT ...]",
)
def main(options: argparse.Namespace) -> int:
    """Serve prompts over HTTP: OpenAI's API, where `model` names a prompt."""
    with _on_stop(lambda *_: os._exit(0)):  # while it starts, there is nothing to finish
        return _start(options)


def _start(options: argparse.Namespace) -> int:
    values = given(options)
    settings = ServeSettings.of(values)
    check_fleet(options.ray, settings, values)
    folders = _folders(options)
    keys = read_keys(settings.api_keys or None)
    check_open(keys, settings.host, settings.open)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"The server needs {listing(missing)}; run pip install 'softprompts[serve]'."
        )
    model = options.model or _model_of(folders)
    check_model(model)
    with _listener(settings) as listener:
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        announce = partial(_announce, options, settings, len(keys), url)
        if options.ray is None:
            return _serve(options, settings, folders, keys, model, listener, announce)
    return serve_fleet(options, settings, folders, keys, model, (host, port), announce)


def _serve(
    options: argparse.Namespace,
    settings: ServeSettings,
    folders: Sequence[Path],
    keys: Keys,
    model: str,
    listener: socket.socket,
    announce: Callable[[str, int], None],
) -> int:
    from ..backbone import load_backbone
    from ..serving.async_engine import AsyncEngine
    from ..serving.server import create_app, limits_of, make_server

    log = JsonLog(quiet=options.quiet, texts=settings.log_texts)
    log.take_over("softprompts", "transformers", "uvicorn")
    backbone = load_backbone(model, options.dtype, options.device, options.trust_remote_code)
    engine = AsyncEngine(backbone, folders, limits=limits_of(settings))
    server = make_server(create_app(engine, settings, keys, log), settings)
    server.on_ready = lambda: announce(backbone.name, len(engine.names()))
    try:
        listener.listen(server.config.backlog)
    except OSError as error:  # of two servers that are starting, both have bound the port
        raise _cannot_listen(settings, error) from None
    with _on_stop(server.handle_exit):  # uvicorn raises the signals again when it has ended
        server.run(sockets=[listener])
    return 0 if server.started else 1


@contextmanager
def _on_stop(call: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a function on SIGTERM and Ctrl-C.

    The first process of a container ignores SIGTERM unless it handles it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set what a signal calls
        return
    before = {number: signal.signal(number, call) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _announce(
    options: argparse.Namespace,
    settings: ServeSettings,
    keys: int,
    url: str,
    model: str,
    prompts: int,
) -> None:
    result: dict[str, object] = {"url": url, "model": model, "prompts": prompts, "api_keys": keys}
    text = f"serving {_count(prompts, 'prompt')} of {model} at {url} ({_count(keys, 'API key')})"
    if options.ray is not None:
        result["replicas"] = settings.replicas
        text += f", {_count(settings.replicas, 'replica')}"
    if settings.studio:
        result["studio"] = f"{url}/studio"
        text += f"\nthe studio is at {url}/studio"
    print_result(options, result, text)
    sys.stdout.flush()


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"


def _folders(options: argparse.Namespace) -> list[Path]:
    """The folders of runs and libraries to serve; by default, the library."""
    for folder in options.prompts:
        check_prompt_folder(folder, default_folder())
    folders: list[Path] = [*options.prompts, *(options.library or ())]
    if not folders:
        folders = [default_folder()]
    for folder in folders:
        check_exists(folder)
    check_distinct(folders)
    return folders


def _model_of(folders: Sequence[Path]) -> str:
    """The backbone on the cards of all prompts."""
    cards = [
        card
        for folder in folders
        for card in ([folder / CARD] if (folder / CARD).exists() else folder.glob(f"*/{CARD}"))
    ]
    models: dict[str, None] = {}
    for card in cards:
        try:
            name = read_json(card)["backbone"]["name"]
        except (UserError, KeyError, TypeError):
            continue  # the engine logs it
        models[find_path(str(name), card.parent) if os.path.isabs(str(name)) else str(name)] = None
    if not models:
        shown = listing([str(folder) for folder in folders])
        raise UserError(f"There is no prompt in {shown}; name the model to serve with --model.")
    if len(models) > 1:
        raise UserError(
            f"The prompts belong to {len(models)} models ({listing(list(models))}); choose one "
            "with --model."
        )
    return next(iter(models))


def _listener(settings: ServeSettings) -> socket.socket:
    """A socket to listen on, bound before anything slow is loaded."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise _cannot_listen(settings, error) from None
    return listener


def _cannot_listen(settings: ServeSettings, error: OSError) -> UserError:
    return UserError(
        f"The server cannot listen on {settings.host}:{settings.port} "
        f"({error.strerror or error}); choose another --host or --port."
    )

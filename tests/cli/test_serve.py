"""`softprompts serve` as a process of its own, and `softprompts predict --server`."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from softprompts.backbone import Backbone
from softprompts.cli import load_command, main
from softprompts.cli.flags import given
from softprompts.cli.serve_fleet import STOP_SIGNALS, check_fleet, shortage_of
from softprompts.config.serve import ServeSettings
from softprompts.errors import UserError
from softprompts.serving.client import VARIABLE

from ..processes import ForkServer, Process, wait_until
from ..serving.http_server import ask
from ..serving.test_engine import MOODS, tuned
from .conftest import Start

ROOT = Path(__file__).parents[2]
KEY = "a-key-for-all-prompts"
CPU = ["--device", "cpu", "--quiet"]


@dataclass
class Served:
    url: str
    folder: Path
    process: Process
    hello: dict[str, Any]


@pytest.fixture(scope="module")
def served(
    tiny: Backbone, torch_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A library of four prompts, served by a process."""
    folder = tmp_path_factory.mktemp("served")
    prompts = {
        "mood": tuned(tiny, 1, MOODS, scoring="labels", length=3),
        "spoken": tuned(tiny, 2, MOODS, scoring="generate", length=3),
        "mixture": tuned(tiny, 3, MOODS, scoring="labels", length=2, count=3, route="top1"),
        "free": tuned(tiny, 5, [], scoring="generate", length=4),
    }
    for name, prompt in prompts.items():
        prompt.save(folder / "library" / name)
    (folder / "keys").write_text(f"{KEY}\n")
    command = ["serve", "--library", str(folder / "library"), "--port", "0", "--device", "cpu"]
    with torch_server.start([*command, "--api-keys", str(folder / "keys"), "--json"]) as process:
        wait_until(lambda: process.stdout.endswith("\n") or process.poll() is not None, 60)
        assert process.stdout, process.stderr
        hello = json.loads(process.stdout)
        yield Served(hello["url"], folder / "library", process, hello)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    lines = [f'{number},"good food, visit {number}"' for number in range(40)]
    path.write_text("id,text\n" + "\n".join(lines) + "\n99,\n")
    return path


def outputs(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[Any], str]:
    assert main(argv) == 0
    shown = capsys.readouterr()
    return shown.out.splitlines(), shown.err


@pytest.mark.parametrize(
    ("names", "as_json"),
    [("mood", True), ("spoken", False), ("free,spoken", True), ("mixture,mood", False)],
)
def test_predict_prints_the_same_with_a_server(
    served: Served,
    names: str,
    as_json: bool,
    rows: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    common = ["--file", str(rows), "--skip-bad-rows", "--quiet", *(["--json"] if as_json else [])]
    folders = ",".join(str(served.folder / name) for name in names.split(","))
    local, notes = outputs(["predict", folders, *common, "--device", "cpu"], capsys)
    remote, remote_notes = outputs(["predict", names, *common, "--server", served.url], capsys)
    assert remote_notes == notes
    if not as_json:
        assert remote == local
        return
    for here, there in zip(map(json.loads, local), map(json.loads, remote), strict=True):
        shares, expected = there.pop("probabilities"), here.pop("probabilities")
        assert there == here
        several = "," in names
        for name in names.split(","):
            share = shares.get(name) if several else shares
            assert share == pytest.approx(expected.get(name) if several else expected, abs=1.1e-4)


def test_texts_and_tables_too(
    served: Served,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    local, _ = outputs(["predict", str(served.folder / "mood"), "never again", *CPU], capsys)
    remote, _ = outputs(["predict", "mood", "never again", "--server", served.url], capsys)
    assert remote == local
    tables = []
    for where in (["--server", f"{served.url}/v1/"], ["--device", "cpu"]):
        output = tmp_path / f"{len(tables)}.csv"
        prompt = "mood" if "--server" in where else str(served.folder / "mood")
        common = ["--file", str(rows), "--skip-bad-rows", "--quiet", "--output", str(output)]
        outputs(["predict", prompt, *common, *where], capsys)
        tables.append([line.rpartition(",")[0] for line in output.read_text().splitlines()])
    assert tables[0] == tables[1]
    assert main(["predict", "mood", "--file", str(rows), "--server", served.url]) == 2
    assert "new.csv:42: the column 'text' is empty. Correct it" in capsys.readouterr().err


def test_a_client_needs_no_torch(served: Served, monkeypatch: Any, start: Start) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    process = start(["predict", "mood", "never again", "--server", served.url, "--json"])
    assert process.returncode == 0
    assert json.loads(process.stdout)["prediction"] in MOODS
    assert process.stderr.splitlines() == ["imported:"]


@pytest.mark.parametrize(
    ("argv", "key", "message"),
    [
        (["mood", "x"], "", "requires an API key; set SOFTPROMPTS_API_KEY."),
        (["mood", "x"], "wrong", "refused the API key in SOFTPROMPTS_API_KEY."),
        (["nothing", "x"], KEY, "no prompt 'nothing'; it has free, mixture, mood, spoken."),
        (["mod", "x"], KEY, "has no prompt 'mod'; did you mean mood?"),
        (["../library/mood", "x"], KEY, "has no prompt '../library/mood'; it has free"),
        (["mood", "x", "--scoring", "generate"], KEY, "--scoring is set by the server"),
    ],
)
def test_errors_are_the_servers_sentences(
    served: Served, argv: list[str], key: str, message: str, monkeypatch: Any, start: Start
) -> None:
    monkeypatch.setenv(VARIABLE, key)
    process = start(["predict", *argv, "--server", served.url])
    assert process.returncode == 2
    error, imported = process.stderr.strip().splitlines()
    assert message in error
    assert imported == "imported:"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("127.0.0.1:1", "--server is '127.0.0.1:1'; give an address such as http://"),
        ("http://127.0.0.1:1", "The server http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_a_wrong_address_is_refused(
    server: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "mood", "x", "--server", server]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "x"], "--port is 'x'; give a whole number."),
        (["--library", "nowhere"], "There is no library at nowhere"),
        (["nowhere"], "There is no prompt at nowhere"),
        (["--library", ".", "--api-keys", "nowhere"], "nowhere does not exist."),
        (["--library", ".", "--host", "0.0.0.0"], "Anyone who can reach 0.0.0.0 could use the"),
        (["--library", "."], "There is no prompt in .; name the model to serve with --model."),
        (["--library", ".", "--model", "t5-tiny", "--port", "PORT"], "(Address already in use)"),
        (["--library", ".", "--replicas", "2"], "--replicas needs --ray, which starts replicas"),
        (["--library", ".", "--ray", "--studio"], "The studio needs a server without --ray"),
        (["--ray", "--replicas", "3", "--max-replicas", "2"], "2 is less than --replicas 3; raise"),
    ],
)
def test_bad_input_is_refused_without_torch(
    served: Served, argv: list[str], message: str, start: Start, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    port = served.url.rpartition(":")[2]
    process = start(["serve", *(word.replace("PORT", port) for word in argv)])
    assert process.returncode == 2
    error, imported = process.stderr.strip().splitlines()
    assert message in error
    assert imported == "imported:"


def test_runs_of_the_same_name_are_refused_without_torch(
    served: Served, start: Start, tmp_path: Path
) -> None:
    mood = served.folder / "mood"
    other = shutil.copytree(mood, tmp_path / "other" / "mood")
    process = start(["serve", str(mood), str(mood), str(other)])
    assert process.returncode == 2
    error, imported = process.stderr.strip().splitlines()
    assert f"{mood} and {other} have the same name, by which requests choose a prompt" in error
    assert imported == "imported:"


def test_sigterm_finishes_what_was_taken(served: Served) -> None:
    """The last test: it ends the server."""
    assert served.hello == {"url": served.url, "model": "t5-tiny", "prompts": 4, "api_keys": 1}
    body = {"model": "free", "prompt": "x", "max_tokens": 150, "temperature": 2, "seed": 1}
    headers = {"Authorization": f"Bearer {KEY}"}
    replies: list[Any] = []
    url = f"{served.url}/v1/completions"
    asking = threading.Thread(
        target=lambda: replies.append(ask(url, {**body, "stream": True}, headers))
    )
    long = {"rows": [{"text": "x", "label": "x " * 600}]}
    assert ask(f"{served.url}/v1/search", long, headers)[0] == 400
    asking.start()
    decoding = "softprompts_engine_decoding 1.0"
    for _ in range(200):
        if decoding in ask(f"{served.url}/metrics", None, headers)[1]:
            break
    served.process.send_signal(signal.SIGTERM)
    asking.join(30)
    ((status, text, _),) = replies
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason": "length"' in text
    assert served.process.wait(30) == 0
    lines = [json.loads(line) for line in served.process.stderr.splitlines()]
    assert {line["event"] for line in lines} == {"request", "log"}
    (warning,) = (line["message"] for line in lines if line["event"] == "log")
    assert "sequence length is longer" in warning, "of transformers, which would not write JSON"


def test_a_stop_during_start_up_is_not_lost(tmp_path: Path) -> None:
    """Not even where SIGTERM is ignored by default, as in the first process of a container."""
    ignoring = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh"]
    command = [sys.executable, "-m", "softprompts", "serve", "--library", str(tmp_path)]
    process = subprocess.Popen(
        [*ignoring, *command, "--model", "t5-tiny", "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.3)  # the shell ignores SIGTERM by now
    while process.poll() is None:  # the first signals may come before the command runs
        process.terminate()
        time.sleep(0.05)
    assert process.communicate() == ("", "")  # it never served
    assert process.returncode == 0


def test_signals_are_as_before_once_the_command_has_ended(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    assert main(["serve", "--library", str(tmp_path)]) == 2
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'softprompts\[ray\]'"):
        check_fleet("auto", ServeSettings(), ())


@pytest.mark.parametrize(
    ("resources", "gpus", "message"),
    [
        ({"CPU": 6.0}, 0, None),
        ({"CPU": 8.0, "GPU": 3.0}, 1, None),
        ({"CPU": 5.0}, 0, "The cluster has too few CPUs: 5, but --replicas 3 needs 6"),
        ({"CPU": 8.0, "GPU": 2.0}, 1, "The cluster has too few GPUs: 2, but --replicas 3 needs 3"),
    ],
)
def test_a_cluster_that_is_too_small_is_reported(
    resources: dict[str, float], gpus: int, message: str | None
) -> None:
    shortage = shortage_of(resources, ServeSettings(replicas=3, replica_cpus=2.0), gpus)
    assert shortage is message is None or (shortage or "").startswith(message or "?")


def test_containers_are_started_with_flags_that_exist() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    entry, default = (
        json.loads(line.partition(" ")[2])
        for word in ("ENTRYPOINT", "CMD")
        for line in lines
        if line.startswith(f"{word} [")
    )
    service = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["softprompts"]
    assert entry[:2] == ["softprompts", "serve"]
    for arguments in (default, service["command"]):
        options = load_command("serve").main.parser().parse_args([*entry[2:], *arguments])
        settings = ServeSettings.of(given(options))
        assert settings.host == "0.0.0.0"
        assert [str(folder) for folder in options.library] == ["/library"]
    assert settings.api_keys == "/run/secrets/api_keys"
    assert int(service["stop_grace_period"].rstrip("s")) > settings.grace
    assert service["init"] is True
    (example,) = (line for line in lines if line.startswith("#   docker run "))
    assert int(example.partition("--stop-timeout ")[2].split()[0]) > ServeSettings().grace


def test_containers_have_what_they_install_and_mount() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    lines = dockerfile.replace("\\\n", " ").splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {"src", "pyproject.toml", "constraints.txt", project["readme"]}
    assert {*copied} == {*installed, *project["license-files"]}
    extras = re.findall(r"EXTRAS=([a-z,]+)", dockerfile)
    assert len(extras) == 2
    assert {name for names in extras for name in names.split(",")} <= {
        *project["optional-dependencies"]
    }
    (check,) = (line for line in lines if line.strip().startswith("HEALTHCHECK"))
    python, flag, code = json.loads(check.partition("CMD ")[2])
    assert (python, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert f":{ServeSettings().port}/ready" in code
    assert f"EXPOSE {ServeSettings().port}" in lines
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service = compose["services"]["softprompts"]
    assert {*service["secrets"]} == {*compose["secrets"]}
    mounted = {volume.split(":")[0] for volume in service["volumes"]}
    assert {name for name in mounted if not name.startswith(".")} == {*compose["volumes"]}
    (port,) = service["ports"]
    assert port.startswith("127.0.0.1:")
    assert port.endswith(f":{ServeSettings().port}")

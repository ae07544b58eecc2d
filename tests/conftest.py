"""What the tests share: the embedded t5-tiny, tiny random models, official numbers, a toy file."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # for processes that tests start: the workers keep every core busy
os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # where a test takes two threads, the one that waits leaves its core to others

import pytest
import torch

from softprompts.backbone import Backbone, load_backbone
from softprompts.tuning import finish
from softprompts.tuning.pictures import draw_pictures

from .models import TOY, random_model, random_t5
from .processes import TORCH, ForkServer

torch.set_num_threads(1)

GOLDEN = Path(__file__).parent / "golden"
DATA = Path(os.environ.get("SOFTPROMPTS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def golden(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return read


@pytest.fixture(scope="session")
def t5() -> Backbone:
    return random_t5()


@pytest.fixture(scope="session")
def bart() -> Backbone:
    return random_model("bart")


@pytest.fixture(scope="session")
def tiny() -> Backbone:
    """The embedded default, as it ships."""
    return load_backbone(dtype="fp32", device="cpu")


@pytest.fixture(scope="session", autouse=True)
def _no_pictures() -> Iterator[None]:
    """The runs of most tests take less time than their pictures; `drawing` has them drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "draw_pictures", lambda *_: None)
        yield


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, runs draw their pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "draw_pictures", draw_pictures)
        yield


@pytest.fixture(scope="session")
def torch_server() -> Iterator[ForkServer]:
    """Starts processes that have torch and all of softprompts imported."""
    with ForkServer(TORCH) as server:
        yield server


def write_toy(folder: Path) -> Path:
    """A small file a newcomer might bring: 24 rows, quotes and commas inside."""
    path = folder / "reviews.csv"
    rows = [f'"{text}, visit {visit}",{label}' for visit in range(3) for text, label in TOY]
    path.write_text("review,mood\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def toy_csv(tmp_path: Path) -> Path:
    return write_toy(tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of this machine: Playwright's own is not needed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("SOFTPROMPTS_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if path is None:
        pytest.skip("There is no Chromium; install one, or name it in SOFTPROMPTS_CHROMIUM.")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def another_user() -> Iterator[None]:
    """Inside, files are read and written as a user who owns none of them; only root can become
    one."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def commons() -> Iterator[Path]:
    """A folder that other users reach, which pytest's own are not."""
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    home.chmod(0o755)
    try:
        yield home
    finally:
        shutil.rmtree(home)


@pytest.fixture(scope="module")
def one_ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Held by one process at a time: clusters of the same machine would find one another."""
    with (tmp_path_factory.getbasetemp().parent / "ray.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Without a network, hub names fail at once and in one sentence."""

import socket
import time
from pathlib import Path
from typing import Any

import datasets
import pytest
from huggingface_hub import constants

from softprompts.backbone import load_backbone
from softprompts.errors import UserError
from softprompts.files import hub
from softprompts.tasks import read_rows


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who has not set HF_HUB_OFFLINE."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_probe", {})


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every connection is dropped without an answer."""
    attempts: list[Any] = []

    def drop(address: Any, *rest: Any, **options: Any) -> socket.socket:
        attempts.append(address)
        time.sleep(30)
        raise OSError("timed out")

    monkeypatch.setattr(socket, "create_connection", drop)
    return attempts


def test_a_hub_model_without_a_network_fails_quickly(no_network: list[Any]) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be reached, and the model is not in the local"):
        load_backbone("nobody/no-such-model", device="cpu")
    assert time.monotonic() - start < 3
    with pytest.raises(UserError, match="cannot be reached"):
        load_backbone("nobody/no-such-model", device="cpu")
    assert len(no_network) == 1, "it is probed once a minute, not for every file"


def test_a_hub_dataset_without_a_network_fails_quickly(no_network: list[Any]) -> None:
    start = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be reached, and the dataset is not in the local"):
        read_rows("nobody/no-such-data")
    assert time.monotonic() - start < 3


def test_a_dataset_in_the_local_cache_is_not_refused(
    no_network: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    assert hub.missing_reason("some/rows", "dataset") is not None
    for folder in ("hub/datasets--some--rows", "datasets/some___rows"):
        (tmp_path / folder).mkdir(parents=True)
        assert hub.missing_reason("some/rows", "dataset") is None, folder
        (tmp_path / folder).rmdir()
    assert hub.missing_reason(str(tmp_path), "dataset") is None, "a path"
    assert hub.missing_reason("./rows", "dataset") == "no such folder"


def test_local_models_are_loaded_without_a_probe(no_network: list[Any]) -> None:
    load_backbone(device="cpu")
    assert not no_network


def test_the_hub_is_probed_again_once_the_network_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    hub.prepare_hub("some/model")
    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(hub, "_reachable", lambda: True)
    monkeypatch.setattr(hub, "RETRY_SECONDS", 0.0)
    hub.prepare_hub("some/model")
    assert not constants.HF_HUB_OFFLINE
    assert hub.offline_reason("some/model", "model") is None


def test_offline_mode_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "_reachable", lambda: pytest.fail("probed in offline mode"))
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set, and the model is not in the local"):
        load_backbone("nobody/no-such-model", device="cpu")


def test_a_proxy_is_probed_in_place_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[Any] = []

    def refuse(address: Any, *rest: Any) -> socket.socket:
        addresses.append(address)
        raise OSError("refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    hub.prepare_hub("some/model")
    assert addresses == [("proxy.example", 3128)]

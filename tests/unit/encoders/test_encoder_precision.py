"""Settings for device and dtype in ``epd.toml``, and the resolved values in cards and keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from epd.contracts.errors import SettingsError
from epd.identity import encoder_identity
from gpu_worker.encoders.loading import resolve_device, resolve_dtype
from tests.unit.encoders.tiny_checkpoints import encoder_at, tiny_folder

CPU = torch.device("cpu")
CUDA = torch.device("cuda:0")


def cpu_that_multiplies(bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": bfloat16})


@pytest.mark.parametrize(("able", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_on_a_cpu_is_bfloat16_where_it_multiplies_it(
    able: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_that_multiplies(able, monkeypatch)
    assert resolve_dtype("auto", CPU) is expected


@pytest.mark.parametrize(("able", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_on_cuda_does_not_emulate(
    able: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation: able)
    assert resolve_dtype("auto", CUDA) is expected


def test_accepted_names_of_a_dtype() -> None:
    assert resolve_dtype("float32", CPU) is torch.float32
    assert resolve_dtype("bfloat16", CPU) is torch.bfloat16
    assert resolve_dtype("float16", CUDA) is torch.float16
    with pytest.raises(SettingsError, match=r"float16.*slower than float32"):
        resolve_dtype("float16", CPU)
    with pytest.raises(SettingsError, match="not one of auto, float32"):
        resolve_dtype("int8", CPU)


def test_auto_is_the_cpu_where_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == CPU
    with pytest.raises(SettingsError, match="has 0 CUDA devices"):
        resolve_device("cuda:0")


def test_the_card_and_the_keys_carry_what_auto_came_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folder("dinov2", tmp_path)
    cards = {}
    for able in (True, False):
        cpu_that_multiplies(able, monkeypatch)
        cards[able] = encoder_at("dinov2", folder, "auto").card
    assert (cards[True].dtype, cards[False].dtype) == ("bfloat16", "float32")
    assert encoder_identity(cards[True]) != encoder_identity(cards[False])
    said = encoder_at("dinov2", folder, "float32").card
    assert encoder_identity(said) == encoder_identity(cards[False])

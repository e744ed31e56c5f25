"""Late versions and copies: request records, microcompaction, forks, files that grow."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_state, load_states
from composer_pipeline.traces.archive import harvest, make_plan, open_archived
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.traces.parse import analyse
from composer_pipeline.traces.records import LineStats, read_records
from composer_pipeline.traces.trajectory import Trajectory
from tests.places import ROOT


def states_of(lake: Lake, path: Path | str) -> dict[str, Any]:
    ingest(lake, [path])
    return {state.message_id: state for state in load_states(lake)}


def said(state: Any) -> list[str]:
    return [
        f"{m['role']}: " + "|".join(str(b.get("text") or b.get("content")) for b in m["content"])
        for m in state.messages
    ]


# -- request records ---------------------------------------------------------------


def blob(name: str, role: str, content: Any) -> str:
    message = {"role": role, "content": content}
    return json.dumps({"type": "api-request-blob", "hash": name, "message": message})


def request(name: str, tail: list[Any], **fields: Any) -> str:
    return json.dumps({"type": "api-request", "id": name, "tail": tail, **fields})


def with_requests(script: Any) -> Any:
    s = script()
    s.lines.append(blob("h0", "system", "You are exact."))
    s.lines.append(blob("h1", "user", [{"type": "text", "text": "hi from alice@acme.io"}]))
    s.lines.append(request("r1", ["h0", "h1"], base=None, keep=0))
    s.user("hello")
    s.call("m1", "t1", fields={"requestRef": "r1"})
    s.lines.append(blob("h2", "assistant", [{"type": "tool_use", "id": "t1", "name": "Bash"}]))
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text"}]}
    s.lines.append(blob("h3", "user", [result | {"content": [{"type": "text", "text": "out"}]}]))
    s.lines.append(request("r2", ["h2", "h3"], base="r1", keep=2))
    s.result("t1", "a result that was replaced on the wire")
    s.say("m2", "done", requestRef={"id": "r2"})
    s.lines.append(blob("h4", "user", "a shorter history"))
    s.lines.append(request("r3", ["h4"], base="r2", keep=1))
    s.user("next")
    s.say("m3", "again", requestRef="r3")
    return s


def test_a_prefix_is_the_recorded_request(lake: Lake, projects: Any, script: Any) -> None:
    found = states_of(lake, with_requests(script).write(projects))
    assert {s.fidelity for s in found.values()} == {"exact_request"}
    assert {s.system for s in found.values()} == {"You are exact."}
    first = said(found["m1"])
    assert len(first) == 1
    assert first[0].startswith("user: hi from [EMAIL_")
    assert said(found["m2"]) == [*first, "assistant: None", "user: out"]
    assert said(found["m3"]) == ["user: a shorter history"]
    assert found["m2"].action.text == "done"
    assert found["m1"].action.tool_calls[0].id == "t1"
    # r2 goes on where r1 ended: one chain for both, another for the shortened history.
    assert found["m1"].chain_id == found["m2"].chain_id != found["m3"].chain_id


@pytest.mark.parametrize(
    "broken",
    [
        {"drop": "h3"},
        {"line": request("r2", ["h2", "h3"], base="r1", keep=3)},
        {"line": request("r2", ["h2", "h3"], base="gone", keep=1)},
        {"line": request("r2", ["h2", 7], base="r1", keep=2)},
        {"line": request("r2", ["h2", "h3"], base="r2", keep=2)},
        {"line": request("r2", ["h2", "h3"], base="r1", keep="2")},
    ],
)
def test_a_request_that_does_not_resolve_is_not_used(
    lake: Lake, projects: Any, script: Any, broken: dict[str, str]
) -> None:
    s = with_requests(script)
    if "drop" in broken:
        s.lines = [line for line in s.lines if f'"hash": "{broken["drop"]}"' not in line]
    else:
        s.lines = [broken["line"] if '"id": "r2"' in x and "tail" in x else x for x in s.lines]
    found = states_of(lake, s.write(projects))
    assert found["m1"].fidelity == "exact_request"
    assert {found[m].fidelity for m in ("m2", "m3")} == {"reconstructed"}
    assert said(found["m2"])[-1] == "user: a result that was replaced on the wire"


# -- microcompaction -----------------------------------------------------------------


def test_only_the_named_results_are_cleared_and_earlier_states_keep_them(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    for n in (1, 2):
        s.call(f"m{n}", f"t{n}")
        s.result(f"t{n}", f"out {n}")
    s.add(
        "system",
        subtype="microcompact_boundary",
        microcompactMetadata={"compactedToolIds": ["t1", 5, "unknown"]},
    )
    s.say("m3", "later")
    s.user("on")
    s.say("m4", "still")
    found = states_of(lake, s.write(projects))
    assert said(found["m2"])[-1] == "user: out 1"
    results = [line for line in said(found["m4"]) if "out" in line or "cleared" in line]
    assert results == ["user: [Old tool result content cleared]", "user: out 2"]
    assert said(found["m3"])[2] == "user: [Old tool result content cleared]"
    assert found["m3"].chain_id == found["m4"].chain_id != found["m2"].chain_id


# -- copies --------------------------------------------------------------------------


def fork_of(s: Any, script: Any, name: str) -> Any:
    copy = script(name)
    for line in s.lines:
        record = json.loads(line) | {"sessionId": name, "forkedFrom": {"sessionId": s.session}}
        copy.lines.append(json.dumps(record))
    copy.leaf = s.leaf
    return copy


def test_a_fork_keeps_the_ids_of_what_it_repeats(lake: Lake, projects: Any, script: Any) -> None:
    s = script("a-origin")
    s.user("go")
    s.say("m1", "one")
    fork = fork_of(s, script, "a-fork")
    fork.user("elsewhere", uuid="f-1")
    fork.say("m2", "two", uuid="f-2")
    alone = {k: v.state_id for k, v in states_of(lake, s.write(projects)).items()}
    both = states_of(lake, fork.write(projects).parent)
    assert both["m1"].state_id == alone["m1"]
    assert both["m1"].session_id == "a-origin"
    assert both["m2"].session_id == "a-fork"
    assert said(both["m2"]) == ["user: go", "assistant: one", "user: elsewhere"]


def test_a_branch_that_repeats_records_under_new_uuids_adds_no_state(
    lake: Lake, projects: Any, script: Any
) -> None:
    """/branch wrote each record again, without a parent."""
    s = script()
    s.user("go")
    s.say("m1", "one")
    s.call("m1", "t1")
    s.result("t1", "out")
    for number, line in enumerate(list(s.lines)):
        again = json.loads(line) | {"uuid": f"again-{number}", "parentUuid": None}
        s.lines.append(json.dumps(again))
    s.say("m2", "two")
    found = states_of(lake, s.write(projects))
    assert sorted(found) == ["m1", "m2"]
    assert found["m1"].action.text == "one"
    assert said(found["m2"]) == ["user: go", "assistant: one|None", "user: out"]


# -- growing files -------------------------------------------------------------------


def test_a_grown_file_is_archived_from_where_it_ended(
    lake: Lake, projects: Any, script: Any
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "one")
    path = s.write(projects)
    cut = s.data[:-20]
    path.write_bytes(cut)
    before = states_of(lake, projects)
    assert before == {}
    row = lake.rows("raw_files")[0]
    assert row["offset"] == s.data.index(b"\n") + 1
    assert len(row["pieces"]) == 1
    s.user("more")
    s.say("m2", "two")
    path.write_bytes(s.data)
    report = harvest(lake, [projects])
    assert report.bytes_archived == len(s.data) - len(cut)
    grown = lake.rows("raw_files")[0]
    assert grown["pieces"][0] == row["pieces"][0]
    assert len(grown["pieces"]) == 2
    assert grown["offset"] == grown["size"] == len(s.data)
    with open_archived(lake, grown) as lines:
        assert b"".join(lines) == s.data
    assert sorted(states_of(lake, projects)) == ["m1", "m2"]


def test_a_file_that_changes_while_it_is_read_is_whole_afterwards(
    lake: Lake, projects: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "one")
    path = s.write(projects)
    first = s.data
    s.user("more")
    s.say("m2", "two")

    module = sys.modules["composer_pipeline.traces.archive"]

    plan = make_plan

    def grows(*arguments: Any) -> Any:
        found = plan(*arguments)
        path.write_bytes(s.data)  # after the harvest noted size and time
        return found

    monkeypatch.setattr(module, "make_plan", grows)
    path.write_bytes(first)
    harvest(lake, [projects])
    monkeypatch.undo()
    row = lake.rows("raw_files")[0]
    assert row["size"] == len(s.data)
    harvest(lake, [projects])
    assert sorted(states_of(lake, projects)) == ["m1", "m2"]


# -- packed files, globs, standard input ------------------------------------------------


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packed_files_give_the_same_states(
    lake: Lake, projects: Any, script: Any, tmp_path: Path, suffix: str
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "one")
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    (projects / f"s1.jsonl{suffix}").write_bytes(pack(s.data))
    (projects / "notes.jsonl.txt").write_text("no session")
    plain = tmp_path / "plain"
    plain.mkdir()
    s.write(plain)
    other = Lake(tmp_path / "other")
    assert states_of(lake, projects) == states_of(other, plain)
    assert lake.rows("raw_files")[0]["sha256"] == other.rows("raw_files")[0]["sha256"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_packed_file_is_one_sentence(
    lake: Lake, projects: Any, script: Any, suffix: str
) -> None:
    s = script()
    s.user("go " * 1000)
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    path = projects / f"s1.jsonl{suffix}"
    path.write_bytes(b"\x00" + pack(s.data)[1:])
    with pytest.raises(InputError, match=r"s1\.jsonl"):
        ingest(lake, [path])


def test_globs(lake: Lake, projects: Any, script: Any) -> None:
    for name in ("a", "b"):
        s = script(name)
        s.user(f"go {name}")
        s.say(f"m-{name}", "one")
        s.write(projects, f"{name}/x.jsonl")
    assert sorted(states_of(lake, projects / "*" / "x.jsonl")) == ["m-a", "m-b"]
    with pytest.raises(InputError, match="matches no session file"):
        ingest(lake, [projects / "*.jsonl"])


def test_standard_input(
    lake: Lake, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = script()
    s.user("go")
    s.say("m1", "one")
    path = tmp_path / "given"
    path.write_bytes(s.data)
    with path.open() as given:
        monkeypatch.setattr("sys.stdin", given)
        assert sorted(states_of(lake, "-")) == ["m1"]


# -- outcomes ------------------------------------------------------------------------


def test_outcomes(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.call("edit", "t1", "Edit", file_path="/srv/p/a.py", old_string="a", new_string="b")
    s.result("t1", "ok")
    s.call("fails", "t2", command="pytest -q")
    s.result("t2", "Exit code 1\n2 failed, 1 passed", error=True)
    s.call("undo", "t3", command="git checkout -- a.py")
    s.result("t3", "")
    s.call("passes", "t4", command="cd x && npm test")
    s.result("t4", "Tests: 12 passed, 12 total")
    s.say("stopped", "I will now delete everything")
    s.user([{"type": "text", "text": "[Request interrupted by user]"}])
    s.user("no, do not")
    s.say("last", "fine")
    found = states_of(lake, s.write(projects))
    yes = {
        name: sorted(m for m, state in found.items() if getattr(state, name))
        for name in (
            "followed_by_error",
            "followed_by_correction",
            "interrupted",
            "reverted",
            "tests_passed",
        )
    }
    assert yes == {
        "followed_by_error": ["fails"],
        "followed_by_correction": ["stopped"],
        "interrupted": ["stopped"],
        "reverted": ["edit"],
        "tests_passed": ["passes"],
    }
    assert found["fails"].tests_passed is False
    assert found["edit"].tests_passed is None


def test_one_failed_test_run_of_an_action_is_enough(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.call("m1", "t1", command="pytest tests/a")
    s.call("m1", "t2", command="pytest tests/b")
    s.result("t1", "==== 2 failed, 1 passed in 0.1s ====")
    s.result("t2", "==== 3 passed in 0.1s ====")
    s.say("m2", "done")
    assert states_of(lake, s.write(projects))["m1"].tests_passed is False


def test_an_undo_that_failed_undoes_nothing(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    s.user("go")
    s.call("edit", "t1", "Edit", file_path="/srv/p/a.py", old_string="a", new_string="b")
    s.result("t1", "ok")
    s.call("undo", "t2", command="git checkout -- a.py")
    s.result("t2", "Exit code 128\nfatal: not a git repository", error=True)
    s.say("m2", "done")
    assert states_of(lake, s.write(projects))["edit"].reverted is False


def test_a_rewound_action_is_reverted(lake: Lake, projects: Any, script: Any) -> None:
    s = script()
    root = s.user("go")
    s.say("left", "one")
    s.user("other", parent=root)
    s.say("kept", "two")
    found = states_of(lake, s.write(projects))
    assert (found["left"].reverted, found["kept"].reverted) == (True, False)


# -- one state at a time -----------------------------------------------------------------


def test_a_single_state_equals_that_of_its_day(lake: Lake, projects: Any, script: Any) -> None:
    found = states_of(lake, with_requests(script).write(projects))
    assert {s.message_id: load_state(lake, s.state_id) for s in found.values()} == found
    with pytest.raises(InputError, match="has no state"):
        load_state(lake, "f" * 32)


def test_messages_of_another_parse_are_refused(lake: Lake, projects: Any, script: Any) -> None:
    """A parse that was killed after its messages leaves chains of the parse before."""
    s = script()
    s.user("go")
    s.say("m1", "one")
    state = states_of(lake, s.write(projects))["m1"]
    table = lake.read("messages").drop_columns(["day"])
    lake.write("messages", table.take(list(reversed(range(len(table))))), day=state.day)
    changed = lake.read("messages").drop_columns(["day"]).to_pylist()
    for number, row in enumerate(changed):
        row["n"] = number
    lake.write("messages", changed, day=state.day)
    with pytest.raises(InputError, match="only partly written"):
        list(load_states(lake))
    with pytest.raises(InputError, match="only partly written"):
        load_state(lake, state.state_id)


# -- properties ----------------------------------------------------------------------


def graph_facts(data: bytes) -> dict[str, Any]:
    graph = Trajectory(read_records(data.splitlines(keepends=True), LineStats()))
    return {
        graph.nodes[n].key: [graph.nodes[m].key for m in graph.path_to(n)] for n in graph.states()
    }


def many(script: Any, sessions: int = 3) -> list[list[str]]:
    groups = []
    for number in range(sessions):
        s = script(f"s{number}")
        s.user(f"go {number}")
        for turn in range(3):
            s.say(f"m{number}-{turn}", "text")
            s.call(f"m{number}-{turn}", f"t{number}-{turn}")
            s.add("progress", data={})
            s.result(f"t{number}-{turn}", "out")
        groups.append(s.lines)
    return groups


@settings(max_examples=60)
@given(data=st.data())
def test_any_order_of_independent_records_gives_the_same_states(
    script: Any, data: st.DataObject
) -> None:
    """Records of trees that do not refer to each other may be interleaved at will."""
    groups = many(script)
    expected = graph_facts("\n".join(line for g in groups for line in g).encode())
    waiting, mixed = [list(group) for group in groups], []
    while any(waiting):
        at = data.draw(st.sampled_from([i for i, group in enumerate(waiting) if group]))
        mixed.append(waiting[at].pop(0))
    assert graph_facts("\n".join(mixed).encode()) == expected


@settings(max_examples=60)
@given(data=st.data())
def test_any_duplicated_lines_give_the_same_states(script: Any, data: st.DataObject) -> None:
    lines = [line for group in many(script, 2) for line in group]
    expected = graph_facts("\n".join(lines).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        source = data.draw(st.integers(0, len(lines) - 1))
        lines.insert(data.draw(st.integers(source + 1, len(lines))), lines[source])
    assert graph_facts("\n".join(lines).encode()) == expected


@settings(max_examples=60)
@given(data=st.data())
def test_any_cut_of_the_tail_invents_nothing(script: Any, data: st.DataObject) -> None:
    whole = "\n".join(line for group in many(script, 2) for line in group).encode() + b"\n"
    expected = graph_facts(whole)
    cut = data.draw(st.integers(0, len(whole)))
    found = graph_facts(whole[:cut])
    assert all(expected[key] == path for key, path in found.items())
    assert list(found) == list(expected)[: len(found)]


def test_fuzzing_invents_no_state(script: Any) -> None:
    """The short form of `python benchmarks/fuzz_traces.py`."""
    import importlib.util

    path = ROOT / "benchmarks" / "fuzz_traces.py"
    spec = importlib.util.spec_from_file_location("fuzz_traces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.fuzz(400, seed=1) == 400


def test_analyse_takes_bytes_and_lines(script: Any) -> None:
    s = script()
    s.user("go")
    s.say("m1", "one")
    assert analyse(s.data)[2] == analyse(s.data.splitlines(keepends=True))[2]


def test_parents_far_back_are_found(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last uuids of a long file are in a dictionary."""
    from composer_pipeline.traces.graph_nodes import UuidIndex

    data = "\n".join(line for group in many(script) for line in group).encode()
    expected = graph_facts(data)
    monkeypatch.setattr(UuidIndex, "RECENT", 3)
    assert graph_facts(data) == expected
    assert graph_facts(data + b"\n" + data) == expected

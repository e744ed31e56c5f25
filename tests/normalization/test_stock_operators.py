"""Our runner beside stock data-juicer, each in a process of its own, on the same rows."""

import importlib.metadata
import json
import os
import string
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from composer_pipeline.normalization.judge import COLUMNAR, VERSION
from composer_pipeline.normalization.operators import (
    DEDUPLICATORS,
    MAPPERS,
    MODEL_FILTERS,
    ROW_FILTERS,
    SELECTORS,
    TEXT_FILTERS,
)
from composer_pipeline.normalization.text_columns import COLUMNS
from composer_pipeline.settings import recipes_dir
from tests.places import ROOT

PEERS = Path(__file__).with_name("normalize_peers.py")

Ask = Callable[..., dict[str, Any]]
Steps = list[tuple[str, dict[str, Any]]]


def peer(name: str) -> Iterator[Ask]:
    child = subprocess.Popen(
        [sys.executable, str(PEERS), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if name == "none" else subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    source, sink = child.stdout, child.stdin

    def ask(verb: str, **request: Any) -> dict[str, Any]:
        sink.write(json.dumps({"verb": verb, **request}) + "\n")
        sink.flush()
        for line in source:
            if line.startswith("RESULT"):
                answer: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
                return answer
        raise AssertionError(f"the {name} process ended")

    yield ask
    child.stdin.close()
    child.wait(timeout=600)
    source.close()


@pytest.fixture(scope="module")
def stock() -> Iterator[Ask]:
    yield from peer("stock")


@pytest.fixture(scope="module")
def ours() -> Iterator[Ask]:
    yield from peer("ours")


def columns(texts: list[str], **more: list[Any]) -> dict[str, list[Any]]:
    return {"pair_id": [f"p{i}" for i in range(len(texts))], "chosen_text": texts, **more}


def same(stock: Ask, ours: Ask, steps: Steps, data: dict[str, list[Any]]) -> list[str]:
    """Ask both; compare; return the kept ids."""
    steps = [(name, {"text_key": "chosen_text", **args}) for name, args in steps]
    theirs = stock("process", steps=steps, columns=data)
    mine = ours("process", steps=steps, columns=data)
    assert "error" not in theirs, theirs
    assert "error" not in mine, mine
    # A selector returns its choice in an order of its own; we keep the table's.
    assert mine["out"] == sorted(theirs["out"], key=data["pair_id"].index)
    return list(mine["out"])


# -- parity ---------------------------------------------------------------------------

RATIO = {"min_ratio": st.floats(0, 0.6), "max_ratio": st.floats(0.2, 1)}
LENGTH = {"min_len": st.integers(0, 30), "max_len": st.integers(10, 200)}
CLOSED = {
    "min_closed_interval": st.booleans(),
    "max_closed_interval": st.booleans(),
    "reversed_range": st.booleans(),
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "alphanumeric_filter": RATIO,
    "average_line_length_filter": LENGTH,
    "character_repetition_filter": {"rep_len": st.integers(1, 12), **RATIO},
    "maximum_line_length_filter": LENGTH,
    "special_characters_filter": RATIO,
    "text_length_filter": LENGTH,
    "word_repetition_filter": {"rep_len": st.integers(1, 6), **RATIO},
    "words_num_filter": {"min_num": st.integers(0, 6), "max_num": st.integers(2, 30)},
}
#: What breaks naive copies: every kind of space and line end, emoji of several code points,
#: combining marks, digits of other scripts, astral letters, and nothing at all.
ODD = [
    "",
    " ",
    "\n\n",
    "a\u2028b\u0085c\x1cd\x0be",
    "\u3000a\u200bb\u00a0c\ufeff",
    "👩‍👩‍👧‍👦 ok 👍🏽",
    "❤️ e\u0301 ﷽ \u0660\u0661 x²",
    "𝒳𝟘 中文 текст",
    "tab\tsep\rcr\r\nlf",
    "ﬁ İ ß ẞ",
    "\x00\x01",
    "- - # !",
    "-a- .b. c",
    "over and over again " * 40,
    "One plain sentence that says nothing twice,\nand a second line of some length.",
]
TEXT = st.one_of(
    st.sampled_from(ODD),
    st.text(max_size=60),
    st.text(alphabet=string.ascii_lowercase[:3] + " \n\t.-#1é😀\u3000", max_size=120),
    st.builds(lambda text, n: text * n, st.text(min_size=1, max_size=8), st.integers(1, 40)),
)


def test_every_filter_that_judges_texts_is_compared() -> None:
    assert set(PARAMETERS) == TEXT_FILTERS


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_kept_ids_equal_stock_on_generated_texts(stock: Ask, ours: Ask, name: str) -> None:
    outcomes = set()

    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(
        texts=st.lists(TEXT, min_size=1, max_size=25),
        args=st.fixed_dictionaries({}, optional={**PARAMETERS[name], **CLOSED}),
    )
    @example(texts=[], args={})
    def check(texts: list[str], args: dict[str, Any]) -> None:
        texts = [*texts, *ODD]
        kept = same(stock, ours, [(name, args)], columns(texts))
        outcomes.add((len(kept) > 0, len(kept) < len(texts)))

    check()
    # The examples must have kept some rows and dropped others, or they compare nothing.
    assert (True, True) in outcomes


@pytest.mark.parametrize("name", sorted(COLUMNAR))
def test_columnar_statistics_are_data_juicers_own_numbers(ours: Ask, name: str) -> None:
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(texts=st.lists(TEXT, max_size=30))
    def check(texts: list[str]) -> None:
        found = ours("statistics", steps=[(name, {})], columns=columns(texts))
        assert found["columnar"] == found["own"]
        assert len(found["own"]) == len(texts)

    check()
    # More than one chunk, and texts of nothing at each end of it.
    texts = ["", *ODD, "x y\n-" * 120_000, "", *ODD, "", "é" * 400_000, ""]
    found = ours("statistics", steps=[(name, {})], columns=columns(texts))
    assert found["columnar"] == found["own"]


def test_the_columnar_statistics_are_for_the_installed_release() -> None:
    assert importlib.metadata.version("py-data-juicer") == VERSION


OTHERS: list[tuple[str, Steps, int]] = [
    ("condition", [("general_field_filter", {"filter_condition": "chosen_text != 'b'"})], 7),
    ("field", [("specified_field_filter", {"field_key": "chosen_text", "target_value": ["b"]})], 2),
    (
        "number",
        [("specified_numeric_field_filter", {"field_key": "chosen_text", "max_value": 5})],
        1,
    ),
    ("exact", [("document_deduplicator", {})], 6),
    ("loose", [("document_deduplicator", {"lowercase": True, "ignore_non_character": True})], 4),
    # All texts shorter than its window are one to it, whatever they say.
    ("near", [("document_minhash_deduplicator", {"tokenization": "character"})], 2),
    ("top", [("topk_specified_field_selector", {"field_key": "chosen_text", "topk": 3})], 3),
    ("often", [("frequency_specified_field_selector", {"field_key": "chosen_text", "topk": 1})], 3),
    (
        "tags",
        [("tags_specified_field_selector", {"field_key": "chosen_text", "target_tags": ["b"]})],
        2,
    ),
    (
        "range",
        [
            (
                "range_specified_field_selector",
                {"field_key": "chosen_text", "lower_rank": 1, "upper_rank": 4},
            )
        ],
        3,
    ),
    ("random", [("random_selector", {"select_num": 4})], 4),
]


@pytest.mark.parametrize(
    ("steps", "count"), [case[1:] for case in OTHERS], ids=[c[0] for c in OTHERS]
)
def test_other_operators_keep_what_stock_keeps(
    stock: Ask, ours: Ask, steps: Steps, count: int
) -> None:
    texts = ["b", "A long text that is nearly the same", "a long text that is nearly the same!"]
    texts += ["3", "zz", "B 1", "b", "zz", "zz"]
    if steps[0][0] == "range_specified_field_selector":
        texts = [str(n) for n in (5, 3, 9, 1, 7)]
    assert len(same(stock, ours, steps, columns(texts))) == count


def test_word_lists_that_are_there_are_used(stock: Ask, ours: Ask, tmp_path: Path) -> None:
    for kind in ("flagged_words", "stopwords"):
        (tmp_path / f"{kind}.json").write_text(json.dumps({"en": ["darn", "the"]}))
        steps = [(f"{kind}_filter", {f"{kind}_dir": str(tmp_path)})]
        texts = ["darn the darn", "all is well here", "the cat", ""]
        kept = same(stock, ours, steps, columns(texts))
        assert 0 < len(kept) < 4


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("whitespace_normalization_mapper", {}),
        ("punctuation_normalization_mapper", {}),
        ("clean_email_mapper", {}),
        ("clean_links_mapper", {}),
        ("clean_ip_mapper", {}),
        ("clean_copyright_mapper", {}),
        ("remove_long_words_mapper", {"max_len": 5}),
        ("remove_repeat_sentences_mapper", {}),
        ("remove_specific_chars_mapper", {}),
        ("remove_words_with_incorrect_substrings_mapper", {}),
        ("replace_content_mapper", {"pattern": "a+", "repl": "<A>"}),
        ("expand_macro_mapper", {}),
        ("remove_comments_mapper", {}),
        ("remove_header_mapper", {}),
        ("remove_bibliography_mapper", {}),
        ("remove_table_text_mapper", {}),
        ("remove_non_chinese_character_mapper", {}),
        (
            "python_lambda_mapper",
            {"lambda_str": "lambda s: {**s, 'chosen_text': s['chosen_text'][::-1]}"},
        ),
        ("pii_redaction_mapper", {"redact_keys": ["chosen_text"]}),
    ],
)
def test_mappers_give_what_stock_gives(stock: Ask, ours: Ask, name: str, args: Any) -> None:
    texts = [
        "aa  mail\u3000bob@example.com，see https://example.com/x or 10.0.0.1 ◆●",
        "/* Copyright 2020 */\ncode aaaa",
        "One sentence here. One sentence here. Another sentence follows it.",
        "\\newcommand{\\foo}{bar}\n\\foo and % note\n\\section{a} text \\begin{thebibliography} z",
        "a | b | c\n1 | 2 | 3\n4 | 5 | 6 中文",
        "plain",
    ]
    steps = [(name, {"text_key": "chosen_text", **args})]
    theirs = stock("process", steps=steps, columns=columns(texts), want="chosen_text")
    mine = ours("map", steps=steps, columns=columns(texts))
    assert "error" not in theirs, theirs
    assert mine["out"] == theirs["out"]
    if name not in ("remove_header_mapper", "remove_table_text_mapper"):
        assert mine["out"] != texts


def test_two_processes_give_the_same(ours: Ask) -> None:
    texts = [f"word {i} " * (i % 9) for i in range(400)]
    steps = [("word_repetition_filter", {"rep_len": 2, "max_ratio": 0.3})]
    found = ours("forked", steps=steps, columns=columns(texts))
    assert found["out"] is True
    assert found["n"] == 400


def test_a_ratio_at_its_bound_is_judged_as_stock_judges_it(stock: Ask, ours: Ask) -> None:
    texts = ["-a- .b. c", "ab- -- ---", "abc"]
    for args in ({"max_ratio": 1 / 3, "max_closed_interval": False}, {"min_ratio": 1 / 3}):
        kept = same(stock, ours, [("alphanumeric_filter", args)], columns(texts))
        assert ("p0" in kept) is ("max_ratio" in args)


# -- the whole registry ------------------------------------------------------------------


def test_each_operator_of_the_registry_runs_or_is_refused_with_a_reason(ours: Ask) -> None:
    found = ours("refusals")["out"]
    run = {name for name, (_, reason) in found.items() if not reason}
    assert run == (TEXT_FILTERS | MODEL_FILTERS | ROW_FILTERS | DEDUPLICATORS | SELECTORS | MAPPERS)
    assert len(found) > 200
    for name, word in {
        "llm_quality_score_filter": "language model",
        "pair_preference_mapper": "language model",
        "agent_insight_llm_mapper": "language model",
        "dialog_topic_shift_mapper": "language model",
        "text_embd_similarity_filter": "language model",
        "image_blur_mapper": "images",
        "naive_grouper": "Grouper",
        "meta_tags_aggregator": "Aggregator",
        "ray_repartition_pipeline": "Pipeline",
        "text_chunk_mapper": "several rows",
        "document_line_deduplicator": "rewrites",
        "ray_document_deduplicator": "document_deduplicator",
        "suffix_filter": "no file",
        "usage_counter_mapper": "one text for one text",
        "text_pair_similarity_filter": "needs a model or a column",
    }.items():
        assert word in found[name][1], name


# -- the traps of stock data-juicer --------------------------------------------------------

TWO = ("chosen_text", "rejected_text")
PAIRS = {
    "pair_id": ["good", "rejected-empty", "rejected-long", "chosen-long", "rejected-seen"],
    "chosen_text": ["pwd", "cat x", "cat y", "z" * 400, "cat z"],
    "rejected_text": ["ls -a", "", "z" * 400, "ls -b", "ls -a"],
}


def test_t1_two_filters_of_a_kind_each_judge_their_own_field(stock: Ask, ours: Ask) -> None:
    steps = [("text_length_filter", {"text_key": key, "min_len": 1, "max_len": 50}) for key in TWO]
    assert ours("process", steps=steps, columns=PAIRS)["out"] == ["good", "rejected-seen"]
    # Stock: the second filter re-judges the first one's number; bad rejected texts stay.
    wrong = stock("process", steps=steps, columns=PAIRS)["out"]
    assert wrong == ["good", "rejected-empty", "rejected-long", "rejected-seen"]


def test_t2_a_second_deduplicator_works(stock: Ask, ours: Ask) -> None:
    steps = [("document_deduplicator", {"text_key": key}) for key in TWO]
    found = ours("process", steps=steps, columns=PAIRS)
    assert "rejected-seen" not in found["out"]
    assert [(d[1], d[6]) for d in found["drops"]] == [
        ("1:document_deduplicator", "duplicate of good")
    ]
    assert "rejected-seen" in stock("process", steps=steps, columns=PAIRS)["out"]


def test_t3_a_null_raises_and_names_its_row_and_no_row_vanishes(stock: Ask, ours: Ask) -> None:
    data = {**PAIRS, "chosen_text": ["pwd", None, "cat y", "z", "cat z"]}
    steps = [("text_length_filter", {"text_key": "chosen_text", "min_len": 1})]
    lost = stock("process", steps=steps, columns=data, skip=True)
    assert lost["out"] == [], "stock data-juicer lost the whole batch, good rows included"
    error = ours("process", steps=steps, columns=data)["error"]
    assert error == "InputError: pair rejected-empty (row 1) has null in column chosen_text"


def test_t4_stock_runs_an_installer_and_we_never_do(stock: Ask, ours: Ask) -> None:
    steps = [("fix_unicode_mapper", {"text_key": "chosen_text"})]
    data = columns(["x"])
    tried = stock("process", steps=steps, columns=data)["tried"]
    if importlib.util.find_spec("ftfy") is None:
        assert any("pip install" in command for command in tried), tried
        error = ours("map", steps=steps, columns=data)["error"]
        assert "[fix_unicode_mapper]" in error
        assert "package ftfy is missing, and nothing is installed by itself" in error
    acts = ours("acts")
    assert "nothing is installed by itself" in acts["out"]["missing"]
    assert acts["out"]["connect"] == "normalize opens no connection"
    assert acts["out"]["process"].startswith("normalize starts no process")
    assert acts["out"]["shell"].startswith("normalize starts no process")


def test_torch_is_never_imported(ours: Ask) -> None:
    acts = ours("acts")
    assert acts["out"]["torch"] == "No module named 'torch'"
    assert acts["torch"] is False


def test_t5_stock_fetches_word_lists_and_we_say_what_is_missing(
    stock: Ask, ours: Ask, tmp_path: Path
) -> None:
    for kind in ("flagged_words", "stopwords"):
        args = {"text_key": "chosen_text", f"{kind}_dir": str(tmp_path / "empty")}
        (tmp_path / "empty").mkdir(exist_ok=True)
        theirs = stock("make", steps=[(f"{kind}_filter", args)])
        assert any(attempt.startswith("connect") for attempt in theirs["tried"])
        error = ours("process", steps=[(f"{kind}_filter", args)], columns=columns(["x"]))["error"]
        assert error == f"InputError: [{kind}_filter] {kind}_dir: no *{kind}*.json in " + str(
            tmp_path / "empty"
        )


def test_t6_we_need_none_of_the_extras_that_pin_other_packages() -> None:
    requires = importlib.metadata.requires("py-data-juicer") or []
    generic = [line for line in requires if "extra == 'generic'" in line.replace('"', "'")]
    assert any(line.startswith("torch==2.8.0") for line in generic)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    mine = project["optional-dependencies"]["normalize"]
    assert f"py-data-juicer=={VERSION}" in mine
    assert not [line for line in mine if "data-juicer[" in line]
    # And what we install beside it is what that extra would forbid.
    assert importlib.metadata.version("torch") != "2.8.0"


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("token_num_filter", {"hf_tokenizer": "/no/such"}, "needs a model or a file that is not"),
        (
            "whitespace_normalization_mapper",
            {"text_key": "prompt_tail_text"},
            "is made from others",
        ),
        ("whitespace_normalization_mapper", {"text_key": "pair_text"}, "is made from others"),
        ("text_length_filter", {"text_key": "chosen"}, "unknown column 'chosen'"),
        ("text_length_filter", {"min_len": "three"}, "expects type 'int', got 'str'"),
        ("general_field_filter", {"filter_condition": "chosn_text != 'x'"}, "column 'chosn_text'"),
        ("general_field_filter", {"filter_condition": "chosen_text !="}, "is not an expression"),
        ("specified_field_filter", {"field_key": "meta.x"}, "unknown column 'meta.x'"),
        ("words_num_filter", {"tokenization": True}, "tokenization needs a model"),
        ("flagged_words_filter", {}, "needs flagged_words_dir"),
        ("tags_specified_field_selector", {}, "cannot be made without parameters"),
        ("python_file_mapper", {"file_path": "/no.py"}, "'/no.py' does not exist"),
        ("replace_content_mapper", {"patern": "x"}, "'patern' (did you mean: pattern?)"),
    ],
)
def test_what_cannot_run_is_named(ours: Ask, name: str, args: Any, words: str) -> None:
    error = ours("process", steps=[(name, args)], columns=columns(["x"]))["error"]
    assert error.startswith(f"InputError: [{name}] ")
    assert words in error


OWN = """
from data_juicer.ops.base_op import OPERATORS, Filter, Mapper

@OPERATORS.register_module("calling_filter")
class Calling(Filter):
    def compute_stats_single(self, sample, context=False):
        import urllib.request
        urllib.request.urlopen("http://127.0.0.1:9")

@OPERATORS.register_module("failing_filter")
class Failing(Filter):
    def compute_stats_single(self, sample, context=False):
        raise KeyError("nothing here")

@OPERATORS.register_module("model_filter")
class Model(Filter):
    def __init__(self, api_model="m", *args, **kwargs):
        super().__init__(*args, **kwargs)

@OPERATORS.register_module("splitting_mapper")
class Splitting(Mapper):
    _batched_op = True
    def process_batched(self, samples):
        (key,) = samples
        return {key: [part for text in samples[key] for part in text.split()]}
"""


def test_own_operators_cannot_call_out_and_name_themselves(ours: Ask, tmp_path: Path) -> None:
    imports, *classes = OWN.split("\n@")
    made = {name: f"{imports}\n@{code}" for name, code in zip(FAILING, classes, strict=True)}
    for name, words in FAILING.items():
        # data-juicer loads a file once in a process.
        path = tmp_path / f"own_{name}.py"
        path.write_text(made[name])
        verb = "map" if name.endswith("mapper") else "process"
        ask = {"columns": columns(["a text"]), "custom": [str(path)]}
        assert words in ours(verb, steps=[(name, {})], **ask)["error"], name


FAILING = {
    "calling_filter": "[calling_filter] URLError: <urlopen error normalize opens no connection>",
    "failing_filter": "[failing_filter] KeyError: 'nothing here'",
    "model_filter": "[model_filter] calls a language model",
    "splitting_mapper": "[splitting_mapper] gave 2 values for 1 texts",
}


# -- recipes are data-juicer's ----------------------------------------------------------

RECIPES = sorted((recipes_dir() / "normalize").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_stock_accepts_and_runs_the_bundled_recipes(stock: Ask, tmp_path: Path, path: Path) -> None:
    rows = [
        {**dict.fromkeys(COLUMNS, "some text"), "pair_id": f"p{i}", "rejected_text": f"other {i}"}
        for i in range(3)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [
        str(path), "--dataset_path", str(tmp_path / "pairs.jsonl"),
        "--export_path", str(tmp_path / "out" / "pairs.jsonl"),
    ]  # fmt: skip
    assert len(stock("config", argv=argv)["out"]) >= 6
    if path.stem != "default":
        return  # the parser is enough for those that differ in bounds alone
    found = stock("execute", argv=argv)
    assert "error" not in found, found
    # Equal pair_text: its own de-duplication leaves one.
    assert found["out"] == ["p0"]
    assert (tmp_path / "out" / "pairs.jsonl").read_text().count("\n") == 1

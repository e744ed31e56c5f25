"""The normalise recipe, and data-juicer's operators made from its steps.

Load operators only in a process that exists for it: importing data-juicer changes the environment
and the root logger, and :func:`guard` cannot be undone.
"""

import ast
import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from composer_pipeline.config_file import nearest, read_model
from composer_pipeline.errors import InputError
from composer_pipeline.normalization.text_columns import COLUMNS, MAPPED


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Filters of one text column: no model, no word list, no network.
TEXT_FILTERS = _words(
    "alphanumeric_filter average_line_length_filter character_repetition_filter "
    "maximum_line_length_filter special_characters_filter text_length_filter "
    "word_repetition_filter words_num_filter"
)
#: Filters of one text column that run if their model or word list is on the machine.
MODEL_FILTERS = _words(
    "flagged_words_filter language_id_score_filter perplexity_filter stopwords_filter "
    "text_action_filter text_entity_dependency_filter token_num_filter"
)
#: Filters that name their columns themselves.
ROW_FILTERS = _words("general_field_filter specified_field_filter specified_numeric_field_filter")
DEDUPLICATORS = _words(
    "document_deduplicator document_minhash_deduplicator document_simhash_deduplicator"
)
SELECTORS = _words(
    "frequency_specified_field_selector random_selector range_specified_field_selector "
    "tags_specified_field_selector topk_specified_field_selector"
)
#: Deterministic mappers that give one text for one text, without a model.
MAPPERS = _words(
    "chinese_convert_mapper clean_copyright_mapper clean_email_mapper clean_html_mapper "
    "clean_ip_mapper clean_links_mapper expand_macro_mapper fix_unicode_mapper "
    "pii_redaction_mapper punctuation_normalization_mapper python_file_mapper "
    "python_lambda_mapper remove_bibliography_mapper remove_comments_mapper "
    "remove_header_mapper remove_long_words_mapper remove_non_chinese_character_mapper "
    "remove_repeat_sentences_mapper remove_specific_chars_mapper remove_table_text_mapper "
    "remove_words_with_incorrect_substrings_mapper replace_content_mapper sentence_split_mapper "
    "whitespace_normalization_mapper"
)
_RUN = TEXT_FILTERS | MODEL_FILTERS | ROW_FILTERS | DEDUPLICATORS | SELECTORS | MAPPERS

_API_PARAMETERS = frozenset(("api_model", "api_or_hf_model", "api_endpoint", "model_params"))
_MEDIA = ("image_", "video_", "audio_", "imgdiff_", "ray_image_", "ray_video_")
_ADDED = ("text_key", "skip_op_error", "auto_op_parallelism")
_REASONS = {
    "document_line_deduplicator": "rewrites texts by what other rows say",
    "document_minhash_deduplicator_with_uid": "needs __dj__uid of an earlier run",
    "ray_document_deduplicator": "is document_deduplicator for stock Ray; name that one",
    "nlpaug_en_mapper": "changes texts at random",
    "nlpcda_zh_mapper": "changes texts at random",
    "sentence_augmentation_mapper": "changes texts at random",
    "text_chunk_mapper": "makes several rows of one",
    "suffix_filter": "judges file suffixes, and a pair has no file",
}


class WorkerSettings(msgspec.Struct, frozen=True):
    """What a worker process gets: the steps, and how to run them."""

    steps: list[tuple[str, dict[str, Any]]]
    np: int = 1
    custom_operator_paths: list[str] = []


class OperatorStep(msgspec.Struct, frozen=True):
    """A step as the stage sees it; ``field`` is the column of a mapper, else empty."""

    name: str
    field: str = ""


class _NoTorch(PathFinder):
    """Finds every module but torch."""

    # None in sys.modules would not do: datasets imports torch where its name is in there.

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """See :class:`importlib.machinery.PathFinder`."""
        return None if fullname == "torch" else super().find_spec(fullname, path, target)


def guard() -> None:
    """Refuse connections and child programs in this process from now on."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            raise PermissionError("normalize opens no connection")
        if event in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"):
            raise PermissionError(f"normalize starts no process: {arguments[0]!r}")

    sys.addaudithook(hook)


def import_data_juicer() -> Any:
    """Import data-juicer without automatic installation and torch; return ``data_juicer.ops``."""
    os.environ.update({"UV_OFFLINE": "1", "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"})
    if PathFinder in sys.meta_path:
        sys.meta_path[sys.meta_path.index(PathFinder)] = _NoTorch
    try:
        loader = importlib.import_module("data_juicer.utils.lazy_loader").LazyLoader

        def refuse(cls: type, package: str, pip_args: object = None) -> None:
            if package.partition("==")[0] == "torch":
                raise ImportError("normalisation never imports torch")
            raise ImportError(f"package {package} is missing, and nothing is installed by itself")

        loader._install_package = classmethod(refuse)
        return importlib.import_module("data_juicer.ops")
    except ImportError as error:
        raise InputError(
            f"data-juicer cannot be imported ({error}): pip install 'composer-pipeline[normalize]',"
            " or --recipe none keeps every pair"
        ) from error


def load_steps(
    steps: Iterable[tuple[str, dict[str, Any]]], custom_operator_paths: Sequence[str] = ()
) -> list[Any]:
    """Check the steps and make data-juicer's operators of them."""
    ops = import_data_juicer()
    own = _load_own(custom_operator_paths, ops)
    preflight = importlib.import_module("data_juicer.core.preflight")
    process = [{name: dict(arguments)} for name, arguments in steps]
    try:
        preflight.pre_instantiation_check(process)
    except preflight.PipelineConfigError as error:
        raise InputError("; ".join(str(item) for item in error.errors)) from error
    for entry in process:
        for name, arguments in entry.items():
            reason = refusal(name, ops.OPERATORS.modules[name], ops, own=name in own)
            if reason:
                raise InputError(f"[{name}] {reason}")
            _check_arguments(name, arguments, ops, own=name in own)
            # An operator that is constructed directly raises on errors only with these.
            arguments["skip_op_error"] = False
            arguments["auto_op_parallelism"] = False
    made = []
    for entry in process:
        name = next(iter(entry))
        try:
            (op,) = ops.load_ops([entry])
            op._composer_own = name in own
            if name in MODEL_FILTERS | MAPPERS | DEDUPLICATORS:
                _probe(op)
        except ImportError as error:
            raise InputError(f"[{name}] {_line(error)}") from error
        except (OSError, RuntimeError, LookupError) as error:
            raise InputError(
                f"[{name}] needs a model or a file that is not on this machine: {_line(error)}"
            ) from error
        except (ValueError, TypeError, AssertionError, AttributeError) as error:
            given = [key for key in entry[name] if key not in _ADDED]
            with_ = f" with {', '.join(given)}" if given else " without parameters"
            raise InputError(f"[{name}] cannot be made{with_}: {_line(error)}") from error
        made.append(op)
    return made


def refusal(name: str, cls: type, ops: Any, *, own: bool = False) -> str:
    """Return why an operator is not run here, or an empty string if it is."""
    for kind in (ops.Grouper, ops.Aggregator, ops.Pipeline):
        if issubclass(cls, kind):
            return f"is a {kind.__name__}: it merges rows, and a pair stays one row"
    if name.startswith(_MEDIA):
        return "works on images, sound or video, and pairs are text"
    if _API_PARAMETERS & _parameters(cls) or ("llm" in name and not own):
        return (
            "calls a language model: replies are bought only by the replay"
            " stage, through its ledger and ceiling"
        )
    if own or name in _RUN:
        return ""
    if name in _REASONS:
        return _REASONS[name]
    if issubclass(cls, ops.Mapper):
        return "does not give one text for one text without a model, so its result has no place"
    return "needs a model or a column that pairs do not have; runnable: " + ", ".join(
        sorted(_RUN - MAPPERS)
    )


def _parameters(cls: type) -> set[str]:
    """Return the parameters of a class and its bases; its metaclass hides its signature."""
    return {
        name
        for klass in cls.__mro__
        if "__init__" in vars(klass) and klass is not object
        for name in inspect.signature(vars(klass)["__init__"]).parameters
    }


def describe(ops: Iterable[Any]) -> list[OperatorStep]:
    """Return what the stage needs to know about loaded operators."""
    base = importlib.import_module("data_juicer.ops")
    return [
        OperatorStep(op._name, op.text_key if isinstance(op, base.Mapper) else "") for op in ops
    ]


def _load_own(paths: Sequence[str], ops: Any) -> set[str]:
    """Register the user's own operators as data-juicer does; return their names."""
    if not paths:
        return set()
    before = dict(ops.OPERATORS.modules)
    load = importlib.import_module("data_juicer.config.config").load_custom_operators
    try:
        load(list(paths))
    except (RuntimeError, ValueError, KeyError) as error:
        raise InputError(f"custom_operator_paths: {_line(error)}") from error
    return {name for name, cls in ops.OPERATORS.modules.items() if before.get(name) is not cls}


def _check_arguments(name: str, arguments: dict[str, Any], ops: Any, *, own: bool) -> None:
    fields = [arguments["text_key"]]
    if arguments.get("field_key"):
        fields.append(arguments["field_key"])
    if name == "general_field_filter":
        fields.extend(_condition_names(name, arguments.get("filter_condition", "")))
    for field in fields:
        if field not in COLUMNS:
            raise InputError(f"[{name}] unknown column {field!r}; known: {', '.join(COLUMNS)}")
    if issubclass(ops.OPERATORS.modules[name], ops.Mapper):
        field = arguments["text_key"]
        if field not in MAPPED:
            raise InputError(
                f"[{name}] column {field!r} is made from others and cannot be changed; a mapper's"
                f" text_key is one of {', '.join(MAPPED)}"
            )
    if not own:
        _check_offline(name, arguments)


def _check_offline(name: str, arguments: dict[str, Any]) -> None:
    """Refuse what data-juicer's own operators would fetch from the network."""
    if arguments.get("tokenization") is True:
        raise InputError(f"[{name}] tokenization needs a model from the network")
    for kind in ("flagged_words", "stopwords"):
        if name == f"{kind}_filter":
            _check_words(name, kind, arguments)


def _check_words(name: str, kind: str, arguments: dict[str, Any]) -> None:
    """Require a word list, which data-juicer would fetch over HTTP."""
    folder = arguments.get(f"{kind}_dir")
    if not folder:
        raise InputError(f"[{name}] needs {kind}_dir, a folder with a *{kind}*.json word list")
    if not list(Path(folder).glob(f"*{kind}*.json")):
        raise InputError(f"[{name}] {kind}_dir: no *{kind}*.json in {folder}")


def _condition_names(name: str, condition: str) -> list[str]:
    """Return the names in a condition; data-juicer reads an unknown one as null and drops all."""
    try:
        tree = ast.parse(condition, mode="eval")
    except SyntaxError as error:
        raise InputError(
            f"[{name}] filter_condition is not an expression: {condition!r}"
        ) from error
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _probe(op: Any) -> None:
    """Run an operator on one text, so that what it lacks is found before any row is read."""
    stats = importlib.import_module("data_juicer.utils.constant").Fields.stats
    text = "A text, to see."
    if op._name in DEDUPLICATORS:
        type(op).compute_hash(op, {op.text_key: text})
    elif op._name in MODEL_FILTERS:
        op.compute_stats_batched({op.text_key: [text], stats: [{}]})
    elif op._name not in ("python_lambda_mapper", "python_file_mapper"):
        op.process_batched({op.text_key: [text]})


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


Process = list[dict[str, dict[str, JsonValue] | None]]


class NormalizeRecipe(BaseModel):
    """The keys of a data-juicer configuration that are used here.

    ``skip_op_error`` must be false: under data-juicer's default, true, one bad row makes a whole
    batch vanish. The cache and automatic parallelism would make a run depend on earlier runs and
    on the machine. ``np`` is the number of processes; ``custom_operator_paths`` are files or
    packages with own operators, relative to the working folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    project_name: str = ""
    dataset_path: str = ""
    export_path: str = ""
    text_keys: list[str] = Field(min_length=1)
    np: int = Field(default=1, ge=1)
    skip_op_error: Literal[False]
    use_cache: Literal[False]
    auto_op_parallelism: Literal[False]
    open_monitor: bool = False
    open_tracer: bool = False
    executor_type: Literal["default"] = "default"
    custom_operator_paths: list[str] = Field(default_factory=list)
    process: Process = Field(min_length=1)

    @field_validator("text_keys")
    @classmethod
    def _known(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if key not in COLUMNS:
                raise ValueError(
                    f"unknown column {key!r}{nearest(key, COLUMNS)}; known: {', '.join(COLUMNS)}"
                )
        return keys

    @field_validator("custom_operator_paths", mode="before")
    @classmethod
    def _one_or_many(cls, paths: Any) -> Any:
        return [paths] if isinstance(paths, str) else paths

    @field_validator("process")
    @classmethod
    def _one_op_each(cls, process: Process) -> Process:
        for index, entry in enumerate(process):
            if len(entry) != 1:
                raise ValueError(f"entry {index} must hold exactly one operator")
        return process

    @staticmethod
    def load(path: str | Path) -> "NormalizeRecipe":
        """Read a recipe."""
        recipe = read_model(path, "normalise recipe", NormalizeRecipe)
        for place in recipe.custom_operator_paths:
            if not Path(place).exists():
                full = f"custom_operator_paths: {Path(place).absolute()}"
                raise InputError(f"normalise recipe {path}: {full} does not exist")
        return recipe

    def steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (operator, arguments) in order, with data-juicer's default text key set."""
        return [
            (name, {"text_key": self.text_keys[0], **(arguments or {})})
            for entry in self.process
            for name, arguments in entry.items()
        ]

    def recipe_id(self, path: str | Path) -> str:
        """Return ``name@hash``: the file's stem, a hash of the steps and own operators' code."""
        text = json.dumps(self.steps(), sort_keys=True, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode(), digest_size=6)
        for place in self.custom_operator_paths:
            root = Path(place)
            for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
                digest.update(b"\0" + file.read_bytes())
        return f"{Path(path).stem}@{digest.hexdigest()}"

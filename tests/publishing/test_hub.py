"""A publication through faults and kills: the old dataset or the new, and the new in the end."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import publish
from composer_pipeline.testing.hub.repository import Repo
from composer_pipeline.testing.hub.server import Fault, LoopbackHub, Planned, RateLimit
from tests.places import ROOT
from tests.publishing.conftest import REPO, TOKEN, fill, row, send

#: Requests of a publication to a new repository by LFS, then those that follow the commit.
REQUESTS = ["info", "create", "tree", "validate-yaml", "preupload", "batch", "put", "verify",
            "commit"]  # fmt: skip
AFTER = ["resolve", "refs", "tag"]
FAULTS: dict[str, Planned] = {
    "rate limit": Fault(429, retry_after=7),
    "busy": Fault(503, retry_after=3),
    "ill": 500,
    "bad gateway": 502,
    "gateway timeout": 504,
    "reset": "reset",
    "lost answer": "lost",
}


def whole(repo: Repo, lake: Lake) -> bool:
    """Say whether the head holds the lake's dataset, and nothing else."""
    if "manifest.json" not in repo.head.files:
        return False
    listed = json.loads(repo.head.files["manifest.json"])["files"]
    data = {path for path in repo.head.files if path.endswith((".parquet", ".svg"))}
    return data == set(listed) and all(
        repo.head.files[f"data/{config}/{split}.parquet"]
        == Path(lake.path(f"dataset_{config}", split=split)).read_bytes()
        for config in ("pairs", "groups")
        for split in ("train", "validation")
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_delays_a_publication(lake: Lake, hub: LoopbackHub, fault: str) -> None:
    """Nine requests by seven faults, and three more that come after the commit: all publish."""
    failed = []
    for kind in REQUESTS + AFTER:
        hub.repos.clear()
        hub.blobs.clear()
        hub.kinds.clear()
        hub.faults = [(kind, FAULTS[fault])]
        report = send(lake, hub)
        repo = hub.repos[REPO]
        # After the first request comes another of its kind, or the lost answer was enough.
        met = hub.faults == [] and hub.kinds.count(kind) >= 1 + (fault != "lost answer")
        named = list(repo.tags.items()) == [(report.tag, report.commit)]
        if not (met and named and whole(repo, lake) and len(repo.commits) == 2):
            failed.append(kind)
    assert failed == []
    assert hub.clock() >= len(REQUESTS + AFTER) - 1 - (fault == "lost answer")


def test_every_request_of_a_publication_is_among_them(lake: Lake, hub: LoopbackHub) -> None:
    send(lake, hub)
    assert set(hub.kinds) == {*REQUESTS, *AFTER}


def test_an_upload_by_xet_waits_for_its_token(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    hub.faults = [("xet-token", Fault(503, retry_after=1)), ("commit", "lost")]
    send(lake, hub)
    assert whole(hub.repos[REPO], lake)
    assert hub.kinds.count("xet-token") >= 2
    assert "put" not in hub.kinds
    hub.faults = [("xet-token", 403)]
    fill(lake, [row(1, "train")], [row(9, "validation")])
    with pytest.raises(ComposerError, match="the token may not write there"):
        send(lake, hub)


def test_a_head_that_lags_five_seconds(lake: Lake, hub: LoopbackHub) -> None:
    hub.lag_s = 5.0
    first = send(lake, hub)
    repo = hub.repos[REPO]
    assert whole(repo, lake)
    assert len(repo.commits) == 2
    for i in (3, 2):  # at once: who asks sees the commit before
        fill(lake, [row(i, "train")], [row(9, "validation")])
        assert send(lake, hub).commit == repo.head.oid != first.commit
    assert whole(repo, lake)
    assert len(repo.commits) == 4


def test_a_rate_limit_that_outlasts_us(lake: Lake, hub: LoopbackHub) -> None:
    hub.limits["batch"] = RateLimit(requests=0, window_s=0)
    hub.faults = [("batch", Fault(429, retry_after=3600))]
    with pytest.raises(ComposerError, match="answered 429, and asks to wait 3600 s"):
        send(lake, hub)
    assert hub.clock() < 10, "the client does not sleep an hour by itself"
    hub.limits.clear()
    hub.limits["create"] = RateLimit(requests=1, window_s=3600)
    send(lake, hub)
    fill(lake, [row(1, "train")], [row(9, "validation")])
    send(lake, hub)
    assert hub.kinds.count("create") == 1, "an existing repository is not created again"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (503, "the Hub answered 503, for 120 s; nothing is half-done"),
        ("reset", "the connection to the Hub was lost, for 120 s; nothing is half-done"),
    ],
)
def test_trouble_that_stays_is_one_sentence(
    lake: Lake, hub: LoopbackHub, kind: Planned, words: str
) -> None:
    hub.faults = [("info", kind)] * 20
    with pytest.raises(ComposerError, match=words) as caught:
        send(lake, hub)
    assert not isinstance(caught.value, InputError), "it is no mistake of the caller"
    assert hub.repos == {}
    assert len(hub.faults) == 12, "eight attempts"


#: Imports once, and publishes in a child for each line: endpoint, words.
PUBLISH = """
import os, sys
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import publish, publish_model
import huggingface_hub.hf_api
def dataset(lake, repo, **options):
    publish(Lake(lake), repo, **options)
def version(run, repo, number, how, **options):
    publish_model(run, repo, version=int(number), promoted=how == "promoted", **options)
warm = False
for line in sys.stdin:
    endpoint, what, *words = line.split()
    send = {"dataset": dataset, "version": version}[what]
    # Patterns are compiled once, not in each child.
    warm = warm or not send(*words, dry_run=True, token_env="NO_TOKEN")
    child = os.fork()
    if not child:
        send(*words, endpoint=endpoint)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Publisher:
    """Processes that publish, and die when they are told."""

    def __init__(self, xet: bool) -> None:
        self.met: list[str] = []
        env = {**os.environ, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
        env |= {"HF_HUB_DISABLE_XET": "" if xet else "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ended(self, hub: LoopbackHub, words: str, *, kind: str = "", nth: int = 0) -> bool:
        """Publish; kill it where ``kind`` is met for the ``nth`` time. Say whether it ended."""
        assert self.process.stdin
        assert self.process.stdout
        child = threading.Event()
        numbers: defaultdict[str, count[int]] = defaultdict(lambda: count(1))
        self.met.clear()
        pid = 0

        def kill(request: str, when: str) -> None:
            # Every request is met twice: before it is carried out, and before it is answered.
            self.met.append(name := f"{request} {when}")
            if (next(numbers[name]), name) == (nth, kind):
                assert child.wait(60)
                os.kill(pid, signal.SIGKILL)

        hub.watch = kill
        self.process.stdin.write(f"{hub.endpoint} {words}\n")
        pid = int(self.process.stdout.readline())
        child.set()
        code = int(self.process.stdout.readline())
        hub.watch = None
        assert code in (0, -signal.SIGKILL)
        return code == 0


@pytest.fixture(params=[False, True], ids=["lfs", "xet"])
def publisher(request: pytest.FixtureRequest) -> Iterator[Publisher]:
    publisher = Publisher(request.param)
    with publisher.process as process:
        yield publisher
        process.communicate()


@pytest.mark.slow
def test_killed_at_any_request_it_is_the_old_dataset_or_the_new(
    lake: Lake, tmp_path: Path, publisher: Publisher
) -> None:
    """At the first and the last request of each kind: a hundred are uploads of single files."""
    train = [row(i, "train") for i in range(4)]
    newer = fill(Lake(tmp_path / "newer"), train, [row(8, "validation")])
    words, newer_words = f"dataset {lake.url} {REPO}", f"dataset {newer.url} {REPO}"
    with LoopbackHub(TOKEN) as hub:
        assert publisher.ended(hub, words)
        repo = hub.repos[REPO]
        first = repo.commits[:]
        assert publisher.ended(hub, newer_words)
        places = sorted(
            {(kind, nth) for kind, n in Counter(publisher.met).items() for nth in (1, n)}
        )
        assert len(places) > 20, "a dozen kinds, before and after"
        killed = 0
        for kind, nth in places:
            repo.commits[:], repo.tags = first, {}
            hub.blobs.clear()
            killed += not publisher.ended(hub, newer_words, kind=kind, nth=nth)
            assert whole(repo, newer if len(repo.commits) == 3 else lake)
            assert len(repo.commits) in (2, 3)
        assert killed > 0.8 * len(places), "uploads share requests as they come"
        assert publisher.ended(hub, newer_words)
        assert whole(repo, newer)
        assert len(repo.tags) == 1


def test_what_is_on_the_hub_is_compared_with_what_was_sent(
    lake: Lake, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Repo.add

    def other(self: Repo, message: str, files: dict[str, bytes], *rest: Any) -> Any:
        if "data/pairs/train.parquet" in files:
            files = {**files, "data/pairs/train.parquet": files["data/groups/train.parquet"]}
        return real(self, message, files, *rest)

    monkeypatch.setattr(Repo, "add", other)
    with pytest.raises(ComposerError, match=r"data/pairs/train\.parquet of commit .* is not what"):
        send(lake, hub)
    assert hub.repos[REPO].tags == {}


def test_a_name_that_nobody_knows_and_no_network(lake: Lake, hub: LoopbackHub) -> None:
    with pytest.raises(ComposerError, match="the Hub's name is not known, or there is no network"):
        publish(lake, REPO, endpoint="http://no-such-host.invalid")
    assert hub.clock() == 0, "what does not pass is not waited for"


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_a_certificate_that_is_not_accepted(lake: Lake, hub: LoopbackHub, tmp_path: Path) -> None:
    made = tmp_path / "made.pem"
    cert = tmp_path / "cert.pem"
    what = f"req -x509 -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -out {cert} -keyout {made}"
    subprocess.run(["openssl", *what.split()], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, made)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with suppress(OSError), context.wrap_socket(connection, server_side=True):
                    pass

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(ComposerError, match="the certificate of the Hub is not accepted"):
            publish(lake, REPO, endpoint=f"https://127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    assert hub.clock() == 0

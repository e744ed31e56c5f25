"""Which commits come after one on a branch: beside `git rev-list --ancestry-path`."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_pipeline.survival.repository import Repository

FILES = ("a.py", "b.py", "c.py")
COMMITS = 120


def stream(draw: random.Random) -> Iterator[str]:
    """Yield a history for `git fast-import`: branches that part, go on, and are merged again."""
    tips = {"main": 1}
    texts = {"main": dict.fromkeys(FILES, "start\n")}
    for mark in range(1, COMMITS + 1):
        name = draw.choice(sorted(tips))
        merged = draw.choice(sorted(set(tips) - {name}) or [""]) if draw.random() < 0.25 else ""
        if draw.random() < 0.15 and len(tips) < 6:
            new = f"side{mark}"
            tips[new], texts[new] = tips[name], dict(texts[name])
            name, merged = new, ""
        file = draw.choice(FILES)
        texts[name][file] += f"line_{mark} = work()\n"
        when = 1_780_000_000 + 600 * mark
        yield f"commit refs/heads/{name}\nmark :{mark}\n"
        yield f"author A <a@example.org> {when} +0000\ncommitter A <a@example.org> {when} +0000\n"
        yield "data 4\nWork\n"
        if mark > 1:
            yield f"from :{tips[name]}\n"
        if merged:
            yield f"merge :{tips[merged]}\n"
            texts[name][file] += texts[merged][file]
        for path, text in texts[name].items():
            yield f"M 644 inline {path}\ndata {len(text.encode())}\n{text}\n"
        tips[name] = mark


def git(folder: Path, *words: str, given: str = "") -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=given, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("seed", range(4))
def test_later_commits_of_a_file_are_those_of_the_ancestry_path(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "fast-import", "--quiet", given="".join(stream(draw)))
    repository = Repository(str(tmp_path / ".git"))
    compared = 0
    for name, tip in repository.branches.items():
        branch = repository.ancestry(tip)
        inside = git(tmp_path, "rev-list", name).split()
        assert {c.hash for n, c in enumerate(repository.commits) if branch.has(n)} == set(inside)
        for base in draw.sample(inside, min(12, len(inside))):
            for file in FILES:
                number = repository.number[base]
                ours = {
                    repository.commits[touch.commit].hash
                    for touch in repository.touches(file)
                    if touch.commit != number and branch.has(touch.commit)
                    and branch.descends(touch.commit, number)
                }  # fmt: skip
                words = ("--ancestry-path", "--full-history", "--no-merges", f"{base}..{name}")
                theirs = git(tmp_path, "rev-list", *words, "--", file).split()
                assert ours == set(theirs), (name, base, file)
                compared += len(theirs) > 0
    repository.close()
    assert compared > 20


@pytest.mark.parametrize("seed", range(2))
def test_the_commit_at_a_time_descends_from_the_base_and_is_not_later(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(10 + seed)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "fast-import", "--quiet", given="".join(stream(draw)))
    repository = Repository(str(tmp_path / ".git"))
    assert repository.trunk is not None
    branch = repository.ancestry(repository.trunk)
    for base in branch.chain:
        limit = repository.commits[base].committed + draw.randrange(60_000)
        found = branch.at_time(base, limit)
        words = ("--first-parent", "-1", f"--until={limit}", "main")
        assert repository.commits[found].hash == git(tmp_path, "rev-list", *words).strip()
        assert branch.descends(found, base)
    repository.close()

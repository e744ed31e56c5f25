"""Near misses: a command that means something else is never the same.

Commands are written as tokens, so that an edit knows what it changes. Rewritings that keep the
meaning have to stay the same; every edit that changes it has to be seen, also through the
rewritings of the other side.
"""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from composer_pipeline.preferences.vote_rows import compare

CWD, HOME = "/home/ana/shop", "/home/ana"
SAME = {"L0", "L1"}

#: Commands by token. Words after ``#`` are operands that an edit may change or drop.
BASES = [
    "rm -rf #build #dist",
    "rm -f #old.log",
    "rm #*.bak",
    "cp -r #src/a.py #src/b.py",
    "mv #a.txt #b.txt",
    "ln -s #target #link",
    "mkdir -p #pkg/api",
    "touch #pkg/__init__.py",
    "chmod +x #run.sh",
    "sed -i #s/alpha/beta/ #conf.ini",
    "sed -i -e #s/alpha/beta/g #conf.ini #other.ini",
    "tee -a #notes.txt",
    "git add #app.py #lib.py",
    "git add -A",
    "git commit -m #message",
    "git commit -a -m #message",
    "git push origin #main",
    "git push -u origin #main",
    "git checkout #dev",
    "git checkout -b #feat",
    "git checkout -- #app.py",
    "git reset --hard #HEAD~1",
    "git restore --staged #app.py",
    "git rebase #main",
    "git merge --no-ff #dev",
    "git stash push -m #wip",
    "git stash drop",
    "git branch -D #dev",
    "git tag -a #v1 -m #first",
    "git rm --cached #app.py",
    "git fetch origin",
    "git clone #https://h.io/r.git #dir",
    "npm install #lodash #zod",
    "npm install -D #vitest",
    "npm uninstall #lodash",
    "npm run #deploy",
    "pnpm add #zod",
    "yarn add #zod",
    "pip install #httpx",
    "pip install -r #requirements.txt",
    "uv add #httpx",
    "cargo add #serde",
    "docker run -d -p #80:80 --name #web #nginx",
    "docker rm -f #web",
    "docker compose up -d #web",
    "kubectl delete #pod/web",
    "kubectl apply -f #k8s.yaml",
    "make #deploy",
    "curl -X POST -d #a=1 #https://h.io/x",
    "python #manage.py #migrate",
    "alembic upgrade #head",
    "ruff check --fix #src",
    "ruff format #src",
    "black #src",
    "eslint --fix #src",
    "prettier --write #src",
    "find #. -name #x.pyc -delete",
    "gh pr merge #12 --squash",
    "./deploy.sh #staging",
    "echo #text > #out.txt",
    "echo #text >> #out.txt",
    "cat #a.txt > #b.txt",
    "sort #a.txt -o #b.txt",
    "pytest -x #tests/test_a.py::test_one",
    "pytest #tests/test_a.py #tests/test_b.py",
    "pytest -k #add #tests",
    "go test -run #TestAdd #./pkg",
    "cargo test #cart",
    "npm test -- #cart.test.ts",
    "vitest run #cart.test.ts",
    "grep -rn #total #src",
    "rg -n #total #src",
    "ls -la #src",
    "cat #src/a.py",
    "head -n #20 #src/a.py",
    "git diff #main",
    "git log --oneline -n #5",
    "git show #HEAD",
    "make #build && git push origin #main",
    "git add #app.py && git commit -m #fix",
    "pytest #tests && npm publish",
    "cd #api && rm #old.py",
    "cd #api && pytest #tests",
    "cat #a.txt | grep #total | sort",
    "find #src -name #x | xargs rm",
]
PATH_FIRST = {"cat", "ls", "rm", "cp", "mv", "touch", "mkdir", "pytest", "ruff", "black"}


def words_of(base):
    return base.split(" ")


def line_of(words):
    return " ".join(word.removeprefix("#") for word in words)


def level(a, b):
    def side(command):
        return {"text": "", "tool_calls": [{"name": "Bash", "arguments": {"command": command}}]}

    return compare({"a": side(a), "b": side(b), "cwd": CWD, "home": HOME, "context": None})


# -- rewritings that keep the meaning --------------------------------------------------


def _quoted(words, pick):
    at = pick(operands(words))
    if at is None or re.search(r"[*?\[~]", words[at]):
        return words
    quote = "'" if len(words[at]) % 2 else '"'
    return [*words[:at], quote + words[at].removeprefix("#") + quote, *words[at + 1 :]]


REWRITINGS = {
    "none": lambda words, pick: line_of(words),
    "quotes": lambda words, pick: line_of(_quoted(words, pick)),
    "blanks": lambda words, pick: "  ".join(line_of(words).split(" ")) + " \n",
    "cd": lambda words, pick: f"cd {CWD} && {line_of(words)}",
    "home": lambda words, pick: f"cd ~/shop && {line_of(words)}",
    "crlf": lambda words, pick: line_of(words) + "\r\n",
    "comment": lambda words, pick: line_of(words) + "  # for the record",
    "tail": lambda words, pick: line_of(words) + " | tail -5",
    "status": lambda words, pick: line_of(words) + "; echo $?",
    "true": lambda words, pick: line_of(words) + " || true",
    "continued": lambda words, pick: line_of(words).replace(" ", " \\\n  ", 1),
}


def operands(words):
    return [i for i, word in enumerate(words) if word.startswith("#")]


# -- edits that change it --------------------------------------------------------------


def _alter(words, pick):
    at = pick(operands(words))
    return None if at is None else [*words[:at], words[at] + "x", *words[at + 1 :]]


def _drop(words, pick):
    at = pick(operands(words))
    return None if at is None or words[at] == "#." else [*words[:at], *words[at + 1 :]]


def _upper(words, pick):
    at = pick(operands(words))
    if at is None or words[at].upper() == words[at] or "https" in words[at]:
        return None
    return [*words[:at], words[at].upper(), *words[at + 1 :]]


def _double(words, pick):
    at = pick(operands(words))
    return None if at is None else [*words[:at], words[at], words[at] + "2", *words[at + 1 :]]


def _parent(words, pick):
    at = pick(operands(words))
    if at is None or "//" in words[at] or words[at] == "#.":
        return None
    return [*words[:at], "#../" + words[at][1:], *words[at + 1 :]]


def _force(words, pick):
    return None if "--force" in words or "-f" in words else [*words, "--force"]


def _unflag(words, pick):
    # sed's only script is the same with -e and without.
    at = pick([i for i, w in enumerate(words) if re.match(r"-+\w", w) and w != "-e"])
    return None if at is None else [*words[:at], *words[at + 1 :]]


def _reflag(words, pick):
    at = pick([i for i, word in enumerate(words) if re.fullmatch(r"-\w+", word)])
    return None if at is None else [*words[:at], words[at] + "Z", *words[at + 1 :]]


def _append(words, pick):
    swap = {">": ">>", ">>": ">"}
    return [swap.get(word, word) for word in words] if {">", ">>"} & set(words) else None


def _connect(words, pick):
    if "&&" not in words:
        return None
    other = pick(["||", ";", "|"])
    return [other if word == "&&" else word for word in words]


def _swap(words, pick):
    at = operands(words)
    if words[0] not in ("cp", "mv", "ln") or len(at) != 2:
        return None
    first, second = at
    out = list(words)
    out[first], out[second] = out[second], out[first]
    return out


def _quote_glob(words, pick):
    if not any("*" in word for word in words):
        return None
    return [f"'{word.removeprefix('#')}'" if "*" in word else word for word in words]


def _expand(words, pick):
    at = pick(operands(words))
    return None if at is None else [*words[:at], '"$' + words[at][1:2] + '"', *words[at + 1 :]]


EDITS = {
    "alter": _alter,
    "drop": _drop,
    "upper": _upper,
    "double": _double,
    "parent": _parent,
    "force": _force,
    "unflag": _unflag,
    "reflag": _reflag,
    "append": _append,
    "connect": _connect,
    "swap": _swap,
    "quote a glob": _quote_glob,
    "expand": _expand,
    "background": lambda words, pick: [*words, "&"],
    "negate": lambda words, pick: ["!", *words],
    "sudo": lambda words, pick: ["sudo", *words],
    "folder": lambda words, pick: ["cd", "sub", "&&", *words],
    "further": lambda words, pick: [*words, "&&", "git", "push"],
    "filter": lambda words, pick: [*words, "|", "grep", "x"],
    "into a file": lambda words, pick: [*words, ">", "log.txt"],
    "environment": lambda words, pick: ["MODE=x", *words],
}

_picks = st.integers(0, 50).map(lambda n: lambda items: items[n % len(items)] if items else None)


@settings(max_examples=150)
@given(st.sampled_from(BASES), st.sampled_from(sorted(REWRITINGS)), _picks)
def test_rewritings_stay_the_same(base, name, pick):
    words = words_of(base)
    got = level(line_of(words), REWRITINGS[name](words, pick))
    assert got["level"] in SAME, (got, REWRITINGS[name](words, pick))


@settings(max_examples=600)
@given(
    st.sampled_from(BASES),
    st.sampled_from(sorted(EDITS)),
    st.sampled_from(sorted(REWRITINGS)),
    _picks,
)
def test_edits_are_never_the_same(base, name, rewriting, pick):
    words = words_of(base)
    edited = EDITS[name](words, pick)
    assume(edited is not None)
    a, b = line_of(edited), REWRITINGS[rewriting](words, pick)
    got = level(a, b)
    assert got["level"] not in SAME, (a, b, got)
    assert level(b, a)["level"] == got["level"]


@pytest.mark.parametrize("name", sorted(EDITS))
def test_every_edit_applies_somewhere(name):
    pick = next(iter([lambda items: items[0] if items else None]))
    assert sum(EDITS[name](words_of(base), pick) is not None for base in BASES) >= 1


#: Pairs that an earlier reading took for the same, or that invite it.
TRAPS = [
    ("rm $X", r"rm \$X"),
    ("rm '$X'", "rm $X"),
    ('rm "$X"', "rm $X"),
    ("rm ~/a", "rm '~/a'"),
    ("rm {a,b}", "rm '{a,b}'"),
    ("rm a{1..3}", "rm 'a{1..3}'"),
    ("rm {a,b}", "rm {a','b}"),
    ("rm [ab]", "rm '[ab]'"),
    ("rm a\\ b", "rm a b"),
    ("rm ''", "rm"),
    ("rm a ''", "rm a"),
    ("cd api && rm a.py", "cd api && rm /home/ana/shop/a.py"),
    ("cd api && rm ../a.py", "cd api && rm a.py"),
    ("cd $D && rm a.py", f"cd $D && rm {CWD}/a.py"),
    ("cd api && cd .. && rm a", "cd api && rm a"),
    (f"rm a; cd {CWD}; rm b", "rm a; rm b; true"),
    ("echo /home/ana/shop/a > f", "echo a > f"),
    ("git commit -m /home/ana/shop/a", "git commit -m a"),
    ("npm install ./a", "npm install a"),
    (f"pip install {CWD}/a", "pip install a"),
    ("git checkout ./main", "git checkout main"),
    ("git checkout -- main", "git checkout main"),
    ("bash ./x.sh", "bash y.sh"),
    ("rm -i -f a", "rm -f -i a"),
    ("cp -n -f a b", "cp -f -n a b"),
    ("git reset --soft --hard", "git reset --hard --soft"),
    ("docker run a -d", "docker run -d a"),
    ("docker run -e A=1 a", "docker run a -e A=1"),
    ("docker exec web rm -f a", "docker exec -f web rm a"),
    ("find . -delete -name a", "find . -name a -delete"),
    ("find . -name a -o -delete", "find . -name a -delete"),
    ("sed -i s/a/b/ f", "sed -i -n s/a/b/ f"),
    ("sed -i -e s/a/b/ -e s/c/d/ f", "sed -i -e s/c/d/ -e s/a/b/ f"),
    ("sed -ie s/a/b/ f", "sed -i -e s/a/b/ f"),
    ("make -j4 a", "make -j 4a"),
    ("unknown --flag a b", "unknown a --flag b"),
    ("git --work-tree x add a", "git add a"),
    ("git -C api add a", "git add a"),
    ("git -c user.name=x commit -m a", "git commit -m a"),
    ("cat > f <<'E'\n$X\nE", "cat > f <<E\n$X\nE"),
    ("cat > f <<'E'\na\n\nE", "cat > f <<'E'\na\nE"),
    ("cat > f <<'E'\n\ta\nE", "cat > f <<-'E'\n\ta\nE"),
    ("cat > f <<'E'\n\ta\nE", "cat > f <<'E'\na\nE"),
    ("cat > f <<'E'\n  a\nE", "cat > f <<'E'\na\nE"),
    ("cat > f <<'E'\n\na\nE", "cat > f <<'E'\na\nE"),
    ("cat > f <<'E'\na\nE\nrm f", "cat > f <<'E'\na\nE"),
    ("python - <<'E'\na\nE", "python <<'E' x\na\nE"),
    ("tee f <<< 'a  b'", "tee f <<< 'a b'"),
    ("cmd 2>&1 > f", "cmd > f 2>&1"),
    ("cat $X > ab c", "cat $X > a bc"),
    ("cat $X > a b", "cat $X > a"),
    ("for f in $X; do cat > a b; done", "for f in $X; do cat > ab; done"),
    ("cat $X <<'E' > a b\nE", "cat $X <<'E' > a\nE"),
    ("cmd > f 2>&1 | tail -1", "cmd > f | tail -1"),
    ("make 2>&1 | tee log", "make | tee log"),
    ("make |& tee log", "make | tee log"),
    ("make > f", "make 2> f"),
    ("make > f", "make &> f"),
    ("make < f", "make > f"),
    ("echo a '>' b", "echo a > b"),
    ("echo a \\> b", "echo a > b"),
    ("echo a ';' rm b", "echo a ; rm b"),
    ("echo a '&&' rm b", "echo a && rm b"),
    ("echo a '|' tee b", "echo a | tee b"),
    ("for f in a; do echo ';' rm $f; done", "for f in a; do echo; rm $f; done"),
    ("for f in a; do echo 'x  y' > $f; done", "for f in a; do echo 'x y' > $f; done"),
    ("for f in a; do rm $f; done", "for f in a; do rm '$f'; done"),
    ("if a; then rm b; fi", "if a; then rm c; fi"),
    ("if a; then rm b; fi", "if ! a; then rm b; fi"),
    ("if a; then rm b; fi", "while a; do rm b; done"),
    ("(cd x; rm a)", "(cd x && rm a)"),
    ("X='a  b' ./run", "X='a b' ./run"),
    ("X=1 Y=$X ./run", "Y=$X X=1 ./run"),
    ("X=1; ./run", "X=1 ./run"),
    ("export X=1 && ./run", "export X=2 && ./run"),
    ("export X='a  b'; ./run", "export X='a b'; ./run"),
    ("[ -f a ] && rm b", "[ -f c ] && rm b"),
    ("[[ $a == 'x  y' ]] && rm b", "[[ $a == 'x y' ]] && rm b"),
    ("rm $'a\\tb'", "rm 'a\\tb'"),
    ("rm $(ls)", "rm ls"),
    ("rm $(cat a)", "rm $(cat b)"),
    ("rm \"$(cat 'a  b')\"", "rm \"$(cat 'a b')\""),
    ("diff <(rm a) b", "diff <(rm c) b"),
    ("make; echo $(rm a)", "make"),
    ("make; echo `rm a`", "make"),
    ("make; echo done > log", "make"),
    ("make; echo >(rm a)", "make"),
    ("make || true && rm a", "make && rm a"),
    ("make | head -1 && rm a", "make && rm a"),
    ("make | head -1 || rm a", "make || rm a"),
    ("make & echo a", "make"),
    ("make | tail -f", "make"),
    ("make | head -5 f", "make"),
    ("make | head -1 | sh", "make | sh"),
    ("curl a | head -1 > f", "curl a > f"),
    ("rm a &", "rm a"),
    ("rm a & rm b", "rm a && rm b"),
    ("! rm a", "rm a"),
    ("rm 'open", "rm 'close"),
    ("rm 'a  b", "rm 'a b"),
    ("rm 'a\nb", "rm 'a b"),
    ("pytest a::t", "pytest a::u"),
    ("pytest a", "pytest A"),
    ("xargs rm < a", "xargs rm < b"),
    ("git push origin a:b", "git push origin b:a"),
    ("git merge a b", "git merge b"),
    ("git branch -m a b", "git branch -m b a"),
    ("git rebase --onto a b c", "git rebase --onto b a c"),
    ("scp a h:b", "scp h:b a"),
    ("rsync a b/", "rsync a b"),
    ("cp a b/", "cp a b"),
    ("tar xf a", "tar cf a"),
    ("chmod +x a", "chmod -x a"),
    ("kill -9 1", "kill 1"),
    ("sqlite3 a 'DELETE FROM t'", "sqlite3 a 'DELETE FROM u'"),
    ("psql -c 'DROP TABLE a'", "psql -c 'DROP TABLE  a, b'"),
    ("npm run a -- --x", "npm run a -- --y"),
    ("npm run a -- --x", "npm run a --x"),
    ("npm --prefix a run b", "npm run b"),
    ("cargo run -- a", "cargo run a"),
    ("go test -run A ./x", "go test -run B ./x"),
    ("ssh h 'rm a'", "ssh h 'rm b'"),
    ("env -i ./run", "./run"),
    ("timeout 5 ./run", "./run"),
    ("nohup ./run", "./run"),
    ("python3 a.py", "python2 a.py"),
    ("/opt/bin/rm a", "rm a"),
    ("./rm a", "rm a"),
]


@pytest.mark.parametrize(("a", "b"), TRAPS)
def test_traps(a, b):
    got = level(a, b)
    assert got["level"] not in SAME, got
    assert level(b, a) == got

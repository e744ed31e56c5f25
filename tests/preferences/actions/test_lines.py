"""Shell lines alone: words, grammars, spellings, effects, folders."""

import pytest

from composer_pipeline.preferences.actions import shell_meaning
from composer_pipeline.preferences.actions.levels import known_content
from composer_pipeline.preferences.actions.shell_options import grammar_of, read
from composer_pipeline.preferences.actions.shell_options_table import ALIASES, GRAMMARS
from composer_pipeline.preferences.actions.shell_parse import Place, parse

PLACE = Place("/home/ana/shop", "/home/ana")


@pytest.mark.parametrize(
    ("line", "words", "env"),
    [
        ("2>&1 X=1 ls", ("ls",), ("X=1",)),
        ("2>&1 2>&1 X=1 ls 2>&1", ("ls",), ("X=1",)),
        ("> f 2>&1 X='a b' Y=\"c\" ls -l Z=1", ("ls", "-l", "Z=1"), ("X=a b", "Y=c")),
        ("<h >f X='~/a' Y=~/b ls", ("ls",), (r"X=\~/a", "Y=~/b")),
        ("2>&1 2>&1 X=1", (), ("X=1",)),
        ("2>&1 2>&1 ls X=1", ("ls", "X=1"), ()),
    ],
)
def test_assignments_after_redirections_are_the_environment(line, words, env):
    (stage,) = parse(line).stages
    assert (stage.words, stage.env) == (words, env)


@pytest.mark.parametrize("command", sorted(GRAMMARS))
def test_every_grammar_is_read(command):
    words = tuple(command.split(" "))
    reading = read(words)
    assert reading is not None
    assert f"{reading.program} {reading.subcommand}".strip() == command
    grammar = grammar_of(command)
    assert grammar is not None
    assert set(grammar.arity) <= set(grammar.names.values())
    for option, name in grammar.names.items():
        value = ("v",) if grammar.arity[name] in tuple(":@") and grammar.arity[name] else ()
        again = read((*words, option, *value))
        assert again is not None, option
        assert again.options == ((name, *(value or ("",))),), option


def test_aliases_lead_to_grammars():
    for alias, subcommand in ALIASES.items():
        assert f"{alias.split(' ')[0]} {subcommand}" in GRAMMARS, alias


def test_an_unknown_option_leaves_the_words_alone():
    assert read(("grep", "--unheard-of", "x", "y")) is None
    assert shell_meaning.canonical_line("grep --unheard-of x y", PLACE)[0][1] == [
        "grep", "--unheard-of", "x", "y",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    """ls -la
cat a.py | grep x
git status
git log --oneline -5
git diff > /dev/null
git branch -a
git stash list
git remote -v
git config --get user.name
git show HEAD~1:a.py
git worktree list
pytest -q tests
python -m pytest
python -m unittest tests.test_a
python manage.py test
python -m json.tool a.json
npm test
npm run build
npm run dev
npm start
yarn lint
make
make test
cargo build
go vet ./...
ruff check .
ruff format --check .
black --check .
prettier --check .
eslint .
tsc --noEmit
docker ps
docker compose logs web
docker build .
docker exec web ls
kubectl get pods
terraform plan
gh pr view 3
curl -s https://a.io
curl -o /dev/null https://a.io
find . -name x
find . -exec grep y {} \\;
sed -n 1,5p a
awk '{print $1}' a
sqlite3 a.db 'SELECT 1'
psql -c 'select 1'
tar -tzf a.tgz
source .venv/bin/activate
cd x && ls
echo hi
export X=1
sort a
test -f a
gradle test
mvn -q test
timeout 60 pytest
env | sort
xargs grep x
node --version""".splitlines(),
)
def test_looking(command):
    assert not shell_meaning.mutates(command)


@pytest.mark.parametrize(
    "command",
    """rm a
mkdir a
touch a
echo x > a
echo x >> a
ls &> a
tee a
git add a
git commit -m x
git fetch
git push
git checkout x
git branch x
git branch -D x
git tag v1
git stash
git stash pop
git config user.name x
git worktree add x
git reflog expire --all
pip install x
uv sync
npm install
npm ci
npm run deploy
npm run lint:fix
npm run lint -- --fix
npm test -- -u
yarn
make deploy
cargo run
cargo fmt
cargo clippy --fix
go fmt ./...
ruff format .
ruff check --fix .
black .
prettier --write .
eslint --fix .
docker run x
docker compose up
docker exec web rm a
kubectl apply -f x
terraform apply
alembic upgrade head
python manage.py migrate
python x.py
./deploy.sh
curl -X POST https://a.io
curl -o a https://a.io
curl -sXDELETE https://a.io
curl --data=x https://a.io
wget https://a.io
find . -delete
find . -exec rm {} \\;
sed -i s/a/b/ a
sed -i.bak s/a/b/ a
perl -pi -e s/a/b/ a
awk '{print > "out"}' a
sort a -o a
sqlite3 a.db 'DELETE FROM t'
psql -c 'update t set a=1'
tar xzf a.tgz
xargs rm
for f in a; do rm $f; done
if a; then touch b; fi
(cd x && rm y)
ls; rm a
ls $(rm a)
echo "$(git stash)"
diff <(rm a) b
cat <<< "$(rm x)"
sudo rm a
kill 1
source ./setup.sh
unheard-of
echo 'open""".splitlines(),
)
def test_changing(command):
    assert shell_meaning.mutates(command)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("cd api && cat a.py", ["cat", [], "api/a.py"]),
        ("cd api && cat ../a.py", ["cat", [], "a.py"]),
        ("cd api && cat /home/ana/shop/api/a.py", ["cat", [], "api/a.py"]),
        ("cd api && cd .. && cat a.py", ["cat", [], "a.py"]),
        ("cd $D && cat a.py", ["cat", [], "a.py"]),
        ("cat ~/shop/a.py", ["cat", [], "a.py"]),
        ('cat "$HOME/shop/a.py"', ["cat", [], "a.py"]),
        ("git -C /home/ana/shop add ./a.py", ["git", "add", [], "a.py"]),
        ("git -C api add a.py", ["git", "-C", "api", "add", [], "api/a.py"]),
    ],
)
def test_folders(command, words):
    last = shell_meaning.canonical_line(command, PLACE)[-1][1]
    assert [list(w) if isinstance(w, tuple) else w for w in last] == words


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("echo `date`", "echo $( date )"),
        ('echo "${X}y"', 'echo "$X"y'),
        ("[ -f a ]", "test -f a"),
        ("find . -type f -name x", "find . -name x -type f"),
        ("tar -xzf a.tgz", "tar xzf a.tgz"),
        ("python3 ./a.py", "python3 a.py"),
        ("env A=1 make", "A=1 make"),
        ("git -C . status", "git status"),
        ("kubectl -n a get pods", "kubectl get pods -n a"),
        ("terraform plan --no-color", "terraform plan -no-color"),
        ("make |& tee log", "make 2>&1 | tee log"),
        ("cat > f <<-'E'\n\ta\n\tE", "cat > f <<'E'\na\nE"),
        ("python - << 'E' 2>&1 | tail -3\nx\nE", "python - <<'E'\nx\nE"),
    ],
)
def test_one_form(a, b):
    assert shell_meaning.canonical_line(a, PLACE) == shell_meaning.canonical_line(b, PLACE)


def _turn(name, args, result):
    use = {"type": "tool_use", "id": "1", "name": name, "input": args}
    answer = {"type": "tool_result", "tool_use_id": "1", "content": result}
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [answer]},
    ]


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        ("ls", True), ("pytest", True), ("git add -A && git commit -m x", True), ("mkdir x", True),
        ("pip install x", True), ("echo x > other.txt", True), ("echo x > a.py", False),
        ("sed -i s/a/b/ *.py", False), ("git checkout main", False), ("black .", False),
        ("./fix.sh", False), ("npm run format", False), ("git stash", False), ("rm b.py", False),
        ("python gen.py", False), ("cat x > $OUT", False), ("echo 'open", False),
    ],
)  # fmt: skip
def test_a_command_that_may_change_a_file_makes_it_unknown(command, kept):
    read = _turn("Read", {"file_path": "/x/a.py"}, "     1→one")
    after = known_content([*read, *_turn("Bash", {"command": command}, "ok")])
    assert ("/x/a.py" in after) is kept


def test_an_agent_makes_files_unknown_and_cut_lines_are_no_content():
    read = _turn("Read", {"file_path": "/x/a.py"}, "     1→one")
    assert known_content([*read, *_turn("Task", {"prompt": "fix it"}, "ok")]) == {}
    assert known_content(_turn("Read", {"file_path": "/x/a.py"}, "     1→" + "x" * 2000)) == {}

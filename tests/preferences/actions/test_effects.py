"""What a command changes: the flags and sub-commands that decide."""

import pytest

from composer_pipeline.preferences.actions.shell_meaning import changes_state, writes_sql


@pytest.mark.parametrize(
    "changing",
    [
        "sed -i s/a/b/ f", "sed -Ei s/a/b/ f", "sed -i.bak s/a/b/ f", "sed --in-place=.b s/a/b/ f",
        "sed s/a/b/w\\ out f", "find . -execdir rm {} ;", "find . -exec rm {} ;",
        "find . -name x -delete", "find . -okdir rm {} ;", "xargs -n 1 rm", "sudo rm f",
        "sort -o out f", "tee log", "curl -X DELETE http://h", "curl -sSo out http://h",
        "curl --data=1 http://h", "git branch new", "git branch -D old", "git config k v",
        "git fetch", "git stash", "git reflog expire", "git diff --output=x", "npm install",
        "npm run lint:fix", "npm test -u", "yarn test --updateSnapshot", "make deploy",
        "docker compose up", "docker exec box rm f", "psql -c DELETE", "sqlite3 x.db",
        "sqlite3 x.db .import", "python manage.py migrate", "tar -xf a.tar", "black .",
        "prettier --write .", "ruff format", "ruff check --fix", "cargo fmt", "cargo run",
        "gradle deploy", "go env -w A=b", "gh api -f a=b repos", "aws s3 rm s3://x", "frobnicate",
        "helm rollback web 1", "helm upgrade web .",
    ],
)  # fmt: skip
def test_commands_that_change_something(changing):
    assert changes_state(
        changing.replace("\\ ", "\0").replace(" ", "\n").replace("\0", " ").split("\n")
    )


@pytest.mark.parametrize(
    "looking",
    [
        "sed -n 1,5p f", "sed -E s/a/b/ f", "find . -name *.py", "find . -execdir cat {} ;",
        "xargs -n 1 cat", "sort -k 2 f", "tee /dev/null", "curl -o /dev/null http://h", "curl -so - http://h",
        "helm history web",
        "curl -X GET http://h", "git branch -a", "git branch --list x", "git config --get k",
        "git config k", "git stash list", "git reflog", "git remote -v", "git --version",
        "npm test", "npm run lint", "yarn build", "make test", "make -n deploy",
        "docker compose ps", "docker exec box ls", "psql -c SELECT", "python manage.py test",
        "tar -tf a.tar", "black --check .", "prettier .", "ruff format --check",
        "cargo fmt --check", "cargo test", "gradle :app:test", "go test ./...", "gh api repos",
        "gh pr view 1",
        "aws s3 ls", "source .venv/bin/activate", "frobnicate --help", "uv pip list",
    ],
)  # fmt: skip
def test_commands_that_only_look(looking):
    assert not changes_state(looking.split(" "))


def test_queries():
    assert writes_sql("drop table users")
    assert writes_sql("SELECT 1; Delete FROM x")
    assert not writes_sql("SELECT updated, dropped FROM users")

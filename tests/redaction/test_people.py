"""Names of persons and of their machines that structure gives away, and what reads like one."""

import sys
from typing import Any

import pytest

from composer_pipeline.redaction.people import is_guarded, name_kind, spellings
from composer_pipeline.redaction.redact import find_secrets, redact_text, redact_value
from composer_pipeline.redaction.user_rules import RedactionRules

# A text, and what must be gone.
NAMED = [
    ('[{"assignees":[{"login":"mira-n","name":"Mira Novak","id":"MDQ6"}]}]', "mira-n Novak"),
    ('{"author":{"login":"MiraNovak","is_bot":false,"name":"Mira"}}', "Mira"),
    ('{"author": {"id": 3, "username": "mnovak", "avatar_url": "https://x.dev/a"}}', "mnovak"),
    (
        '{"fields": {"assignee": {"self": "x", "emailAddress": "m@acme.de", '
        '"avatarUrls": {"48x48": "x"}, "displayName": "Mira Novak"}}}',
        "Mira",
    ),
    ('{"System.AssignedTo": {"displayName": "Mira Novak", "uniqueName": "m@acme.de"}}', "Mira"),
    ('{"user": {"display_name": "Mira Novak", "account_id": "557058:abc"}}', "Mira"),
    (
        '{"user":{"id":"U1","name":"mira.novak","real_name":"Mira Novak","profile":'
        '{"first_name":"Mira","last_name":"Novak","email":"m@acme.de"}}}',
        "ira ovak",
    ),
    ('{"assignee": "Mira Novak", "reporter": "mnovak"}', "Mira mnovak"),
    ("author:\tmira-n\nassignees:\tjonas-k, mnovak\nreviewers:\tkeller (Approved)", "mira jonas"),
    ("Assignee: Mira Novak\nReporter:   Ada Király\nStatus: Done", "Mira Ada"),
    ("- **Assignee:** Mira Novak", "Mira"),
    ("Owner: Mira Novak · Type: task", "Mira"),
    ("assignee: mnovak", "mnovak"),
    ("authors:\n  - name: Mira Novak\n    email: m@acme.de", "Mira"),
    ('authors = [{name = "Mira Novak", email = "m@acme.de"}]', "Mira"),
    ("[user]\n\tname = Mira Novak\n\temail = m@acme.de", "Mira"),
    ('"author": "Mira Novak <m@acme.de> (https://acme.de)"', "Mira"),
    ('setup(author="Mira Novak", license="MIT")', "Mira"),
    ("by 12345+mira-n@users.noreply.github.com", "mira-n 12345"),
    ("Reviewed-by: Mira Novak <12345+mira-n@users.noreply.github.com>", "ira"),
    ("To: Mira Novak <m@acme.de>, Jonas Keller <jk@acme.de>", "Mira Jonas"),
    ("    12\tMira Novak <m@acme.de>\n     3\tJonas Keller <jk@acme.de>", "Mira Jonas"),
    ("a1b2c3d Mira Novak Mon Jan 5 10:11:12 2026 +0100 Fix login", "Mira"),
    ("a1b2c3d|mira|m@acme.de|Fix login", "mira"),
    ("a1b2c3d4 - Mira Novak, 3 days ago : Fix login", "Mira"),
    ("* a1b2c3d - (HEAD -> main) Fix login (3 days ago) <Mira Novak>", "Mira"),
    ("uid=501(mira) gid=20(staff) groups=20(staff),501(mira)", "mira"),
    ("$ whoami\nmira\n$ ls", "mira"),
    ("SHELL=/bin/zsh\nUSER=mira\nSUDO_USER=mira\nLOGNAME=mira", "mira"),
    ("mira      1234  0.0  0.1 123456 7890 ?  Ss 10:00 0:00 node", "mira"),
    ("mira      1234     1  0 10:00 ?        00:00:00 node", "mira"),
    ("node    1234 mira   23u  IPv4 0x1 0t0 TCP *:3000 (LISTEN)", "mira"),
    ("mira     pts/0        10.0.0.1         10:00    1.00s", "mira"),
    ("   1234 mira      20   0   10.1g 123456  1234 S   0.0 node", "mira"),
    ("mira:x:1000:1000:Mira Novak,,,:/home/mira:/bin/bash", "ira"),
    ("sudo chown -R mira:mira /srv && sudo -u mira ls", "mira"),
    ("  ✓ Logged in to github.com account mira-n (keyring)", "mira"),
    ("Hi mira-n! You've successfully authenticated", "mira"),
    ("Open • mira-n wants to merge 3 commits into main", "mira"),
    ("Login: mira           \t\t\tName: Mira Novak", "ira"),
    ("drwxr-xr-x  5 mira  mira  160 Jan  1 10:00 src", "mira"),
    ("on Miras-MacBook-Pro.local, miras-mbp, novak-laptop", "iras novak"),
    ("COMPUTERNAME=DESKTOP-4F2K9QX", "4F2K9QX"),
    ("Mit freundlichen Grüßen\nTamsin Oyelaran\nBetrieb", "Tamsin"),
    ("On Tue, Mar 3, 2026 at 10:14 AM Tamsin Oyelaran wrote:", "Tamsin"),
    ("ATTENDEE;ROLE=X;CN=Tamsin Oyelaran:mailto:x", "Tamsin"),
    ("OPS-12  In Progress  Fix login page  Tamsin Oyelaran", "Tamsin"),
    ("OPS-5531 — Tamsin Oyelaran added a comment - 03/Mar/26", "Tamsin"),
    ("this one was triaged by Tamsin Oyelaran last week", "Tamsin"),
    ("Pipeline #12 triggered 2 hours ago by Tamsin Oyelaran", "Tamsin"),
    ("Tamsin Oyelaran’s branch has it, ask Ottavia Nowicki", "Tamsin Ottavia"),
    ("<dc:creator>Tamsin Oyelaran</dc:creator>", "Tamsin"),
    ("s.author = { 'Tamsin Oyelaran' => 'x' }", "Tamsin"),
    ("Authority=Apple Development: Tamsin Oyelaran (AB12CD34EF)", "Tamsin"),
    ("subject=C = DE, O = Acme, CN = Tamsin Oyelaran", "Tamsin"),
    ("id,name,email\n1,Tamsin Oyelaran,t.o@acme.io", "Tamsin"),
    ("Attendees: Tamsin Oyelaran, Mikhail Sokolov", "Tamsin Mikhail"),
    ("## Contributors\n\nThanks to Tamsin Oyelaran", "Tamsin"),
    ("$ git log --format='%h %an %s'\nf938076 Tamsin Oyelaran bump sqlx", "Tamsin"),
    ("$ gh pr list -q '.[]|[.number,.author.login]|@tsv'\n36\ttoyelaran", "toyelaran"),
    ("USER         PID %CPU COMMAND\ntoyelaran  95  2.1 node x.js", "toyelaran"),
    ("PS C:\\> $env:USERNAME\ntoyelaran", "toyelaran"),
    ("reviewers:\n  - toyelaran\nminimum: 1", "toyelaran"),
    ("# TODO(toyelaran): drop it", "toyelaran"),
    ("/tmp/pytest-of-toyelaran/pytest-0 -L/Users/toyelaran/lib", "toyelaran"),
    ("Copy-Item \\\\fs01\\homes$\\t.oyelaran\\x.csv .", "oyelaran"),
    ('User "oidc:toyelaran" cannot list resource "pods"', "toyelaran"),
    ("Owner   : ACME\\toyelaran", "toyelaran"),
    ("git clone git@github.com:toyelaran/dotfiles.git", "toyelaran"),
    ("Merge pull request #573 from acme/toyelaran/retry-budget", "toyelaran"),
    ("Merge pull request #481 from tamsin-oyelaran/fix-rounding", "oyelaran"),
    (" * [new branch]      tamsin-oye/fix-it -> tamsin-oye/fix-it", "oye"),
    ("open • opened by toyelaran (Tamsin Oyelaran) about 2 hours ago", "Tamsin"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gone"), NAMED)
def test_structure_gives_a_name_away(text: str, gone: str) -> None:
    for redacted in (redact_text(text)[0], redact_value({"log": [text, 1]})[0]["log"][0]):
        assert not [part for part in gone.split() if part in redacted], redacted
        assert find_secrets(redacted) == []
        assert redacted.count("\n") == text.count("\n")


def test_the_same_without_hyperscan(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for text, _ in NAMED] + KEPT
    expected = [redact_text(text) for text in texts]
    monkeypatch.setitem(sys.modules, "hyperscan", None)
    rules = RedactionRules(allow=("nothing like it",))  # compiled anew
    assert [redact_text(text, rules=rules) for text in texts] == expected


NAMED += [
    ("Copyright (c) 2026 Tobias Reinholdt", "Tobias Reinholdt"),
    ("ENG-812 is with Lotte Reinholdt, I think", "Lotte"),
    ("dn: CN=Reinholdt, Tobias,OU=Staff", "Tobias Reinholdt"),
    ('id,name\n1041,"Reinholdt, Tobias",Finance', "Tobias Reinholdt"),
    ("[sudo] password for treinholdt:", "treinholdt"),
    ("15 6 * * 1 treinholdt /opt/run.sh", "treinholdt"),
    ("npm error 403 User t.reinholdt is not a member of @acme", "reinholdt"),
    ("valid users = t.reinholdt", "reinholdt"),
    ("r4121 | treinholdt | 2026-11-03 10:12:00 +0100 | 1 line", "treinholdt"),
    ("Change 881 on 2026/11/03 by treinholdt@ws-41 'fix'", "treinholdt"),
    ("/* $Id: a.c,v 1.14 2026/11/03 10:12:00 treinholdt Exp $ */", "treinholdt"),
    ("C:\\data CORP\\treinholdt:(OI)(CI)(F)", "treinholdt"),
    ("lease 192.168.178.31 iphone-tobias active", "tobias"),
    ("Linux tobias-framework 6.11.0-9", "tobias"),
    ("hop on prod-api39, it is live", "api39"),
    ("the NAS sits on 10.212.47.3", "10.212"),
    ("targets: ['metrics23.int.acme.net:9100']", "metrics23"),
]
KEPT = [
    "Kind regards,\nThe Platform Team",
    "idxs[~found] = 0, y[~mask]",
    "via the XCB mailing list <xcb@lists.example.org>",
    "as powered by React Native, used by Next Router",
    "ENG-12  Todo  Crash On Start  unassigned",
    "Name: Hello World\ntitle: Getting Started\nauthor: Release Notes",
    "TODO(performance): measure it, TODO(webpack), FIXME(typing)",
    "USER  PID COMMAND\nroot  95 node\npostgres  96 postgres",
    "the server's branch, Kubernetes's fix, ask Claude Code, hi React Native",
    "git clone git@github.com:vercel/next.js.git github.com/kubernetes/kubernetes",
    "reviewers:\n  - platform-team\n  - security",
    'User "system:serviceaccount:default:app" cannot list',
    "CN=Acme Root Authority, Build (Release Candidate), (See Also)",
    "user: root",
    "Merge pull request #12 from acme-labs/main, from vercel/next-patch",
    'owner: "platform-team"',
    'author: "dependabot[bot]"',
    'name: "my-package"',
    "assignee: null\nAssignee: Unassigned",
    '"user": "postgres"',
    '"name": "Build and Test"',
    "From: node:20-alpine",
    "git switch feature/login",
    '{"name": "my-ext", "displayName": "My Extension", "publisher": "acme"}',
    '{"full_name":"acme/shop","owner":{"login":"acme","type":"Organization"}}',
    '"user": {"login": "renovate[bot]", "type": "Bot"}',
    '"login": "Anmelden", "logout": "Abmelden"',
    'scripts: {"login": "node login.js"}',
    "author: string;\nreporter: Reporter\nassignee: User | None = None\ncreatedBy: currentUser",
    "author = getAuthor()",
    'const user = { name: "Test User", email: "test@example.com" }',
    "- name: Deploy Docs\n  with:\n    email: false",
    "Copyright (c) 2020 Jane Miller",
    "Owner: Platform Engineering",
    "USER=postgres\nDB_USER=shop\nENV USER=app\nexport USER=${USER:-x}",
    "uid=0(root) gid=0(root) groups=0(root)",
    "RUN chown -R nextjs:nodejs /app && chown appuser:appgroup /x && sudo -u postgres psql",
    "postgres:x:999:999::/var/lib/postgresql:/bin/bash",
    "root         1  0.0  0.1 168140 11544 ?  Ss   10:00   0:01 /sbin/init",
    "a1b2c3d Fix the login form\na1b2c3d (HEAD -> main) Add Retry Logic",
    "     1\tHello World\n     2\tGetting Started",
    "docker-desktop windows-pc gaming-laptop fa-laptop lucide-laptop jupyter-notebook",
    "x86_64-pc-linux-gnu DESKTOP-VERSION ubuntu-latest",
    "$ whoami\nroot",
    "User: Please fix this\nmembers: Read Only",
    "Author: Claude <noreply@anthropic.com>",
    "Copilot <198982749+Copilot@users.noreply.github.com>",
    '"author": "Microsoft Corporation", "created_by": "system"',
    'Thanks <b@c> List<User@Dto> {"name":"Header Logo","email":false}',
    "reviewer: code-reviewer\nassigned_to: backend-agent",
    "git checkout feature/fix-login && git push origin fix/drop-node",
    "Created shadow branch 'entire/26712a9-1' and committed changes",
    "Draft PR created: see docs\nWhen Claude ran these commands\nDone. I've added a section",
    "networks:\n  default:\n    ipv4_address: 172.20.0.5\nhost: 127.0.0.1\nserver 192.0.2.7",
    "Cloning from github.com, .claude/settings.local.json and com.apple.internal",
    " * @param name\n * @returns the value",
    "Tobias Component and Julia Kotlin; Hugo, Jekyll",
    "[sudo] password for root: and valid users = @staff",
    "*/5 * * * * root /usr/bin/true\n| r41 | table | x |",
    "hop on the call; server gpt-40, host node-18 and ssh utf-16",
    "electron-framework iphone-simulator spring-framework the-desktop",
    "ask before it runs, ping them; FIXME later: no",
    "the version is at 1.2.3.4 and runs on 10.0.0.1",
    "Questions go to support@stripe.com or security@python.org",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_reads_like_a_name_stays(text: str) -> None:
    assert redact_text(text) == (text, {})
    assert redact_value([text, {"log": text}]) == ([text, {"log": text}], {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"assignees": ["mira-n", "jonas-k"]}, {"assignees": ["user", "user"]}),
        ({"owner": "acme", "repo": "shop"}, {"owner": "acme", "repo": "shop"}),
        ({"fields": ["assignee", "reporter"]}, {"fields": ["assignee", "reporter"]}),
        (
            {"type": "tool_use", "name": "Write", "input": {"content": '{"email": "m@acme"}'}},
            {"type": "tool_use", "name": "Write", "input": {"content": '{"email": "m@acme"}'}},
        ),
    ],
)
def test_arguments_of_tools(value: Any, expected: Any) -> None:
    assert redact_value(value)[0] == expected


def test_a_login_that_repeats_itself_is_judged_at_once() -> None:
    # Words of applications in a row: with nested repetitions this took years.
    assert name_kind("deploy" * 40 + "!") == ""
    assert name_kind("mydeploybot-2") == name_kind("web-docker2") == ""
    assert name_kind("furidodemo") == name_kind("alexdev") == "USER"


def test_a_known_user_before_a_branch_is_one() -> None:
    text = "On branch mira/fix-login, origin/mira/x; feature/login and samira/x stay"
    expected = text.replace("mira/fix", "user/fix").replace("/mira/", "/user/")
    assert redact_text(text, {"mira"})[0] == expected
    assert redact_text("test/unit data/raw", {"data"})[0] == "test/unit data/raw"


def test_spellings_of_a_full_name() -> None:
    found = spellings("NAME", "Jürgen van der Novak")
    assert found["Jürgen"] == found["Novak, Jürgen"] == "NAME"
    assert found["juergen.novak"] == found["jnovak"] == "USER"
    assert "van" not in found
    # Words of the language stand for a person only together.
    assert spellings("NAME", "Mark Page").keys() == {
        *("Page, Mark", "Page Mark", "markpage", "mark.page", "mark-page", "mark_page"),
    }


def test_spellings_of_logins_addresses_and_hosts() -> None:
    assert spellings("USER", "mira.novak")["Mira Novak"] == "NAME"
    assert spellings("USER", "mira") == {}
    assert spellings("EMAIL", "12345+mira-n@users.noreply.github.com") == {"mira-n": "USER"}
    assert spellings("EMAIL", "info@acme.com") == {}
    assert spellings("HOST", "Miras-MacBook-Pro.local") == {
        "Mira": "NAME",
        "Miras-MacBook-Pro": "HOST",
    }
    assert spellings("HOST", "10.0.0.1") == spellings("AWS_KEY", "AKIAXYZ") == {}


@pytest.mark.parametrize("value", ["will", "May", "root", "deploy", "postgres", "abc", "12345678"])
def test_common_words_are_guarded(value: str) -> None:
    assert is_guarded(value)


@pytest.mark.parametrize("value", ["mira-novak", "Novak", "Mark Page", "hunter22x", "miras-mbp"])
def test_what_identifies_is_not_guarded(value: str) -> None:
    assert not is_guarded(value)

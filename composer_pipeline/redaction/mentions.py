"""Persons and hosts that a phrase, a column, a command's output or a branch gives away.

Where a place does not tell for sure, a full name has to begin with a given name or be made of
nothing that is a word: ``given_names.txt`` has those of two or more locales of the package
``faker`` (MIT), ``words.txt`` the words that many sources and manuals of packages use.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

from composer_pipeline.redaction.finders import ascii_lower
from composer_pipeline.redaction.patterns import PUBLIC_HOST
from composer_pipeline.redaction.people import folded, is_guarded, name_kind
from composer_pipeline.redaction.secrets import EXAMPLE, Finding, listed

# fmt: off
_BRANCH_WORDS = frozenset(
    """
    feature features feat fix fixes bugfix bug bugs hotfix release releases chore chores doc docs test tests testing refactor ci build perf style revert
    dependabot renovate wip user users team teams dev main master develop origin upstream fork remote remotes heads tags refs issue issues task tasks story epic
    spike poc exp experiment experiments experimental try topic topics improvement improve enhancement security deps dependencies merge backport backports
    cherry-pick update updates add remove rename migrate migration cleanup config infra ops api web app apps ui ux frontend backend mobile server client core cli
    sdk lib libs pkg packages package src scripts tools design data model models agent agents claude codex copilot cursor devin gemini jules bot snyk pre prod
    production staging stage demo sandbox example examples archive old new tmp temp draft pr pull pulls ticket jira private public internal support stable next
    beta alpha rc version patch minor major sprint milestone phase step work changeset-release changesets gh-readonly-queue gh-pages vendor crates modules
    plugins services lint types typing i18n l10n content blog site website assets images db sql schema auth admin platform native android ios windows linux macos
    """.split()  # noqa: SIM905  a line of words instead of a column
)
_CAPITAL = r"[^\W\d_a-z](?:\.|(?:[\w'’-]*\w)?)"
_FULL = rf"{_CAPITAL}(?:[ ](?:(?:van|von|der|den|de|di|da|del|la|le|du|dos|ten|ter|zu|bin|al|el|y)[ ]){{0,2}}{_CAPITAL}){{1,3}}"
_SPELT = re.compile(r"(?:(?:[^\W\d_]['’]|Ma?c)?[^\W\d_][^\W\d_A-Z]{1,20}(?:-[^\W\d_][^\W\d_A-Z]+)?|[A-Z]\.)(?:[ ](?:(?:[^\W\d_]['’]|Ma?c)?[^\W\d_][^\W\d_A-Z]{1,20}(?:-[^\W\d_][^\W\d_A-Z]+)?|[A-Z]\.?)){1,3}")
_LOGIN = r"[A-Za-z_](?:[A-Za-z0-9_.-]{0,38}[A-Za-z0-9_])"
_START = r"(?m)(?:^|(?<=\\n))[ \t>*\-\"']*"
_END = r"(?=[ \t]*(?:\\*[\"'`),;|]|\r|\\n|$|[ ]{2}|\t|[ ][(<]))"
# In gates: a capital, two words of a name, the beginning of a line.
_UP = r"(?-i:[A-Z]|[^\x00-\x7f])"
_NAMED = rf"{_UP}[^\s\"\\<>(){{}}=]* [^\s\"\\<>(){{}}=]"
_BEGIN = r"(?:\"|\\n)[ >*\"'-]*"
_AGO = r"[ ](?:about|over|almost|\d+|just now|yesterday|last|on|this|these changes|your|changes|a review|review from|an? \w+ ago|#|!|\d{4}-)"
_DONE = (r"(?:re|un)?assigned|(?:re)?opened|created|closed|merged|approved|reviewed|requested|triggered|commented|reported|submitted|authored|committed|pushed|started"
         r"|edited|updated|resolved|cancell?ed|deployed|posted|replied|modified|raised|filed|mentioned|force-pushed|dismissed|labell?ed|removed|added|joined"
         r"|invited|changed|marked|locked|uploaded|retried|owned|maintained|verified|acknowledged|escalated|delegated|published|shared|transitioned|moved|linked|responded")
_TO = r"(?:written by|handed (?:over )?to|belongs to|reach out to|talk to|signed off by|on-?call is|@author)"
_ROLES = (r"assignee|assigned[ ]to|reporter|reported[ ]by|author|owner|creator|created[ ]by|updated[ ]by|reviewers?|reviewed[ ]by|approvers?|approved[ ]by|requester"
          r"|requested[ ]by|opened[ ]by|closed[ ]by|merged[ ]by|resolved[ ]by|submitter|submitted[ ]by|committer|lead|maintainer|on-?call|contact|modified[ ]by|written[ ]by"
          r"|triggered[ ]by|deployed[ ]by|last[ ]editor|full[ ]name|employee|manager|supervisor|assigned")
_COLUMNS = rf"{_ROLES}|(?:full|display|real|user|customer)?[ _]?name|customer|member|student|patient"
_ASKED = r"(?:ping|/?cc|thanks(?: to)?|thank you|thx|hey|hi|hello|ask|asked|assign(?:ed)?(?: to)?|review(?:ed)?(?: from| by)?|reviewer|credit to|kudos to|waiting on|waiting for)"
_TALK = r"[,:]? (?:can|could|would|please|do|did|what|why|how|any|i|you|thanks|ptal|lgtm|wdyt)"
_ON_BRANCH = (r"(?:refs/heads/|wip on |← \(|pull request #\d+ from [a-z0-9_.-]+/|remotes/origin/|[^a-z0-9./_-]origin/|/compare/(?:[^\s\"/]*\.\.\.)?|/tree/|new branch\] +(?:\S+ +-> +)?|-> +users/|on (?:a )?branch [\"'`]?|branch:? [\\\"'`]*|HEAD -> |--show-current *\s|--(?:head|base) "
              r"|(?:checkout|switch) (?:-[bc] )?|branch -\w |push (?:-[a-z-]+ ){0,3}origin |(?:headRefName|branch|head_branch|gitBranch)\\*\": ?\\*\"| -b )")
_SAYS = r"(?:from|says|said|asked|asks|wants|wanted|wrote|reported|told|thinks|needs|mentioned|found|noticed|complained|sent|aus|vom|sagt|fragt|meint)"

_ACTS = (r"commented[ ]-[ ]\d+|\[\d{1,2}:\d\d(?:[ ][AP]M)?\]|added[ ]a[ ](?:comment|reaction|link)|left[ ]a[ ](?:comment|note|review)|commented[ ]on|changed[ ]the[ ](?:status|title|description|assignee|priority|state|milestone)|made[ ]changes|started[ ]a[ ](?:discussion|thread)"
         r"|approved[ ]these|requested[ ]changes|self-assigned|(?:has[ ])?joined[ ]the[ ](?:channel|call|meeting|room)|left[ ]the[ ](?:channel|call|meeting)|set[ ]the[ ]channel|was[ ]added[ ]to|wants[ ]to[ ]merge|linked[ ]an?[ ]issue"
         r"|pushed[ ]\d+[ ]commits?|wrote:|schrieb:|a[ ](?:e|é)crit[ ]?:|escribi(?:o|ó):|escreveu:|ha[ ]scritto:|schreef:|napisa(?:l|ł)a?:|(?:[—–|-][ ])?(?:Today|Yesterday|Heute|Gestern)[ ](?:at|um)[ ]\d+|[ ]?\[?\d{1,2}/\d{1,2}/\d{2,4},?[ ]\d{1,2}:\d\d[ ][AP]M")
_TITLES = (r"name|cardholder|gecos|modifiedby|by|assignedto|assigned to|editor|packager|organi[sz]er|artist|codeauthor|author|holder|owner|customer|contact|manager|member|speaker|host|sender|recipient|creator|reviewer|approver|assignee|reporter|developer|engineer"
           r"|employee|client|patient|student|teacher|buyer|seller|driver|person|from|cn|signatory|inspector|interviewer|candidate|tenant|landlord|guest|attn|caller|lead|on-?call|primary|secondary")
_ACTS_LITERALS = ("commented", ":", "comment", "reaction", "added a", "left a", "changed the", "made changes", "started a", "approved these", "requested changes", "self-assigned", "joined the", "left the", "set the channel", "was added to", "wants to merge",
                  "linked a", "pushed ", "wrote:", "schrieb:", "crit", "escribi", "escreveu:", "scritto:", "schreef:", "napisa", "today", "yesterday", "heute", "gestern", "/")
_CLOSING_LITERALS = ("regards", "gr\u00fc\u00df", "gruss", "gr\u00fcss", "cordialement", "bien à vous", "saludos", "atenciosamente", "abra\u00e7os", "groet", "pozdr", "saluti", "cheers", "sincerely", "thanks", "danke", "hilsen", "hälsning", "terveisin", "merci", "gracias", "obrigad", "best", "yours")
_CLOSINGS = (r"(?:(?:with[ ])?(?:kind|best|warm|many)[ ])?regards|(?:(?:mit[ ])?(?:viele|liebe|sch(?:o|ö)ne|beste|freundliche)[nmrs]?[ ])?gr(?:ü|u|ue)(?:ß|ss)e?n?(?:[ ]aus[ ][^\\s,]+)?|(?:bien[ ])?cordialement|bien[ ]à[ ]vous|(?:un[ ])?saludos?(?:[ ]cordial(?:es)?)?"
             r"|atenciosamente|abra(?:ç|c)os?|(?:met[ ])?(?:vriendelijke[ ])?groet(?:en|jes)?|pozdr(?:awiam|owienia)|(?:cordiali|distinti)?[ ]?saluti|cheers|(?:yours[ ])?sincerely|(?:many[ ])?thanks(?:[ ]and[ ]regards|[ ]again|[ ]a[ ]lot)?|(?:vielen[ ])?danke?"
             r"|(?:med[ ])?(?:venlig|vennlig|med)?[ ]?hilsen|(?:vänliga[ ])?hälsningar|terveisin|merci|gracias|obrigad[oa]|best|yours")
_BELONGS = r"(?:branch|PR|MR|pull request|comments?|commit|machine|laptop|desktop|account|review|change|ticket|issue|message|question|fix|patch|e-?mail|calendar|team|fork|PTO|vacation|shift|idea|suggestion|feedback|approval|number|desk|phone|SSH key|key|login|home)"
_GREETINGS = r"hi|hey|schrieb|(?:discussed|talk|talked|spoke|chatted|met|paired|synced|checked|worked|working|meeting|call|interview|1:1) (?:with|to)|(?:interviewer|manager|lead|boss|colleague|coworker|teammate|owner|maintainer|author|reviewer|approver|contact|customer|client|mentor|intern|engineer|cto|ceo|pm|kollegin?)(?: is|,)?|ago by|by user|dear|hallo|hello|hola|bonjour|ciao|cher|chère|liebe[r]?|querid[oa]|my name is|mein name ist|ich bin|je suis|je m'appelle|me llamo|mi nombre es|mi chiamo|meu nome (?:e|é)|nazywam si(?:e|ę)|this is|i am|i'm|(?:please )?(?:ask|ping|contact|tell|poke|message|nudge)|frag(?:e|t)?(?: mal)?|according to|on behalf of"
_GREETING_LITERALS = ("hi ", "hey ", "schrieb", "with ", " to ", "er", "lead", "boss", "colleague", "teammate", "author", "client", "mentor", "intern", "cto", "ceo", "pm", "kolleg", "ago by", "by user", "dear", "hallo", "hello", "hola", "bonjour", "ciao", "ch", "liebe", "querid", "name is", "name ist", "ich bin", "je suis", "je m", "me llamo", "mi nombre", "mi chiamo", "meu nome", "nazywam", "this is", "i am", "i'm", "ask", "ping", "contact",
                      "tell", "poke", "message", "nudge", "frag", "according to", "behalf of")
_STATES = r"to[ ]?do|in[ ]progress|in[ ]review|backlog|triage|blocked|resolved|cancell?ed|unassigned|reopened|closed|merged|urgent|p[0-4]|high|medium"
_FOLDERS = (r"_bazel_|krb5cc_|pytest-of-|/var/(?:spool/)?mail/|/crontabs/|/cron/tabs/|/run/media/|/systemd/linger/|/sudoers\.d/|/(?:export|nfs\d?|net|data|srv|nas|lustre|gpfs|beegfs|scratch|volume\d|system/volumes/data)/(?:home|users)/|\\documents and settings\\+|/documents and settings/"
            r"|[\\/](?:homes|home\$|profiles|userdata|roaming)\$?[\\/]+|-[LIFB](?:/users|/home)/|linkedin\.com/in/")
_FOLDERS_LITERALS = ("_bazel_", "krb5cc_", "pytest-of-", "mail/", "/crontabs/", "/cron/tabs/", "/run/media/", "/linger/", "/sudoers.d/", "/home/", "/users/", "documents and settings", "homes", "home$", "profiles", "userdata", "roaming", "linkedin.com/in/")


_MANAGED = (r"(?:rds|cache|redshift|docdb|neptune|memorydb|es|elb|eks|kafka|compute)(?:\.[a-z0-9-]+)?\.amazonaws\.com|mongodb\.net|(?:database|postgres\.database|mysql\.database|servicebus|redis\.cache)"
            r"\.(?:windows\.net|azure\.com)|azmk8s\.io|cloudapp\.azure\.com|aivencloud\.com|neon\.tech|upstash\.io|psdb\.cloud|rlwy\.net|(?:db|k8s)\.ondigitalocean\.com|cockroachlabs\.cloud|confluent\.cloud"
            r"|snowflakecomputing\.com|azuredatabricks\.net|redislabs\.com|redis-cloud\.com|[a-z]+-(?:postgres|redis)\.render\.com|pooler\.supabase\.com|qdrant\.io|cloudamqp\.com|compute\.internal|tail[0-9a-f]+\.ts\.net")
_MANAGED_LITERALS = (".amazonaws.com", "mongodb.net", "windows.net", "azure.com", "azmk8s.io", "aivencloud.com", "neon.tech", "upstash.io", "psdb.cloud", "rlwy.net", "ondigitalocean.com",
                     "cockroachlabs.cloud", "confluent.cloud", "snowflakecomputing.com", "azuredatabricks.net", "redislabs.com", "redis-cloud.com", "render.com", "supabase.com", "qdrant.io", "cloudamqp.com", "compute.internal", ".ts.net")
_ENVIRONMENT = r"(?:int|internal|prod|production|prd|stg|staging|preprod|uat|corp|intra|intranet|lan)"
_ENDS = r"(?:com|net|org|io|dev|cloud|app|ai|co|tech|systems|network|eu|de|fr|ch|at|nl|be|it|es|pl|se|no|dk|fi|cz|uk|us|ca|in|jp|br|au)"
_ROLE_HOST = (r"(?:db|web|app|api|node|worker|cache|redis|pg|postgres|mysql|mongo|es|elastic|kafka|k8s|master|bastion|jump|build|ci|vpn|mail|mx|proxy|lb|gw|storage|nas|gpu|srv|server|box|vm"
             r"|relay|edge|queue|mq|backup|log|logs|metrics|fs|files|dash|monitor|host|prod|stg|staging)")
_NUMBERED = rf"(?:[a-z0-9]+-)*{_ROLE_HOST}-?\d{{1,3}}"
_HOST_WORD = (r"(?:enotfound|eai_again|getaddrinfo|resolve host:?|hostname|host|ansible_host|ansible_ssh_host|ssh(?: -\S+(?: \S+)?)?|scp|ping6?(?: -\S+(?: \d+)?)?|dig|nslookup|nc(?: -\S+)?|telnet|nmap(?: -\S+)*|traceroute|lookup"
              r"|dial tcp|connect(?:ed|ing|ion)? to|connect|econnrefused|etimedout|ehostunreach|server|(?:ip|address|addr|ipv4)s?|endpoint|--host|-h|from|remote|peer|bastion|inventory|trying|(?:is|sits|lives|runs) (?:at|on)|\d in a|connected to \[?\w+\]? \()[\\\"']{0,4}[ ]?[=:]?[ \\\"']{1,4}(?:[a-z]+://)?(?:[a-z0-9._-]+@)?")
_INTERNAL = "corp|internal|intra|intranet|lan|local|localdomain|private|home"
_IP_GATE = r"[^0-9.]\d{1,3}\.\d{1,3}\.\d{1,3}\.\d"
_IP = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}"
#: Addresses that documents, containers and small networks have, and those of public services.
_COMMON_IP = re.compile(
    r"(?:0|127|255|2[2-4]\d)\..*|169\.254\..*|192\.0\.2\..*|198\.51\.100\..*|203\.0\.113\..*|198\.1[89]\..*|172\.(?:1[6-9]|2\d|3[01])\.0\..*|192\.168\.[0-2]\..*|10\.0\..*|10\.(?:96|244|42|43|1|10)\.0\..*|.*\.(?:0|255)"
    r"|8\.8\.[48]\.[48]|(\d)\.\1\.\1\.\1|1\.0\.0\.1|9\.9\.9\.9|208\.67\.22\d\.\d+|1\.2\.3\.4|(?:\d\.){3}\d|10\.1\.1\..*|10\.1[01]\.12\.13"
)


def _is_host(name: str) -> bool:
    return not PUBLIC_HOST.fullmatch(name) and not EXAMPLE.search(name)


def _is_address(name: str) -> bool:
    return _is_host(name) and _COMMON_IP.fullmatch(name) is None


def _is_given(name: str) -> bool:
    """Return True if a name begins with a given name that is no word of English or code."""
    return folded(re.split(r"[ ._-]", name)[0]) in listed("given_names.txt")


def _is_rare(name: str) -> bool:
    """Return True if a full name is spelt like one and no part is a word of English or code."""
    words = name.lower().replace("-", " ").split()
    return _SPELT.fullmatch(name) is not None and listed("words.txt").isdisjoint(
        form for word in words for form in (word, word.removesuffix("s"), word.partition("'")[0])
    )


def _is_person(name: str) -> bool:
    return bool(name_kind(name)) and not (" " not in name and is_guarded(name))


def _is_full(name: str) -> bool:
    return name_kind(name) == "NAME" and " " in name


@lru_cache(maxsize=4096)
def _is_known(name: str) -> bool:
    return (_is_given(name) or (" " in name and _is_rare(name))) and _is_person(name)


def _is_telling(name: str) -> bool:
    return _is_full(name) or _is_known(name)


def _is_login(name: str) -> bool:
    return _is_person(name) and ("-" in name or _is_given(name))


def _is_owner(name: str) -> bool:
    """Judge the owner of a fork or what stands beside it: an organisation may stand there too."""
    rare = "-" in name and listed("words.txt").isdisjoint(name.lower().split("-"))
    return _is_telling(name) or (rare and _is_person(name))


def _is_unusual(name: str) -> bool:
    """Judge a name behind a title, where a family name may stand alone."""
    return _is_telling(name) or (_is_person(name) and folded(name) not in listed("words.txt"))


def _owns_branch(name: str) -> bool:
    return name not in _BRANCH_WORDS and (_is_person(name) or (len(name) == 3 and _is_given(name)))


def _wrote_note(name: str) -> bool:
    """Judge a login where a word for the matter may stand too."""
    word = name in _BRANCH_WORDS | listed("words.txt") or not re.fullmatch("[a-z.-]{5,}", name)
    return _is_telling(name) or (not word and _is_person(name))


def _owns_device(name: str) -> bool:
    known = name[0].isupper() or name not in listed("words.txt")
    return known and _is_person(name) and name.lower() not in ("apple", "today", "company", "samsung")


#: Name, literals, pattern with groups ``name``, judge, gate.
_ROWS: tuple[tuple[str, tuple[str, ...], str, Callable[[str], bool], str], ...] = (
    ("merged", ("request #", "ed by "), rf"pull request #\d+ from (?P<name>{_LOGIN})/|(?i:{_DONE}) by @?(?P<login>{_LOGIN}) \((?P<full>{_FULL})\)", _is_owner,
     rf"pull request #\d+ from [a-z0-9_.-]+/|(?:{_DONE}) by @?[a-z0-9_.-]+ \({_UP}"),
    ("trailer", ("-by:", "-queue:", "-submit:"),
     rf"{_START}(?:[A-Z][a-z]+(?:-[a-z]+)*-(?<!enerated-)(?<!owered-)by|Commit-Queue|Auto-Submit):[ \t]+(?P<name>{_FULL}|{_LOGIN}){_END}", _is_person, ""),
    ("porcelain", ("author-", "committer-"), rf"{_START}(?:author|committer)[ ](?P<name>[^\n<>]{{2,60}}?)(?=(?:\r?\n|\\n)(?:author|committer)-)", _is_person,
     r"(?:author|committer)-(?:mail|time)"),
    ("role", (":",), rf"(?<![\w-])(?i:{_ROLES})\*{{0,2}}[ \t]*:\*{{0,2}}[ \t]*(?P<name>{_FULL}){_END}", _is_full,
     rf"(?:{_ROLES})\*{{0,2}}\s*:\*{{0,2}}\s*{_NAMED}"),
    ("to", (" to ", " by ", " is ", "@author "), rf"(?<![\w-])(?i:{_TO})[ ]@?(?P<name>{_FULL})(?![\w-])", _is_full, rf"{_TO} @?{_NAMED}"),
    ("option", ("--",), rf"--(?:add-|remove-)?(?:assignees?|reviewers?|author|committer|mention|approvers?)(?:[ ]|=)\\*[\"']?@?(?P<name>{_FULL}|{_LOGIN})(?![\w/(.=-])", _is_person,
     r"--(?:add-|remove-)?(?:assignee|reviewer|author|committer|mention|approver)s?[ =]"),
    ("owners", ("@",), rf"(?m)(?:^|(?<=\\n))(?:[ \t]*\d+[\t→])?[+-]?(?:\*|[\w*./-]*[*/.][\w*./-]*)[ \t]+(?:@[\w./-]+[ \t]+){{0,6}}@(?P<name>{_LOGIN})(?=[ \t]*(?:\r|\\n|$|[ ]@|[ ]\#))",
     _is_person, r"(?:\"|\\n)[^\s\"]*[+-]?[a-z0-9*./_-]*[*/.][a-z0-9*./_-]*(?:\s| )+(?:@[^\s\"]+ +)*@[a-z0-9]"),
    ("mention", ("@",), rf"(?:(?i:(?<![\w-]){_ASKED}):?[ ]|(?m:^)(?=@[\w-]+{_TALK}\b))@(?P<name>[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9])(?![\w/(@-]|\.\w)", _is_person,
     rf"{_ASKED}:? @[a-z0-9]|(?:\"|\\n)@[a-z0-9_-]+{_TALK}"),
    ("mentioned", ("@",), r"(?<![\w-])(?:[Bb]y|[Ww]ith|[Ff]rom|[Ff]or|[Pp]er|[Vv]ia|let|as|to|and)[ ]@(?P<name>[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*)(?![\w/(@-]|\.\w)", _is_login,
     r"(?:by|with|from|for|per|via|let|as|to|and) @[a-z0-9]"),
    ("device", ("macbook", "iphone", "ipad", "airpods", "imac", "mac mini", "apple watch", "mac studio", "galaxy", "pixel", "thinkpad", "laptop"),
     r"(?<![\w-])(?P<name>[^\W\d_][\w-]{2,20}?)(?:['’]s?[ ](?:Laptop|Galaxy|Pixel|ThinkPad|laptop)|(?:['’]?s|['’])[ ](?:MacBook|iPhone|iPad|AirPods|iMac|Mac[ ]mini|Apple[ ]Watch|Mac[ ]Studio))",
     _owns_device, r"(?:s|'|[^\x00-\x7f]) (?:macbook|iphone|ipad|airpods|imac|mac mini|apple watch|mac studio|galaxy|pixel|thinkpad|laptop)"),
    ("tar", ("/",), rf"{_START}[dlbcps-]?[-rwxsStT]{{9}}[ ]+(?P<name>{_LOGIN})/[\w.-]+[ ]+\d+[ ]\d{{4}}-", _is_person, r"/[a-z0-9_.-]+ +\d+ \d{4}-\d\d-"),
    ("session", ("sudo", "for ", "user "),
     rf"(?:\bsudo(?:\[\d+\])?:[ ]+(?P<name>{_LOGIN})(?=[ ]:[ ])|(?:Accepted[ ][\w/-]+[ ]for|Failed[ ](?:password|publickey|none)[ ]for(?:[ ]invalid[ ]user)?|session[ ](?:opened|closed)[ ]for[ ]user|"
     rf"[Ii]nvalid[ ]user|[Nn]ew[ ]session[ ]\S+[ ]of[ ]user|Disconnected[ ]from(?:[ ]authenticating|[ ]invalid)?[ ]user)[ ](?P<login>{_LOGIN})(?=[ (]|\.$))", _is_person,
     r"sudo(?:\[\d+\])?: +[a-z_]|(?:accepted|failed) [a-z/-]+ for |session (?:opened|closed) for user|invalid user|session [^\s]+ of user|disconnected from (?:[a-z]+ )?user"),
    ("key_comment", ("aaaa",), rf"(?:ssh-(?:ed25519|rsa|dss)|ecdsa-[\w-]+|sk-[\w@.-]+)[ ]AAAA[\w+/=]{{20,}}[ ](?P<name>{_LOGIN})(?=\s|@|\\|[\"']|$)(?:@(?P<host>[\w-]+)(?![\w.-]))?", _is_person,
     r"aaaa[a-z0-9+/=]{20,} [a-z_]"),
    ("arn", ("arn:aws",), rf"arn:aws[\w-]*:(?:iam|sts)::(?:\d{{12}}|\[\w+\]|\*)?:(?:user|assumed-role/[\w+=,.@-]+)/(?:[\w-]+/){{0,3}}(?P<name>{_LOGIN})(?![\w/*-])", _is_person, r"arn:aws[a-z-]*:(?:iam|sts)::"),
    ("todo", ("todo(", "fixme(", "xxx(", "hack(", "note(", "bug(", "todo @", "todo: @", "fixme @", "fixme: @"), rf"(?:TODO|FIXME|XXX|HACK|NOTE|BUG)(?:\((?=@?[^()\n]+\))|:?[ ](?=@))@?(?P<name>{_FULL}|{_LOGIN})(?=[):,\s]|$)", _wrote_note, ""),
    ("signature", _CLOSING_LITERALS, rf"(?im:^[ \t>*]*(?:{_CLOSINGS})[,!.]?[ \t]*(?:\r?\n|\\n)+[ \t>*-]*)(?P<name>{_FULL}|{_CAPITAL})(?=[ \t]*(?:\r?\n|\\n|$))", _is_telling,
     rf"(?:{_CLOSINGS})[,!.]?\s*\\n"),
    ("card", (";cn=", "begin:vcard", "cn=", "cn ="), rf"(?:(?:ATTENDEE|ORGANIZER)[^\n:]{{0,80}}?;CN=\\*\"?|(?:^|\n|\\n)FN(?:;[^:\n]{{0,40}})?:)(?P<name>{_FULL})(?![\w-])", _is_full, r"(?:attendee|organizer)|begin:vcard"),
    ("subject", ("cn=", "cn ="), rf"(?<![\w])(?:CN|cn)[ ]?=[ ]?\\*\"?(?P<name>{_FULL})(?=[ ]?[,/;\"'\\\n]|$)", _is_known, rf"(?:[^a-z0-9]|\\[nrt])cn ?= ?[\\\"]*{_NAMED}"),
    ("signer", ("develop", "distribution: "), rf"(?:(?:Apple|Mac|iPhone|iOS)[ ](?:Developer|Development|Distribution)|Developer[ ]ID[ ]\w+):[ ](?P<name>{_FULL})(?=[ ]\([A-Z0-9]{{10}}\))", _is_full,
     r"(?:developer|development|distribution|developer id [a-z]+): [^\n\"(]{3,60} \([a-z0-9]{10}\)"),
    ("folder", _FOLDERS_LITERALS, rf"(?i:{_FOLDERS})(?P<name>{_LOGIN})(?=[/\\\s\"':,;)]|$)", _is_person, rf"(?:{_FOLDERS})[a-z_]"),
    ("domain", ("\\",), rf"(?i:\b(?:owner|user[ ]?(?:name|id)?|run[ ]?as(?:[ ]?user)?|author|account(?:[ ]?name)?|identityreference|principal|credential|logonuser|whoami[^\n]{{0,30}})|/ru)(?:[ \t]*\\*[\"']?[ \t]*[:=>][\s\"'\\>]*?|[ \t]+[-\s]*)"
     rf"[\"'<>]?[A-Za-z][A-Za-z0-9-]{{1,30}}\\{{1,2}}(?P<name>{_LOGIN})(?![\w\\/.-])|(?<=[\s])[A-Z][A-Z0-9-]+\\{{1,2}}(?P<a>{_LOGIN})(?=:\([A-Z])", _is_person,
     r"[a-z0-9-]\\+[a-z0-9_.-]+:\([a-z]|(?:owner|user|name|id|as|author|account|identityreference|principal|credential|whoami|/ru)[^a-z]{1,60}[a-z][a-z0-9.-]+\\\\+[a-z_]"),
    ("account", ("user", "password for ", "signed in", "authenticated as", "behalf of", "sudoers", "account name", "full name", "id: (", "owner: ", "cron[", "acct=", "hostname", "ed by ", "review from", "<", "uid=", "accountname", "account name", "valid users", "r", "change ", "$id: ", "*"),
     rf"(?:[Uu]ser[ ]\\*[\"'](?:[a-z]+:)?(?P<a>{_LOGIN})\\*[\"'][ ]cannot[ ]|(?:[Cc]hanging|\[sudo\])[ ]password[ ]for[ ](?:user[ ])?(?P<b>{_LOGIN})(?=[.:\s]|$)|(?:Sorry,[ ]user|Added[ ]user)[ ](?P<c>{_LOGIN})(?=[ .\s]|$)"
     rf"|(?P<d>{_LOGIN})[ ]is[ ]not[ ]in[ ]the[ ]sudoers|(?:[Ss]igned[ ]in|[Aa]uthenticated)[ ]as:?[ ]\\*[\"'`@]?(?P<e>{_LOGIN})(?=\\*[\"'`]?[.!]?[ \t]*(?:\r?\n|\\n|$|\())"
     rf"|[UG]id:[ ]\([ \d]{{1,9}}/[ ]*(?P<g>{_LOGIN})\)|\#[ ]owner:[ ](?P<h>{_LOGIN})(?=\s)|CRON\[\d+\]:[ ]\((?P<i>{_LOGIN})\)|[Ss]ession[ ]\w+[ ]of[ ][Uu]ser[ ](?P<j>{_LOGIN})(?=[.\s]|$)|\bacct=\\*\"(?P<k>{_LOGIN})\\*\""
     rf"|IAMUser\\*\"[^{{}}]{{0,400}}?userName\\*\"\s?:\s?\\*\"(?P<l>{_LOGIN})\\*\"|Username:[ \t]+(?P<m>{_LOGIN})(?=\s*(?:\n|\\n)(?:Groups|UID|Extra))|[Hh]ost[Nn]ame[ \t][^\n]{{1,80}}\n(?:[ \t]+[^\n]{{1,80}}\n){{0,4}}?[ \t]+User[ \t]+(?P<n>{_LOGIN})(?=\s|$)"
     rf"|ed[ ]by[ ]@?(?P<o>{_LOGIN})(?=[ ](?:about[ ])?\d+[ ]?[a-z]+[ ]ago)|[Rr]equested[ ]a[ ]review[ ]from[ ]@?(?P<p>{_LOGIN})(?=[\s.,]|$)|\d:\d\d\]?[ ]<[@+ ]?(?P<r>{_LOGIN})>[ ]|\buid=(?P<s>{_LOGIN})(?=,(?:ou|cn|dc)=)|s[Aa][Mm]Account[Nn]ame[\"']?\s?[:=]\s?[\"']?(?P<t>{_LOGIN})(?=[\"'\s,)]|$)"
     rf"|[Uu]ser[ ](?P<u>{_LOGIN})[ ]is[ ]not[ ]a|valid[ ]users[ ]?=[ ]?(?P<v>{_LOGIN})(?=[\s,]|$)|(?m:^|\\n)r\d+[ ]\|[ ](?P<w>{_LOGIN})[ ]\||Change[ ]\d+[ ]on[ ][\d/]+[ ](?:[\d:]+[ ])?by[ ](?P<x>{_LOGIN})@|\$Id:[ ]\S+,v[ ][\d.]+[ ][\d/-]+[ ][\d:]+[ ](?P<y>{_LOGIN})[ ]"
     rf"|(?m:^|\\n)(?:[\d*,/-]+[ \t]+){{5}}(?P<z>{_LOGIN})[ \t]+/|(?m:^|\\n)(?:[Uu]ser[ ]name|[ \t]*Account[ ]Name:)[ \t]{{1,40}}(?P<f>{_LOGIN})(?=\s|\\|$)|(?m:^|\\n)Full[ ]Name[ ]{{3,40}}(?P<name>{_FULL}))", _is_person,
     r"user [\\\"']+(?:[a-z]+:)?[a-z0-9_.-]+[\\\"']+ cannot |password for [a-z_]|(?:sorry|added),? user |is not in the sudoers|(?:signed in|authenticated) as|[ug]id: \([ \d]{1,9}/|# owner: [a-z_]|cron\[\d+\]: \([a-z_]|session [a-z0-9]+ of user |acct=[\\\"]+[a-z_]|iamuser[\\\"]+[^{}]*username[\\\"]+\s?:|username:(?:\s|\\t)+[a-z0-9_.-]+\s*\\n(?:groups|uid|extra)|hostname(?:\s|\\t).{1,400}\\n(?:\s|\\t)+user(?:\s|\\t)|ed by @?[a-z0-9_.-]+ (?:about )?\d+ ?[a-z]+ ago|requested a review from |\d:\d\d\]? <[@+ ]?[a-z_]|uid=[a-z0-9_.-]+,(?:ou|cn|dc)=|samaccountname[\\\"']*\s?[:=]|(?:\"|\\n)(?:\s*account name:|user name|full name)(?:\s|\\t){2}|user [a-z0-9_.-]+ is not a|valid users ?= ?[a-z_]|[\"n]r\d+ \| [a-z_]|change \d+ on [\d/]+ by [a-z_]|\$id: [^\s\"]+,v|(?:[\d*,/-]+(?:\s|\\t)+)\*(?:\s|\\t)+[\d*,/-]+(?:\s|\\t)+[a-z_][a-z0-9_.-]+(?:\s|\\t)+/"),
    ("courtesy", ("mr", "ms.", "dr.", "prof", "herr", "frau", "madame", "monsieur", "señor"), rf"(?<![\w.-])(?:Mrs?\.?|Ms\.|Dr\.|Prof\.?|Herrn?|Frau|Madame|Mme|Monsieur|Señora?)[ ](?P<name>{_FULL}|{_CAPITAL})(?![\w'’-])", _is_unusual,
     rf"(?-i:Mrs?\.?|Ms\.|Dr\.|Prof\.?|Herrn?|Frau|Madame|Mme|Monsieur|Se..ora?) {_UP}"),
    ("fork", ("/compare/", "about ", "open", "draft", "merged", "closed"), rf"(?:/compare/[\w./-]{{1,60}}?\.{{2,3}}(?P<name>{_LOGIN}):|(?:\t|[ ]{{2}})(?P<head>{_LOGIN}):[\w./-]+(?=(?:\t|[ ]{{2,}})(?:OPEN|DRAFT|MERGED|CLOSED|about[ ]\d)))", _is_person, r"/compare/[^\s\"]*:|[a-z0-9_-]:[a-z0-9_./-]+(?:\\t|  +)(?:open|draft|merged|closed|about )"),
    ("marked", ("👷", "👤", "🧑", "👩", "👨", "<v ", "[~", "|", "@"), rf"(?:[👷👤🧑👩👨🙋][\ufe0f\u200d💻]*[ ]?|<v[ ]|(?<![\w\])])\[~|<@[UW][A-Z0-9]{{6,}}\|)@?(?P<name>{_FULL}|{_LOGIN})(?=[ ]{{2}}|[>\]]|\s*(?:\n|\\n|$)|[ ]*[^\w\s.,:])", _is_person,
     r"\xf0\x9f(?:\x91[\xb7\xa4\xa9\xa8]|\xa7\x91|\x99\x8b)|<v [a-z]|\[~[a-z]|<@[uw][a-z0-9]{6,}\|"),
    ("personal", (".com", ".org"), rf"(?:github|gitlab|codeberg|bitbucket)\.(?:com|org)[:/](?P<name>{_LOGIN})/(?:\.?dotfiles|\.?emacs\.d|\.?vimrc|nvim-config|nixos?-config|homelab|advent-of-code|(?P=name)\.github\.io)(?![\w-])", _is_person,
     r"(?:github|gitlab|codeberg|bitbucket)\.(?:com|org)[:/][a-z0-9_.-]+/(?:\.?dotfiles|\.?emacs|\.?vimrc|nvim-config|nixo?s?-config|homelab|advent-of-code|[a-z0-9_.-]+\.github\.io)"),
    ("chat", (":",), rf"{_START}(?:\[[^\]\n]{{0,16}}\d{{1,2}}:\d\d[^\]\n]{{0,6}}\]|[\d/.-]{{6,10}},?[ ]\d{{1,2}}:\d\d(?::\d\d)?(?:[ ][AaPp][Mm])?[ ]-)[ ]<?(?P<name>{_FULL}|{_CAPITAL})(?=>|:[ ])", _is_telling,
     rf"\d:\d\d[^\]\n]{{0,6}}(?:\]| -) <?{_UP}[^\"\\:>]*(?:>|: )"),
    ("chat_time", (":",), rf"{_START}(?P<name>{_FULL})(?:,?[ ]{{1,3}}|[ ]?\[|[ ]\(|[ ]—[ ])\d{{1,2}}:\d\d(?::\d\d)?(?:[ ][AaPp][Mm])?[\])]?[ \t]*(?=\r?\n|\\n|$|:)", _is_full,
     rf"{_BEGIN}{_NAMED}[^\s\"\\]*(?:,? {{1,3}}| ?\[| \(| [^\x00-\x7f]+ )\d{{1,2}}:\d\d"),
    ("managed", _MANAGED_LITERALS, rf"(?<![\w.-])(?P<host>(?:[A-Za-z0-9_-]+\.)+(?:{_MANAGED}))(?![\w-])", _is_host, rf"\.(?:{_MANAGED})"),
    ("labelled", (".",),
     rf"(?<![\w.-])(?P<host>(?:[A-Za-z0-9-]+\.)+{_ENVIRONMENT}\.(?:[A-Za-z0-9-]+\.){{1,2}}{_ENDS}|{_NUMBERED}\.(?:[A-Za-z0-9-]+\.){{1,3}}{_ENDS}|(?:[A-Za-z0-9-]+\.){{2,4}}(?:lan|corp|intra|intranet|localdomain|home\.arpa)|[a-z][a-z-]*\d+\.(?:[a-z0-9-]+\.){{1,3}}local)(?![\w(-]|\.\w)",
     _is_host, rf"\d\.[a-z0-9.-]*\.local[^a-z0-9_(-]|\.{_ENVIRONMENT}\.[a-z]|\d\.[a-z0-9.-]*\.{_ENDS}[^a-z0-9_(-]|\.(?:lan|corp|intra|intranet|localdomain|home\.arpa)[^a-z0-9_(-]"),
    ("spoken", ("hop on", "ssh ", "server ", "host ", "machine ", "rechner ", "on the box "), rf"(?i:hop[ ]on(?:to)?|\bssh(?:[ ]in)?(?:to|[ ]to|[ ]onto)?|server|\bhost|machine|rechner|on[ ]the[ ]box)[ ][\"'`]?(?P<host>(?:(?:prod|prd|stg|staging|srv|uat|db|app|web)-[a-z0-9-]*|(?:[a-z0-9]+-)+{_ROLE_HOST}-?)\d{{2,3}})(?![\w.:/=-])", _is_host,
     r"(?:hop on|onto|ssh|ssh in|ssh to|into|server|host|machine|rechner|on the box) [\"'`]*[a-z0-9]+-[a-z0-9-]*[0-9][0-9]"),
    ("laptop", ("laptop-", "desktop-", "notebook-", "workstation-", "pc-", "nb-"), r"(?<![\w-])(?P<host>(?:LAPTOP|DESKTOP|NOTEBOOK|WORKSTATION|PC|NB)-[a-z][a-z0-9]{3,15})(?![\w-])", _is_host,
     r"(?-i:LAPTOP|DESKTOP|NOTEBOOK|WORKSTATION|PC|NB)-[a-z]"),
)
#: Name, literals, a pattern that is found fast, what ends there, judge, gate.
_ENDED: tuple[tuple[str, tuple[str, ...], str, str, Callable[[str], bool], str], ...] = (
    ("by", ("ed by ", "ed to ", "ed from "), rf"ed(?=[ ](?:by|to|from)[ ]@?(?P<name>{_FULL}|{_CAPITAL}(?=[ ](?:about|\d+)[ ]))(?![\w-]))", rf"(?<![\w-])(?i:{_DONE})$", _is_full,
     rf"(?:{_DONE}) (?:by|to|from) @?{_NAMED}"),
    ("acts", _ACTS_LITERALS, rf"[ ](?i:{_ACTS})(?![\w-])", rf"(?<![\w.@/-])@?(?P<name>{_FULL}|{_LOGIN}),?[ ]{{1,2}}(?i:{_ACTS})$", _is_telling, rf"(?:{_ACTS})"),
    ("titled", (":", "=", ">", "{"), rf"[:=>{{](?=\s{{0,3}}[\[{{]?[ ]?\\*[\"']?(?P<name>{_FULL})(?=\\*[\"'<]|\s*(?:[,;)}}\n(\[|<]|\\n|$)))", rf"(?i:(?:{_TITLES})s?(?:\\*[\"'][ ]content)?\]?(?:>|\\*[\"']?\*{{0,2}}\s{{0,30}}(?::?[:=]|=?>|\{{)))$", _is_known,
     rf"(?:{_TITLES})s?(?:[\\\"']+ content)?\]?[\\\"'*]*(?:\s| ){{0,30}}[:=>{{]+\*{{0,2}}\s{{0,3}}[\[{{ \\\"']*{_NAMED}"),
    ("greeted", _GREETING_LITERALS, rf"[ ](?=@?(?P<name>{_FULL}|{_CAPITAL})(?![\w'’-]))", rf"(?<![\w-])(?i:(?:{_GREETINGS}))[ ]$", _is_known, rf"(?:{_GREETINGS}) @?{_UP}"),
    ("beside", ("@",), r"@(?=[\w.-]+\w)|\[EMAIL_", rf"(?<![\w.@/-])(?P<name>{_FULL})[\"'\s,;|(<]{{1,12}}(?:[\w.+-]*@|\[EMAIL_)$", _is_known, rf"{_NAMED}[^\s\"\\<>(){{}}=]*[\"'\\ ,;|(<]{{1,12}}[a-z0-9._+-]+@"),
    ("ago", ("ed ", "ed:"), rf"ed(?=(?<=commented|responded):|{_AGO}\b(?P<rest>[^\n]*))",
     rf"^[ \t>*\"'-]*(?:[•·✓●○][ ]*)?@?(?P<name>{_FULL}|{_LOGIN})[ ](?:has[ ])?(?:{_DONE})$", _is_person,
     rf"{_BEGIN}(?:[^\x00-\x7f]+ *)?@?[^\s\"\\<>(){{}}=][^\"\\<>(){{}}=]* (?:{_DONE})(?::|{_AGO})"),
    ("named", tuple(f".{name}" for name in _INTERNAL.split("|")), rf"\.(?:{_INTERNAL})(?![\w(-]|\.\w)", rf"(?i:(?<![\w.-]){_HOST_WORD})(?P<host>(?:[A-Za-z0-9-]+\.)+(?:{_INTERNAL}))$", _is_host,
     rf"\.(?:{_INTERNAL})[^a-z0-9_(-]"),
    ("address", (".",), rf"(?<![\d.]){_IP}(?![\w]|\.\d|/\d)", rf"(?i:(?<![a-z0-9.-])(?:[a-z0-9]+[_-])?{_HOST_WORD}|(?<![\w.-])(?:root|admin|deploy|ubuntu|ec2-user)@|(?<=[\]\w] )\()(?P<host>{_IP})$", _is_address, _IP_GATE),
    ("hosts", (".",), rf"(?<![\d.]){_IP}(?=[ \t]+[a-z][\w.-]+(?:[ \t\r\n]|$))", rf"^[ \t]*(?P<host>{_IP})$", _is_address, _IP_GATE),
    ("branch", ("/",), r"/(?![0-9a-f]{7,40}-)(?=[A-Za-z0-9]+(?:-[A-Za-z0-9]+)+(?!\w|[/.-]\w))",
     rf"(?i:{_ON_BRANCH})(?:origin/)?(?:users?/|people/|dev/)?(?P<name>[a-z][a-z0-9._-]{{2,24}})/$", _owns_branch,
     rf"{_ON_BRANCH}(?:origin/)?(?:users?/|people/|dev/)?[a-z][a-z0-9._-]{{2}}[a-z0-9._-]*/[a-z0-9]+-[a-z0-9]"),
)
_NAME = rf"(?<![\w.@/-])@?(?P<name>{_FULL}|{_LOGIN})(?![\w@/(-]|\.\w)"
#: Name, literals, pattern with a group ``names``, a pattern of each of them, judge, gate.
_LISTED: tuple[tuple[str, tuple[str, ...], str, str, Callable[[str], bool], str], ...] = (
    ("items", ("reviewers", "assignees", "approvers", "maintainers"), r"(?i:reviewers|assignees|approvers|maintainers)[\"']?:[ \t]*\r?\n(?P<names>(?:[ \t]*-[ ][^\n]{1,80}(?:\n|$)){1,40})", rf"-[ ][\"']?@?(?P<name>{_FULL}|{_LOGIN})(?=[\"']?\s)", _is_person,
     r"(?:reviewers|assignees|approvers|maintainers)[\\\"']*:\s*(?:\\r)?\\n"),
    ("queue", ("jobid",), r"(?m:^)[ ]*JOBID[ ]+PARTITION[ ]+NAME[ ]+USER[^\n]*\n(?P<names>(?:[^\n]+(?:\n|$)){1,400})", rf"(?m)^[ ]*\S+[ ]+\S+[ ]+\S+[ ]+(?P<name>{_LOGIN})[ ]", _is_person, "jobid +partition +name +user"),
    ("group", (":x:",), r"(?m:^|(?<=\\n))[a-z][\w-]*:x:\d{1,6}:(?P<names>[a-z][\w.,-]*)(?=\s|\\n|$)", rf"(?P<name>{_LOGIN})", _is_person, r"[a-z0-9_-]:x:\d{1,6}:[a-z]"),
    ("present", ("authors", "contributors", "maintainers", "thanks", "attendees", "participants", "present:", "teilnehmer", "anwesend", "facilitator", "interviewer", "moderator", "presenter", "speaker", "scribe"),
     r"(?i:attendees|participants|present|teilnehmer(?:innen)?|anwesend|facilitators?|interviewers?|moderator|presenters?|speakers?|scribe)\*{0,2}:\*{0,2}(?P<names>[^\n]{3,300})|(?i:(?m:^)\#*[ ]*(?:authors|contributors|maintainers|thanks))[ \t]*\n[=-]*\n{0,2}(?P<list>(?:[^\n]+\n?){1,60})", rf"{_NAME}(?!-)", _is_known,
     rf"(?:attendees|participants|present|teilnehmer|teilnehmerinnen|anwesend|facilitators?|interviewers?|moderator|presenters?|speakers?|scribe)[*:]+\s*{_UP}|{_BEGIN}#*\s*(?:authors|contributors|maintainers|thanks)\s*\\n"),
    ("table", ("user", "owner", "uid", "login"),
     r"(?m:^)(?=[^\n]*\b(?:PID|TTY|SESSIONNAME|PARTITION|COMMAND|SEAT|STARTED|Tty)\b)(?:USER(?:NAME)?|OWNER|UID|Login)[ \t]+[^\n]*\n(?P<names>(?:[^\n]+(?:\n|$)){1,400})", rf"(?m)(?:^[ \t>]*(?P<name>{_LOGIN})(?=[ \t])|(?<=[ \t])(?P<full>{_FULL})(?=[ \t]{{2}}))", _is_person,
     r"(?:user(?:name)?|owner|uid|login)(?:\s|\\t)+(?:[a-z%]+(?:\s|\\t)+){0,4}(?:pid|tty|sessionname|partition|command|seat|started)[ \\]"),
)
# fmt: on


def _find(pattern: re.Pattern[str], judge: Callable[[str], bool], text: str) -> Iterator[Finding]:
    for match in pattern.finditer(text):
        for group, name in match.groupdict().items():
            if group == "host":
                if name and _is_host(name):
                    yield Finding(*match.span(group), "HOST")
            elif name and judge(name):
                yield Finding(*match.span(group), name_kind(name))


def _find_ended(
    anchor: re.Pattern[str], before: re.Pattern[str], judge: Callable[[str], bool], text: str
) -> Iterator[Finding]:
    for match in anchor.finditer(text):
        if "name" in match.groupdict() and not judge(match["name"]):
            continue
        begin = max(0, match.end() - 120)
        if before.pattern.startswith("^"):
            begin = max(begin, text.rfind("\n", begin, match.end()) + 1)
            escaped = text.rfind("\\n", begin, match.end())
            begin = begin if escaped < 0 else escaped + 2
        ended = before.search(text[begin : match.end()])
        if not ended:
            continue
        if "name" in match.groupdict():
            start, end = match.span("name")
        else:
            start, end = (begin + at for at in ended.span(ended.lastgroup or 0))
        login = "rest" in match.groupdict() and " " not in text[start:end]
        if login and not re.search(
            r"\bago\b|^[ ]on[ ]\w{3,9}[ ]\d|changes\b", text[match.end() :][:80]
        ):
            continue
        value = text[start:end]
        if judge(value):
            yield Finding(start, end, "HOST" if ended.lastgroup == "host" else name_kind(value))


def _find_listed(
    pattern: re.Pattern[str], item: re.Pattern[str], judge: Callable[[str], bool], text: str
) -> Iterator[Finding]:
    for match in pattern.finditer(text):
        for each in item.finditer(text, *match.span(match.lastgroup or 0)):
            group = each.lastgroup or 0
            if judge(each[group]):
                yield Finding(*each.span(group), name_kind(each[group]))


_UPPER = "A-Z\u00c0-\u00de\u0106-\u017d"
_TWO = re.compile(
    rf"[{_UPPER}](?:(?<![\w./'’-].)|(?<=\\n.))[\w’-]+ (?:(?:(?:van|von|der|den|de|di|da|del|la|le|al|el|bin)|[A-Z]\.) ){{0,3}}(?P<family>(?:[{_UPPER}]['’])?[{_UPPER}][\w-]*\w)(?![\w@/(]|\.\w)"
)
_FIRST_WORD = re.compile(
    rf"[{_UPPER}][a-z\u00df-\u017e’-]+(?:-[A-Z][a-z]+)?(?= (?:[{_UPPER}]|v[ao]n |d(?:e[rnl]?|[iau]) |la |le |al |el |bin ))"
)
# A family name before a comma: in quotes, behind a sign or a header.
_TURNED = re.compile(rf", (?P<given>[{_UPPER}][\w’-]*\w)(?=[\\,;\"\n]|$)")
_TURNS = re.compile(rf"(?:[\"=]|: )(?P<family>[{_UPPER}][\w’-]*\w)$")


_ACTED = re.compile(r"[a-z]ed by @?$|^[ \t]*\d{1,5}(?:\t|[ ]{2})$")
_OWNS = re.compile(rf"['’]s (?:{_BELONGS})\b|(?:['’]s)? {_SAYS} ")
_CELL_ENDS = re.compile(r"\t|[ ]{2}|[ ]*[|│·]|[ ]*(?:\r?\n|\\n|$)")
_STATED = re.compile(rf"(?i)(?<![\w-])(?:{_STATES}|done|open)(?![\w-])")


def _is_family(word: str) -> bool:
    return listed("words.txt").isdisjoint((word.lower(), word.lower().removesuffix("s")))


@lru_cache(maxsize=1 << 14)
def _begins_name(word: str) -> bool:
    """Return True if a word may be a given name: it is listed, or no word of English or code."""
    return (_is_given(word) or _is_family(word)) and not is_guarded(word)


def _find_full(text: str) -> Iterator[Finding]:
    """Yield full names: a given name and what is no word, or no words where a person is told of."""
    found = []
    for first in _FIRST_WORD.finditer(text):
        match = _TWO.match(text, first.start()) if _begins_name(first[0]) else None
        if not match or not _is_family(match["family"]) or not _is_full(match[0]):
            continue
        if _is_given(first[0]) or (_is_rare(match[0]) and _is_told(match)):
            found.append(Finding(*match.span(), "NAME"))
    for match in _TURNED.finditer(text):
        before = _TURNS.search(text, max(0, match.start() - 30), match.start())
        if before and _is_given(match["given"]) and _is_family(before["family"]):
            found.append(Finding(before.start("family"), match.end(), "NAME"))
    yield from sorted(found, key=lambda finding: finding.start)


def _is_told(name: re.Match[str]) -> bool:
    """Return True if what a name stands in tells of a person: an action, a cell, what is theirs."""
    text, start, end = name.string, name.start(), name.end()
    begin = text.rfind("\n", 0, start) + 1
    before = text[max(begin, start - 90) : start]
    if _ACTED.search(before) or _OWNS.match(text, end):
        return True
    cell = re.search(r"(?:^|\t|[ ]{2}|[|│·][ ]?)$", before) and _CELL_ENDS.match(text, end)
    return bool(cell and _STATED.search(before + text[end : end + 90].partition("\n")[0]))


# fmt: off
_SHOWS = (r"(?:[$❯%][ ]|(?:PS[ ])?[A-Z]:\\[^\n>]*>[ ]?)[^\n]*?(?:whoami|gh api user\b|\.login\b|\.username\b|%[ac][nN]\b|%U\b|shortlog -|config (?:--\w+ )*user\.name|hostname\b|uname -n\b|\bid -F\b|\$USER\b|\$env:USERNAME|%USERNAME%"
          r"|printenv (?:USER|LOGNAME)\b|(?<=[$❯%][ ])groups\b|dscl \. -?list /Users|compgen -u|\bwho am i|AssignedTo|assignee)[^\n]*\n")
_SHOWN = re.compile(rf"(?m)^[ \t]*(?P<command>{_SHOWS})(?P<lines>(?:(?![$❯%#>] )[^\n]+(?:\n|$)){{1,60}})")
_FIRST = re.compile(rf"(?m)^[ \t]*(?:(?:[\d#]+|[0-9a-f]{{7,40}})[ \t,|]+)*[\"@]?(?P<name>{_FULL}|{_LOGIN})(?P<alone>[ \t]*$)?(?=[ \t,|<\"]|\r|$)")
_ROLE_WORDS = ("name", "customer", "member", "student", "patient", "assign", "report", "author", "owner", "creat", "updated by", "review", "approv", "request", "opened by", "closed by", "merged by", "resolved by", "submit", "committer",
               "lead", "maintainer", "on-call", "oncall", "contact", "modified by", "written by", "triggered by", "deployed by", "last editor", "full name", "employee", "manager", "supervisor")
_COLUMN = re.compile(rf"(?i)(?P<role>{_COLUMNS})[\"'*]*[ ]*(?P<right>[,;|\t]|[ ]{{2}}|(?=\r?\n))[^\n]*\n(?P<lines>(?:[^\n]+(?:\n|$)){{1,200}})")
_LEFT = re.compile(r"(?m)(?P<left>[,;|\t]|[ ]{2}|^)[\"'* ]*$")
_CELLS = {"  ": r"\S+(?: \S+)*", **{sign: rf'[ ]*(?:"(?P<q>[^"]*)"|[^{sign}\n]*)(?:[{sign}]|$)' for sign in ",;|\t"}}
# fmt: on


def _find_shown(text: str) -> Iterator[Finding]:
    """Yield the persons and hosts that commands print below their prompts."""
    for shown in _SHOWN.finditer(text):
        host = re.search(r"hostname|uname", shown["command"])
        once = not re.search(r"\.login|username|%[ac]|shortlog|dscl|compgen", shown["command"])
        for match in _FIRST.finditer(text, *shown.span("lines")):
            name = match["name"]
            if host and "-" in name and _is_host(name):
                yield Finding(*match.span("name"), "HOST")
            elif not host and (
                _is_telling(name)
                or (
                    _is_person(name)
                    and (once or match["alone"] is not None or re.search("[._-]", name))
                )
            ):
                yield Finding(*match.span("name"), name_kind(name))
            if once:
                break


def _find_columns(text: str) -> Iterator[Finding]:
    """Yield the persons in the column of a role: of CSV, Markdown and aligned tables."""
    lowered = ascii_lower(text)
    hits = (m.start() for word in _ROLE_WORDS for m in re.finditer(word, lowered))
    for at in sorted(set(hits)):
        begin = text.rfind("\n", 0, at) + 1
        left = _LEFT.search(text, max(begin, at - 12), at)
        header = _COLUMN.match(text, at) if left else None
        sign = (left["left"] or header["right"]) if left and header else ""
        if not header or sign not in _CELLS:
            continue
        cell = re.compile(_CELLS[sign])
        index = sum(
            m.end() <= at
            for m in cell.finditer(text, begin, begin + len(text[begin:].split("\n", 1)[0]))
            if m[0]
        )
        for line in re.finditer(r"[^\n]+", header["lines"]):
            if not line[0].strip("-+|:= \r"):
                continue
            first = header.start("lines") + line.start()
            cells = [m for m in cell.finditer(text, first, first + len(line[0])) if m[0]]
            if len(cells) <= index:
                break
            value = cells[index][0].strip(f"{sign}\"'* @\r")
            start = cells[index].start() + cells[index][0].find(value)
            sure = header["role"].lower().startswith(("assign", "report", "review", "approv"))
            named = (
                _is_known
                if re.search("name|customer|member|student|patient", header["role"])
                else _is_telling
            )
            if value and (named(value) or (sure and _is_person(value))):
                yield Finding(start, start + len(value), name_kind(value))


#: Id, literals, function and gate of each rule.
MENTION_FINDERS: tuple[tuple[str, tuple[str, ...], Callable[[str], Iterator[Finding]], str], ...] = (
    *(
        (f"mention/{name}", literals, partial(_find, re.compile(pattern), judge), gate)
        for name, literals, pattern, judge, gate in _ROWS
    ),
    *(
        (f"mention/{name}", literals, partial(_find_ended, re.compile(anchor), re.compile(before), judge), gate)
        for name, literals, anchor, before, judge, gate in _ENDED
    ),
    *(
        (f"mention/{name}", literals, partial(_find_listed, re.compile(pattern), re.compile(item), judge), gate)
        for name, literals, pattern, item, judge, gate in _LISTED
    ),
    ("mention/full", ("",), _find_full, rf"{_UP}[^\x00-&(-,.-@{{-\x7f]+ (?:{_UP}|v[ao]n |de[rnl]? |d[iau] |la |le |al |el |bin )|(?:[a-z]|[^\x00-\x7f]), {_UP}"),
    ("mention/shown", ("$ ", "% ", "❯ ", ">"), _find_shown, r"\.login|\.username|(?:whoami|gh api user|%[ac]n|%u|shortlog -|user\.name|hostname|uname -n|id -f|\$user|\$env:username|%username%|printenv (?:user|logname)|[$%] groups|list /users|compgen -u|who am i)[ \\\"\'};|&]|shortlog -|[$%>] [^\\]{0,200}assignedto"),
    ("mention/column", (",", ";", "|", "\t", "\\t", "  "), _find_columns,
     rf"(?:[,;|]|\\t|  |{_BEGIN})[\"'*\\ ]*(?:{_COLUMNS})[\"'*\\]* *(?:[,;|]|\\t|  )|(?:[,;|]|\\t|  )[\"'*\\ ]*(?:{_COLUMNS})[\"'*\\]* *(?:\\r)?\\n"),
)  # fmt: skip

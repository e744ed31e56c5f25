"""Secrets that a position gives away: headers, queries, calls, tables, settings files.

In a pattern only the group ``value`` is replaced. The literals are lower case; one of them
occurs in a text, in any case, if the pattern can match.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from composer_pipeline.redaction.finders import Finder, is_secret_name
from composer_pipeline.redaction.patterns import ESCAPED, LINE_HEAD
from composer_pipeline.redaction.secrets import (
    Finding,
    entropy,
    is_basic,
    is_data_password,
    is_given_secret,
    is_long_random,
    is_random,
    is_signed,
    listed,
)
from composer_pipeline.redaction.tokens import surprise

# Paths, hosts, versions, algorithms, calls, names of variables, public keys, what fixtures say.
_PUBLIC = re.compile(
    r"\+?[./~$%@<{(\[*^-].*|.*://.*|.*\\.*|[\w.+-]+@[\w-]+\.[\w.-]+|[vV]?\d+(?:[.:_-][\w+]+)*|#[0-9a-fA-F]+|pk_.*|(?:ssh|ecdsa)-.*"
    r"|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.[a-z]{2,12}(?:[:/].*)?|[a-z_]+(?:\.[a-z0-9_]+)+[.:]?|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
    r"|[A-Za-z_][\w.]*[(\[].*|(?i:(?:sha|md|aes|[hrep]s|utf|base|ed|x)-?\d+(?:[-_:].*)?"
    r"|(?:pass(?:word|wd)?|secret|test(?:ing|er)?|admin|token|user|foo|bar|demo|guest|sample|alice|bob|hunter|qwerty|welcome)[_-]?\d{0,4}!?)"
)
_SLUG = re.compile(r"[A-Za-z]+[0-9]{0,4}(?:[-_./:,@+=]+(?:[A-Za-z]+[0-9]{0,4}|v?[0-9]{1,14}[a-z]{0,2}|[0-9a-f]{7}))*")  # fmt: skip
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}|[0-9a-fA-F]{1,24}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4,12}){4}")  # fmt: skip
_PASSWORD = re.compile(r"(?i)passw|passphrase|pwd|\bpass\b|log_?in\b|auth(?:enticate)?\b|\w+auth\b|sign_?in|connect|credential|[bs]crypt\b|argon|create_?user|\bPDO\b|mysqli|wi_?fi\.begin|(?<![a-z])pw(?![a-z])|unlock_?account|encrypted_?json|private_?key_?file|certificate2|community")  # fmt: skip
TELLING = re.compile(
    rf"{_PASSWORD.pattern}|pass(?!port|ive|ing|es\b|ed\b)|secret|token(?!iz)|(?:api|access|auth|private|sign(?:ing)?|master|security)_?key"
    r"|auth(?!or)|hmac|bearer|jwt|sign(?!al|if|up)|fernet|salt|cookieparser"
)
#: What a random value has and a word has not; in gates too.
NO_WORD = r"(?:[0-9][A-Za-z]|[0-9]{5})"
_SIGN = "[!@#$%^&*?+~]"


def is_likely(value: str, place: str = "") -> bool:
    """Judge a value by what it is: random, or no plain word where a ``place`` tells of a secret."""
    if not is_given_secret(value, 6) or value.upper() == value.lower() or _PUBLIC.fullmatch(value):
        return False
    slug = _is_slug(value)
    if _PASSWORD.search(place):
        plain = slug and value.islower() and not value.isalnum()
        signs = _SIGN if plain else f"[0-9]|{_SIGN}"
        return re.search(signs, value) is not None
    unlike = re.search("[0-9]", value) is not None and _surprise(value) >= 6
    if slug or len(value) < 8 or TELLING.search(place):
        signed = unlike or re.search(f"{NO_WORD}|{_SIGN}", value) is not None
        return not slug and len(value) >= 8 and signed
    inside = unlike or re.search(NO_WORD, value[4:-4]) is not None
    return len(value) >= 16 and inside and entropy(value) >= 3.2 and not _HASH.fullmatch(value)


def _surprise(value: str) -> float:
    return surprise(re.sub("[^A-Za-z0-9]", "", value))


def _is_slug(value: str) -> bool:
    """Judge words and numbers; letters that no word has in a row are none."""
    return _SLUG.fullmatch(value) is not None and _surprise(value) < 5.5


def _is_end(value: str) -> bool:
    """Judge the end of a URL behind a telling part: a part of it is random, or an id."""
    return any(
        is_likely(part) or re.fullmatch(r"[0-9a-f]{32,64}|[0-9a-f-]{36}|(?=\D*\d\D*\d|\D*\d[a-z])(?=.*[a-z])[a-z0-9]{6,12}", part)
        for part in re.split("[/@]", value)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Context:
    """A position that gives a secret away."""

    name: str  # its id among the rules
    kind: str  # the kind of its placeholder
    literals: tuple[str, ...]  # one of these occurs
    pattern: str  # expression of `re`; the group `value` is the secret
    judge: Callable[[str], bool] | None = None  # returns whether a value here is a secret
    gate: str = ""  # necessary condition, in the syntax that `re` and Hyperscan share


_Q = r"\\*[\"'`]?"
_SECRET_HEADERS = (
    r"x-api-key|api-key|apikey|x-api-token|x-auth-token|x-auth-key|x-access-token|x-amz-security-token"
    r"|private-token|job-token|x-gitlab-token|x-vault-token|x-figma-token|x-shopify-access-token"
    r"|x-subscription-token|ocp-apim-subscription-key|dd-api-key|dd-application-key|circle-token"
    r"|x-goog-api-key|x-rapidapi-key|x-secret-key|x-csrf-token|x-xsrf-token|x-session-token"
    r"|x-hub-signature-256|x-functions-key|x-consul-token|x-nomad-token|x-ms-client-secret|x-plex-token"
    r"|x-cisco-meraki-api-key|x-n8n-api-key|x-metabase-session|x-redmine-api-key|x-honeycomb-team"
)
#: Between a header's name and its value: a colon, a comma of a pair, an arrow.
_JOIN = r"\\*[\"'`]?\s{0,3}(?::|=>|,|=)\s{0,3}\(?\\*[\"'`]?"
_AUTHORIZATION = rf"(?i:(?:proxy-)?authorization{_JOIN}"
_AUTHORIZATION_GATE = (
    r"authorization[\\\"'`]*\s{0,3}(?::|=>|,|=)\s{0,3}\(?[\\\"'`]*[a-z0-9+/_.~-]{5}"
)
_USERINFO = r"(?P<value>[^\s/@\"'`<>\\${}*\[\]()%]{3,200}|(?:[^\s/@\"'`<>\\${}*\[\]()%]|%[0-9A-Fa-f]{2}){3,200})"

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_is_password = partial(is_likely, place="password")
_PHRASE = re.compile(r"[a-z]{4,}(?:-[a-z]{4,}){2,5}-?\d{2,4}")


def _is_login(value: str) -> bool:
    """Judge what stands behind a user: a password, or three words and a number."""
    return _is_password(value) or (_PHRASE.fullmatch(value) is not None and is_signed(value))


def _is_mixed(value: str) -> bool:
    """Judge a word that stands alone below words for a key."""
    signs = re.search(r"\d[a-z]*\d|\d.*[A-Z]|[A-Z].*\d", value)
    return signs is not None and is_likely(value, "password") and not _is_slug(value)


_KEYS = "(?:tokens?|keys?|secrets?|passwords?|credentials?|acl)"
_MAKES = "(?:add|create|new|generate|issue|reset|rotate|regenerate|bootstrap)"
#: Commands that print a secret, and what the line of any command says that prints one.
_PRINTERS = (
    r"(?:gh|glab) auth token|pass (?:show )?[a-z][\w.-]*/|op (?:read|get|item get) |get-secret-value|kv get |secrets? (?:get|view|show|access|reveal)"
    r"|versions access|get secrets? |config:get|openssl rand|find-[a-z]+-password|print-[a-z]+-token|secret-tool lookup|output -raw"
    r"|get-access-token|get-login-password|pwgen|wg gen(?:key|psk)|stellar keys show|config get [A-Z_]*(?:SALT|KEY)|keyring get|secrets\.token_|/dev/u?random|(?:cat|head) [^\s\\\"]*(?:secret|token|passw|credential)[^\s./\\\"]*"
)
_PRINTED = (
    "(?:token|secret|passw|api_?key|(?:product|auth|setup|join|network)_?key|credential|generate)"
)
_SHELL = r"(?:[$%]|>>>|PS[^>\n]*>) "
#: Of commands and URLs: options that carry anything, what stands before a secret.
_CARRIERS = "body|value|key|auth|data|text|string|with-token|env|var|header|set|webhook"
_HOOK = r"(?:[\w-]*hooks?(?:b2)?|services|notify|trigger|integrations?|heartbeats?|workflows)"
_LINK = "(?:magic|invit|reset|verif|confirm|unsubscribe|activat|join|share)"

CONTEXTS: tuple[Context, ...] = (
    Context(
        "aws_secret", "AWS_SECRET", ("secret",),
        r"(?i:secret(?:_access)?_?key|secretaccesskey)\\*[\"']?\s*[=:]\s*\\*[\"']?"
        r"(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
        gate=r"secret(?:_access)?_?(?:access)?key(?:[\\\"']|\s)*[=:](?:[\\\"']|\s)*[a-z0-9/+]{40}",
    ),
    Context(
        "bearer", "BEARER_TOKEN", ("bearer",),
        r"(?<![A-Za-z0-9_])(?i:bearer)(?:\s+|%20)(?=[A-Za-z._~+/-]{0,200}[0-9])"
        r"(?P<value>[A-Za-z0-9._~+/-]{20,}=*)",
        gate=r"bearer(?:\s|%20)\s*[a-z0-9._~+/-]{20}",
    ),
    Context(
        "authorization_basic", "BASIC_AUTH", ("authorization",),
        rf"{_AUTHORIZATION}basic)\s+(?P<value>[A-Za-z0-9+/_-]{{6,}}=*)", is_basic,
        gate=_AUTHORIZATION_GATE,
    ),
    Context(
        "authorization_token", "AUTH_HEADER", ("authorization",),
        rf"{_AUTHORIZATION}(?:token|bearer|apikey|key|negotiate|ntlm|sso-key|genie-?key|splunk|bot|jwt|oauth)"
        r"(?:\s+token\s?=\s?\\*[\"']?|\s+))(?P<value>[A-Za-z0-9._~+/:=-]{8,})", is_random,
        gate=_AUTHORIZATION_GATE,
    ),
    Context(
        "authorization_bare", "AUTH_HEADER", ("authorization",),
        rf"{_AUTHORIZATION})(?P<value>[A-Za-z0-9._~+/=-]{{16,}})(?![A-Za-z0-9 (])", is_random,
        gate=_AUTHORIZATION_GATE,
    ),
    Context(
        "authorization_signature", "AUTH_HEADER", ("signature=", "response=", "oauth_signature"),
        r"(?i:,?\s?(?:signature|response|oauth_signature|oauth_token)=\\*[\"']?)"
        r"(?P<value>[A-Za-z0-9+/%=_~-]{28,})", is_random,
        gate=r"(?:signature|response|oauth_token)=[\\\"']*[a-z0-9+/%=_~-]{28}",
    ),
    Context(
        "secret_header", "AUTH_HEADER",
        ("-key", "-token", "apikey", "x-hub-signature", "-session", "-secret", "-team"),
        rf"(?<![A-Za-z0-9_-])(?i:{_SECRET_HEADERS}){_JOIN}(?P<value>[A-Za-z0-9._~+/:=!@#$^&*-]{{8,}})",
        is_random,
        rf"(?:[^a-z0-9_-]|{ESCAPED})(?:{_SECRET_HEADERS})[\\\"'`]*\s{{0,3}}(?::|=>|=|,)\s{{0,3}}\(?[\\\"'`]*"
        r"[a-z0-9._~+/:=!@#$^&*-]{12}",
    ),
    Context("azure_key", "AZURE_KEY", ("accountkey", "sharedaccesskey"),
            r"(?i:accountkey|sharedaccesskey)=(?P<value>[A-Za-z0-9+/]{40,}={0,2})"),
    Context("azure_sas", "AZURE_SAS", ("sig=",),
            r"[?&;]sig=(?P<value>(?:[A-Za-z0-9+/_-]|%[0-9A-Fa-f]{2}){40,}=*)"),
    Context(
        "query", "QUERY_KEY",
        ("?", "&", ";", "#", "~"),
        r"(?<=[?&;#~])(?i:amp;)?(?i:[a-z0-9_.\[\]-]{0,30}(?:api[_-]?key|access[_-]?key|access[_-]?token|auth[_-]?token"
        r"|refresh[_-]?token|id[_-]?token|session[_-]?(?:id|key|token)|client[_-]?secret|private[_-]?key|secret|token"
        r"|passw(?:or)?d|passwd|pwd|pass|signature|credential|sig|hmac|jwt|authkey|tkn|code|otp|sas|samlresponse|assertion"
        r"|code[_-]verifier|key|token[_-]hash|ticket|invite)|auth|sid|policy|appid|(?:md5|st|hash)(?==[\w-]{22,43}&(?:amp;)?(?:until|expires?|exp|e)=)|x-amz-security-token|x-amz-signature|x-goog-signature)"
        r"=(?P<value>[A-Za-z0-9._~+/%!*$:@-]{6,4000}={0,2})", is_random,
        r"[?&;#~](?:amp;)?[a-z0-9_.\[\]-]*(?:key|token|secret|pass|passwd|password|pwd|signature|credential|sig|hmac"
        r"|jwt|code|otp|sas|samlresponse|assertion|verifier|auth|sid|id|hash|md5|st|tkn|ticket|invite|policy)=[a-z0-9._~+/%!*$:@-]{6}",
    ),
    Context(
        "form", "FORM_VALUE",
        ("password=", "passwd=", "secret=", "token=", "pwd=", "pass="),
        r"(?:(?<=[\s\"'&?])|(?<=%26))(?i:[a-z_]{0,30}(?:(?P<word>password|passwd)|client_secret|secret|token|pwd|pass))"
        r"=(?P<value>[A-Za-z0-9._~+/%!*$:@#^-]{6,400})(?=&[a-z_]+=|(?(word) [a-z-]+=\w|(?!)))", is_given_secret,
        gate=r"(?:password|passwd|secret|token|pwd|pass)=[a-z0-9._~+/%!*$:@#^-]{6,400}[& ][a-z_-]",
    ),
    Context("twilio", "TWILIO_KEY", ("twilio",),
            r"(?<![A-Za-z0-9])(?P<value>SK[a-f0-9]{32})(?![A-Za-z0-9])"),
    Context(
        "connection", "CONNECTION_PASSWORD", ("password", "pwd"),
        r"(?:[;\"']|(?P<list>[,\[]))\s?(?i:password|pwd)\s?=\s?(?P<value>[^;\"'\s${}<>\[\]]{4,100})(?=(?(list)\]|(?:;|\\*[\"'])))",
        is_given_secret,
        gate=r"(?:password|pwd)\s?=\s?[^;\"'\s]{4,100}[;\\\"'\]]",
    ),
    Context(
        "netrc", "NETRC_PASSWORD", ("machine", "default"),
        r"(?:machine\s+\S+|default)(?:\s|\\n)+(?:(?:login|account)(?:\s|\\n)+\S+?(?:\s|\\n)+)?"
        r"password(?:\s|\\n)+(?P<value>[^\s\"'${}<>\[\]\\]{4,100})", is_given_secret,
        r"(?:machine\s+\S+|default)(?:\s|\\[nt])+(?:login|account|password)\b",
    ),
    Context(
        "pgpass", "PGPASS", (":54", ":64", ":*:"),
        r"(?<![^\s\"'|\u2192])(?:[A-Za-z0-9_.-]+|\*):(?:54\d\d|64\d\d|\*):(?:[A-Za-z0-9_.-]+|\*):(?:[A-Za-z0-9_.-]+|\*)"
        r":(?P<value>[^\s:\"'\\]{4,100})", is_given_secret,
        gate=r":(?:54\d\d|64\d\d|\*):[a-z0-9_.*-]+:[a-z0-9_.*-]+:[^\s:]{4}",
    ),
    Context(
        "xml_element", "XML_PASSWORD",
        ("password", "passwd", "apikey", "api_key", "api-key", "secret", "token", "passphrase", "privatekey", "pwd"),
        r"<(?:[A-Za-z]+:)?(?i:[A-Za-z_.-]*(?:(?P<any>password|passwd|passphrase|pwd)|apikey|api[_-]key|secret|authtoken|accesstoken|token"
        r"|privatekey))(?: [^<>]{0,80})?>\s{0,3}(?:<!\[CDATA\[)?(?P<value>(?(any)|(?=[^<]*[0-9!@#%^&*]))[^\s<](?:(?!</|\]\]>)[^\n]){4,398}?[^\s])"
        r"\s{0,3}(?:\]\]>)?</", is_data_password,
        r"(?:password|passwd|apikey|api[_-]key|secret|token|passphrase|privatekey|pwd)(?: [^<>]{0,80})?>.{6}",
    ),
    Context(
        "xml_named", "XML_PASSWORD", ("name=", "key=", "id="),
        r"<[A-Za-z]+ (?i:name|key|id)=\\*[\"'](?i:[A-Za-z0-9_.:-]*(?:password|api[_-]?key|secret|token|passphrase|pwd))"
        r"\\*[\"']\s*(?:(?i:value)=(?P<q>\\*[\"'])|/?>\s*(?:<value>)?)(?P<value>(?(q)(?:(?!(?P=q))[^\n]){6,400}|[^<>\s\"'\\]{6,400}))", is_given_secret,
        r"(?:name|key|id)=[\\\"']+[a-z0-9_.:-]*(?:password|key|secret|token|passphrase|pwd)[\\\"']+",
    ),
    Context(
        "sql", "SQL_PASSWORD", ("identified", "password"),
        # The first letter apart: `re` looks for one of a set far faster than for a choice of words.
        r"[iIcCaAsS](?i:dentified\s+(?:with\s+[\w\"'`]+\s+)?by(?:\s+password)?\s+"
        r"|(?:reate|lter)\s+(?:user|role|login|group)\s[^;\n]{0,120}?\b(?:with\s+)?(?:encrypted\s+)?password\s*=?\s*"
        r"|et\s+password\s+(?:for\s+[^=;\n]{1,60})?=\s*(?:password\()?)"
        r"\\*[nN]?\\*[\"'](?P<value>[^\"'\s\\]{4,100})\\*[\"']", is_given_secret,
        r"identified\s+(?:with|by)|set\s+password"
        r"|(?:create|alter)\s+(?:user|role|login|group)\s(?:[^;\\]|\\[^n])*password",
    ),
    Context(
        "wp_config", "WP_CONFIG", ("define",),
        r"define\(\s*\\*['\"](?:DB_PASSWORD|[A-Z_]*(?:KEY|SALT|SECRET|TOKEN|PASSWORD))\\*['\"]\s*,\s*"
        r"(?:\\*(?P<q>['\"]))(?P<value>(?:(?!(?P=q))[^\n\\]){4,200})\\*(?P=q)", is_given_secret,
        r"define\(\s*[\\'\"]+[a-z_]*(?:key|salt|secret|token|password)",
    ),
    Context(
        "docker_auth", "DOCKER_AUTH", ("auth",),
        rf"auth(?<![A-Za-z0-9-]auth){_Q}\s*[:=]\s*{_Q}(?P<value>[A-Za-z0-9+/]{{8,}}={{0,2}})(?![A-Za-z0-9+/=])",
        is_basic, r"auth[\\\"']*\s*[:=]\s*[\\\"']*[a-z0-9+/]{8}",
    ),
    Context(
        "npm_auth", "NPM_AUTH", ("_authtoken", "_password", "npmauthtoken"),
        rf"(?i:_authtoken|:_password|npmauthtoken|npmauthident){_Q}\s*[=: ]\s*{_Q}"
        r"(?P<value>[A-Za-z0-9+/_.-]{8,}={0,2})", is_given_secret,
        gate=r"(?:_authtoken|_password|npmauth[a-z]{5})[\\\"'`]*\s*[=: ][\\\"'\s]*[a-z0-9+/_.-]{8}",
    ),
    Context(
        "terraform_sensitive", "TERRAFORM_VALUE", ("sensitive",),
        r"(?:\\*\"sensitive\\*\"\s*:\s*true\s*,(?:\s|\\n)*(?:\\*\"type\\*\"\s*:\s*\\*\"string\\*\"\s*,(?:\s|\\n)*)?"
        r"\\*\"value\\*\"\s*:\s*\\*\")(?P<value>[^\"\\\s]{4,400})", is_given_secret,
        r"sensitive[\\\"]*\s*:\s*true",
    ),
    Context(
        "named_value", "NAMED_VALUE", ("value",),
        r"\\*\"(?i:name|key)\\*\"\s*:\s*\\*\"(?i:[A-Za-z0-9_.-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key"
        r"|credential|sess(?:ion)?(?:[_-]?id)?|\.sid|jwt))\\*\"\s*,(?:\s*\\*\"[A-Za-z]{1,20}\\*\"\s*:[^{}\n]{1,80},){0,9}\s*\\*\"(?i:value)\\*\"\s*:\s*\\*\"(?P<value>[^\"\\\s]{6,400})", is_given_secret,
        r"(?:name|key)[\\\"]+\s*:\s*[\\\"]+[a-z0-9_.-]*(?:password|passwd|secret|token|key|credential|sess|session|sessid|session_id|session-id|sessionid|\.sid|jwt)[\\\"]+\s*,[^{}]*[\\\"]value",
    ),
    Context(
        "url_password", "URL_PASSWORD", ("://",),
        rf"://(?<=[A-Za-z0-9]://)[^\s/:@\"'`<>\\]{{0,100}}:{_USERINFO}@(?=[A-Za-z0-9\[])",
        is_given_secret, r"://[^\s/@\"]*:[^\s/@\"]+@",
    ),
    Context(
        "url_long_password", "URL_PASSWORD", ("://",), r"://[\w.-]{1,60}:(?P<value>[A-Za-z0-9+/=_-]{40,200})@(?=[\w-]+[.:/])", is_long_random, r"://[a-z0-9_.-]+:[a-z0-9+/=_-]{40,200}@",
    ),
    Context(
        "url_token", "URL_PASSWORD", ("://",),
        r"://(?<=[A-Za-z0-9]://)(?P<value>[A-Za-z0-9_-]{20,200})@(?=[A-Za-z0-9\[])", is_long_random,
        r"://[a-z0-9_-]{20,200}@",
    ),
    Context(
        "login_prompt", "PROMPTED", ("password:", "passphrase", "password for", "password again"),
        r"(?m:^(?:[ \t]*\[sudo\] )?(?i:(?:(?:re-?)?(?:enter|type)[ \t])?(?:new )?(?:password|passphrase)(?: for [^:\n]{1,60}| again)?):[ \t]+)"
        r"(?P<value>(?=[^\s]*[0-9!@#%^&*]|[a-z]+(?:-[a-z]+){2})[^\s\"'<>()]{6,60})(?=\s|$)", is_given_secret,
    ),
    Context(
        "wifi", "WIFI_PASSWORD", ("psk", "sae_password", "wpa_passphrase", "presharedkey", "pre-shared-key", "wifi:"),
        r"(?:(?<![A-Za-z0-9_])(?i:(?:wifi-sec\.)?psk|sae_password|wpa_passphrase|preshared-?key|pre-shared-key)"
        rf"{_Q}\s{{0,3}}[=:]\s{{0,3}}{_Q}|WIFI:(?:[A-OQ-Z]:[^;\n]*;)*P:)(?P<value>[^\s\"'\\<>${{}}(),;]{{8,64}})", is_given_secret,
        gate=r"(?:psk|sae_password|wpa_passphrase|pre-?shared-?key)[\\\"'`]*\s{0,3}[=:]\s{0,3}[\\\"'`]*[^\s\"'\\]{8}|wifi:[a-z]:",
    ),
    Context(
        "otpauth", "OTP_SEED", ("otpauth://",),
        r"otpauth://[^\s\"'<>]{0,300}?[?&](?:amp;)?secret=(?P<value>[A-Za-z2-7=]{8,200})", is_given_secret,
    ),
    Context(
        "oracle", "CONNECTION_PASSWORD", ("jdbc:oracle:",),
        r"jdbc:oracle:[a-z0-9]+:[^\s/@\"'\\]{1,60}/(?P<value>[^\s/@\"'\\]{3,100})@", is_given_secret,
    ),
    Context(
        "user_and_password", "FORM_VALUE", ("password=", "&passwd=", "&pwd=", "&pass=", ";password=", ";pwd=", ";pass="),
        r"(?:(?<![A-Za-z0-9_])(?i:(?:[a-z]_)?user(?:_?name)?|login|email|uid)=[^&\s\"'<>]{1,120}&(?:amp;)?(?i:(?:[a-z]_)?(?:password|passwd|pwd|pass)))"
        r"=(?P<value>[^\s&\"'`<>\\${}()]{4,200})", is_given_secret,
        gate=r"[&;](?:[a-z]_)?(?:password|passwd|pwd|pass)=[^\s&\"]{4}",
    ),
    Context(
        "header_directive", "AUTH_HEADER", ("authorization",),
        r"(?i:authorization)\s{1,3}\\*[\"'](?i:basic|bearer|token) (?P<value>[A-Za-z0-9+/_.~=-]{12,1000})", is_given_secret,
        gate=r"authorization\s+[\\\"']+(?:basic|bearer|token) [a-z0-9+/_.~=-]{12}",
    ),
    Context(
        "secure_string", "SECURE_STRING", ("securestring",),
        r"(?i:convertto-securestring)\s{1,3}(?:(?i:-string)\s{1,3})?\\*[\"'](?P<value>[^\"'\\\s$]{4,200})", is_given_secret,
        gate=r"securestring\s+(?:-string\s+)?[\\\"']+[^\s\"']{4}",
    ),
    Context(
        "net", "COMMAND", ("net us", "net.exe us", "net1 us"),
        r"(?<![\w.-])(?i:net(?:1|\.exe)? use(?:r [\w.-]{1,40}| (?:[a-z*]:? )?\\{2,8}[^\s\"']{3,100}) )(?P<value>[^\s/\"'*\\]{4,100})",
        is_signed, r"net(?:1|\.exe)? use(?:r [\w.-]{1,40}| (?:[a-z*]:? )?\\{2,}[^\s\"]{3,200}) [^\s/\"'*\\]{4}",
    ),
    Context(
        "ldif", "LDAP_PASSWORD", ("userpassword:",),
        r"(?m:^(?i:userpassword)::?[ \t]{1,4})(?P<value>(?:\{[A-Z0-9-]+\})?[^\s,;(){}<>$\"'\\]{6,200})(?=[ \t]*(?:\r?\n|\\n|$))",
        is_given_secret,
        gate=r"userpassword::?\s+[^\s]{6}",
    ),
    Context(
        "jwk", "JWK", ("kty",),
        r"kty\\*\"(?:\s{0,3}[:,]\s{0,3}[^{}\[\]]{0,3000}?\\*\"(?:d|k|p|q|dp|dq|qi)\\*\")\s{0,3}:\s{0,3}\\*\""
        r"(?P<value>[A-Za-z0-9_-]{32,2000})(?=\\*\")", is_random,
        gate=r"kty[\\\"]+\s*:",
    ),
    Context(
        "mnemonic", "MNEMONIC", ("mnemonic", "seed phrase", "recovery phrase", "backup phrase",
                                 "seed_phrase", "recovery_phrase", "backup_phrase"),
        r"(?i:mnemonic|(?:seed|recovery|backup)[ _]phrase)\\*[\"'`]?(?:\s{0,3}[:=]| is:?| are:?)\s{0,3}\\*[\"'`]?"
        r"(?P<value>(?:[a-z]{3,8}[\s,]{1,4}){11}(?:[a-z]{3,8}[\s,]{1,4}){0,12}[a-z]{3,8})(?![a-z])",
        gate=r"(?:mnemonic|phrase)[\\\"'`]*(?:\s{0,3}[:=]| is:?| are:?)\s{0,3}[\\\"'`]*(?:[a-z]{3,8}(?:\s|,){1,4}){3}",
    ),
    Context(
        "password_hash", "PASSWORD_HASH", (":$",),
        r"(?<![A-Za-z0-9_.$-])[A-Za-z_][\w.-]{0,31}:(?P<value>\$(?:1|5|6|y|2[abxy]|apr1|argon2id)\$[A-Za-z0-9./$=,+]{16,200})",
        gate=r":\$(?:1|5|6|y|2[abxy]|apr1|argon2id)\$[a-z0-9./$=,+]{16}",
    ),
    Context(
        "expect", "PROMPTED", ("expect",),
        r"(?i:expect[^\n]{0,30}ass(?:word|phrase)[^\n]{0,20}\n\s{0,20}send\s{1,3}(?:-- )?)\\*[\"'](?P<value>[^\"'\\$\s]{4,100})(?=\\)",
        is_given_secret, r"expect.*ass(?:word|phrase)",
    ),
    Context(
        "plist", "XML_PASSWORD", ("</key>", "auth-user-pass"),
        r"(?:<key>(?i:[A-Za-z0-9_.-]{0,40}(?:password|passphrase|secret|token|api_?key|access_?key))</key>\s{0,20}"
        r"<string>|<auth-user-pass>\s{1,20}[^<>\s]+\s{1,20})(?P<value>[^<>\s${}]{6,400})(?=</string>|\s{1,20}</)", is_given_secret,
        gate=r"(?:password|passphrase|secret|token|key)</key>\s*<string>|<auth-user-pass>\s",
    ),
    Context(
        "quoted_setting", "SETTING", ("storepassword", "keypassword", ":password", ":passwd", ":secret", ":token", ":api-key"),
        r"(?:(?:store|key)Password|(?<![A-Za-z0-9_:]):(?:password|passwd|secret|token|api-key))[ \t]{1,4}\\*[\"']"
        r"(?P<value>[^\s\"'\\${}<>]{6,200})(?=\\*[\"'])", is_given_secret,
        gate=r"(?:(?:store|key)password|:(?:password|passwd|secret|token|api-key))\s+[\\\"']+[^\s\"'\\]{6}",
    ),
    Context(
        "server_setting", "SETTING", ("requirepass", "masterauth", "d-i "),
        r"(?m:^[ \t]*(?:requirepass[ \t]|masterauth[ \t]|(?P<line>d-i [\w./-]+ password )))[ \t]{0,8}\\*[\"']?(?P<value>(?(line)[^\n\"'\\${}<>]{4,200}|[^\s\"'\\${}<>]{4,200}))", is_given_secret,
        gate=r"(?:requirepass|masterauth|d-i [a-z0-9_./-]+ password)\s+[\\\"']*[^\s\"'\\]{4}",
    ),
    Context(
        "terraform_default", "TERRAFORM_VALUE", ("variable",),
        r"variable\s{1,3}\\*\"[A-Za-z0-9_-]{0,40}(?i:password|passwd|passphrase|secret|token|api_key|access_key|secret_key)\\*\"\s{0,3}"
        r"\{[^{}]{0,600}?(?<![a-z_])default\s{0,9}=\s{0,3}\\*\"(?P<value>[^\"\\\s$]{4,400})(?=\\*\")", is_given_secret,
        gate=r"variable\s+[\\\"]+[a-z0-9_-]*(?:password|passwd|passphrase|secret|token|key)[\\\"]+\s*\{",
    ),
    Context(
        "option_user", "OPTION_PASSWORD", (" -u", " --user", " --login"),
        r" (?:-[uU]|--user(?:name)?|--login)[= ][^\s|;&]{1,80} (?:[^\s|;&]{1,60} ){0,3}?(?:-[pPwW]|-pw)[= ]?(?P<q>\\*[\"'])?(?P<value>(?(q)(?:(?!(?P=q))[^\n]){6,200}(?=(?P=q)(?:[\s,;|&)]|\\*[\"'`](?:[\s,)}\]]|$)|$))|[^\s\"'`\\|;&<>]{6,200}(?=\\*[\"'`]|[\s|;&<>)]|$)))",
        _is_password, r"\s(?:-u|--user(?:name)?|--login)[= ][^\s|;&]+ (?:[^\s|;&]+ )*-p?w?[= ]?[\\\"']*[^\s\"'\\|;&<>]{6}",
    ),
    Context(
        "option_value", "OPTION_SECRET", (" -", "\"-", "'-"),
        rf"-(?<=[\s\"']-)(?:-(?:{_CARRIERS})|[a-zA-Z])(?:[= ]|\\*[\"'],\s?)(?:\\*[\"']){{0,2}}(?:[\w.-]{{1,60}}=\\*[\"']?)?(?P<value>[^\s\"'`\\|;&<>=]{{16,400}}={{0,2}})(?=\\*[\"'`]|[;|&)]?(?:\s|$))",
        is_likely, rf"[\s\"']-(?:-(?:{_CARRIERS})|[a-z])(?:[= ]|[\\\"']+,\s?)[\\\"']*[^\s\"'`\\|;&<>]*[\\\"']*[^\s\"'`\\|;&<>]*(?:{NO_WORD}|[a-z0-9]{{20}})",
    ),
    Context(
        "printed", "PRINTED", ("token", "pass", "secret", "rand", "config:get", " read ", "key", "cred", "generate", "pwgen", "wg gen", "keys show", "config get", "-raw", " get ", "access"),
        rf"(?im:(?:(?:^|[^\w.-])(?:{_PRINTERS})|{_SHELL}(?:[^\n\[]|\[(?!SECRET_)){{0,200}}{_PRINTED})[^\n]{{0,300}}\n{LINE_HEAD}(?:[^\n]*: ?\n)?(?P<q>\\*[\"'])?)(?P<value>[^\s\"'`\\:,;(){{}}<>]{{8,4000}})(?=(?(q)(?P=q))[ \t]*(?:\r?\n|$))",
        _is_password, rf"(?:{_PRINTERS}|{_SHELL}(?:[^\\]|\\[^n])*{_PRINTED})(?:[^\\]|\\[\"'\\])*\\n(?:\\*[\"'])?[^\n\"'`\\:,;(){{}}<>]{{8}}",
    ),
    Context(
        "url_secret", "URL_SECRET", ("://",),
        rf"://(?:[^\s\"'`<>?#\\]{{1,200}}?/{_HOOK}/|[\w.-]*(?<![\w-])(?:hooks?\.[\w.-]+|hc-ping\.com|ntfy\.sh)(?::\d+)?/|[^\s\"'`<>?#\\]{{1,200}}?/[\w-]*{_LINK}[\w/-]*(?:/|\?(?:[\w-]{{1,40}}=[^&\s\"'`]{{0,80}}&)?[a-z_]{{1,12}}=)(?=[\w.~%-]{{16}})"
        r"|[\w.:-]{3,100}(?:/v[1-4]/|\.quiknode\.pro/|/bot(?:\d{6,12}:)?)(?=[\w-]{20,100}/?(?:[\s\"'`<>)\\,;]|$|[sg]e[nt])))(?P<value>[^\s\"'`<>?#\\()|,;&]{6,2000})",
        _is_end, rf"://[^\s\"'`<>\\]*(?:/{_HOOK}/|hooks?\.[a-z0-9_.-]+(?::\d+)?/|hc-ping\.com/|ntfy\.sh/|{_LINK}[a-z0-9_/-]*[/?]|/v[1-4]/|quiknode\.pro/|/bot)[^\s\"\\]{{6}}",
    ),
    Context(
        "last_argument", "ARGUMENT",
        ("basicauth", "basic_auth", "wifi", "simple_bind", "load_cert_chain", "networkcredential", "passwordauth", "digestauth", "ntlmauth", "plain_auth", "plainauth", "usernamepassword", ".login(", "createuser", "hosts["),
        r"(?i:(?:set_?|with_?)?(?:basic_?auth|credentials)\w*|wifi(?:multi)?\.(?:begin|addap)|simple_bind(?:_s)?|load_cert_chain|networkcredential|passwordauth\w*|(?:digest|ntlm|plain)_?auth\w*|usernamepassword\w*|\.login|hosts\[[^\]\n]{1,60}\] = )"
        r"\s?\((?:[^()\n]{1,160}?,)?\s{0,40}\\*[\"'`](?P<value>[^\s\"'`\\<>]{6,100})\\*[\"'`](?=\s{0,40}(?:,[ ]?[\w.]+)?\))", _is_password,
        r"(?:basic_?auth|credentials[a-z]*|\.begin|addap|simple_bind(?:_s)?|load_cert_chain|networkcredential|passwordauth[a-z]*|(?:digest|ntlm|plain)_?auth|usernamepassword|\.login|\] = )[a-z]*\s?\([^()]{0,200}[\\\"'`]+[^\s\"'`\\<>]{6}",
    ),
    Context(
        "filled", "PROMPTED", ("fill", "type", "send", "inputtext", "set_value", "setvalue", "sequentially"),
        r"(?i:(?<![a-z])(?:pw|pin|pass|passwd|passw?ort|(?:\[Pp\])?ass(?:word|phrase)|password|kennwort|senha|contrase(?:ñ|n)a|mot de passe|passcode|otp|recovery)(?![a-z-])[^\n]{0,30}\n?[^\n]{0,12}?(?:fill|type|send_?(?:keys|line)|input_?text|set_?value|press_?sequentially)(?:_in)?[:(]\s?)"
        r"\\*[\"'`](?P<value>[^\s\"'`\\{}]{6,80})", _is_password, r"(?:fill|type|send_?(?:keys|line)|input_?text|set_?value|sequentially)(?:_in)?[:(]\s?[\\\"'`]+[^\s\"'`\\{}]{6}",
    ),
    Context(
        "private_hex", "PRIVATE_KEY", ("ecdsa", "privatekey", "private_key", "jwtsecret", "wallet", "fromkey", "from_key", "keypair", "pragma"),
        r"(?i:pragma (?:hex|re)?key|hextoecdsa|privatekey|private_key|jwtsecret|cast wallet [a-z]+|from_?key|keypair)\w*\W{1,6}(?:[a-z-]+\W{1,4})?(?P<value>(?:0x)?[0-9a-fA-F]{64})(?![0-9a-zA-Z])", is_random,
        r"(?:ecdsa|privatekey|private_key|jwtsecret|cast wallet|from_?key|keypair|pragma (?:hex|re)?key)[^\n]{0,30}[0-9a-f]{16}",
    ),
    Context(
        "given_id", "GIVEN_KEY",
        ("login", "auth", "bearer", "hands", "hard", "new one", "geniekey", "genie key", "mine is", "setup", "integration key", "routing", "spendkey", "viewkey", "client", "api", "robot", "bot", "sender", "notifier", "gateway", "connector", "sdk", "encryptor", "cipher", "mailer", "alert", "webhook_id", "appkey", "app_key", "secret-key", "\"key", "'key", "account"),
        rf"(?i:(?<![\w/])(?:(?:login|--auth[a-z.-]*|\+\w*account|authtoken)[\"']?,? [\"']?|:bearer, \\*\"|hands `|hard-?coded `?|\b[A-Z]\w*(?:Client|Api|API|Robot|Bot|Sender|Notifier|Gateway|Connector|SDK|Encryptor|Cipher|Mailer|Alerts?)(?:\(\))?(?:[.:]{{1,2}}\w{{1,30}})?\(\[?\\*[\"']|(?:made a )?new one[^\n]{{0,80}}?[ `:]|genie ?key[ :=]+|mine is |setup (?:key|one)[^\n]{{0,60}}?[:\s]\s?)"
        rf"|(?:(?:integration|routing|spend|view|app|application|setup|secret|network)[_-]?key|webhook[_-]?id){_Q}\s{{0,3}}[:=]\s{{0,3}}(?:\{{\s{{0,20}}{_Q}key{_Q}\s?:\s?)?{_Q}|username{_Q}\s?:\s?{_Q}[\w.-]{{1,60}}{_Q},\s?{_Q}key{_Q}\s?:\s?{_Q})"
        rf"(?P<value>{_UUID}|[0-9a-zA-Z+/]{{43,44}}={{0,2}}|(?=[^\s`]{{0,20}}[0-9][^\s`]{{0,20}}[A-Za-z])[A-Za-z0-9_-]{{24,200}}(?=`)|(?=[A-Z]*\d)[A-Z0-9]{{32}}|[0-9a-f]{{32,64}})(?![\w/+-])", is_random,
        r"(?:(?:client|api|robot|bot|sender|notifier|gateway|connector|sdk|encryptor|cipher|mailer|alerts?)(?:\(\))?(?:[.:]+[a-z0-9_]+)?\(\[?|(?:[^a-z]|\\[nrt])login|--auth[a-z.-]*|\+[a-z0-9_]*account|authtoken|:bearer|hands|coded|new one[^\n\"]{0,90}|genie ?key|mine is|setup (?:key|one)[^\n\"]{0,70}|(?:integration|routing|spend|view|app|application|setup|secret|webhook|network)[_-]?(?:key|id)|\"key)[\\\"'`,:= ]{1,9}n?(?:[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-z+/]{32}|[a-z0-9_-]{24,200}`)",
    ),
    Context(
        "short_name", "ASSIGNED", ("pw", "cred", "psk", "authtok", "_pass", "default="),
        rf"(?<![A-Za-z])(?i:(?:[a-z]+[_.])*(?:pw|passwrd|creds?|psk|authtok|(?<=_)pass(?=,)|(?:pass(?:word)?|secret|token|api-?key)(?=[\"'], ?default=)){_Q}\]?\s?(?::|=>|=|,(?: ?default=)?))[ \t]{{0,12}}\[?(?:<<)?{_Q}(?P<value>[^\s\"'`\\<>{{}}()\[\],;]{{6,100}})(?=[\s\"'`\\,;}}\]]|$)", _is_password,
        r"(?:[^a-z]|\\[nrt])(?:[a-z]+[_.])*(?:pw|passwrd|creds?|psk|authtok)[\\\"'`]*\]?\s?(?::|=>|=|,)\s*\[?[\\\"'`<]*[^\s\"'`\\<>{}()]{6}|_pass, ?<*[\\\"']|[\\\"'], ?default=[\\\"']",
    ),
    Context(
        "flow_value", "NAMED_VALUE", ("value:", "literals:", "-value"),
        r"(?:(?i:-name \\*[\"']?[\w.]*(?:key|token|secret|password|pwd)\\*[\"']? -value )|name:[ ]?[\"']?[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASS|PWD|CREDENTIALS?)[\"']?,[ ]?value:[ ]?|literals:[^\]\n]{0,200}?\w=(?=[^\s,\]]{0,60}\d)(?=[^\s,\]]{0,60}[A-Z])(?=[^\s,\]]{8}))[\"']?(?P<value>[^\s\"',{}$\]]{6,400})", is_given_secret,
        r"(?:key|token|secret|password|pass|pwd|credentials?)[\\\"']*,? -?value[: ]|literals:",
    ),
    Context(
        "path_secret", "URL_SECRET", ("/",),
        rf"/(?:{_HOOK}/|with/key/|[\w-]*(?:{_LINK}|signup|private)[\w-]*?(?:/\??|-(?=[0-9a-f]{{24}})|/?\?[a-z_]{{1,12}}=)){_Q}(?: \+ {_Q})?(?P<value>[A-Za-z0-9_@-]{{16,200}}(?:/[A-Za-z0-9_@-]{{3,100}}){{0,4}})(?![\w=.-])", _is_end,
        rf"/(?:{_HOOK}/|with/key/|[a-z0-9_-]*(?:{_LINK}|signup|private)[a-z0-9_-]*[/?-])[\\\"'` +]{{0,12}}[^\s]{{16}}",
    ),
    Context(
        "device_setting", "SETTING",
        ("neighbor", "snmp", "enable secret", "username", "createuser", "server key", "authentication-key", "isakmp", "chpasswd:", "chap password", "key-string", "message-digest", "community", "option "),
        r"(?i:r[ow]community6?(?= )|snmp-server community|option (?:key\d?|password|passphrase|psk|secret)(?= \\*')|neighbor \S{1,60} password|snmp-server user .{1,80}? (?:auth|priv) \w+(?: \d+)?|enable (?:secret|password)|username \S{1,40} (?:privilege \d+ )?(?:password|secret)|createuser \S{1,40} \w+|(?:radius|tacacs)-server key|ip ospf (?:authentication-key|message-digest-key \d+ md5)"
        r"|crypto isakmp key|ppp chap password|key-string|chpasswd:\s{0,20}\n?(?:[^\n]{0,60}\n){0,3}? {1,12}(?:- )?[a-z][\w-]{0,30}:(?=\S)|chpasswd:\s{0,20}\n?(?:[^\n]{0,60}\n){0,3}? {1,12}password:) ?(?:\d )?\\*[\"']?(?P<value>[^\s\"'\\;{}]{6,100})", _is_password,
        r"(?:neighbor [^\s]+ password|snmp-server user|enable (?:secret|password)|username [^\s]+ (?:privilege \d+ )?(?:password|secret)|createuser|-server key|authentication-key|message-digest-key|isakmp key|chap password|key-string|r[ow]community6?|snmp-server community) |chpasswd:|option (?:key\d?|password|passphrase|psk|secret) \\*'",
    ),
    Context(
        "braced_setting", "SETTING", ("secret", "password", "passwd", "psk"),
        r"(?:(?<=[{;\n])|(?<=\\n))[ \t]{0,20}(?:shared_?secret|secret|password|passwd|psk)\s{1,9}(?:=\s{0,9})?\\*\"?(?P<value>[^\s\"';{}\\()]{6,100})\\*\"?(?=\s\}|;[ \t]*(?:\}|\r?\n|\\n|$))", _is_password,
        r"(?:secret|password|passwd|psk)\s+(?:=\s*)?[\\\"]*[^\s\"';{}\\()]{6,100}[\\\"]*\s?[;}]",
    ),
    Context(
        "acl_user", "SETTING", (" on ", " off "), r"(?i:\b(?:set)?user) \S{1,40} (?:on|off) (?:[^\s>]{1,40} ){0,4}?>(?P<value>[^\s\"'\\]{6,200})", is_given_secret, r"user [^\s]+ (?:on|off) [^\"\\>]{0,80}>[^\s]{6}",
    ),
    Context(
        "auth_prompt", "PROMPTED", ("auth ",), r"(?:>|(?m:^)) ?AUTH (?:[\w-]{1,30} )?(?P<value>[^\s\"'\\]{6,200})(?=[ \t]*(?:\r?\n|\\n|$))", _is_password, r"(?:>|\"|\\n) ?(?-i:AUTH) [^\s\"\\]",
    ),
    Context(
        # FTP and POP3 say that they wait for a password; of SMTP's, `Password:` in base64.
        "mail_dialogue", "PROMPTED", ("331 ", "+ok", "334 ugfzc3dvcmq6"),
        r"(?:(?:331 |\+OK)[^\n]*\r?\n[^\n]{0,40}?\bPASS |334 UGFzc3dvcmQ6\r?\n(?:[^\n]* )?)(?P<value>[^\s\"'\\<>]{6,200})(?=[ \t]*(?:\r?\n|$))", is_given_secret,
        r"(?:331 |\+ok)(?:[^\\]|\\r)*\\n[^\\]*pass |334 ugfzc3dvcmq6",
    ),
    Context(
        "columns_of_file", "PASSWORD_LINE", ("\t", "\\t", " "),
        rf"(?m:^{LINE_HEAD}[ \t]*)(?:(?P<a>//[\w./-]+[ \t]+[\w.@\\-]+[ \t]+)|(?P<b>[\w.-]+[ \t]+\*[ \t]+)|(?P<c>\d+\.\d+\.\d+\.\d+(?::\d+)?[ \t]+)|\[?[\w.-]+\]?:\d+[ \t]+(?P<d>[\w.@-]+:))(?P<value>[^\s\"'\\,;]{{8,100}})(?=(?(d)[ \t]*(?:\r?\n|$)|(?(a)[ \t]+cifs|(?(b)[ \t]+\d+\.\d+\.\d+\.\d+|[ \t]+\d{{1,3}}[ \t]*(?:\r?\n|$)))))", _is_password,
        r"//[^\s]+(?:\s|\\t)+[^\s]+(?:\s|\\t)+[^\s\"']{8,100}(?:\s|\\t)+cifs|\*(?:\s|\\t)+[^\s\"']{8,100}(?:\s|\\t)+\d+\.\d+\.\d+\.|\d+\.\d+\.\d+\.\d+(?::\d+)?(?:\s|\\t)+[^\s\"']{8,100}(?:\s|\\t)+\d{1,3}\s*(?:\\[rn]|\"|$)|\]:(?:25|465|587|2525)(?:\s|\\t)+[a-z0-9_.@-]+:[^\s\"]{8}",
    ),
    Context(
        "cookie_jar", "COOKIE", ("true", "false", "cookies", "sid", "sess"),
        r"(?:(?:TRUE|FALSE)\t[^\s]{1,80}\t(?:TRUE|FALSE)\t\d{1,12}\t[\w.-]{1,60}\t|cookies\[\\*[\"'][\w.-]{1,60}\\*[\"']\] ?= ?\\*[\"']|name\\*[\"']?:[ ]?\\*[\"'][\w.-]*(?i:sid|sess|token|auth|jwt)[\w.-]*\\*[\"'], ?\\*[\"']?value\\*[\"']?:[ ]?\\*[\"']|\\*\"sess(?:ion)?:)"
        r"(?P<value>[A-Za-z0-9._%+/=-]{16,4000})", is_random,
        r"(?:true|false)\\t\d{1,12}\\t[a-z0-9_.-]+\\t[^\s]{16}|cookies\[[\\\"']+[a-z0-9_.-]+[\\\"']+\] ?=|(?:sid|sess|token|auth|jwt)[a-z0-9_.-]*[\\\"']+, ?[\\\"']*value|\"sess(?:ion)?:[a-z0-9]{16}",
    ),
    Context(
        "app_password", "APP_PASSWORD", ("gmail", "google", "smtp", "apple", "icloud", "altool", "notary", "app-specific", "app password", "app passwort", ".login("),
        r"(?i:gmail|google|smtp|apple|icloud|altool|notary|app-specific|app passw|\.login\()[\s\S]{0,120}?(?<![A-Za-z-])(?<![a-z] )(?P<value>[a-z]{4}(?:(?: |\n ?)[a-z]{4}){3}|[a-z]{4}(?:-[a-z]{4}){3})(?![A-Za-z-]| [a-z])",
        lambda value: sum(word in listed("words.txt") for word in re.split(r"[\s-]+", value)) < 2,
        r"(?:gmail|google|smtp|apple|icloud|altool|notary|app-specific|app passw|\.login\()(?:[^\\]|\\.){0,130}[a-z]{4}(?:(?:[ -]|\\n ?)[a-z]{4}){3}",
    ),
    Context(
        "join_token", "JOIN_TOKEN", ("kubeadm", "join", "bootstrap"),
        r"(?i:kubeadm|bootstrap|join)[^\n]{0,80}?(?:\n[^\n]{0,80})?(?:\n)?[^\n]{0,40}?(?<![\w.])(?P<value>[a-z0-9]{6}\.[a-z0-9]{16})(?![\w.])", is_random,
        r"(?:kubeadm|bootstrap|join)[^\"]{0,200}[a-z0-9]{6}\.[a-z0-9]{16}",
    ),
    Context(
        "overlay_identity", "PRIVATE_KEY", (":0:",), r"(?<![0-9a-f])[0-9a-f]{10}:0:[0-9a-f]{128}:(?P<value>[0-9a-f]{128})(?![0-9a-f])", gate=r":0:[0-9a-f]{128}:",
    ),
    Context(
        "stellar_seed", "PRIVATE_KEY", ("stellar", "soroban", "signer", "seed", "secret", "source", "phantom", "private key", "prv", "6p"),
        r"(?:(?i:stellar|soroban|signers?|seed|secret|source)[^A-Z][\s\S]{0,120}?(?<![A-Z0-9])(?=S[A-D][A-Z2-7]{54}(?![A-Z0-9]))|(?i:phantom|private key|secret key)[^\n]{0,40}?(?<![A-Za-z0-9])(?=[1-9A-HJ-NP-Za-km-z]{86,88}(?![A-Za-z0-9]))|[^A-Za-z0-9/](?=[xyztuvYZUV]prv[1-9A-HJ-NP-Za-km-z]{107,108}(?![A-Za-z0-9]))|bip38[^\n]{0,40}?[ ,](?=6P[1-9A-HJ-NP-Za-km-z]{56}(?![A-Za-z0-9]))"
        r"|(?:^|[\n,\t |:])(?=6P[RYnfgX][1-9A-HJ-NP-Za-km-z]{55}(?![A-Za-z0-9])))(?P<value>[A-Za-z0-9]+)", gate=r"(?:phantom|private key|secret key)[^\n]{0,60}[1-9a-z]{30}|[xyztuv]prv[1-9a-z]{60}|(?-i:6P)[1-9a-z]{56}|(?:stellar|soroban|signer|seed|secret|source)[^\n]{0,400}(?-i:S[A-D][A-Z2-7]{50})",
    ),
    Context(
        "option_pair", "OPTION_PASSWORD", ("--user", "-d", "_auth"), r"(?:--user(?:name)?[= ]\\*[\"']?[\w.@-]{1,60}:|[A-Z0-9]_AUTH\\*[\"']?\s?[:=]\s?\\*[\"']?[\w.@-]{2,40}[:/](?![^\s\"']*/)|-D[\w.]{0,60}(?:pw|pwd|pass|passwd|password|secret|token|key)=)\\*[\"']?(?P<value>[^\s\"'`\\|;&<>${}]{6,200})", _is_login,
        r"--user(?:name)?[= ][\\\"']*[^\s\"':]+:[^\s]{6}|_auth[\\\"']*\s?[:=]\s?[\\\"']*[a-z0-9_.@-]+[:/][^\s]{6}|-(?-i:D)[a-z0-9_.]*(?:pw|pwd|pass|passwd|password|secret|token|key)=[^\s]{6}",
    ),
    Context(
        "prompt_answer", "PROMPTED", ("paste", "token", "key", "enter", "value", "secret"),
        rf"(?im:^{LINE_HEAD}[ \t]*[?>][ \t][^\n]{{0,60}}(?:paste|token|key|enter|value|secret)[^\n:]{{0,40}}:[ \t]{{1,3}}(?:> )?)(?P<value>[^\s\"'`\\]{{16,400}})(?=[ \t]*(?:\r?\n|$))",
        is_random, r"[?>]\s(?:[^:\\]|\\[^nr])*:\s{1,3}(?:> )?[^\s\"\\]{16}",
    ),
    Context(
        "password_line", "PASSWORD_LINE", ("@", "*", ":/", "\" ", "\\\" ", "admin", "root", "user", "guest"),
        rf"(?m:^{LINE_HEAD}[ \t]*(?:(?P<passwd>[\w.@-]+:(?:\{{[A-Z0-9-]+\}})?(?=[^\s:]+:\d*:\d*:[^:\n]*:/))|(?P<pair>\\*\"[\w.@-]+\\*\" \\*\")|(?P<role>[\w.-]+: ?)(?=\S+, ?(?:admin|root|user|guest|viewer)\w*$)|[\w.+-]{{1,60}}@[\w-]{{1,60}}\.[\w.-]{{2,60}}[:;|]|\\*\"?[A-Za-z][\w.@-]{{0,40}}\\*\"?[ \t]+(?:\*|pptpd|x?l2tpd)[ \t]+\\*\"?(?=\S+[ \t]+\*)))"
        r"(?P<value>[^\s\"'\\:;|,]{6,100})(?=(?(passwd):|(?(pair)\\*\"(?=\r?\n|$)|(?(role),|\\*\"?(?:[ \t]+\*)?[ \t]*(?:\r?\n|$)))))", _is_password,
        r"@[a-z0-9-]+\.[a-z0-9.-]+[:;|][^\s\"'\\:;|,]{6}|(?:\*|pptpd|l2tpd)(?:\s|\\t)+[\\\"]*[^\s\"\\]{6}[^\s\"\\]*[\\\"]*(?:\s|\\t)+\*|[^\s\":]{6}:\d*:\d*:[^:\\\"]*:/(?:home|var|bin|srv|opt|usr|root|mnt|data|no)|\\\" \\\"[^\s\"\\]{6,100}\\\"(?:\\|\")|: ?[^\s:,\"]{6,100}, ?(?:admin|root|user|guest|viewer)s?(?:\\|\")",
    ),
    Context(
        # A command that makes a key shows it at once, or behind a word for it.
        "issued", "PRINTED", ("token", "key", "secret", "password", "acl"),
        rf"(?im:(?:{_KEYS}[ -]{_MAKES}|{_MAKES}[ -]{_KEYS})(?![\w(])[^\n]*\n(?:[^\n]*\n){{0,4}}?(?:[^\n\w]*(?:(?:new |secret )?(?:value|secret|token|key|password)(?: id)?)[^\w\[\n]{{1,20}}|{LINE_HEAD}(?=[0-9a-f-]{{32,64}}\s)))"
        r"(?P<value>[^\s\"'`\\,;(){}<>\[\]]{8,200})(?=[^\w\n]*(?:\n|$))", is_signed,
        rf"(?:{_KEYS}[ -]{_MAKES}|{_MAKES}[ -]{_KEYS})(?:[^\"\\a-z0-9_(][^\\]*|)(?:\\[^n][^\\]*)*\\n",
    ),
    Context(
        # A sentence about a key ends with a colon, and the key stands alone below it.
        "told_below", "PROMPTED", ("password", "passphrase", "token", "key", "secret", "sign"),
        rf"(?i:pass(?:word|phrase)|token|secret|(?:setup|master|api|access|auth|join|license)[ _-]?key)(?:[^\n]{{0,80}}:[ \t]*\n{{1,2}}|[^\n]{{0,80}}\n(?=(?:{_UUID}|[0-9a-f]{{32}})[ \t]*(?:\n|$)))(?P<value>[^\s\"'`\\:,;(){{}}<>]{{8,200}})(?=[ \t]*(?:\r?\n|$))",
        _is_mixed, r"(?:pass(?:word|phrase)|token|secret|(?:setup|master|api|access|auth|join|license)[ _-]?key)(?:[^\\]|\\[^n])*(?::[ \t]*\\n|\\n[0-9a-f]{8})",
    ),
    Context(
        "pin", "PIN", ("--pin", "--puk", "+cpin", "alarm", "disarm", "lock", "door"),
        r"(?i:--p(?:in|uk)[= ]|\+CPIN=\\*\"(?:\[\w+\]\\*\",\\*\")?|(?:alarm|disarm|lock|door)\w*[\W\w]{0,100}?(?<=[\s\"'{,])code\\*[\"']?\s?:\s?\\*[\"'])(?P<value>\d{4,8})(?![\w.-])", None,
        r"--p(?:in|uk)[= ]\d|\+cpin=[\\\"]+\d|(?:alarm|disarm|lock|door)[\W\w]*[^a-z_]code[\\\"']*:\s?[\\\"']+\d{4}",
    ),
)  # fmt: skip


_LITERAL = re.compile(r"(?:[(,]|with:)\s{0,30}[frbuLN@]?(?P<q>\\*[\"'`])(?P<value>[^\s\"'`\\<>]{6,400})(?P=q)(?P<chars>\.toCharArray\(\))?(?=\s{0,30}[,)\]])")  # fmt: skip
#: A call that is open at the end of a text.
_CALL = re.compile(r"(?<![\w.:>$-])([\w.:>$-]*+)(?:\s?=\s?)?\((?:[^(){};]|\{[^{}]*\})*+(?:\([^()]*\)(?:[^(){};]|\{[^{}]*\})*+)?$")  # fmt: skip
_NAMED = re.compile(r"[\"'`]([\w.-]{2,60})\\*[\"'`]$")
_TYPES = re.compile(r"(?i)(?:fill|type|keys|set_?value)(?:_?in|_?text)?$")
_HOST_USER = re.compile(
    r"[A-Z]\w+\(\s*[\"'][\w.-]+[\"'],\s*(?:[\"']?\d+[\"']?,\s*)?[\"'][a-z][\w.@-]+[\"'],\s*$"
)
_AT_ADDRESS = re.compile(r"[\"']\d+\.\d+\.\d+\.\d+[\"'],\s*$")
_ROWS = re.compile(
    r"(?i:accounts|users|logins|creds|credentials)\s?[:=]\s?[\[(]\s*(?:\([^()]*\),[^\n]*\s*)*\([\"'][\w.@-]+[\"'],\s*$"
)
# What reads, compares or prints says nothing about its argument.
_READS = re.compile(r"(?:^|[._:])(?i:get(?!connection|bytes)|find|fetch|read|load|has(?!h)|is_?|assert|expect|describe|it$|test|print|log$|require|import|equal|contain|match|starts|ends|split|join|replace|debug|info|warn|error|parse)|to[A-Z]")  # fmt: skip
_CLIENT = re.compile(r"(?i:client|api|sdk|init|config\w*|connect|session|create\w*|setup|search|set_?item)$|(?:^|[.:])(?:(?!\w*(?:Id|ID|Hash|Digest|PublicKey|Address|Buffer|Date|Error|URL|Path|Exp|Element|Array)$)[A-Z]\w+|New\w*|new)$")  # fmt: skip


def find_calls(text: str) -> Iterator[Finding]:
    """Yield literals that are given to a client or to what takes a password, key or token."""
    for match in _LITERAL.finditer(text):
        value, head = match["value"], text[max(0, match.start() - 240) : match.start() + 1]
        call = _CALL.search(head) if _is_login(value) else None
        if call is None or (_READS.search(call[1]) and not match["chars"]):
            continue
        outer, named = _CALL.search(head[: call.start()]), _NAMED.search(head[:-1])
        place = f"{call[1]} {outer[1] if outer else ''}"
        if _TYPES.search(call[1]):
            place = head.rpartition("\n")[2]
        elif named and (is_secret_name(named[1]) or named[1].lower().endswith("-key")):
            place = "secret"
        elif match["chars"] or _ROWS.search(head) or _is_third(head, value):
            place = "password"
        takes = outer[1] if outer and call[1] in ("byte", "bytes") else call[1]
        good = _is_login(value) if _PASSWORD.search(place) else is_likely(value, place)
        if (good and (_CLIENT.search(takes) or TELLING.search(place))) or (
            _AT_ADDRESS.search(head) and re.fullmatch(r"(?=.*[0-9])[0-9a-f]{16,64}", value)
        ):
            yield Finding(*match.span("value"), "ARGUMENT")


def _is_third(head: str, value: str) -> bool:
    """Return True for a strong word behind a host and a user in a client's arguments."""
    strong = all(re.search(kind, value) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    return strong and not _SLUG.fullmatch(value) and _HOST_USER.search(head) is not None


_HEADER = re.compile(r"(?m)^ *(?:\d+→)?[\w\"|][\w \"|,;\t-]{6,600}\r?$")
_INSERT = re.compile(r"[iI](?i:nsert\s+(?:ignore\s+)?into\s+[^\s(]{1,100}\s*)\((?P<names>[^()]{1,1000})\)(?i:\s*values)")  # fmt: skip
_TUPLE = re.compile(r"\s*,?\s*\((?P<cells>(?:[^()'\"]|'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\([^()]*\))*)\)")  # fmt: skip
_CELL = {sign: re.compile(rf"\s*(?P<q>\\*[\"'])?(?P<value>(?(q).*?(?=(?P=q))|[^{sign}]*?))(?(q)(?P=q))\s*(?:[{sign}]|$)") for sign in "\t|,;"}  # fmt: skip


def find_columns(text: str) -> Iterator[Finding]:
    """Yield the values below a telling name of a table: CSV, a result of SQL, ``INSERT``."""
    for match in _INSERT.finditer(text):
        names, at = _names(match["names"], ","), match.end()
        while row := _TUPLE.match(text, at):
            yield from _below(names, _CELL[","].finditer(text, *row.span("cells")))
            at = row.end()
    done = 0
    for match in _HEADER.finditer(text):
        for sign in "\t|,;" if match.start() >= done else "":
            names = _names(match[0], sign) if sign in match[0].rstrip(f"{sign}\r ") else []
            if len(names) > 1 and any(names):
                done = match.end() + 1
                break
        while match.end() < done < len(text):
            stop = text.find("\n", done) % (len(text) + 1)
            cells = _cells(sign, text, done, stop)
            if len(cells) == len(names):
                yield from _below(names, cells)
            elif text[done:stop].strip("-+|:= \t\r"):
                break
            done = stop + 1


def _names(line: str, sign: str) -> list[str]:
    """Return the telling names of columns, and "" for the others."""
    names = (cell["value"].replace(" ", "_") for cell in _cells(sign, line, 0, len(line.rstrip())))
    return [name if is_secret_name(name) else "" for name in names]


def _cells(sign: str, text: str, start: int, stop: int) -> list[re.Match[str]]:
    """Return the cells of a line; an empty one behind the last sign is one too."""
    cells = [*_CELL[sign].finditer(text, start, stop)]
    return cells if text[stop - 1 : stop] == sign else cells[:-1]


def _below(names: list[str], cells: Iterable[re.Match[str]]) -> Iterator[Finding]:
    for name, cell in zip(names, cells, strict=False):
        if name and is_likely(cell["value"], f"{name} secret"):
            yield Finding(*cell.span("value"), "COLUMN")


_LISTING = re.compile(r"(?m)^(?:=+ (?:Data|[\w.-]+ Config Vars)(?: =+)?|Key[ \t]+Value[ \t]*|\[(?i:admins|users|passwords|credentials|accounts|logins)\][ \t]*)\r?\n(?P<lines>(?:[^\n]+(?:\n|$)){1,60})")  # fmt: skip
_LISTED = re.compile(r"(?m)^[\w.-]+(?:[ \t]*=[ \t]*|:?[ \t]{2,})(?P<value>[^\s]{6,400})[ \t]*\r?$")


def find_listings(text: str) -> Iterator[Finding]:
    """Yield the secrets among settings that a vault or a platform lists in two columns."""
    for match in _LISTING.finditer(text):
        for line in _LISTED.finditer(text, *match.span("lines")):
            if is_likely(line["value"], "password"):
                yield Finding(*line.span("value"), "COLUMN")


_SHORT = re.compile(r"(?im)^(?P<head>[^\n]{0,200}?(?:^|[,;|\t]|  )[ `*\"']*(?:pw|pass|psk|creds?|credentials?|tk|tok|token|secret|shared|license|licence|(?:setup |api |auth |access )?key)[ `*\"']*(?=[,;|\t]|  |\r?$)[^\n]*)\n(?P<lines>(?:[^\n]+(?:\n|$)){1,200})")  # fmt: skip
_SHORT_NAME = re.compile(r"(?i)[ `*\"']*(?:pw|pass|psk|creds?|credentials?|tk|tok|token|secret|shared|licen[cs]e|(?P<key>(?:setup |api |auth |access )?key))[ `*\"']*")  # fmt: skip


def find_short_columns(text: str) -> Iterator[Finding]:
    """Yield the values below a column whose name is short: ``pw``, ``cred``, ``tk``."""
    for match in _SHORT.finditer(text):
        if match["head"].rstrip()[-1:] in tuple(",;{[("):  # code
            continue
        sign = next((sign for sign in "\t|,;" if sign in match["head"]), "")
        cell = re.compile(rf"[^{sign}\n]*" if sign else r"\S+(?: \S+)*")
        names = [each[0] for each in cell.finditer(match["head"]) if each[0] or sign == ","]
        named = {
            at: found for at, name in enumerate(names) if (found := _SHORT_NAME.fullmatch(name))
        }
        wanted, keys = set(named), {at for at in named if named[at]["key"]}
        for line in re.finditer(r"[^\n]+", match["lines"]):
            first = match.start("lines") + line.start()
            cells = [
                m for m in cell.finditer(text, first, first + len(line[0])) if m[0] or sign == ","
            ]
            for at in wanted if len(cells) == len(names) > 1 else ():
                value = cells[at][0].strip(" `*\"'\r")
                if " " not in value and is_likely(value, "" if at in keys else "secret"):
                    start = cells[at].start() + cells[at][0].index(value)
                    yield Finding(start, start + len(value), "COLUMN")


# Of the gates: what stands between quotes, calls that take a secret, arguments before it; a line of names.
_QUOTED = r"[^\s\"'`\\<>]"
_TAKERS = "(?:pass|pwd|log_?in|auth|sign|connect|credential|crypt|argon|create_?user|pdo|mysqli|pw|unlock_?account|encrypted_?json|key_?file|certificate2|community|secret|token|(?:api|access|private|master|security)_?key|hmac|bearer|jwt|fernet|salt|cookieparser|fill|type|keys|set_?value)"
_GIVEN = r"\((?:[^();\\]|\\+[\"'`nrt])*(?:[()](?:[^();\\]|\\+[\"'`nrt])*){0,3}"
_NAMES = r"(?:[a-z0-9_ |,;-]|\\[t\"])*"
_TOLD = "(?:passw|pwd|pass|passphrase|secret|token|key|credential|passcode|salt|mnemonic|dsn)"
#: Id, literals, function and gate of the rules that no pattern expresses.
POSITION_FINDERS: tuple[tuple[str, tuple[str, ...], Finder, str], ...] = (
    ("calls", ("(",), find_calls,
     rf"(?:[(,]|with:)\s*[frbuln@]?[\\\"'`]+{_QUOTED}{{4,}}{NO_WORD}{_QUOTED}{{4,}}[\\\"'`]+\s*[,)\]]|{_QUOTED}{{6}}[\\\"']+\.tochararray\(|(?-i:[A-Z])[a-z0-9_]+\(\s*[\\\"']+[a-z0-9_.-]+[\\\"']+,\s*(?:[\\\"']*\d+[\\\"']*,\s*)?[\\\"']+[a-z0-9_.@-]+[\\\"']+,\s*[\\\"']+{_QUOTED}{{6}}|\d\.\d+\.\d+[\\\"']+,\s*[\\\"']+[0-9a-f]{{16}}|(?:accounts|users|logins|creds|credentials)\s?[:=]\s?[\[(]"
     rf"|(?:{_TAKERS}[a-z0-9_.:>-]*\s?=?\s?{_GIVEN}|{_TOLD}[a-z0-9_.-]*[\\\"'`]+,\s*)[frbuln@]?[\\\"'`]+{_QUOTED}*(?:(?:{NO_WORD}|{_SIGN}){_QUOTED}*|[0-9])[\\\"'`]+\s*[,)\]]"),
    ("listings", ("data", "config vars", "value", "admins]", "users]", "passwords]", "credentials]", "accounts]", "logins]"), find_listings, r"\[(?:admins|users|passwords|credentials|accounts|logins)\]\s*\\|=+ data =|config vars\s*\\n|key(?:\s|\\t)+value\s*\\n"),
    ("columns/short", ("pw", "pass", "psk", "cred", "tk", "tok", "secret", "shared", "licen", "key"), find_short_columns,
     r"(?:[,;|\"]|\\[nt]|  )[ `*\\\"']*(?:pw|pass|psk|creds?|credentials?|tk|tok|token|secret|shared|licen[cs]e|key)[ `*\\\"']*(?:[,;|]|\\[nrt]|  )"),
    ("columns", ("pass", "secret", "token", "key", "pwd", "credential", "salt", "mnemonic", "dsn"), find_columns,
     rf"(?:\"|\\[rn])(?:\s*[0-9]+→)?{_NAMES}(?:(?:[|,;]|\\t){_NAMES}{_TOLD}|{_TOLD}{_NAMES}(?:[|,;]|\\t)){_NAMES}\\[rn]|insert\s[^(]*\([^()]*{_TOLD}[^()]*\)\s*values"),
)  # fmt: skip

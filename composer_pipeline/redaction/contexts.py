"""Secrets that a position gives away: headers, queries, SQL, settings files.

In a pattern only the group ``value`` is replaced. The literals are lower case; one of them
occurs in a text, in any case, if the pattern can match.
"""

from collections.abc import Callable
from dataclasses import dataclass

from composer_pipeline.redaction.patterns import ESCAPED, LINE_HEAD
from composer_pipeline.redaction.secrets import (
    is_basic,
    is_given_secret,
    is_long_random,
    is_random,
    is_signed,
)


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
        r"(?P<value>[A-Za-z0-9+/%=]{28,})", is_random,
        gate=r"(?:signature|response|oauth_token)=[\\\"']*[a-z0-9+/%=]{28}",
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
        ("?", "&", ";", "#"),
        r"(?<=[?&;#])(?i:amp;)?(?i:[a-z0-9_.\[\]-]{0,30}(?:api[_-]?key|access[_-]?key|access[_-]?token|auth[_-]?token"
        r"|refresh[_-]?token|id[_-]?token|session[_-]?(?:id|key|token)|client[_-]?secret|private[_-]?key|secret|token"
        r"|passw(?:or)?d|passwd|pwd|pass|signature|credential|sig|hmac|jwt|authkey|code|otp|sas|samlresponse|assertion"
        r"|code[_-]verifier|key)|auth|sid|x-amz-security-token|x-amz-signature|x-goog-signature)"
        r"=(?P<value>[A-Za-z0-9._~+/%!*$:@-]{6,4000}={0,2})", is_random,
        r"[?&;#](?:amp;)?[a-z0-9_.\[\]-]{0,40}(?:key|token|secret|pass|passwd|password|pwd|signature|credential|sig|hmac"
        r"|jwt|code|otp|sas|samlresponse|assertion|verifier|auth|sid|id)=[a-z0-9._~+/%!*$:@-]{6}",
    ),
    Context(
        "form", "FORM_VALUE",
        ("password=", "passwd=", "secret=", "token=", "pwd=", "pass="),
        r"(?:(?<=[\s\"'&?])|(?<=%26))(?i:[a-z_]{0,30}(?:password|passwd|client_secret|secret|token|pwd|pass))"
        r"=(?P<value>[A-Za-z0-9._~+/%!*$:@-]{6,400})(?=&[a-z_]+=)", is_given_secret,
        gate=r"(?:password|passwd|secret|token|pwd|pass)=[a-z0-9._~+/%!*$:@-]{6,400}&[a-z_]",
    ),
    Context("twilio", "TWILIO_KEY", ("twilio",),
            r"(?<![A-Za-z0-9])(?P<value>SK[a-f0-9]{32})(?![A-Za-z0-9])"),
    Context(
        "connection", "CONNECTION_PASSWORD", ("password", "pwd"),
        r"[;\"']\s?(?i:password|pwd)\s?=\s?(?P<value>[^;\"'\s${}<>\[\]]{4,100})(?=;|\\*[\"'])",
        is_given_secret,
        gate=r"(?:password|pwd)\s?=\s?[^;\"'\s]{4,100}[;\\\"']",
    ),
    Context(
        "conninfo", "CONNECTION_PASSWORD", ("password",),
        r"(?i:(?:host|hostaddr|user|dbname|port)\s?=\s?[^\s;\"']{1,80}\s+(?:[a-z_]+\s?=\s?[^\s;\"']{1,80}\s+){0,6}"
        r"password\s?=\s?\\*[\"']?)(?P<value>[^;\"'\s${}<>\[\]\\]{4,100})", is_given_secret,
        gate=r"password\s?=\s?[\\\"']*[^;\"'\s\\]{4}",
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
        "option_password", "OPTION_PASSWORD", ("--", " -d", "sshpass"),
        r"(?:(?<![A-Za-z0-9-])--?(?:[A-Za-z]+[-_.])*(?i:password|passwd|passphrase|token|api-?key|secret|access-?key"
        r"|secret-?key|private-?key|auth-?key|credential)(?:[= ]|\\*[\"'],\s?)|sshpass -p ?)"
        r"\\*[\"']?(?P<value>(?=[A-Za-z_.-]*[0-9!@#%^&*])[A-Za-z0-9!@#%^&*_+=.~?/:-]{6,400})(?![A-Za-z0-9(])",
        is_given_secret,
        r"-(?:[a-z]+[-_.])*(?:password|passwd|passphrase|token|api-?key|secret|access-?key|secret-?key|private-?key"
        r"|auth-?key|credential)(?:[= ]|[\\\"']+,)|sshpass",
    ),
    Context(
        "xml_element", "XML_PASSWORD",
        ("password", "apikey", "api_key", "secret", "token", "passphrase", "privatekey", "pwd"),
        r"<(?:[A-Za-z]+:)?(?i:[A-Za-z_.-]*(?:password|apikey|api[_-]key|secret|authtoken|accesstoken|token|passphrase"
        r"|privatekey|pwd))(?: [^<>]{0,80})?>\s{0,3}(?P<value>(?=[^<]*[0-9!@#%^&*])[^<>\s${}]{6,400})\s{0,3}</",
        is_given_secret,
        r"(?:password|apikey|api[_-]key|secret|token|passphrase|privatekey|pwd)(?: [^<>]{0,80})?>\s{0,3}[^<\s]",
    ),
    Context(
        "xml_named", "XML_PASSWORD", ("name=", "key=", "id="),
        r"<[A-Za-z]+ (?i:name|key|id)=\\*[\"'](?i:[A-Za-z0-9_.:-]*(?:password|api[_-]?key|secret|token|passphrase|pwd))"
        r"\\*[\"']\s*(?:(?i:value)=\\*[\"']|/?>\s*(?:<value>)?)(?P<value>[^<>\s\"'${}\\]{6,400})", is_given_secret,
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
        "ansible", "ANSIBLE_PASSWORD", ("ansible_",),
        rf"ansible_(?:[a-z]+_)?(?:pass|password){_Q}\s*[=:]\s*{_Q}(?P<value>[^\s\"'\\{{}}$]{{4,100}})",
        is_given_secret,
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
        r"|credential))\\*\"\s*,\s*\\*\"(?i:value)\\*\"\s*:\s*\\*\"(?P<value>[^\"\\\s]{6,400})", is_given_secret,
        r"(?:name|key)[\\\"]+\s*:\s*[\\\"]+[a-z0-9_.-]*(?:password|passwd|secret|token|key|credential)[\\\"]+\s*,\s*[\\\"]+value",
    ),
    Context(
        "env_password", "ENV_PASSWORD",
        ("pgpassword", "mysql_pwd", "sshpass=", "redis_pass", "restic_password", "borg_passphrase", "rediscli_auth",
         "mysql_root_password", "postgres_password", "vault_token", "ansible_become_pass", "gpg_passphrase",
         "keystore_pass", "store_password", "key_password", "smtp_pass", "mongo_initdb_root_password"),
        r"(?<![A-Za-z0-9_])(?:PGPASSWORD|MYSQL_PWD|SSHPASS|REDIS_PASS(?:WORD)?|RESTIC_PASSWORD|BORG_PASSPHRASE"
        r"|REDISCLI_AUTH|MYSQL_(?:ROOT_)?PASSWORD|POSTGRES_PASSWORD|VAULT_TOKEN|ANSIBLE_BECOME_PASS|GPG_PASSPHRASE"
        r"|KEYSTORE_PASS(?:WORD)?|STORE_PASSWORD|KEY_PASSWORD|SMTP_PASS(?:WORD)?|MONGO_INITDB_ROOT_PASSWORD)"
        rf"{_Q}\]?\s{{0,2}}[=:]\s{{0,2}}{_Q}(?P<value>[A-Za-z0-9!@#%^&*_+.~?/-]{{4,100}})(?![A-Za-z0-9(.\[])",
        is_given_secret,
    ),
    Context(
        "url_password", "URL_PASSWORD", ("://",),
        rf"://(?<=[A-Za-z0-9]://)[^\s/:@\"'`<>\\]{{0,100}}:{_USERINFO}@(?=[A-Za-z0-9\[])",
        is_given_secret, r"://[^\s/@\"]*:[^\s/@\"]+@",
    ),
    Context(
        "url_token", "URL_PASSWORD", ("://",),
        r"://(?<=[A-Za-z0-9]://)(?P<value>[A-Za-z0-9_-]{20,200})@(?=[A-Za-z0-9\[])", is_long_random,
        r"://[a-z0-9_-]{20,200}@",
    ),
    Context(
        "login_prompt", "PROMPTED", ("password:", "passphrase", "password for"),
        r"(?m:^(?:[ \t]*\[sudo\] )?(?i:(?:enter )?password(?: for [\w.@'-]+)?|enter passphrase(?: for [^:\n]+)?):[ \t]+)"
        r"(?P<value>(?=[^\s]*[0-9!@#%^&*])[^\s\"'<>()]{6,60})(?=\s|$)", is_given_secret,
    ),
    Context(
        "prose", "PROSE_PASSWORD",
        ("password", "passphrase", "passcode", "pass phrase", "api key", "token", "secret", "passwort"),
        r"(?i:(?:password|passphrase|passcode|pass phrase|api key|token|secret|passwort)"
        r"(?: (?:for|of|to) (?:the )?[\w.@-]{1,40}){0,2} (?:is|to|ist)(?: now)?[: ]{1,2})"
        r"\\*[\"'`]?(?P<value>(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9!@#$%^&*_+=.~?/-]{7,200}?)"
        r"(?=\\*[\"'`]?[.,;)]?(?:\s|$|\\n))", is_random,
        gate=r"(?:password|passphrase|passcode|pass phrase|api key|token|secret|passwort)(?: (?:for|of|to) [^\\\"]{1,50})?"
        r" (?:is|to|ist)(?: now)?[: ]{1,2}[\\\"'`]*[^\s\\\"]*[0-9]",
    ),
    Context(
        "wifi", "WIFI_PASSWORD", ("psk", "sae_password", "wpa_passphrase", "presharedkey", "pre-shared-key"),
        r"(?<![A-Za-z0-9_])(?i:(?:wifi-sec\.)?psk|sae_password|wpa_passphrase|preshared-?key|pre-shared-key)"
        rf"{_Q}\s{{0,3}}[=:]\s{{0,3}}{_Q}(?P<value>[^\s\"'\\<>${{}}(),;]{{8,64}})", is_given_secret,
        gate=r"(?:psk|sae_password|wpa_passphrase|pre-?shared-?key)[\\\"'`]*\s{0,3}[=:]\s{0,3}[\\\"'`]*[^\s\"'\\]{8}",
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
        "user_and_password", "FORM_VALUE", ("&password=", "&passwd=", "&pwd=", "&pass=", ";password=", ";pwd=", ";pass="),
        r"(?:(?<![A-Za-z0-9_])(?i:user(?:_?name)?|login|email|uid)=[^&\s\"'<>]{1,120}&(?:amp;)?(?i:password|passwd|pwd|pass))"
        r"=(?P<value>[^\s&\"'`<>\\${}()]{4,200})", is_given_secret,
        gate=r"[&;](?:password|passwd|pwd|pass)=[^\s&\"]{4}",
    ),
    Context(
        "header_directive", "AUTH_HEADER", ("authorization",),
        r"(?i:authorization)\s{1,3}\\*[\"'](?i:basic|bearer|token) (?P<value>[A-Za-z0-9+/_.~=-]{12,1000})", is_given_secret,
        gate=r"authorization\s+[\\\"']+(?:basic|bearer|token) [a-z0-9+/_.~=-]{12}",
    ),
    Context(
        "set_variable", "ENV_PASSWORD", ("setx", "setenv", "env ", "env\\t", "set -", "set --"),
        r"(?<![A-Za-z0-9_-])(?:(?i:setx|setenv)|ENV|set(?: -[A-Za-z]+| --[a-z]+){1,3})[ \t]{1,3}"
        r"(?i:[A-Z0-9_]{0,40}(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY))"
        r"[ \t]{1,3}\\*[\"']?(?P<value>[^\s\"'\\${}<>()|;=]{6,400})", is_given_secret,
        gate=r"(?:setx|setenv|env|set(?:\s-{1,2}[a-z]+)+)\s+[a-z0-9_]*(?:password|passwd|passphrase|secret|token|key)\s",
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
        is_given_secret, r"expect.{0,30}ass(?:word|phrase)",
    ),
    Context(
        "login_call", "CALL_PASSWORD", (".login(", "authenticate(", "auth"),
        r"(?:\.(?:login|authenticate)\(|(?<![A-Za-z0-9_])auth\s?=\s?(?:[A-Za-z.]{0,30}Auth)?\()\s{0,20}"
        r"[frbu]?\\*[\"'][^\"'\n\\]{1,80}\\*[\"']\s{0,3},\s{0,20}[rbu]?\\*[\"'](?P<value>(?=[^\"']*[0-9!@#%^&*])[^\"'\s\\${}]{6,200})(?=\\*[\"'])",
        is_given_secret,
        gate=r"(?:\.(?:login|authenticate)|auth\s?=\s?[a-z.]{0,34})\(\s{0,20}[frbu]?[\\\"']+[^\"']{1,80}[\"']\s{0,3},",
    ),
    Context(
        "plist", "XML_PASSWORD", ("</key>",),
        r"<key>(?i:[A-Za-z0-9_.-]{0,40}(?:password|passphrase|secret|token|api_?key|access_?key))</key>\s{0,20}"
        r"<string>(?P<value>[^<>\s${}]{6,400})</string>", is_given_secret,
        gate=r"(?:password|passphrase|secret|token|key)</key>\s{0,20}<string>",
    ),
    Context(
        "quoted_setting", "SETTING", ("storepassword", "keypassword", ":password", ":passwd", ":secret", ":token", ":api-key"),
        r"(?:(?:store|key)Password|(?<![A-Za-z0-9_:]):(?:password|passwd|secret|token|api-key))[ \t]{1,4}\\*[\"']"
        r"(?P<value>[^\s\"'\\${}<>]{6,200})(?=\\*[\"'])", is_given_secret,
        gate=r"(?:(?:store|key)password|:(?:password|passwd|secret|token|api-key))\s+[\\\"']+[^\s\"'\\]{6}",
    ),
    Context(
        "server_setting", "SETTING", ("requirepass", "masterauth"),
        r"(?m:^[ \t]*(?:requirepass|masterauth)[ \t]{1,8})\\*[\"']?(?P<value>[^\s\"'\\${}<>]{4,200})", is_given_secret,
        gate=r"(?:requirepass|masterauth)\s+[\\\"']*[^\s\"'\\]{4}",
    ),
    Context(
        "yaml_block", "SETTING", ("password", "passwd", "secret", "token", "api_key", "apikey", "passphrase"),
        rf"(?m:^{LINE_HEAD}[ \t]*[A-Za-z0-9_.-]{{0,40}}(?i:password|passwd|passphrase|secret|token|api_?key):[ \t]*[|>][+-]?[ \t]*\r?\n)"
        rf"{LINE_HEAD}[ \t]+(?P<value>\S{{6,400}})(?=[ \t]*(?:\r?\n|$))", is_signed,
        gate=r"(?:password|passwd|passphrase|secret|token|api_?key):\s*[|>][+-]?\s",
    ),
    Context(
        "terraform_default", "TERRAFORM_VALUE", ("variable",),
        r"variable\s{1,3}\\*\"[A-Za-z0-9_-]{0,40}(?i:password|passwd|passphrase|secret|token|api_key|access_key|secret_key)\\*\"\s{0,3}"
        r"\{[^{}]{0,600}?(?<![a-z_])default\s{0,9}=\s{0,3}\\*\"(?P<value>[^\"\\\s$]{4,400})(?=\\*\")", is_given_secret,
        gate=r"variable\s+[\\\"]+[a-z0-9_-]*(?:password|passwd|passphrase|secret|token|key)[\\\"]+\s*\{",
    ),
)  # fmt: skip

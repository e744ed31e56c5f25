"""What people type wrong, as data: a line is a command and what its sentence must say.

Names in braces are places that ``test_bad_inputs`` makes.
"""

#: Each command that reads a lake, with nothing else wrong.
ON_A_LAKE = """
states
sessions
state ab
plan --teachers {teachers}
replay --teachers {teachers} --max-usd 1
preview --teachers {teachers}
budget
budget set global 1
budget rebuild
budget lift careful
pairs
pair ab
statistics
sufficiency
normalize
dataset
report
export --format dpo --out {out}
publish --repo a/b
train
train --plan
evaluate
environment
verify
reparse
forget --session ab
status
"""

#: Lakes that are none, and what is said of them.
NO_LAKES = {
    "missing": ("{tmp}/nowhere", "nowhere is not a lake"),
    "empty folder": ("{empty}", "empty is not a lake"),
    "other folder": ("{other}", "other is not a lake"),
    "a file": ("{file}", "file.txt is not a lake"),
    "unknown scheme": ("foo://x/y", "Protocol not known: foo"),
    "no bucket": ("s3://", "names no bucket"),
    "no account": ("az://bucket/lake", "cannot be reached"),
}

#: A table whose file is cut short, and commands that need it.
DAMAGED = """
raw_files    | ingest {sessions}
raw_files    | reparse
votes        | statistics
pairs        | normalize
pairs        | pair {state}
normalized_pairs | dataset
replies      | pairs
replies      | sufficiency
replies      | replay --teachers {teachers} --max-usd 1 --day 2026-11-16
dataset_pairs | export --format dpo --out {out}
dataset_hints | export --format sdpo --out {out}
dataset_groups | train --recipe {trainer}
"""

#: Tables of the traces, cut short on the first day: the day is left out.
LEFT_OUT = """
states       | states
states       | sessions
sessions     | sessions
messages     | states
chains       | states
states       | plan --teachers {teachers}
messages     | plan --teachers {teachers}
chains       | statistics
"""

#: One wrong thing in a command on a lake that is whole.
WRONG = """
bogus                                     | bogus
ingest                                    | no agent keeps sessions here
ingest ""                                 | empty PATH
ingest {tmp}/nowhere                      | nowhere does not exist
ingest {empty}                            | holds no session file
ingest {tmp}/*.nothing                    | matches no session file
ingest {notes}                            | notes.jsonl holds no session of a known agent
ingest {binary}                           | binary.jsonl holds no session of a known agent
ingest {void}                             | void.jsonl holds no session of a known agent
ingest {cutgz}                            | cut.jsonl.gz is not a whole compressed file
ingest {cutzst}                           | cut.jsonl.zst is not a whole compressed file
ingest {notgz}                            | not.jsonl.gz is not a whole compressed file
ingest {sessions} {tmp}/nowhere           | nowhere does not exist
ingest {sessions} ""                      | empty PATH
ingest {sessions} --per-fil               | --per-fil
ingest {sessions} --per-file=3            | --per-file
states --session                          | --session
states --bogus                            | --bogus
states x                                  | x
sessions --day                            | --day
sessions x                                | x
state                                     | STATE_ID
state ""                                  | has no state ''
state zz                                  | has no state 'zz'
state {two}                               | ambiguous
state ' '                                 | has no state ' '
state "a' OR 1=1"                         | has no state
state {state} x                           | x
plan --teachers {tmp}/nowhere.yaml        | nowhere.yaml
plan --teachers {empty}                   | empty
plan --teachers {file}                    | file.txt
plan --teachers {void}                    | void.jsonl
plan --teachers {binary}                  | binary.jsonl
plan --teachers {list}                    | list.yaml
plan --teachers {yaml}                    | yaml.yaml
plan --teachers {badfield}                | temperatur
plan --teachers {twice}                   | careful
plan --teachers {noteachers}              | teachers
plan --teachers {teachers} --day yesterday            | --day 'yesterday' is not a date
plan --teachers {teachers} --day 2026-13-01           | --day '2026-13-01' is not a date
plan --teachers {teachers} --day 2026-02-30           | --day '2026-02-30' is not a date
plan --teachers {teachers} --day 20261116             | --day '20261116' is not a date
plan --teachers {teachers} --day 2026-11-16T00:00     | is not a date
plan --teachers {teachers} --day ""                   | --day '' is not a date
plan --teachers {teachers} --day ../x                 | --day '../x' is not a date
plan --teachers {teachers} --day 2026-11-16 --day x   | --day 'x' is not a date
plan --teachers {teachers} --day 1999-01-01           | has no states of
plan --teachers {teachers} --max-states -1            | --max-states must be at least 0
plan --teachers {teachers} --max-states many          | --max-states
plan --teachers                                       | --teachers
replay --teachers {teachers} --max-usd 0              | --max-usd must be above 0
replay --teachers {teachers} --max-usd=-1             | --max-usd must be above 0
replay --teachers {teachers} --max-usd nan            | --max-usd must be above 0
replay --teachers {teachers} --max-usd inf            | --max-usd must be above 0
replay --teachers {teachers} --max-usd 'a dollar'     | --max-usd: 'a dollar' is not an amount
replay --teachers {teachers} --max-usd 1,50           | --max-usd: '1,50' is not an amount
replay --teachers {teachers} --max-usd $1             | is not an amount
replay --teachers {teachers} --max-usd 1e99           | --max-usd
replay --teachers {teachers} --day yesterday          | --day 'yesterday' is not a date
replay --teachers {teachers} --day 2026-13-01         | is not a date
replay --teachers {teachers} --day 1999-01-01         | has no states of
replay --teachers {teachers} --max-states -5          | --max-states must be at least 0
replay --teachers {teachers} --max-states x           | --max-states
replay --teachers {teachers} --again always           | again
replay --teachers {tmp}/nowhere.yaml                  | nowhere.yaml
replay --teachers {badfield}                          | temperatur
replay --max-usd 1                                    | OPENROUTER_API_KEY
replay --no                                           | --no
preview --teachers {teachers} --max-usd 0             | --max-usd must be above 0
preview --teachers {teachers} --max-usd 'a dollar'    | --max-usd: 'a dollar' is not an amount
preview --teachers {teachers} --max-usd ""            | --max-usd: '' is not an amount
preview --teachers {teachers} --day yesterday         | --day 'yesterday' is not a date
preview --teachers {teachers} --day 1999-01-01        | has no states of
preview --teachers {teachers} --session nobody        | has no states of session
preview --teachers {teachers} --teacher nobody        | no teacher 'nobody'
preview --teachers {noprojects}                       | no states that
preview --teachers {tmp}/nowhere.yaml                 | nowhere.yaml
preview --teachers {badfield}                         | temperatur
preview --max-usd 1                                   | OPENROUTER_API_KEY
preview x                                             | x
budget bogus                                          | bogus
budget set                                            | SCOPE
budget set global                                     | AMOUNT
budget set global 0                                   | the ceiling of global must be above 0
budget set global lots                                | 'lots' is not an amount
budget set global nan                                 | must be above 0
budget set world 1                                    | scope 'world' is none of
budget set day:yesterday 1                            | scope 'day:yesterday' is none of
budget set day:2026-13-01 1                           | is none of
budget set month:2026-00 1                            | is none of
budget set "" 1                                       | scope '' is none of
budget set teacher: 1                                 | is none of
budget set global 1 2                                 | 2
budget lift                                           | TEACHER
budget lift nobody                                    | teacher nobody is not quarantined
budget lift ""                                        | is not quarantined
budget --ledger mysql://x/y                           | not a mysql:// one
budget --ledger {file}                                | ledger
budget --ledger {empty}                               | ledger
budget --ledger postgresql://127.0.0.1:9/x            | postgresql
budget rebuild --ledger {file}                        | ledger
budget set global 1 --ledger {file}                   | ledger
tools list x                                          | x
pairs --rules {tmp}/nowhere.yaml                      | nowhere.yaml
pairs --rules {file}                                  | file.txt
pairs --rules {list}                                  | list.yaml
pairs --rules {badrules}                              | max_pair
pairs --rules {empty}                                 | empty
pairs --judge-max-usd 0                               | --judge-max-usd must be above 0
pairs --judge-max-usd much                            | --judge-max-usd
pairs --bogus                                         | --bogus
pairs x                                               | x
pair                                                  | ANY_ID
pair ""                                               | ''
pair zz                                               | zz
pair {two}                                            | ambiguous
statistics --rules {tmp}/nowhere.yaml                 | nowhere.yaml
statistics --rules {badrules}                         | max_pair
statistics x                                          | x
statistics --labels {tmp}/nowhere.jsonl               | no such file
sufficiency --teachers {tmp}/nowhere.yaml              | nowhere.yaml
sufficiency --teachers {badfield}                      | temperatur
sufficiency --teachers {teachers} --write {teachers}   | exists and is not overwritten
sufficiency --day 1999-01-01                           | has no states of
sufficiency x                                          | x
compare                                               | FILE
compare {tmp}/nowhere.jsonl                           | no such file
compare {empty}                                       | no such file
compare {notes}                                       | notes.jsonl
compare {binary}                                      | binary.jsonl
compare {numbers}                                     | numbers.jsonl
compare {halfpair}                                    | halfpair.jsonl
redact                                                | FILE
redact {tmp}/nowhere                                  | nowhere
redact {empty}                                        | empty
normalize --recipe {tmp}/nowhere.yaml                 | nowhere.yaml
normalize --recipe {file}                             | file.txt
normalize --recipe {list}                             | list.yaml
normalize --recipe {badrecipe}                        | no_such_filter
normalize --columns {empty}                           | empty
normalize x                                           | x
dataset x                                             | x
dataset --bogus                                       | --bogus
report x                                              | x
report -o {empty}                                     | empty
report -o {file}/x.html                               | file.txt
export                                                | --format
export --format dpo                                   | --out
export --out {out}                                    | --format
export --format ppo --out {out}                       | ppo
export --format "" --out {out}                        | format
export --format dpo --out {file}                      | file.txt
export --format dpo --out {out} --samples {tmp}/no    | no
export --format dpo --out {out} --samples {notes}     | notes.jsonl
export --format dpo --out {out} --samples {binary}    | binary.jsonl
export --format dpo --out {out} --samples {empty}     | empty
export --format dpo --out {out} --samples {cutparquet} | cut.parquet
export --format dpo --out {out} --rules {list}        | list.yaml
export --format dpo --out {file}/x.parquet            | file.txt
export --format atif --out {out}/x.json               | a file for each session
export --format pi --out {file}                       | a file for each session
export --format atif --out {out} --max-tokens 9       | --max-tokens is about rows
publish                                               | --repo
publish --repo name                                   | name
publish --repo ""                                     | ''
publish --repo a/b/c                                  | a/b/c
publish --repo a/b--c                                 | b--c
publish --repo a/b.git                                | b.git
publish --repo a/b --consent {tmp}/nowhere            | nowhere
publish --repo a/b --model {empty} --consent c.yaml   | --consent
publish --repo 'a b/c'                                | a b/c
publish --repo a/b                                    | --allow-simulated
publish --repo a/b --allow-simulated                  | HF_TOKEN
publish --repo a/b --allow-worse-than-base            | --allow-worse-than-base needs --model
publish --repo a/b --traces --model {tmp}/nowhere     | --traces is about the dataset's sessions
publish --repo a/b --model {tmp}/nowhere              | nowhere
publish --repo a/b --model {empty}                    | empty
publish --repo a/b --model {file}                     | file.txt
train --recipe {tmp}/nowhere.yaml                     | nowhere.yaml
train --recipe {file}                                 | file.txt
train --recipe {list}                                 | list.yaml
train --recipe {badtrain}                             | learning_rat
train --recipe {yaml}                                 | yaml.yaml
train --probe                                         | need --plan
train --memory-gib 8                                  | need --plan
train --model-config {file}                           | need --plan
train --plan --memory-gib lots                        | --memory-gib
train --plan --recipe {trainer} --memory-gib -1       | --memory-gib
train --plan --recipe {trainer} --model-config {tmp}/no.json | no.json
train --plan --recipe {trainer} --model-config {file} | file.txt
train --bogus                                         | --bogus
evaluate --recipe {tmp}/nowhere.yaml                  | nowhere.yaml
evaluate --recipe {list}                              | list.yaml
evaluate --recipe {trainer}                           | run train first
evaluate --recipe {trainer} --per-kind x              | --per-kind
evaluate --max-new-tokens x                           | --max-new-tokens
environment --split nowhere                           | no states to replay with split=nowhere
environment --max-steps 0                             | --max-steps must be at least 1
environment --port -1                                 | --port must be at least 0
environment --port 65536                              | --port must be at most 65535
environment --port many                               | --port
environment --host 192.0.2.1 --port 0                 | cannot listen on 192.0.2.1:0
doctor --bogus                                        | --bogus
doctor x                                              | x
verify x                                              | x
verify --day yesterday                                | --day 'yesterday' is not a date
verify --day 1999-01-01                               | no archived session of 1999-01-01
verify --ledger mysql://x/y                           | not a mysql:// one
reparse x                                             | x
reparse --day 2026-02-30                              | is not a date
reparse --day 1999-01-01                              | no archived session of 1999-01-01
reparse --day 2026-11-16 --day 1999-01-01             | no archived session of 1999-01-01
forget                                                | name what to forget
forget x                                              | x
forget --session                                      | --session
forget --session zz                                   | has no session 'zz'
forget --session ' '                                  | has no session ' '
forget --project nowhere                              | no session of project 'nowhere'
forget --project '['                                  | no session of project '['
forget --text ab                                      | three characters
forget --text 'a text that nobody ever wrote'         | no session with that text
forget --session ab --project x                       | name one of
forget --text abc --project x --session y             | name one of
forget --dry-run                                      | name what to forget
forget --sesion ab                                    | --sesion
withdraw                                              | name what to withdraw
withdraw --session zz                                 | has no session 'zz'
withdraw --repository nowhere                         | no session of project 'nowhere'
withdraw --text ab                                    | three characters
withdraw --session ab --text abc                      | name one of
withdraw --dry-run                                    | name what to withdraw
dataset --consent {empty}                             | consent file
dataset --consent {list}                              | must be a mapping
dataset --consent {yaml}                              | is not YAML
dataset --consent {badrules}                          | consent file
dataset --tokenizer {tmp}/none                         | no such folder
ingest {sessions} --exclude *                         | every session file is excluded by *
status x                                              | x
status --ledger mysql://x/y                           | not a mysql:// one
status --ledger {file}                                | ledger
init x                                                | x
init --lake s3://                                     | names no bucket
init --lake foo://x                                   | Protocol not known: foo
init --lake {file}                                    | not writable
init --max-usd 0                                      | --max-usd must be above 0
init --max-usd lots                                   | --max-usd
init --teachers {badfield}                            | temperatur
init --teachers {tmp}/nowhere.yaml                    | nowhere.yaml
init --sessions {tmp}/nowhere                         | nowhere is not a folder
states --session zz                                   | no states of session 'zz'
states --project nowhere                              | no states of project 'nowhere'
states --session a --project nowhere                  | of project 'nowhere'
states --since yesterday                              | --since 'yesterday' is not a date
states --until 2026-99-01                             | --until '2026-99-01' is not a date
states --since 2999-01-01                             | no states of since 2999-01-01
sessions --until 1999-01-01                           | no sessions of until 1999-01-01
sessions --day 2026-11-16 --since 2026-11-17          | has no sessions of
sessions --project /                                  | of project '/'
plan --teachers {teachers} --teacher nobody           | nobody
plan --teachers {teachers} --session zz               | no states of session 'zz'
plan --teachers {teachers} --since 2999-01-01         | no states of since
replay --teachers {teachers} --teacher nobody         | nobody
replay --teachers {teachers} --project nowhere        | no states of project
replay --dry-run --teachers {badfield}                | temperatur
pairs --day 1999-01-01                                | no states of 1999-01-01
pairs --since later                                   | --since 'later' is not a date
normalize --day 1999-01-01                            | no pairs of 1999-01-01
verify --since 2999-01-01                             | no archived session of since
reparse --until 1999-01-01                            | no archived session of until
reparse --days 2026-11-16                             | --days
"""

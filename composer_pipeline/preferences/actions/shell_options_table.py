"""The options of the commands that coding agents run most; other commands compare by word.

A line is the names of commands, the kind of their operands, then, in any order: ``+abc`` options
without values, ``-r/--recursive`` one option with two names, a final ``:`` if it takes a value,
``@`` if that value is acted on, ``?`` if a value may be attached, ``!f,i`` options of which the
last one wins, ``#-n`` what ``-5`` means, and switches (see ``shell_options.Grammar``).
"""

import re

_GIT_LOG = (
    "-p/-u/--patch --stat? --oneline --graph --all --name-only --name-status --decorate?"
    " --no-decorate --reverse --merges --no-merges --first-parent --follow --abbrev-commit"
    " --numstat --shortstat -w -M? --no-color --cached/--staged --quiet --minimal --check"
    " --word-diff? --color? -U/--unified: --format: --pretty? --author: --since: --until: --after:"
    " --before: --grep: -S: -G: --diff-filter: --date: --no-patch -s !pretty,oneline,format"
    " !stat,name-only,name-status,numstat,shortstat,p,s,no-patch"
)
_TABLE = """
ls: paths unordered here +AFghHikLnNopqsuUvxXCZmc1tSrRdl -a/--all -h/--human-readable -d/--directory
  -R/--recursive -r/--reverse -A/--almost-all --color? !t,S,U,X,v !l,C,m,x,1,g,o !a,A !c,u
cat: paths +AbeEnstTuv -n/--number
wc: paths -l/--lines -w/--words -c/--bytes -m/--chars -L
head: paths #-n -n/--lines: -c/--bytes: -q/--quiet -v !n,c !q,v
tail: paths #-n -n/--lines: -c/--bytes: -f/--follow -F -q/--quiet -v !n,c !q,v
sort: paths +bdfghMnRrVuzcCms -n/--numeric-sort -r/--reverse -u/--unique -k/--key:
  -t/--field-separator: -o/--output: -h/--human-numeric-sort
uniq: text -c/--count -d/--repeated -u/--unique -i/--ignore-case
cut: paths -d/--delimiter: -f/--fields: -c/--characters: -s/--only-delimited
stat: paths -c/--format: -f: -L/--dereference
file: paths -b/--brief -i/--mime
tree: paths here +adfFshDprtC -L: -I: -P: --dirsfirst --noreport !I,P
du: paths here -s/--summarize -h/--human-readable -a/--all -c/--total -d/--max-depth: +kmx
df: paths -h/--human-readable +kTi
nl: paths -b: -n: -w: -s:
diff: paths +abBdEiNpqrswZ -u -r/--recursive -q/--brief -y/--side-by-side -w/--ignore-all-space
  -U/--unified: --color? -N/--new-file
cmp: paths -s/--silent/--quiet -l
mkdir: paths unordered -p/--parents -v/--verbose -m/--mode:
rmdir: paths unordered -p/--parents -v/--verbose
touch: paths unordered +acm -d/--date: -r/--reference: -t:
rm: paths unordered -r/-R/--recursive -f/--force +iI -v/--verbose -d/--dir !f,i,I
cp: paths-slash +abdHlLPsTx -r/-R/--recursive -a/--archive -f/--force -i/--interactive
  -n/--no-clobber -p -u/--update -v/--verbose -t/--target-directory: !f,i,n !H,L,P,a,d
mv: paths-slash -f/--force -i/--interactive -n/--no-clobber -u/--update -v/--verbose -T
  -t/--target-directory: !f,i,n
ln: paths-slash -s/--symbolic -f/--force -n/--no-dereference -v/--verbose -T -r/--relative -i !f,i
tar: paths -x/--extract -c/--create -t/--list -z/--gzip -j -J -v/--verbose -f/--file@
  -C/--directory: --exclude: --strip-components: -p -k -a -O -h -r -u
mvn, ./mvnw: text -q/--quiet -B/--batch-mode -o/--offline -U -X -e -pl: -am -f/--file: -T: -P: -D?
  -ntp
gradle, ./gradlew: text -q/--quiet -i/--info --stacktrace --tests@ -x: --no-daemon --continue -P?
  --offline --console: --rerun-tasks --parallel
dotnet test: paths -c/--configuration: --filter: --no-build --no-restore -v/--verbosity: --logger:
  -f/--framework:
dotnet build: paths -c/--configuration: --no-restore -v/--verbosity: -o/--output: -f/--framework:
terraform plan: text dash -out: -var: -var-file: -target: -input: -no-color -destroy
  -detailed-exitcode -refresh:
terraform apply: text dash -auto-approve -var: -var-file: -target: -input: -no-color -replace:
mix test: paths --trace --cover --failed --stale --seed: --only: --exclude: --include:
  --max-failures: --color
rspec: paths -f/--format: --fail-fast -e/--example: --tag: --color -b
tee: paths -a/--append -i
chmod, chown: script -R/--recursive -v/--verbose
grep, egrep, fgrep: pattern here #-C +RocqshHzaUbx -r/--recursive -i/--ignore-case -n/--line-number
  -l/--files-with-matches -L/--files-without-match -v/--invert-match -w/--word-regexp -c/--count
  -o/--only-matching -q/--quiet/--silent -s/--no-messages -h/--no-filename -H/--with-filename
  -E/--extended-regexp -F/--fixed-strings -G/--basic-regexp -P/--perl-regexp -e/--regexp: -f/--file:
  -m/--max-count: -A/--after-context: -B/--before-context: -C/--context: --include: --exclude:
  --exclude-dir: --color? !E,F,G,P !h,H !l,L !include,exclude,exclude-dir
rg: pattern here #-C -i/--ignore-case -n/--line-number -l/--files-with-matches -v/--invert-match
  -w/--word-regexp -c/--count -o/--only-matching -q/--quiet -s/--case-sensitive -S/--smart-case
  -F/--fixed-strings -U/--multiline -P/--pcre2 -H/--with-filename -I/--no-filename
  -N/--no-line-number --hidden --no-heading --heading --files --no-ignore -u/--unrestricted --json
  -g/--glob: -t/--type: -T/--type-not: -e/--regexp: -f/--file: -m/--max-count: -A/--after-context:
  -B/--before-context: -C/--context: --color: --sort: --max-depth: !i,s,S !H,I !n,N
  !heading,no-heading !json,l,c,o,q
sed: script -i/--in-place? -n/--quiet/--silent -E/-r/--regexp-extended -e/--expression: -f/--file:
  -s/--separate -z !e,f
jq: script -r/--raw-output -c/--compact-output -s/--slurp -S/--sort-keys -e/--exit-status
  -n/--null-input -M/--monochrome-output -C/--color-output -R/--raw-input -j !M,C
curl: text -X/--request: -H/--header: -d/--data: --data-raw: --data-binary: --json: -F/--form:
  -u/--user: -A/--user-agent: -b/--cookie: -c/--cookie-jar: -o/--output: -w/--write-out:
  -m/--max-time: --connect-timeout: --retry: -x/--proxy: -e/--referer: -T/--upload-file:
  -O/--remote-name -s/--silent -S/--show-error -L/--location -f/--fail -i/--include -I/--head
  -k/--insecure -v/--verbose -N/--no-buffer -G/--get --compressed -D/--dump-header: -# --url-query:
  --data-urlencode: --http1.1 --http2 !d,data-raw,data-binary,data-urlencode,json,F,H !o,O
make: text -j/--jobs: -C/--directory: -f/--file/--makefile: -B/--always-make -k/--keep-going
  -n/--dry-run/--just-print -s/--silent/--quiet -i/--ignore-errors --no-print-directory
pytest: paths -x/--exitfirst -q/--quiet -v/--verbose -s -l/--showlocals -k: -m: -n: -p: -o: -c: -r:
  --maxfail: --timeout: --tb: --cov? --cov-report: --cov-fail-under: --durations: --rootdir:
  --lf/--last-failed --ff/--failed-first --sw/--stepwise --co/--collect-only --no-header --no-cov
  --ignore: --deselect: --import-mode: --junitxml/--junit-xml: --pdb --disable-warnings
  --strict-markers --no-summary --runxfail --cache-clear -W: --dist: --color: --capture: --reruns:
  --asyncio-mode: --log-cli-level: --basetemp: --override-ini: --numprocesses: --benchmark-only
  --forked --setup-show !x,maxfail !q,v !s,capture
ruff check: paths unordered --fix --unsafe-fixes --no-fix --select: --ignore: --config:
  --extend-select: --extend-ignore: --diff --output-format: --statistics --preview --quiet -q
  --no-cache --show-fixes -e/--exit-zero --exclude: --watch -n
ruff format: paths unordered --check --diff --config: --quiet -q --no-cache --line-length: --preview
  --exclude:
black: paths unordered --check --diff -l/--line-length: -q/--quiet -v/--verbose -t/--target-version:
  --exclude: -S/--skip-string-normalization
isort: paths unordered -c/--check-only/--check --diff --profile: -q/--quiet
flake8: paths unordered --max-line-length: --select: --ignore: --extend-ignore: --count --statistics
  --show-source --exclude:
mypy: paths --strict --ignore-missing-imports --config-file: -p/--package@ -m/--module@
  --python-version: --no-error-summary --show-error-codes --explicit-package-bases
  --namespace-packages --follow-imports: --no-incremental --pretty --install-types --non-interactive
pyright: paths -p/--project: --outputjson --pythonpath: --stats
tsc: paths --noEmit -p/--project@ --watch -w -b/--build --skipLibCheck --pretty --strict
  --incremental
eslint: paths unordered --fix --ext: -c/--config: --max-warnings: --quiet --cache --no-cache --rule:
  -f/--format: --report-unused-disable-directives --no-eslintrc
prettier: paths unordered -w/--write -c/--check -l/--list-different --config: --log-level:
  --ignore-path: --single-quote
vitest, vitest run, jest: paths --run --silent --coverage? --watch? --no-coverage --reporter:
  -c/--config: -t/--testNamePattern/--testName: -u/--update --bail? --verbose --no-cache --ci
  -i/--runInBand --passWithNoTests --detectOpenHandles --forceExit --watchAll?
playwright test: paths -g/--grep: --headed --debug --project: --reporter: --workers: --retries:
  --timeout: --ui -u/--update-snapshots -c/--config: --trace: -x --list
git status: paths -s/--short -b/--branch --porcelain? -u/--untracked-files? --ignored? -v/--verbose
  --long
git diff, git show: paths marked LOG
git log: paths marked #-n -n/--max-count: --skip: LOG
git blame: paths marked -L: -w -e -s -l -C? -M? --date:
git add: paths unordered -A/--all/--no-ignore-removal -u/--update -p/--patch -f/--force -v/--verbose
  -n/--dry-run -N/--intent-to-add
git rm: paths unordered -r -f/--force --cached -q/--quiet -n/--dry-run
git mv: paths-slash -f/--force -k -n/--dry-run -v/--verbose
git restore: paths unordered -S/--staged -W/--worktree -s/--source: -p/--patch -q/--quiet
git commit: paths marked -m/--message: -a/--all -F/--file: -C/--reuse-message: --amend --no-edit
  -n/--no-verify --allow-empty -s/--signoff -S/--gpg-sign? --no-gpg-sign -q/--quiet -v/--verbose
  --author: --date: --fixup: --squash: --dry-run -e/--edit -p/--patch --allow-empty-message
  --reset-author --trailer: !edit,no-edit,e !S,no-gpg-sign
git push: refs -f/--force --force-with-lease? -u/--set-upstream --tags --all -d/--delete
  -n/--dry-run --no-verify -v/--verbose -q/--quiet --follow-tags --atomic !force,force-with-lease,f
git pull: refs -r/--rebase? --no-rebase --ff-only --no-ff --ff --autostash -q/--quiet -v/--verbose
  --tags --all -p/--prune --no-edit !rebase,no-rebase,r,ff-only,no-ff,ff
git fetch: refs --all -p/--prune -t/--tags --depth: -q/--quiet -f/--force -v/--verbose --unshallow
  -n/--no-tags !tags,no-tags,n,t
git checkout: refs -b@ -B@ -f/--force -q/--quiet -t/--track --ours --theirs -p/--patch --detach
  --orphan@ -m/--merge
git switch: refs -c/--create@ -C/--force-create@ -d/--detach -f/--force/--discard-changes -q/--quiet
  -t/--track --orphan@
git reset: refs --hard --soft --mixed --keep --merge -q/--quiet -p/--patch
  !hard,soft,mixed,keep,merge
git rebase: refs -i/--interactive --continue --abort --skip --onto@ --autostash -q/--quiet --root
  --autosquash --no-autosquash -X/--strategy-option: -r/--rebase-merges?
git merge: refs --no-ff --ff-only --ff --squash --abort --continue --no-commit --no-edit
  -m/--message: -q/--quiet -X/--strategy-option: -s/--strategy: --allow-unrelated-histories
  !no-ff,ff-only,ff,squash
git cherry-pick: refs -x -n/--no-commit --continue --abort --skip -e/--edit -m/--mainline:
  -X/--strategy-option:
git revert: refs --no-edit -n/--no-commit --continue --abort --skip -m/--mainline:
git branch: refs -a/--all -r/--remotes -v/--verbose -vv --list -l -d/--delete -D -m/--move -M
  --show-current -f/--force -u/--set-upstream-to: --contains? --merged? --no-merged? --sort:
  --format: -c/--copy -q/--quiet !a,r
git tag: refs -a/--annotate -m/--message: -d/--delete -l/--list -f/--force -s/--sign --sort: -n?
git clone: refs --depth: -b/--branch: --single-branch --recurse-submodules? -q/--quiet --bare
  --filter:
git stash push: paths unordered -m/--message: -u/--include-untracked -k/--keep-index -a/--all
  -q/--quiet -p/--patch -S/--staged
git stash pop, git stash apply: refs --index -q/--quiet
git stash drop: refs -q/--quiet
git stash list: refs --oneline
git stash show: refs -p/--patch --stat?
git clean: paths unordered +fdxXn -f/--force -n/--dry-run -q/--quiet -i -e/--exclude:
git rev-parse: text --short? --abbrev-ref --show-toplevel --git-dir --verify -q/--quiet
  --is-inside-work-tree --show-prefix
git ls-files: paths unordered -o/--others -m/--modified -c/--cached --exclude-standard -d/--deleted
  -s/--stage -z
npm install, pnpm install: packages unordered -D/--save-dev -g/--global -E/--save-exact --save -S
  -O/--save-optional --legacy-peer-deps --no-save --force -f --no-audit --no-fund --ignore-scripts
  --production --silent -w/--workspace: --prefix: --frozen-lockfile !save-dev,save,S,O,D
npm uninstall: packages unordered -D/--save-dev -g/--global --save -S --no-save
npm ci: text --silent --legacy-peer-deps --no-audit --no-fund --ignore-scripts --prefix:
npm test, npm start, npm run, pnpm test, pnpm run, yarn run, bun run, yarn test, bun test: text tail
  -s/--silent --if-present -w/--workspace: --workspaces --prefix:
npm ls: packages -g/--global --depth: --all -a --json --prod
pnpm add: packages unordered -D/--save-dev -g/--global -E/--save-exact --save -S -O/--save-optional
  --legacy-peer-deps --no-save --force -f --no-audit --no-fund --ignore-scripts --production
  --silent -w/--workspace: --prefix: --frozen-lockfile !save-dev,save,S,O,D --filter: -F:
yarn add: packages unordered -D/--dev -E/--exact -P/--peer -O/--optional -W
yarn install: text --frozen-lockfile --immutable --production --silent
bun add: packages unordered -d/-D/--dev -g/--global -E/--exact
bun install: packages unordered --frozen-lockfile -d/-D/--dev -g/--global --production
pip install, uv pip install, pip3 install: packages unordered -U/--upgrade -q/--quiet -v/--verbose
  -r/--requirement@ -e/--editable@ -c/--constraint: --no-deps --user --no-cache-dir --pre
  --force-reinstall -t/--target: -i/--index-url: --extra-index-url: --break-system-packages
  --no-build-isolation --system --dry-run -f/--find-links: --only-binary: --no-binary:
  !requirement,editable,r,e
pip uninstall: packages unordered -y/--yes -r/--requirement@
pip list: text --outdated -o --format: -v/--verbose
pip show: packages unordered -f/--files -v/--verbose
uv add: packages unordered --dev --group: --optional: --upgrade -U --no-sync
uv sync: text --dev --all-extras --extra: --frozen --locked --group: --no-dev -U/--upgrade
  --all-groups -q/--quiet
poetry add: packages unordered -D/--dev -G/--group: -E/--extras: --optional
docker run: text stop -d/--detach -i/--interactive -t/--tty --rm -p/--publish: -v/--volume:
  -e/--env: --name: --network: -w/--workdir: -u/--user: --entrypoint: --env-file: --platform:
  --privileged --restart: --mount: -h/--hostname: --gpus: -m/--memory: --cpus: --init !e,env-file
docker exec: text stop -i/--interactive -t/--tty -d/--detach -e/--env: -u/--user: -w/--workdir:
  --privileged
docker build: paths -t/--tag: -f/--file: --no-cache --pull --build-arg: --target: --platform:
  --progress: -q/--quiet --push --load
docker ps: text -a/--all -q/--quiet -f/--filter: --format: -n/--last: -s/--size --no-trunc
  -l/--latest
docker images: text -a/--all -q/--quiet -f/--filter: --format: --no-trunc
docker logs: text -f/--follow -n/--tail: -t/--timestamps --since: --until: --details
docker rm: text unordered -f/--force -v/--volumes -l
docker rmi: text unordered -f/--force --no-prune
docker stop: text unordered -t/--time: -s/--signal:
docker compose up: text unordered -d/--detach --build --force-recreate --no-deps --remove-orphans
  --wait --scale: --pull: --no-build -V --abort-on-container-exit
docker compose down: text -v/--volumes --remove-orphans --rmi: -t/--timeout:
docker compose logs: text unordered -f/--follow -n/--tail: -t/--timestamps --since: --no-color
docker compose ps: text unordered -a/--all -q/--quiet --format: --services
docker compose build: text unordered --no-cache --pull --build-arg: -q/--quiet
docker compose exec: text stop -T -d/--detach -e/--env: -u/--user: -w/--workdir:
docker compose run: text stop --rm -T -d/--detach -e/--env: -u/--user: -w/--workdir: --no-deps
  --entrypoint: -v/--volume: --name:
kubectl get: text -n/--namespace: -o/--output: -A/--all-namespaces -l/--selector: -w/--watch
  --show-labels --sort-by: --field-selector: --context:
kubectl describe: text -n/--namespace: -l/--selector: --context:
kubectl logs: text -n/--namespace: -f/--follow --tail: -c/--container: --since: -p/--previous
  -l/--selector: --context:
kubectl apply: paths -f/--filename@ -n/--namespace: -k/--kustomize@ --dry-run: --context: -R
kubectl delete: text -f/--filename@ -n/--namespace: --force --grace-period: -l/--selector:
  --context: --ignore-not-found --all
cargo test: text tail -p/--package: --workspace/--all --lib --release -q/--quiet -v/--verbose
  --features: --all-features --no-default-features --bin: --test@ --example: --no-run --no-fail-fast
  --manifest-path: -j/--jobs: --doc --bins --tests --all-targets --locked
cargo build: text -p/--package: --workspace/--all --lib --release -r -q/--quiet -v/--verbose
  --features: --all-features --no-default-features --bin: --example: --target: --locked
  --manifest-path: -j/--jobs: --all-targets --bins --tests
cargo check: text -p/--package: --workspace/--all --lib --release -q/--quiet -v/--verbose
  --features: --all-features --no-default-features --all-targets --tests --locked --manifest-path:
  --message-format: -j/--jobs:
cargo clippy: text tail -p/--package: --workspace/--all --fix --all-targets --all-features
  -q/--quiet --features: --allow-dirty --tests --no-deps --release
cargo fmt: text tail --all --check -p/--package: -v/--verbose -q/--quiet
cargo run: text tail -p/--package: --release -r --bin: --example: --features: -q/--quiet
cargo add: packages unordered -F/--features: --dev -D --build --optional -p/--package:
  --no-default-features
go test: packages dash -v -race -short -cover -failfast -json -run: -count: -timeout: -bench:
  -benchmem -coverprofile: -covermode: -tags: -parallel: -p: -cpu: -skip: -mod: -list: -vet:
go build: packages dash -v -race -o: -tags: -ldflags: -mod: -trimpath -gcflags: -x -a -n
go vet: packages dash -v -tags: -mod: -json
gh pr view: text --json: -q/--jq: -R/--repo: -c/--comments -w/--web -t/--template:
gh pr list: text --json: -q/--jq: -R/--repo: -L/--limit: -s/--state: -a/--assignee: -A/--author:
  -l/--label: -S/--search: -H/--head: -B/--base: -w/--web -d/--draft
gh pr create: text -t/--title: -b/--body: -B/--base: -H/--head: -d/--draft -f/--fill -r/--reviewer:
  -l/--label: -a/--assignee: -R/--repo: -F/--body-file: -w/--web
gh pr diff: text -R/--repo: --name-only --patch --color: -w/--web
gh pr checks: text -R/--repo: --watch --required -i/--interval: -w/--web --json: -q/--jq:
gh pr merge: text -s/--squash -m/--merge -r/--rebase -d/--delete-branch --auto --admin -R/--repo:
  -t/--subject: -b/--body: !s,m,r
gh issue view: text --json: -q/--jq: -R/--repo: -c/--comments -w/--web
gh issue list: text --json: -q/--jq: -R/--repo: -L/--limit: -s/--state: -l/--label: -a/--assignee:
  -S/--search: -A/--author:
gh run view: text --log --log-failed -R/--repo: --json: -q/--jq: -j/--job@ -v/--verbose
  --exit-status
gh run list: text -L/--limit: -R/--repo: -w/--workflow: -b/--branch: --json: -q/--jq: -s/--status:
"""

#: ``program`` or ``program subcommand`` to its grammar.
GRAMMARS: dict[str, str] = {
    name: " ".join(grammar.split()).replace("LOG", _GIT_LOG)
    for line in re.split(r"\n(?! )", _TABLE.strip())
    for names, _, grammar in [line.partition(": ")]
    for name in names.split(", ")
}

#: Other names of subcommands.
ALIASES: dict[str, str] = {
    "npm i": "install", "npm add": "install", "npm in": "install",
    "npm t": "test", "npm tst": "test", "npm run test": "test", "npm run start": "start",
    "npm run-script test": "test", "npm run-script": "run", "npm rum": "run",
    "npm uninstall": "uninstall", "npm un": "uninstall", "npm remove": "uninstall",
    "npm rm": "uninstall", "npm r": "uninstall", "npm list": "ls", "npm la": "ls",
    "pnpm i": "install", "pnpm t": "test", "pnpm run test": "test", "bun i": "install",
    "yarn run test": "test",
    "cargo t": "test", "cargo b": "build", "cargo c": "check", "cargo r": "run",
    "docker image ls": "images", "docker container ls": "ps", "docker container run": "run",
    "docker container exec": "exec", "docker container logs": "logs", "docker container rm": "rm",
    "docker container stop": "stop", "docker image rm": "rmi", "docker image build": "build",
}  # fmt: skip

#: Programs whose first word is a subcommand.
SUBCOMMANDS = frozenset(key.split()[0] for key in GRAMMARS if " " in key)

#: Options of a program itself, before its subcommand, that take the next word.
GLOBAL_VALUED = frozenset(
    {"git -C", "git -c", "git --git-dir", "git --work-tree", "kubectl -n", "kubectl --namespace",
     "kubectl --context", "kubectl --kubeconfig", "npm --prefix", "npm -w", "npm --workspace",
     "pnpm --filter", "pnpm -F", "pnpm -C", "docker --context", "docker -H", "yarn --cwd",
     "gh -R", "gh --repo", "terraform -chdir"}
)  # fmt: skip
#: Programs that also accept such options after the subcommand, with the same meaning.
GLOBAL_ANYWHERE = frozenset({"kubectl", "npm"})

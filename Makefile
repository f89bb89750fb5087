# Two commands do everything on a fresh machine: `make demo` and `make test` (which also builds the documentation).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Byte code is kept, whatever the environment says: tests start dozens of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo table docs notebooks check one suite test wheel nightly lint types clean

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[plots,table]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) -e ".[test]"
	touch $@

demo: $(VENV)/.demo
	OMP_NUM_THREADS=1 $(BIN)/posterity demo --out demo-output

table: $(VENV)/.demo
	OMP_NUM_THREADS=1 $(BIN)/posterity table

docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict

# The tutorials as executed notebooks, in examples/notebooks.
notebooks: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore examples/notebooks/make.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# In a minute or so: linters, types, and a test of every room. `make test` is what counts.
check: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal @tests/fast.txt

# One file or one test: make one TEST=tests/merging/test_methods.py
one: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TEST)

# Each of two processes takes one half of the tests in order, so that fixtures of a file are made once.
suite: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint types suite

# The wheel, and that it works where nothing of this folder can be imported.
wheel:
	rm -rf dist build/wheel && mkdir -p build/wheel
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	build/wheel/venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/wheel && venv/bin/posterity --version && venv/bin/posterity fit --help > /dev/null

# Tests with tight tolerances, which must hold whatever instructions and however many threads torch uses.
NUMERICAL := tests/families tests/gradients tests/graph tests/algorithms tests/posterior tests/memory tests/optim \
  tests/test_rule.py tests/test_linalg.py tests/test_likelihoods.py

# What takes hours: damaged files, kills, resumes after every step, mutated source code; and first, in some minutes and
# with the network, the README in a fresh environment with a built wheel and exactly the extras it names.
nightly: $(VENV)/.test
	rm -rf build/readme && mkdir -p build/readme
	$(PYTHON) -m venv build/readme/venv
	build/readme/venv/bin/pip install --quiet -c constraints.txt torch ".[$(shell sed -nE "s/.*pip install '\\.\\[([a-z,]+)\\]'.*/\\1/p" README.md | paste -sd, -)]"
	cd build/readme && venv/bin/python ../../tests/paste_readme.py ../../README.md venv/bin
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore examples/notebooks/make.py --check
	rm -rf nightly-output && mkdir nightly-output
	OMP_NUM_THREADS=1 POSTERITY_NIGHTLY=1 $(BIN)/python -m pytest tests/runs/test_resuming.py
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/optim/interpreted.py tests/optim/interpreted_adam.py
	for level in default avx2; do for threads in 1 2; do \
	  ATEN_CPU_CAPABILITY=$$level OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest $(NUMERICAL) || exit 1; done; done
	$(BIN)/python tests/fuzz.py nightly-output/fuzz --rounds 2000
	OMP_NUM_THREADS=1 $(BIN)/python tests/kills.py nightly-output/kills save run fit adapt merge --kills 200
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py optim posterior memory adaptation merging --count 200 --out nightly-output/mutants

clean:
	rm -rf $(VENV) demo-output nightly-output site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

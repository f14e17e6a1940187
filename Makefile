# make demo   from nothing to plots: environment, smoke sweep on localhost, figures
# make test   from nothing to green tests
# make soak   what takes too long for every commit: the rest of the fault matrix, 64 ranks, and up to 500 kill -9 in an hour
# make lint   style and types        make wheel   what would be published        make clean
# make figures   the documentation's figures, from the runs in results/reference

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test soak lint wheel clean figures

demo: $(INSTALLED)
	$(BIN)/netbench sweep smoke --name demo
	$(BIN)/netbench plot $$(ls -d results/*-demo-* | tail -n 1)

# Two processes, since most of the time tests wait for programs that they started; a file's tests stay together, since
# they share sweeps, and in order, since the last files are the shortest. Then, even after a failure, what must not have company.
test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not soak and not alone" -n 2 --dist loadfile --no-loadscope-reorder; first=$$?; \
	$(BIN)/python -m pytest -m "not soak and alone" && exit $$first

soak: $(INSTALLED)
	$(BIN)/python -m pytest -m soak
	$(BIN)/python tests/faults/soak.py $(SOAK)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

figures: $(INSTALLED)
	cd results/reference && for run in explain-*; do ../../$(BIN)/netbench explain $$run; done
	cd results/reference && ../../$(BIN)/netbench plot --figures world_size world_size-*
	cd results/reference && ../../$(BIN)/netbench plot --figures beside_quoted streams-* torchft_199
	cd results/reference && ../../$(BIN)/netbench plot --figures bandwidth polling-*

wheel: $(INSTALLED)
	rm -rf dist
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python -m zipfile -l dist/netbench-*.whl | grep netbench/configs/smoke.toml >/dev/null

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "netbench needs Python 3.11 or newer; say which: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(INSTALLED)

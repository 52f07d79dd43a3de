# Everything runs in .venv, which each target makes and fills by itself; nothing is done twice.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
TRAIN_ARGS ?=

.PHONY: train test test-all lint format docs screenshots course notebook clean

train: $(READY)
	$(VENV)/bin/headrace train $(TRAIN_ARGS)

test: $(READY)
	$(VENV)/bin/pytest -n 2 --dist loadfile -m "not slow"

test-all: $(READY)
	$(VENV)/bin/pytest -n 2

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

course: $(READY)
	$(VENV)/bin/pytest course

notebook: $(READY)
	$(VENV)/bin/pytest tests/test_notebook.py

docs: $(READY)
	$(VENV)/bin/python docs/make_schedules.py
	$(VENV)/bin/python docs/make_planning.py
	$(VENV)/bin/python docs/make_pictures.py
	$(VENV)/bin/python docs/make_outputs.py
	$(VENV)/bin/sphinx-build -q -W --keep-going -E -b html docs docs/_build
	@echo "the site begins at docs/_build/index.html"

# needs a Chromium, which the pages themselves do not
screenshots: $(READY)
	$(VENV)/bin/python docs/make_screenshots.py

# constraints.txt names the exact version of torch, so that pip takes the build that fits this machine.
$(READY): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and what else is needed into $(VENV): some minutes, once"
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) build dist runs docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

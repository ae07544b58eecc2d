PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test schema clean

demo: $(VENV)/.demo
	$(BIN)/softprompts tune --task helpdesk/intent --output runs/demo
	$(BIN)/softprompts predict runs/demo "My parcel was due on Monday and has still not come. Where is it?"

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadfile

schema: $(VENV)/.test
	$(BIN)/python -c "from softprompts.config.kinds import FILE, describe_all; FILE.write_text(describe_all())"
	$(BIN)/softprompts schema run > docs/schema/run.schema.json
	$(BIN)/softprompts schema study > docs/schema/study.schema.json

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[plots]'
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

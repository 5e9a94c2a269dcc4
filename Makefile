# Every target sets itself up from nothing: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Small tensors on many threads run slower than on one; two test processes use the cores instead.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test check format bench docs test-gpu test-lowest clean

demo: .venv/installed
	$(BIN)/joslim train --model resnet8 --data digits --low 0.12 --steps 1400 --every 20 --threads 1 \
		--out runs/demo --overwrite
	@echo "the network in a browser: $(BIN)/joslim demo-page runs/demo -o runs/demo-page"

test: check
	$(TEST) -n 2 --dist loadfile

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	$(BIN)/python benchmarks/costs.py
	$(BIN)/python benchmarks/slicing.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/whole.py
	$(BIN)/python benchmarks/layout.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/switch.py
	$(BIN)/python benchmarks/bundle.py
	$(BIN)/python benchmarks/divisor.py
	$(BIN)/python benchmarks/allocate.py
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/house.py
	$(BIN)/python -m pip install --quiet --no-deps pytorchcv requests
	$(BIN)/python benchmarks/zoo.py pytorchcv
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/kill.py --runs 10 --terms 2 --pairs 1
	$(BIN)/python benchmarks/fuzz.py --cases 200

docs: .venv/installed
	$(BIN)/mkdocs build --strict --quiet

# On a machine with a GPU: the tests that need one, and selftest.json to send back.
test-gpu: .venv/installed
	$(BIN)/python -m pytest -m cuda
	$(BIN)/joslim selftest --device cuda -o selftest.json

# The command line, data and runs with the lowest versions that pyproject.toml promises, and no extras.
LOWEST := tests/cli/test_cli.py tests/cli/test_train.py tests/cli/test_front.py tests/cli/test_pick.py \
	tests/cli/test_report.py tests/data tests/test_front.py tests/test_allocation.py tests/runs/test_checkpoint.py

test-lowest: .venv-lowest/installed
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -W ignore $(LOWEST)

clean:
	rm -rf .venv .venv-lowest build site *.egg-info

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

.venv-lowest/installed: pyproject.toml lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet -c lowest.txt -e . hypothesis pytest
	touch $@

# demo   install into .venv and run one scenario
# test   quick tests on two workers, then those that start trainers, one at a time
# nightly  what takes longer: the explorer exhaustively and far beyond, all planted bugs, tests of minutes
# check  lint, format, types
# test-native   the kernels under address and undefined behaviour sanitizers, every row this processor has
# bench-update  one update of 2 GiB against Adam alone and torch's (3 GiB of memory); fails where it takes too long
# bench-coding  the erasure code against ISA-L (Debian: libisal2) and memory; fails where a target is missed
PYTHON ?= python3
BIN := .venv/bin
NATIVE := pyproject.toml $(wildcard kernels/*)

.PHONY: demo test nightly check clean test-native bench-coding bench-update

demo: .venv/.installed-train
	$(BIN)/leto-chaos run scenarios/update-phase.yaml

test: .venv/.installed-dev
	$(BIN)/pytest -n 2 -m "not process"
	$(BIN)/pytest -n 0 -m process

nightly: .venv/.installed-dev
	$(BIN)/leto-chaos explore --exhaustive
	$(BIN)/leto-chaos explore --seed 1 --points 50000
	$(BIN)/leto-chaos mutants
	$(BIN)/pytest -n 0 -m slow

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-native: .venv/.installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -G Ninja -S tests/native -B build/native -DLETO_SANITIZE=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/native
	set -e; for row in $$($(BIN)/python -c "from leto import _kernels; print(*_kernels.supported_rows)"); do \
		LETO_KERNEL=$$row build/native/code_check; done

bench-coding: .venv/.installed-dev
	$(BIN)/python -m benchmarks.coding

bench-update: .venv/.installed-dev
	$(BIN)/python -m benchmarks.update

clean:
	rm -rf .venv build dist

$(BIN)/python:
	$(PYTHON) -m venv .venv

# Native code is built by the installation, so it is installed again when native sources change.
.venv/.installed-train: $(NATIVE) | $(BIN)/python
	@echo "installing into .venv; torch and megatron take some minutes the first time"
	$(BIN)/pip install --quiet -e ".[train]"
	touch $@

.venv/.installed-dev: $(NATIVE) | $(BIN)/python
	@echo "installing into .venv; torch and megatron take some minutes the first time"
	$(BIN)/pip install --quiet -e ".[train,dev]"
	touch $@ .venv/.installed-train

# The first target that needs something installs it; nothing has to be set up by hand.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q install -c constraints.txt

.PHONY: demo test test-fast proof check bench planted clean

demo: .venv/.demo
	$(BIN)/python examples/demo.py

# One thread each: two workers whose torch spins on all cores wait for each other most of the time.
# Compiled modules are kept, whatever is set outside: hundreds of processes import the package.
PYTEST := OMP_NUM_THREADS=1 TENSORTAP_STRICT=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadgroup

test: .venv/.test .venv/.browser
	$(PYTEST)

# Two minutes: no other processes, browsers or compilers, no laws, and few examples of each property.
test-fast: .venv/.test
	$(PYTEST) -m "not process and not browser and not distributed and not compile and not law" \
	  --hypothesis-profile=fast

# Every case of what `make test` samples, and ten times the examples of each property.
proof: .venv/.test .venv/.browser
	TENSORTAP_PROOF=1 $(PYTEST)

check: .venv/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@if command -v npx >/dev/null; then npx -y -p typescript@5 tsc -p jsconfig.json; \
	else echo "no node here: the types of the viewer's pages were not checked"; fi
	$(MAKE) test

bench: .venv/.test
	$(BIN)/python benchmarks/ground.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/gather.py
	$(BIN)/python benchmarks/hdf5.py
	$(BIN)/python benchmarks/layouts.py
	$(BIN)/python benchmarks/live_push.py
	$(BIN)/python benchmarks/live.py
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/track.py
	$(BIN)/python benchmarks/compare_runs.py
	$(BIN)/python benchmarks/viewer.py
	$(BIN)/python benchmarks/viewer_browser.py
	$(BIN)/python benchmarks/cli.py
	$(BIN)/python benchmarks/metadata.py
	cd benchmarks && ../$(BIN)/python -m planted --short

# Writes docs/planted.md, in three quarters of an hour.
planted: .venv/.test
	cd benchmarks && ../$(BIN)/python -m planted

clean:
	rm -rf .venv build src/*.egg-info src/tensortap/kernels/*.so .mypy_cache .ruff_cache .hypothesis

# torch first and pinned: what comes after finds it satisfied and fetches no other build.
.venv/.torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	touch $@

.venv/.demo: .venv/.torch pyproject.toml setup.py src/tensortap/kernels/_native.c
	$(PIP) -e '.[fast]' transformers
	touch $@

# The tests that look at pages need a browser: installed where we may, else they are skipped and say so.
.venv/.browser: .venv/.test
	@command -v chromium >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; } || \
	  echo "chromium is not here and cannot be installed: the tests of the viewer's pages will be skipped"
	touch $@

.venv/.test: .venv/.torch pyproject.toml setup.py src/tensortap/kernels/_native.c
	$(PIP) -e '.[fast,test]'
	touch $@

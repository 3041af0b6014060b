# Every target makes what it needs first, so each works as the first command in a fresh clone
# with Python 3.11, make and git.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := semtrace adapters conformance tests examples tools benchmarks

.PHONY: demo test test-integration lint format bench fuzz proto golden golden-vllm bundles clean

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

.PHONY: .venv
.venv: .venv/.installed

demo: .venv/.installed
	$(BIN)/python examples/demo.py

test: .venv/.installed
	$(BIN)/pytest -n 2

test-integration: .venv/.installed .venvs/autogen/.installed .venvs/metagpt/.installed .venvs/protobuf6/.installed .venvs/ray/.installed .venvs/dynamo/.installed \
		.venvs/vllm/.installed .venvs/triton/.installed
	$(BIN)/pytest -m integration

# The oldest Protobuf that semtrace runs on; .venv has the newest.
.venvs/protobuf6/.installed: pyproject.toml
	$(PYTHON) -m venv .venvs/protobuf6
	.venvs/protobuf6/bin/pip install --quiet --disable-pip-version-check -e . protobuf==6.30.2
	touch $@

# A Ray cluster of this machine, for sweeps.
.venvs/ray/.installed: pyproject.toml
	$(PYTHON) -m venv .venvs/ray
	.venvs/ray/bin/pip install --quiet --disable-pip-version-check -e '.[ray]'
	touch $@

.venvs/autogen/.installed: tests/integration/requirements-autogen.txt
	$(PYTHON) -m venv .venvs/autogen
	.venvs/autogen/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

.venvs/metagpt/.installed: tests/integration/requirements-metagpt.txt tests/integration/overrides-metagpt.txt
	$(PYTHON) -m venv .venvs/metagpt
	.venvs/metagpt/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
	.venvs/metagpt/bin/uv pip install --quiet --python .venvs/metagpt/bin/python --no-deps \
		--build-constraints tests/integration/overrides-metagpt.txt -r $<
	touch $@

# Dynamo: its offline replay is the peer of the simulation benchmarks, its mocker a server of live replay.
.venvs/dynamo/.installed: benchmarks/requirements-dynamo.txt
	$(PYTHON) -m venv .venvs/dynamo
	.venvs/dynamo/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

# The peer of the benchmarks of live replay, which make this themselves; no test needs it.
.venvs/aiperf/.installed: benchmarks/requirements-aiperf.txt
	$(PYTHON) -m venv .venvs/aiperf
	.venvs/aiperf/bin/pip install --quiet --disable-pip-version-check --no-compile -r $<
	touch $@

.venvs/vllm/.installed: tests/integration/requirements-vllm.txt
	$(PYTHON) -m venv .venvs/vllm
	.venvs/vllm/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile -r $<
	.venvs/vllm/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

# No environment: a folder that a process with vLLM is given, or not.
.venvs/triton/.installed: tests/integration/requirements-triton.txt .venvs/vllm/.installed
	.venvs/vllm/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target .venvs/triton -r $<
	touch $@

lint: .venv/.installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/buf lint proto
	$(BIN)/buf breaking proto --against proto/images/1.0-draft.binpb

format: .venv/.installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# The declarations in semtrace/records are the source of the .proto files, of their Python code and of spec/tables.md; the
# models of documents (tools/documents.py lists them) are that of spec/schemas/.
proto: .venv/.installed
	$(BIN)/python tools/generate_proto.py
	$(BIN)/python tools/generate_tables.py
	$(BIN)/python tools/generate_schemas.py
	$(BIN)/buf lint proto
	$(BIN)/protoc --proto_path=proto --python_out=. --pyi_out=. proto/semtrace/v1/*.proto

bench: .venv/.installed
	$(BIN)/python benchmarks/run.py

fuzz: .venv/.installed
	$(BIN)/python tests/fuzz/run.py

# What is expected of testees: the cases of the conformance suite, and the scores of the wrong ones.
golden: .venv/.installed
	$(BIN)/python conformance/make_cases.py
	$(BIN)/python conformance/fakes/golden.py

# What vLLM's own schedulers did with some loads.
golden-vllm: .venv/.installed .venvs/vllm/.installed
	$(BIN)/python tests/differential/vllm_schedules/make.py

# With a new version of the standard: files of every form that it writes, which all later versions must read.
bundles: .venv/.installed
	$(BIN)/python tools/keep_bundles.py

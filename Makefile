# One virtual environment, pinned packages, one command a purpose. `make help` lists them.
# Variables: PYTHON=<python 3.11 or newer>  PRESET=<smoke|laptop|variants|single_gpu|paper>  CORES=<n|all>  EXTRAS="gpu slurm"
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PRESET ?= laptop
CORES ?= all
EXTRAS ?=
WORKERS ?= 2
PYTEST_ARGS ?=
BROWSERS := $(HWH_CHROMIUM) chromium chromium-browser google-chrome google-chrome-stable
# Of `make soak`: MINUTES, KILLS, and SEED of another run to kill at the same points of the plan.
MINUTES ?= 25
KILLS ?= 60
SEED ?=
# Of `make bundle`: what the other machine is, and how the bundle is cut.
PYTHON_VERSION ?= 3.12
PLATFORM ?= manylinux_2_28_x86_64
PART_MIB ?= 60
WITHOUT ?= torch
OUTPUT ?= build/bundle-$(PRESET)
# Empty: all data of the preset.
TARGETS ?=
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
endif

# The laptop preset is config/config.yaml, which Snakemake takes by itself.
CONFIG = $(if $(filter laptop,$(PRESET)),,--configfile config/$(PRESET).yaml)
PRESETS = $(sort $(wildcard config/*.yaml))
RUN = PATH="$(CURDIR)/$(BIN):$$PATH"

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONNOUSERSITE := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_DISABLE_TELEMETRY := 1
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
# pip would compile every module of every package, which takes longer than installing them. This proves that the packages
# load, and compiles what is used.
LOAD = import torch, torch.utils.data, transformers, datasets, lm_eval.evaluator, gguf, accelerate, pandas, pyarrow.parquet, \
	scipy.stats, scipy.optimize, scipy.signal, matplotlib.pyplot, jinja2, pydantic, rich.table, zstandard, snakemake.cli, snakemake.api
# glibc gives freed memory back to the system by default; tensors of one training step are then paged in anew at the next.
MALLOC = MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456 \
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1

.PHONY: help known-preset setup setup-dev reproduce report claims test pytest soak chromium slurm-wlm test-slurm test-slurm-short \
	lint format dry-runs doctor bundle pins clean-venv

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "error: Python 3.11 or newer is needed, and python3 here is $$(python3 --version 2>&1 | head -n 1);" \
	    "install one and give its name: make PYTHON=python3.12 ..." >&2; exit 1; fi
	@command -v "$(PYTHON)" >/dev/null || { echo "error: PYTHON=$(PYTHON) is no program on this machine" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1 | head -n 1), but Python 3.11 or newer is needed;" \
	    "give another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) lacks the venv module; on Debian and Ubuntu install the package python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)

# A stamp a layer: a second call installs nothing, an edited list of versions installs what changed.
$(VENV)/.installed-run: requirements/run.txt requirements/cuda-constraints.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --no-compile --requirement requirements/run.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@echo "loading the packages once"
	@$(BIN)/python -c "$(LOAD)"
	@touch $@

$(VENV)/.installed-%: requirements/%.txt $(VENV)/.installed-run
	$(BIN)/python -m pip install --no-compile --requirement requirements/$*.txt | { grep -v '^Requirement already satisfied' || true; }
	@touch $@

setup: $(VENV)/.installed-run $(foreach extra,$(EXTRAS),$(VENV)/.installed-$(extra))  ## create .venv with pinned packages (EXTRAS="gpu slurm" adds layers)

setup-dev: setup $(VENV)/.installed-dev  ## the same, with test tools and linters

# Snakemake would answer a missing preset with a traceback.
known-preset:
	@test "$(PRESET)" = laptop -o -f "config/$(PRESET).yaml" || { \
	  echo "error: PRESET=$(PRESET): config/$(PRESET).yaml does not exist; expected laptop or one of" \
	    "$(filter-out config,$(basename $(notdir $(PRESETS))))" >&2; exit 1; }

reproduce: known-preset setup  ## run the whole workflow (PRESET=laptop), then print the claims and the path of the report
	$(RUN) $(MALLOC) snakemake --cores $(CORES) $(CONFIG)
	@$(MAKE) report

report: known-preset setup  ## Snakemake report of a finished run as one HTML file, and the table of the claims
	@$(RUN) snakemake --report results/$(PRESET)/report.html $(CONFIG) > results/$(PRESET)/report.log 2>&1 || { \
	  cat results/$(PRESET)/report.log >&2; exit 1; }
	@$(BIN)/hwh report results/$(PRESET)

test: setup-dev pytest  ## set up and run all tests

pytest: setup-dev
	$(RUN) $(MALLOC) OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 MPLBACKEND=Agg \
	  $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

soak: setup-dev  ## kill trainings, downloads, evaluations, probes and Snakemake at random points (MINUTES KILLS SEED)
	$(RUN) OMP_NUM_THREADS=1 $(BIN)/python tests/soak/soak.py --minutes $(MINUTES) --kills $(KILLS) $(if $(SEED),--seed $(SEED))

chromium:  ## install Chromium where it is missing (Debian, as root): without it the tests of the head atlas are skipped
	@for name in $(BROWSERS); do command -v "$$name" >/dev/null && exit 0; done; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "error: no Chromium here, and it can be installed by root with apt-get only; install it by hand, or name a" \
	    "program of another place in HWH_CHROMIUM" >&2; exit 1; fi; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium

slurm-wlm:  ## install Debian's SLURM where it is missing (as root), for test-slurm
	@export PATH="$$PATH:/usr/sbin:/sbin"; missing=; \
	for name in munged slurmctld slurmd sbatch srun scancel scontrol sinfo squeue; do \
	  command -v "$$name" >/dev/null || missing="$$missing $$name"; done; \
	test -z "$$missing" && exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "error: not here:$$missing; only root can install them, with apt-get: install SLURM and munge first, on Debian" \
	    "and Ubuntu the packages slurm-wlm and munge" >&2; exit 1; fi; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends slurm-wlm munge

test-slurm: slurm-wlm $(VENV)/.installed-slurm  ## the workflow on a SLURM of its own, alone on this machine: the whole smoke preset and all checks
	$(RUN) OMP_NUM_THREADS=1 $(BIN)/python tests/slurm/check_slurm.py

test-slurm-short: slurm-wlm $(VENV)/.installed-slurm  ## of these: time limit, repeat, scancel (some minutes; CI runs it)
	$(RUN) OMP_NUM_THREADS=1 $(BIN)/python tests/slurm/check_slurm.py limits

lint: setup-dev  ## ruff, snakefmt and snakemake --lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check workflow
	$(RUN) snakemake --lint

dry-runs: setup  ## plan every preset without running anything
	$(RUN) snakemake --dry-run --quiet rules
	@for preset in $(PRESETS); do \
	  echo "dry run of $$preset"; \
	  $(RUN) snakemake --dry-run --quiet rules --configfile "$$preset"; \
	done

format: setup-dev  ## write the code in the project's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt workflow

doctor: setup  ## what this machine offers and what each preset would miss
	@$(BIN)/hwh doctor

bundle: $(VENV)/.installed-run  ## pack code, data and wheels for a machine without network (PRESET TARGETS PYTHON_VERSION PLATFORM EXTRAS WITHOUT PART_MIB OUTPUT)
	$(RUN) $(BIN)/python -m bundle.pack --preset $(PRESET) --python-version $(PYTHON_VERSION) --platform $(PLATFORM) \
	  --cores $(CORES) --part-mib $(PART_MIB) --output $(OUTPUT) --without $(WITHOUT) --extras $(EXTRAS) \
	  --targets $(TARGETS) $(BUNDLE_ARGS)

pins: setup-dev  ## resolve requirements/*.in anew, keeping versions that stand (UPDATE="--upgrade NAME")
	$(BIN)/python requirements/update.py $(UPDATE)

clean-venv:  ## remove .venv (results and downloads stay)
	rm -rf $(VENV)

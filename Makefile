# Every command the project has; each does its own set-up. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
K ?=

.PHONY: kernel
kernel:  ## build the kernels named in K=a,b (all when empty) in place
	@mkdir -p build
	PENSTOCK_KERNELS=$(K) flock build/.kernel.lock $(BIN)/python setup.py -q build_ext --inplace

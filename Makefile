# The habits of the project; all real work is in CMake.
#
#   make            build libtide.so, libtide_host.so and the tide program into build/
#   make cuda       the same with libtide_cuda.so, which is else built only where there is a GPU
#   make gpu-pack   all that specs and benchmarks need on a GPU machine without LuaJIT, cmake and
#                   busted, as the folder build/gpu-pack (spec/cuda/firstday)
#   make deps       install the Debian packages that are missing (needs root or sudo)
#   make train      build, then train a small language model on two ranks, about three minutes;
#                   the run is in runs/train, and the next one takes its place (ARGS: --out, --resume)
#   make test       everything a change must pass; the last line is "N passed, N failed"
#   make test-deep  the same under sanitizers, and wide sweeps (spec/deep); long
#   make test-levels  specs of kernels with AVX-512 and AMX as loops: needs AVX2 alone
#   make test-arm64 specs of ops, gradients, ranks and recipes as AArch64 code on an emulator; an hour
#   make fuzz       random cases against oracles alone, ten minutes (TIDE_MINUTES=60 an hour)
#   make bench      benchmarks against PyTorch and oneDNN, ten minutes; bench-full: all, an hour
#   make sizes      files and functions that stand out
#   make reference  write lua/guide/reference.md from what the Lua files declare
#   make docs       README, guides and reference as a site of HTML files, in build/docs
#   make bench-scale  how a training step grows with its sizes, as lua/guide/scale.svg; ten minutes
#   make bench-comm collectives against Open MPI, and what they cost a training step
#   make deb        Debian packages in build/deb      make dist   the source as build/tide-VERSION.tar.gz
#   make test-deb   lintian, and the packages tried in a bare Debian (needs root); part of test-deep
#   make install    to PREFIX (/usr/local)       make uninstall   what the last one wrote
#   make clean      remove build/
#
# Variables: PREFIX, DESTDIR, JOBS (spec files at a time), ARGS (for train and bench), SPEC (for
# test: one file or folder), CMAKE_ARGS (for the configure step).

PREFIX ?= /usr/local
JOBS   ?= $(shell nproc 2>/dev/null || echo 1)
LUAJIT ?= luajit
BUILD  := build

# What a build and a training run need; what the specs and benchmarks need besides.
DEBIAN_BUILD := make gcc libc6-dev cmake ninja-build pkg-config luajit libluajit-5.1-dev \
	libpcre2-8-0 libutf8proc2
DEBIAN := $(DEBIAN_BUILD) g++ lua-busted lua-check libcmocka-dev libdnnl-dev \
	libopenmpi-dev openmpi-bin cmark-gfm libturbojpeg0 libpng16-16 libwebp7

ifneq ($(shell command -v ninja 2>/dev/null),)
export CMAKE_GENERATOR ?= Ninja
endif
MAKEFLAGS += --no-print-directory
export LUA_PATH := bindings/?.lua;lua/?.lua;lua/?/init.lua;;

.PHONY: all cuda gpu-pack deps deps-build deps-deb train test test-asan test-tsan test-sweep \
	test-levels test-arm64 test-deep fuzz bench \
	bench-full bench-comm bench-scale sizes reference deb dist test-deb docs install uninstall clean help

# CMake runs again by itself when its files change; here when it is asked for something else than
# last time, or after packages were installed.
STAMP := $(BUILD)/configured
CONFIGURE = cmake --preset release '-DCMAKE_INSTALL_PREFIX=$(PREFIX)' $(CMAKE_ARGS)

all:
	@mkdir -p $(BUILD); asked="$(subst ",\",$(CONFIGURE))"; log=$(BUILD)/configure.log; \
	  test "$$asked" = "$$(cat $(STAMP) 2>/dev/null)" || { \
	    rm -f $(STAMP); $(CONFIGURE) >$$log 2>&1 || { cat $$log; exit 1; }; \
	    grep '^-- tide' $$log; printf '%s\n' "$$asked" >$(STAMP); }
	@cmake --build $(BUILD) -j $(JOBS)

cuda:
	@$(MAKE) all CMAKE_ARGS='$(CMAKE_ARGS) -DTIDE_CUDA=ON'

gpu-pack: cuda
	@spec/cuda/firstday/pack $(BUILD) $(BUILD)/gpu-pack

help:
	@sed -n 's/^# \{0,1\}//; 2,/^$$/p' Makefile

# Quick and offline when everything is there.
deps: PACKAGES = $(DEBIAN)
deps-build: PACKAGES = $(DEBIAN_BUILD)
deps-deb: PACKAGES = $(DEBIAN_BUILD) dpkg-dev file gzip
deps deps-build deps-deb:
	@if ! command -v dpkg-query >/dev/null; then \
	  echo 'not a Debian system; tide needs: $(PACKAGES)'; exit 0; \
	fi; \
	there=$$(dpkg-query -W -f='$${Package} $${Status}\n' $(PACKAGES) 2>/dev/null); \
	missing=; for p in $(PACKAGES); do \
	  echo "$$there" | grep -qxF "$$p install ok installed" || missing="$$missing $$p"; \
	done; \
	test -n "$$missing" || exit 0; \
	cmd="apt-get install -y --no-install-recommends$$missing"; \
	if test "$$(id -u)" = 0; then sudo=; \
	elif sudo -n true 2>/dev/null; then sudo='sudo -n'; \
	else echo "missing packages; run:  sudo $$cmd"; exit 1; fi; \
	echo "installing$$missing"; rm -f $(STAMP); \
	export DEBIAN_FRONTEND=noninteractive; \
	$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive $$cmd

# A run that a person has made is never overwritten: only runs/train is, which is made here.
TRAIN_OUT := $(if $(findstring --out,$(ARGS)),,--out runs/train \
	$(if $(findstring --resume,$(ARGS)),,--overwrite))

train: deps-build
	@$(MAKE) all
	$(BUILD)/tide run -n 2 recipes/pretrain.lua --mesh.dp 2 $(strip $(TRAIN_OUT)) $(ARGS)

test: deps
	@$(MAKE) all
	@$(LUAJIT) spec/support/run.lua --build $(BUILD) --jobs $(JOBS) $(SPEC)

# The library under a sanitizer, loaded into stock luajit: the runtime must come first.
test-asan: deps
	@cmake --preset asan $(CMAKE_ARGS) >/dev/null && cmake --build $(BUILD)/asan -j $(JOBS)
	@$(LUAJIT) spec/support/run.lua --build $(BUILD)/asan --sanitize address --jobs $(JOBS) $(SPEC)

test-tsan: deps
	@cmake --preset tsan $(CMAKE_ARGS) >/dev/null && cmake --build $(BUILD)/tsan -j $(JOBS)
	@$(LUAJIT) spec/support/run.lua --build $(BUILD)/tsan --sanitize thread --jobs $(JOBS) $(SPEC)

# The specs of kernels at every level of x86, on a processor with AVX2: loops replace AVX-512 and AMX.
test-levels: deps
	@cmake --preset emulate $(CMAKE_ARGS) >/dev/null && cmake --build $(BUILD)/emulate -j $(JOBS)
	@$(LUAJIT) spec/support/run.lua --build $(BUILD)/emulate --jobs $(JOBS) \
	  $(or $(SPEC),spec/kernel spec/op spec/grad)

# Wide sweeps: every combination of what the quick specs try singly, and random cases.
test-sweep: deps
	@$(MAKE) all
	@$(LUAJIT) spec/support/run.lua --build $(BUILD) --jobs $(JOBS) \
	  --limit $$((1800 + 60 * $${TIDE_MINUTES:-10})) spec/deep

# Compiles for another architecture and runs on an emulator: see the script.
test-arm64: deps
	@spec/support/arm64.sh $(JOBS) $(SPEC)

# ARGS names domains (spec/deep/domain); TIDE_SEED, TIDE_CASES, TIDE_MINUTES: spec/deep/fuzz/run.lua.
fuzz: all
	@TIDE_BUILD=$(BUILD) $(LUAJIT) spec/deep/fuzz/run.lua $(ARGS)

test-deep: test test-sweep test-levels test-asan test-tsan test-arm64 test-deb

bench: all
	@cmake --build $(BUILD) --target bench -j $(JOBS)
	@$(LUAJIT) kernels/bench/run.lua all --short $(ARGS)
	@echo '== matrix products, oneDNN where it is found'; $(BUILD)/bench/matmul all 2 5

bench-full: all
	@cmake --build $(BUILD) --target bench -j $(JOBS)
	@$(LUAJIT) kernels/bench/run.lua all $(ARGS)
	@echo '== matrix products, oneDNN where it is found'; $(BUILD)/bench/matmul

bench-scale: all
	@$(BUILD)/tide run -t 2 kernels/bench/scale.lua 5 lua/guide/scale.svg

bench-comm: all
	@cmake --build $(BUILD) --target bench_comm -j $(JOBS)
	@for n in 2 4 8; do $(BUILD)/bench/comm $$n $(ARGS); done
	@$(BUILD)/tide run -n 2 -t 1 kernels/bench/dp.lua
	@$(BUILD)/tide run kernels/bench/sharded.lua
	@mpirun --version >/dev/null 2>&1 && mpirun --allow-run-as-root --oversubscribe --quiet -np 2 \
	  $(BUILD)/tide run -t 1 kernels/bench/dp.lua || true

sizes:
	@$(LUAJIT) spec/meta/sizes.lua

reference: all
	@$(LUAJIT) -e "require 'tide.util.fs'.write('make reference', \
	  'lua/guide/reference.md', require 'tide.repl.reference'.guide())"

# The date of what is packaged: the same tree gives the same bytes.
EPOCH = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || date +%s))

# Hardening flags and paths that do not depend on the folder are Debian's.
deb: deps-deb
	@export SOURCE_DATE_EPOCH=$(EPOCH) DEB_BUILD_MAINT_OPTIONS=hardening=+all; \
	  cmake --preset deb $(CMAKE_ARGS) \
	    "-DCMAKE_C_FLAGS=$$(dpkg-buildflags --get CFLAGS) $$(dpkg-buildflags --get CPPFLAGS)" \
	    "-DCMAKE_SHARED_LINKER_FLAGS=$$(dpkg-buildflags --get LDFLAGS)" \
	    "-DCMAKE_EXE_LINKER_FLAGS=$$(dpkg-buildflags --get LDFLAGS)" \
	    "-DTIDE_DEB_DATE=$$(LC_ALL=C date -u -R -d @$(EPOCH))" >/dev/null && \
	  cmake --build $(BUILD)/deb -j $(JOBS) && cd $(BUILD)/deb && cpack >cpack.log || \
	  { cat cpack.log; exit 1; }; ls *.deb

dist:
	@version=$$(sed -n 's/^project(tide VERSION \([^ ]*\) .*/\1/p' CMakeLists.txt); mkdir -p $(BUILD); \
	  git archive --prefix=tide-$$version/ HEAD | gzip -9n >$(BUILD)/tide-$$version.tar.gz && \
	  ls $(BUILD)/tide-$$version.tar.gz

test-deb: deb
	@spec/support/deb.sh $(BUILD)/deb

docs: reference
	@command -v cmark-gfm >/dev/null || $(MAKE) deps
	@$(LUAJIT) lua/guide/site.lua $(BUILD)/docs

install: all
	@cmake --install $(BUILD) --prefix '$(PREFIX)'

uninstall:
	@cmake --build $(BUILD) --target uninstall

clean:
	@rm -rf $(BUILD)

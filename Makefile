# The front door. Everything it does is one command of CMake, CTest or a script in scripts/.
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc)
RELEASE := build/release

.PHONY: all configure demo test bench format format-check lint deps install clean help

all: configure
	cmake --build $(RELEASE) -j $(JOBS) --target nobounce_all

configure: | build
	@cmake --preset release >$(RELEASE).log 2>&1 || { cat $(RELEASE).log >&2; \
	  echo "make: configuring failed; 'make deps' installs what is missing" >&2; exit 1; }

build:
	@mkdir -p build

demo:
	@scripts/deps build
	@$(MAKE) --no-print-directory all
	@$(RELEASE)/nobounce demo $(if $(FILE),--file '$(FILE)') $(if $(SECONDS_PER_RUN),--time $(SECONDS_PER_RUN))

test:
	@scripts/deps build
	@scripts/test release

bench:
	@scripts/bench

format:
	@scripts/format

format-check:
	@scripts/format --check

lint: configure
	@scripts/lint $(RELEASE) $(JOBS)

deps:
	@scripts/deps

install: all
	DESTDIR=$(DESTDIR) cmake --install $(RELEASE) --prefix $(PREFIX)

clean:
	rm -rf build

help:
	@echo "make            release build: build/release/nobounce and libnobounce"
	@echo "make demo       installs what is missing, builds, sends a real file through both modes"
	@echo "make test       installs what is missing, builds, runs all tests"
	@echo "make bench      what there is to measure"
	@echo "make format     formats the sources;  make format-check only looks"
	@echo "make lint       clang-tidy over the sources"
	@echo "make deps       installs the Debian packages that are missing, for all of the above"
	@echo "make install    to PREFIX=$(PREFIX) (DESTDIR honoured)"
	@echo "make clean      removes build/"

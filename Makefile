# Towa: build, run, test, install. `make` alone lists what there is.
#
# Every step of the tests is a target of its own; `make test` runs them all and ends with a summary. What a step does is written
# once, in scripts/step.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
POOL ?= $(if $(XDG_STATE_HOME),$(XDG_STATE_HOME),$(HOME)/.local/state)/towa/pool
PORT ?= 11211
SEED ?=
IMAGES ?= 100000
ROUNDS ?= 200
CUTS ?= 50
export POOL PORT SEED IMAGES ROUNDS CUTS

# In this order: what is quick and fails often first.
STEPS := setup fmt lint doc unit examples loom check-install crash kill memcached clients java vm miri fuzz

QUICK ?=

.PHONY: help build run test bench bench-java soak soak-java stress-java vm-soak install uninstall clean $(STEPS)

help:
	@echo 'make run            build what is missing and start a memcached that survives (POOL=$(POOL) PORT=$(PORT))'
	@echo 'make test           everything CI runs: $(STEPS)'
	@echo 'make STEP           one of these alone'
	@echo 'make crash SEED=n   one crash sweep again (IMAGES=$(IMAGES))'
	@echo 'make kill SEED=n    one kill test again (ROUNDS=$(ROUNDS))'
	@echo 'make bench          the comparisons, quick (four times 4 minutes)'
	@echo 'make bench-java     the comparisons of the Java door (30 minutes; QUICK=1: a first look; ARGS=--dax DIR ...)'
	@echo 'make soak           long kill tests and crash sweeps of every door;  make vm-soak: CUTS=$(CUTS) power cuts per file system'
	@echo 'make stress-java    the Java races under jcstress (OPTIONS="-time 5000 -iters 20": longer)'
	@echo 'make soak-java      the thesis'"'"' 30,000 kills of Java programs, an hour of the soak, and FUZZ_ROUNDS=$(FUZZ_ROUNDS) restarts of the fuzz'
	@echo 'make install        PREFIX=$(PREFIX) DESTDIR=$(DESTDIR); make uninstall'

build:
	cargo build --release --workspace

run:
	@scripts/run

test:
	@scripts/test $(STEPS)

$(STEPS):
	@scripts/step --alone $@

bench: build
	target/release/towa bench epoch --quick --json target/bench-epoch.json --html target/bench-epoch.html
	target/release/towa bench tx --quick --json target/bench-tx.json --html target/bench-tx.html
	target/release/towa bench snap --quick --json target/bench-snap.json --html target/bench-snap.html
	target/release/towa bench xip --quick --json target/bench-xip.json --html target/bench-xip.html

bench-java:
	scripts/bench-java $(if $(QUICK),--quick) --json target/bench-java.json --html target/bench-java.html $(ARGS)

soak: build
	set -e; for door in epoch tx tree; do \
	    target/release/towa crash-test $$door --seed $(or $(SEED),$(shell date +%s)) --images 10000000; done
	TOWA_ROUNDS=5000 cargo test -p towa-crash-test --test it failing_device
	TOWA_ROUNDS=5000 TOWA_SNAP_MOMENTS=50 TOWA_SNAP_KILLS=100 cargo test -p towa-snap --test store_failing --test memory_tracking --test nv --test real_programs --test lazy
	TOWA_KILL_ROUNDS=5000 TOWA_SEED=$(SEED) cargo test --release -p towa-cli --test kill --test kill_tx --test kill_snap -- --nocapture

FUZZ_ROUNDS ?= 1000000
soak-java:
	cd java && TOWA_FUZZ_ROUNDS=$(FUZZ_ROUNDS) JAVA_HOME=$$(../scripts/jdk) mvn -B -ntp -q verify -Dtowa.rounds=$(if $(filter 200,$(ROUNDS)),30000,$(ROUNDS)) -Dtowa.soak=3600 -Dtowa.aroundOnly=true \
	    -Dtest=None -Dsurefire.failIfNoSpecifiedTests=false -Dit.test='*KillIT,SoakIT,MatrixIT,FuzzIT'

OPTIONS ?= -time 2000 -iters 5
stress-java:
	cd java && JAVA_HOME=$$(../scripts/jdk) mvn -B -ntp -q verify -pl towa,stress -Dtest=none -Dsurefire.failIfNoSpecifiedTests=false \
	    "-Dstress.options=-strideSize 64 -strideCount 16 -f 2 -fsm 1 -sc false -af NONE $(OPTIONS)"

vm-soak:
	tests/vm/run soak --cuts $(CUTS) $(if $(SEED),--seed $(SEED))

install uninstall:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install $@

clean:
	cargo clean

# Two commands do everything: `make up` and `make test`. Extra arguments: make up ARGS="--detach".
.PHONY: build up down test vm-test rtl-test p4-test p4-report rtl-report rtl-demo portability wheel deb chart models mutants bench soak chaos jepsen checker fuzz verifier-matrix lint format clean setup

ARGS ?=
export CARGO_TERM_COLOR ?= auto

build: setup
	@cargo build --release --locked --bins --lib

setup:
	@scripts/setup

up: setup
	@cargo build --release --locked -p inband -p inband-box -p inband-gate -p inband-memory -p inband-memory-heap -p inband-netpaxos -p inband-console
	@target/release/inband up $(ARGS)

down:
	@target/release/inband down $(ARGS)

# One test or crate: make test ARGS="-p inband-kv --test suite several". See scripts/test.
test: setup
	@scripts/setup --test
	@scripts/test $(ARGS)

# Virtual machines with Debian's kernels, deployed by the documents: make vm-test ARGS="--kernel 6.1"; see vm/README.md.
vm-test: deb
	@scripts/setup --vm
	@vm/test $(ARGS)

# The roles in RTL (docs/portability.md): every vector and 10,000 random packets a role, at every width, and the proofs.
rtl-test: setup
	@scripts/setup --rtl
	@INBAND_RTL=all cargo test --release --locked -p inband-dataplane -p inband-box --test suite -- --nocapture rtl:: rtl_table::
	@scripts/rtl prove paxos

# The roles in P4 (docs/portability.md): every vector and 10,000 random packets a role, and a cluster with an acceptor in a switch. P4_TOOLCHAIN=DIR has the programs.
p4-test: setup
	@INBAND_P4=all INBAND_REQUIRE_P4=1 cargo test --release --locked -p inband-dataplane -p inband-memory -p inband-netpaxos --test suite p4:: -- --nocapture
	@INBAND_REQUIRE_P4=1 cargo test --release --locked -p inband-p4 -- --nocapture

# What the roles in P4 for TNA take of a Tofino 2, by the compiler p4c-barefoot, into docs/portability.md. P4_TOOLCHAIN=DIR has it.
p4-report:
	@scripts/p4 report

# Area and clock of every role in RTL, for WIDTHS="64 128 512", beside the papers' claims; takes hours. SEEDS="1 2", ROLES="acceptor",
# TARGETS="ecp5 xilinx nexus" for a part, LIMIT_S for each program's run. What has been run is not run again.
rtl-report:
	@scripts/setup --rtl
	@scripts/rtl report paxos $(WIDTHS)
	@scripts/rtl report box $(WIDTHS)

# The acceptor in RTL, under Verilator on a tap interface, as a member of a cluster in namespaces (root).
rtl-demo: setup
	@scripts/setup --rtl
	@scripts/rtl-demo

# Updates the table of docs/portability.md by running everything that it lists.
portability: setup
	@scripts/setup --test
	@scripts/setup --rtl
	@scripts/portability

# The Python package: target/wheels/inband-*.whl
wheel: setup
	@scripts/setup --test
	@scripts/wheel

# The Debian packages: target/deb/*.deb
deb: setup
	@scripts/setup --deb
	@cargo build --release --locked -p inband -p inband-box -p inband-gate -p inband-memory -p inband-memory-heap -p inband-netpaxos -p inband-console -p inband-c -p inband-pages
	@scripts/deb --check

# Lints and renders the Helm chart. HELM=FILE is the program; without it, Go builds one.
chart:
	@scripts/chart

# Every model, and every variant of it that must be refuted; `make test` has the short form.
models:
	@scripts/setup --test
	@cargo run --quiet --release --locked -p inband-models -- $(ARGS)

# Every deliberate fault of mutants/ must be caught; ONLY="name name" for some. Updates mutants/results.tsv and the table.
mutants:
	@scripts/setup --test
	@scripts/mutants $(ONLY)

# Seeds of every world of the simulator for MINUTES, different ones every day; see scripts/soak: make soak MINUTES=60.
soak: setup
	@scripts/soak $(MINUTES)

bench: build
	@scripts/setup --test
	@bench/run $(ARGS)

# Coverage-guided: every target in turn, MINUTES=10 in all; see fuzz/README.md.
fuzz: setup
	@scripts/setup --test
	@fuzz/run

# Does every kernel accept every program in every mode (docs/kernels.md)? RECORD=1 updates dataplane/verifier.toml,
# RENEW=1 checks the archive for newer kernels, ONLY=falcon-fifo tries some programs and only prints.
verifier-matrix:
	@scripts/setup --test
	@INBAND_VERIFIER_ALL=1 INBAND_VERIFIER_RECORD=$(RECORD) INBAND_VERIFIER_ONLY=$(ONLY) cargo test --release --locked -p inband-dataplane --test verifier --test kernels -- --include-ignored

# Long runs of faults against real clusters, checked for linearizability: make chaos ARGS="--minutes 30".
chaos: build
	@scripts/setup --test
	@scripts/chaos $(ARGS)

# The former name of chaos, for one more version.
jepsen: chaos
	@echo "note: \`make jepsen\` is now \`make chaos\`; the old name goes away with the next version" >&2

checker:
	@scripts/setup --test
	@scripts/checker

lint:
	@scripts/setup --test
	@scripts/one-build
	@scripts/mutants-table --check
	@scripts/lint-layout
	@bench/table --check
	@cargo fmt --all --check
	@cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	@git ls-files 'dataplane/*.h' 'dataplane/*.c' 'crates/*.bpf.c' 'bindings/*.h' 'bindings/*.c' 'fuzz/*.c' | xargs -r clang-format-19 --dry-run --Werror

format:
	@cargo fmt --all
	@git ls-files 'dataplane/*.h' 'dataplane/*.c' 'crates/*.bpf.c' 'bindings/*.h' 'bindings/*.c' 'fuzz/*.c' | xargs -r clang-format-19 -i

clean:
	@cargo clean
	@rm -rf .inband

# Two commands do all set-up: `make demo` shows weir at work, `make test` passes the tests. The others take longer:
# `make load` runs eight clients for an hour, `make databases` kills the daemon under five databases, forty times each,
# `make clones` deletes a thousand clones of 4 GiB in random order under writes, cleaning and kills, `make streams` kills it under files
# that are streamed, for ten minutes.

.PHONY: boot-test clones container-test databases demo footprints image library-kills load lost-buffer metrics-test package package-test sbom site soak streams test

demo:
	scripts/demo

# The build comes first, because `cargo xtask` alone asks for fewer features of some dependencies than the workspace does.
test:
	scripts/install-test-tools
	cargo build --workspace --all-targets
	cargo xtask check

# How long the clients of `make load` run: make load MINUTES=5
MINUTES ?= 60
load:
	scripts/install-test-tools fio git pgbench
	scripts/load $(MINUTES)

# How long `make soak` kills, fills, stalls and grows a store under eight clients that verify their data: make soak HOURS=0.5 SEED=7
HOURS ?= 8
soak:
	scripts/soak $(HOURS)

# How often `make databases` kills the daemon under each of them, without a policy and with one, and cuts the power of simulated
# disks under two of them. It also shows that ext4 tears pages then: make databases KILLS=3
KILLS ?= 20
KILL_DATABASES = WEIR_TESTS_MUST_MOUNT=1 WEIR_TESTS_KILLS=$(KILLS) \
	cargo test --package weir --test programs -- --nocapture mariadb postgres redis rocksdb sqlite
databases:
	scripts/install-test-tools
	WEIR_TESTS_NULL_CONTROL=1 $(KILL_DATABASES)
	WEIR_TESTS_POLICY=critical+process+io $(KILL_DATABASES)

# How many clones of how large a volume: make clones COUNT=100 BYTES=268435456. The store lies below $WEIR_TESTS_DIR, or else
# $TMPDIR or /var/tmp, and takes two and a half times as much.
COUNT ?= 1000
BYTES ?= 4294967296
clones:
	WEIR_TESTS_MUST_MOUNT=1 WEIR_CLONES_BYTES=$(BYTES) WEIR_CLONES_COUNT=$(COUNT) \
	  cargo test --package weir --test clones -- --nocapture

# For how long, and from which seed on: make streams FOR=60 SEED=7
FOR ?= 10
SEED ?= 1
streams:
	WEIR_TESTS_MUST_MOUNT=1 WEIR_STREAMS_MINUTES=$(FOR) WEIR_TESTS_SEED=$(SEED) \
	  cargo test --package weir --test programs -- --nocapture streams_keep_it_in_any_mode

# How often `make library-kills` kills sqlite3, in each of two journal modes, and a writer in Python, on a store in their own process:
# make library-kills ROUNDS=10
ROUNDS ?= 1000
library-kills:
	scripts/install-test-tools sqlite3 /usr/bin/python3
	WEIR_TESTS_KILLS=$(ROUNDS) cargo test --package weir --package weir-shim --test library -- --nocapture when_killed

# Whether single operations touch no more code and memory than before, on the machine on which the bounds were counted.
footprints:
	scripts/install-test-tools valgrind
	cargo build --release --package weir-bench --package weir
	WEIR_TESTS_FOOTPRINTS=$(abspath $(or $(CARGO_TARGET_DIR),target))/release/weir-bench \
	  cargo test --package weir-bench --test small -- footprints

# The Debian package, its path on standard output.
package:
	@command -v cargo-deb >/dev/null || cargo install --locked cargo-deb
	@command -v cargo-cyclonedx >/dev/null || cargo install --locked cargo-cyclonedx
	@scripts/package

# The crates in the programs of the package, as CycloneDX JSON, its path on standard output.
sbom:
	@command -v cargo-cyclonedx >/dev/null || cargo install --locked cargo-cyclonedx
	@scripts/sbom

# Installs the package in a fresh Debian root, and uses it there.
package-test:
	scripts/test-package "$$($(MAKE) --silent package)"

# Boots systemd in a fresh Debian root, with the package's unit, a line of fstab and PostgreSQL; kills, stops and crashes, and takes the
# buffer's disk away.
boot-test:
	scripts/test-boot "$$($(MAKE) --silent package)"

# A container image, from the package: make image ENGINE=docker
ENGINE ?= podman
image:
	package=$$($(MAKE) --silent package) && $(ENGINE) build $(if $(filter podman,$(ENGINE)),--format docker) --tag weir \
	  --build-arg PACKAGE="$$(basename "$$package")" --file Containerfile "$$(dirname "$$package")"

# Builds that image without a registry, runs it with podman, stops it, kills it, and finds the files.
container-test:
	scripts/test-container "$$($(MAKE) --silent package)"

# Whether Debian's Prometheus reads the metrics, and every query of the alerts and of the dashboard has data.
metrics-test:
	cargo build --package weir
	scripts/test-metrics $(or $(CARGO_TARGET_DIR),target)/debug/weir

# PostgreSQL under kills and lost buffers, on a mount that restores itself. How often: make lost-buffer RESTORES=6
RESTORES ?= 20
lost-buffer:
	scripts/lost-buffer $(RESTORES)

# The documents as a site with search, the path of its first page on standard output.
site:
	@command -v mdbook >/dev/null || cargo install --locked mdbook
	@scripts/site

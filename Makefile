# Two commands do all set-up: `make demo` shows weir at work, `make test` passes the tests.

.PHONY: demo test

demo:
	scripts/demo

# One profile for the checks, all tests and the simulator, so that the workspace is built once.
test:
	scripts/install-test-tools
	cargo xtask check
	cargo xtask sim --seeds 5 --operations 20000 --crashes 200
	cargo xtask sim --exhaust 3 --programs 300

//! Programs that people run, on a real mount. `scripts/install-test-tools` installs what these tests drive.

mod bench;
mod cargo_build;
mod git;
mod sqlite;
mod tar;
mod weir;

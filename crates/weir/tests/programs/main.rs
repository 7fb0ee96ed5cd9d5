//! Programs that people run, on a real mount. `scripts/install-test-tools` installs what these tests drive.

mod cargo_build;
#[path = "../common/mod.rs"]
mod common;
mod disk_images;
mod exports;
mod git;
mod guide;
mod guides;
mod hostile;
mod kills;
mod ledger;
mod mariadb;
mod nfs;
mod page_ledger;
mod podman;
mod postgres;
mod power_loss;
mod powered_disk;
mod redis;
mod rocksdb;
mod sqlite;
mod streams;
mod stress;
mod tar;
mod trace;
mod two_volumes;
mod weir;

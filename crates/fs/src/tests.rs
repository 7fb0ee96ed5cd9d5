//! Tests of the crate as a whole. `bench` runs operations in memory, on a plain model of the objects below; `machine`
//! runs them through the real cache on simulated disks; `model` is a plain file system that both are compared with.

mod bench;
mod directory;
mod format;
mod lost;
mod machine;
mod model;
mod operations;
mod random;
mod space;

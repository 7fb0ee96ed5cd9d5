//! weir in a program's own threads, beside the command.

mod batch;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod imports;
mod misuse;
mod owners;
mod run;

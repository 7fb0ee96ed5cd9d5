//! weir in a program's own threads, beside the command.

mod batch;
mod c;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod imports;
mod misuse;
mod opening;
mod owners;
mod python;
mod run;

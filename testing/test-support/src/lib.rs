#![doc = include_str!("../README.md")]

mod directories;
mod programs;

pub use directories::{DirectoryContents, TestDirectory};
pub use programs::{can_mount, copy_program, has_program, stop_ignoring_interrupts, succeeds};

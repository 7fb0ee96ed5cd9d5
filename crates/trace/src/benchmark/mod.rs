//! A compiled benchmark: everything that a replay needs, without the trace.

mod block;
mod compile;
mod contents;
mod format;
mod inventory;
mod section;
mod snapshot;
mod spool;
mod usage;
mod validate;

pub use compile::{CompileSettings, compile, compile_to};
pub use contents::{About, Benchmark, Device, Initial, InitialKind};
pub use inventory::{Inventory, OrderInventory};
pub(crate) use validate::names_of;

#[cfg(test)]
mod tests;

#![doc = include_str!("../README.md")]

mod action;
mod block;
mod contents;
mod errno;
mod error;
mod format;
mod inventory;
mod names;
mod op;
mod operands;
mod order;
mod section;
mod tracer_cost;
mod untraced;
mod validate;

pub use action::{Action, ActionId, Fate, Modelled, Moment, Nap, Rule, Skipped};
pub use block::{Block, Cutter, Tail, Waits};
pub use contents::{About, Benchmark, Device, Inherited, Initial, InitialKind, Repairs};
pub use errno::{errno, errno_name};
pub use error::TraceError;
pub use format::Writer;
pub use inventory::{Inventory, OrderInventory};
pub use names::{Name, Names};
pub use op::{
    Handle, LockKind, LockOwner, NO_HANDLE, Op, Outcome, Place, Request, RequestKind, Seen, SyncKind,
};
pub use operands::{Operand, OperandMut, names_of};
pub use order::{Edge, Order, Wait};
pub use section::{read_section, write_section};
pub use tracer_cost::{TRACER_NOTE, TracerCost};
pub use untraced::Unseen;
pub use validate::TASKS_MAX;

#[cfg(test)]
mod tests;

#![doc = include_str!("../README.md")]
mod amount;
mod long_work;
mod signals;

pub use amount::{WorkAmount, WorkUnit};
pub use long_work::{LongWork, OnInterrupt, exit_code_of_interrupt, print_above_progress};
pub use signals::{held_signal, pass_signals_to};

//! All tests of the buffer but the models of threads (`threads.rs`), in one program that links once.

mod appending;
mod crashes;
mod format;
mod growth;
mod growth_failures;
mod model;
mod opening;
#[cfg(feature = "planted-bugs")]
mod planted;
mod rot;
mod scratches;

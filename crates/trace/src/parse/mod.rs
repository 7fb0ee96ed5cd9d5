//! From the text of a trace to [`Event`](crate::event::Event)s. One module per form; all yield the same events and keep the same account.

mod ibench;
mod merge;
mod mobigen;
mod source;
mod strace;

pub use ibench::IBench;
pub use merge::Merged;
pub use mobigen::MobiGen;
pub use source::Source;
pub use strace::Strace;

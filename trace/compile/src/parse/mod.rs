//! From the text of a trace to [`Event`](crate::event::Event)s.

mod merge;
mod source;
mod strace;

pub use merge::Merged;
pub use source::Source;
pub use strace::Strace;

//! Parses the text of a trace into [`TraceEvent`](crate::event::TraceEvent)s.

mod lines;
mod source;
mod strace;
mod task_files;

pub use source::Source;
pub use strace::Strace;
pub use task_files::TaskFiles;

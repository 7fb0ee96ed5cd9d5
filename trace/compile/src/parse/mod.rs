//! From the text of a trace to [`TraceEvent`](crate::event::TraceEvent)s.

mod source;
mod strace;
mod task_files;

pub use source::Source;
pub use strace::Strace;
pub use task_files::TaskFiles;

//! From the text of a trace to [`Event`]s. One module per form; all yield the same events and keep the same account.

mod coverage;
mod ibench;
mod merge;
mod mobigen;
mod strace;

pub use coverage::Coverage;
pub use ibench::IBench;
pub use merge::Merged;
pub use mobigen::MobiGen;
pub use strace::Strace;

use crate::event::Event;
use crate::tracer::TracerCost;

/// A form of trace. A source is read once, from begin to end, in bounded memory.
pub trait Source {
    /// The next event, in the order in which calls end; `None` at the end of the trace. Bad lines are counted, not returned.
    fn next_event(&mut self) -> std::io::Result<Option<Event>>;
    /// What could be used so far, and what could not.
    fn coverage(&self) -> &Coverage;
    /// What the tracer added between two calls, if the trace says so.
    fn tracer(&self) -> Option<TracerCost> {
        None
    }
}

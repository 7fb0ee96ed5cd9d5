//! The interface of all forms of traces.

use crate::coverage::Coverage;
use crate::event::TraceEvent;
use trace_file::TracerCost;

/// A form of trace. A source is read once, from beginning to end, in bounded memory.
pub trait Source {
    /// The next event, in the order in which calls end; `None` at the end of the trace. Bad lines are counted
    /// and skipped.
    fn next_event(&mut self) -> std::io::Result<Option<TraceEvent>>;
    /// The usable and unusable lines so far.
    fn coverage(&self) -> &Coverage;
    /// The time that the tracer added between two calls, if the trace notes it.
    fn tracer(&self) -> Option<TracerCost> {
        None
    }
}

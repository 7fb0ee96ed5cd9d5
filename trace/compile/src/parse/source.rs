//! What all forms of traces have in common.

use crate::coverage::Coverage;
use crate::event::Event;
use trace_file::TracerCost;

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

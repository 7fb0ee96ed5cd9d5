//! Several files of one trace, as `strace -ff` writes them: one for each task, whose number is the file's ending.

use super::source::Source;
use crate::coverage::Coverage;
use crate::event::Event;
use std::io;
use trace_file::TracerCost;

/// One file, and its next event.
struct Part {
    source: Box<dyn Source>,
    /// The task, where the lines do not say it.
    task: u32,
    next: Option<Event>,
}

/// Reads several sources as one, in the order in which calls end.
pub struct Merged {
    parts: Vec<Part>,
    begun: bool,
    coverage: Coverage,
}

impl Merged {
    /// Sources with the tasks that their files are named after; lines that name a task themselves keep it.
    pub fn new(sources: Vec<(Box<dyn Source>, u32)>) -> Merged {
        let parts = sources.into_iter().map(|(source, task)| Part { source, task, next: None }).collect();
        Merged { parts, begun: false, coverage: Coverage::default() }
    }

    /// The task that a file's name ends in: `trace.123`.
    pub fn task_of(file: &std::path::Path) -> Option<u32> {
        file.extension()?.to_str()?.parse().ok()
    }
}

impl Part {
    fn advance(&mut self) -> io::Result<()> {
        self.next = self.source.next_event()?;
        if let Some(event) = &mut self.next
            && event.task == 0
        {
            event.task = self.task;
        }
        Ok(())
    }
}

impl Source for Merged {
    fn next_event(&mut self) -> io::Result<Option<Event>> {
        if !self.begun {
            self.begun = true;
            self.parts.iter_mut().try_for_each(Part::advance)?;
        }
        let ends = self.parts.iter().enumerate().filter_map(|(at, part)| Some((part.next.as_ref()?.end, at)));
        let Some((_, first)) = ends.min() else {
            self.coverage = Coverage::default();
            self.parts.iter().for_each(|part| self.coverage.add(part.source.coverage()));
            return Ok(None);
        };
        let event = self.parts[first].next.take();
        self.parts[first].advance()?;
        Ok(event)
    }

    /// Whole only at the end.
    fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn tracer(&self) -> Option<TracerCost> {
        self.parts.iter().find_map(|part| part.source.tracer())
    }
}

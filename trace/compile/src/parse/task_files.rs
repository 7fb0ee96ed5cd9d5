//! Several files of one trace, as `strace -ff` writes them: one for each task, with the task's number as the
//! file's extension.

use super::source::Source;
use crate::coverage::Coverage;
use crate::event::TraceEvent;
use std::io;
use trace_file::TracerCost;

/// One file, and its next event.
struct TaskFile {
    source: Box<dyn Source>,
    /// The task of lines that name none.
    task: u32,
    next: Option<TraceEvent>,
}

/// Reads several sources as one, in the order in which calls end.
pub struct TaskFiles {
    parts: Vec<TaskFile>,
    begun: bool,
    coverage: Coverage,
}

impl TaskFiles {
    /// Joins sources. Each comes with the task in its file's name; lines that name a task keep it.
    pub fn new(sources: Vec<(Box<dyn Source>, u32)>) -> TaskFiles {
        let parts = sources.into_iter().map(|(source, task)| TaskFile { source, task, next: None }).collect();
        TaskFiles { parts, begun: false, coverage: Coverage::default() }
    }

    /// The task in a file's name: `trace.123`.
    pub fn task_of(file: &std::path::Path) -> Option<u32> {
        file.extension()?.to_str()?.parse().ok()
    }
}

impl TaskFile {
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

impl Source for TaskFiles {
    fn next_event(&mut self) -> io::Result<Option<TraceEvent>> {
        if !self.begun {
            self.begun = true;
            self.parts.iter_mut().try_for_each(TaskFile::advance)?;
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

    /// Complete only at the end of the trace.
    fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn tracer(&self) -> Option<TracerCost> {
        self.parts.iter().find_map(|part| part.source.tracer())
    }
}

//! The compiled traces of one replay: one, or several merged.

use std::path::PathBuf;
use trace_file::{CompiledTrace, TraceError};
use trace_replay::{MergedTraces, ReplayRun};

/// Maximum number of adapted files that are listed; all are counted.
const ADAPTED_SHOWN_MAX: usize = 8;

/// The compiled traces of one replay, and their merger.
pub(crate) struct ReplayedTraces {
    /// Each compiled trace, with its file's name.
    parts: Vec<(String, CompiledTrace)>,
    /// The merged trace, if there are several.
    merged: Option<MergedTraces>,
}

impl ReplayedTraces {
    /// Reads the compiled traces. Contradictions between them are reported before anything else is done.
    pub(crate) fn read(files: &[PathBuf]) -> Result<ReplayedTraces, TraceError> {
        let read = |file: &PathBuf| Ok((file.display().to_string(), CompiledTrace::read(file)?));
        let parts = files.iter().map(read).collect::<Result<Vec<_>, TraceError>>()?;
        let merged = (parts.len() > 1).then(|| MergedTraces::new(&parts)).transpose()?;
        Ok(ReplayedTraces { parts, merged })
    }

    /// The whole trace to replay.
    pub(crate) fn whole(&self) -> &CompiledTrace {
        self.merged.as_ref().map_or(&self.parts[0].1, |merged| &merged.whole)
    }

    /// The name, trace and results of each of several compiled traces in a run of all.
    pub(crate) fn each(
        &self,
    ) -> impl Iterator<Item = (&str, &CompiledTrace, impl Fn(&ReplayRun) -> ReplayRun)> {
        let merged = self.merged.as_ref();
        merged.into_iter().flat_map(move |merged| {
            let parts = self.parts.iter().enumerate();
            parts.map(move |(at, (name, compiled))| {
                (name.as_str(), compiled, move |run: &ReplayRun| merged.part(at, run))
            })
        })
    }

    /// Prints the adapted files.
    pub(crate) fn tell_what_was_adapted(&self) {
        let Some(MergedTraces { adapted, .. }) = &self.merged else { return };
        for what in adapted.iter().take(ADAPTED_SHOWN_MAX) {
            eprintln!("warning: {what}");
        }
        if let Some(more) = adapted.len().checked_sub(ADAPTED_SHOWN_MAX).filter(|more| *more > 0) {
            eprintln!("warning: {more} more files were made to fit");
        }
    }
}

//! The benchmarks of one replay: one, or several laid over each other.

use std::path::PathBuf;
use trace_file::{Benchmark, TraceError};
use trace_replay::{Overlay, Run};

/// Things that were made to fit which are named; all are counted.
const ADAPTED_SHOWN_MAX: usize = 8;

/// What is replayed.
pub(crate) struct Together {
    /// Each benchmark, with its file's name.
    parts: Vec<(String, Benchmark)>,
    /// All as one, if there are several.
    overlay: Option<Overlay>,
}

impl Together {
    /// Reads them. Contradictions between them are named here, before anything is done.
    pub(crate) fn read(files: &[PathBuf]) -> Result<Together, TraceError> {
        let read = |file: &PathBuf| Ok((file.display().to_string(), Benchmark::read(file)?));
        let parts = files.iter().map(read).collect::<Result<Vec<_>, TraceError>>()?;
        let overlay = (parts.len() > 1).then(|| Overlay::new(&parts)).transpose()?;
        Ok(Together { parts, overlay })
    }

    /// Everything that is replayed.
    pub(crate) fn whole(&self) -> &Benchmark {
        self.overlay.as_ref().map_or(&self.parts[0].1, |overlay| &overlay.whole)
    }

    /// Each of several benchmarks with its name, and what it did in a run of all.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, &Benchmark, impl Fn(&Run) -> Run)> {
        let overlay = self.overlay.as_ref();
        overlay.into_iter().flat_map(move |overlay| {
            let parts = self.parts.iter().enumerate();
            parts.map(move |(at, (name, benchmark))| {
                (name.as_str(), benchmark, move |run: &Run| overlay.part(at, run))
            })
        })
    }

    /// Says what was made to fit.
    pub(crate) fn tell_what_was_adapted(&self) {
        let Some(Overlay { adapted, .. }) = &self.overlay else { return };
        for what in adapted.iter().take(ADAPTED_SHOWN_MAX) {
            eprintln!("warning: {what}");
        }
        if let Some(more) = adapted.len().checked_sub(ADAPTED_SHOWN_MAX).filter(|more| *more > 0) {
            eprintln!("warning: {more} more files were made to fit");
        }
    }
}

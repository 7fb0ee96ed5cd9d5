//! `weir-trace compare`.

use crate::args::CompareArgs;
use crate::error::ProgramError;
use std::io;
use std::path::Path;
use trace_file::TraceError;
use trace_replay::{Comparison, Report};

pub(crate) fn run(args: &CompareArgs) -> Result<(), ProgramError> {
    let read = |path: &std::path::PathBuf| Ok((path.display().to_string(), report(path)?));
    let reports = args.reports.iter().map(read).collect::<Result<Vec<_>, ProgramError>>()?;
    let comparison = Comparison::new(&reports);
    if args.json {
        println!("{:#}", serde_json::json!(comparison));
    } else {
        print!("{comparison}");
    }
    Ok(())
}

fn report(path: &Path) -> Result<Report, ProgramError> {
    let bytes = std::fs::read(path).map_err(TraceError::io("reading", path))?;
    let wrong = |error: serde_json::Error| TraceError::Io {
        doing: "reading a report of `weir-trace replay --json`",
        path: path.into(),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    };
    Ok(serde_json::from_slice(&bytes).map_err(wrong)?)
}

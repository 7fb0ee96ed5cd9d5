//! `weir trace compare`.

use super::args::CompareArgs;
use crate::error::WeirError;
use ::trace::{Comparison, Report, TraceError};
use std::io;
use std::path::Path;

pub(super) fn run(args: &CompareArgs) -> Result<(), WeirError> {
    let read = |path: &std::path::PathBuf| Ok((path.display().to_string(), report(path)?));
    let reports = args.reports.iter().map(read).collect::<Result<Vec<_>, WeirError>>()?;
    let comparison = Comparison::new(&reports);
    match args.json {
        true => println!("{:#}", serde_json::json!(comparison)),
        false => print!("{comparison}"),
    }
    Ok(())
}

fn report(path: &Path) -> Result<Report, WeirError> {
    let bytes = std::fs::read(path).map_err(WeirError::io("reading", path))?;
    let wrong = |error: serde_json::Error| TraceError::Io {
        doing: "reading a report of `weir trace replay --json`",
        path: path.into(),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    };
    Ok(serde_json::from_slice(&bytes).map_err(wrong)?)
}

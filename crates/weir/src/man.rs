//! `weir man`: manual pages, made from the same table as the parser.

use crate::cli::{DirArgs, WeirCommandLine};
use crate::error::WeirError;
use clap::CommandFactory;

/// Writes `weir.1` and a page for each command into a directory.
pub(crate) fn run(args: &DirArgs) -> Result<(), WeirError> {
    clap_mangen::generate_to(WeirCommandLine::command(), &args.dir)
        .map_err(WeirError::io("writing the manual pages", &args.dir))
}

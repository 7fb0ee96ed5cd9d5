//! `weir man`: manual pages, made from the same table as the parser.

use crate::cli::{DirArgs, WeirCommandLine};
use crate::error::WeirError;
use clap::CommandFactory;
use std::io;
use std::path::Path;

/// `weir-trace man` writes the page of this command, `weir-trace.1`.
const WITH_OWN_PAGES: &str = "trace";

/// Writes `weir.1` and a page for each command into a directory.
pub(crate) fn run(args: &DirArgs) -> Result<(), WeirError> {
    write_pages(&args.dir).map_err(WeirError::io("writing the manual pages", &args.dir))
}

fn write_pages(dir: &Path) -> io::Result<()> {
    let mut weir = WeirCommandLine::command().disable_help_subcommand(true);
    weir.build();
    for command in weir.get_subcommands() {
        if !command.is_hide_set() && command.get_name() != WITH_OWN_PAGES {
            clap_mangen::generate_to(command.clone(), dir)?;
        }
    }
    clap_mangen::Man::new(weir).generate_to(dir).map(drop)
}

//! What a call tells of a file.

use super::tree::{NodeKind, ROOT};
use std::collections::HashMap;
use trace_file::Name;

/// What a successful call says about the file at the end of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedFile {
    Anything,
    File,
    Directory,
    Link(Option<Name>),
}

impl ExpectedFile {
    /// What a file is of which no more is known.
    pub(super) fn kind(self) -> NodeKind {
        match self {
            ExpectedFile::Anything => NodeKind::Undecided,
            ExpectedFile::File => NodeKind::File,
            ExpectedFile::Directory => {
                NodeKind::Directory { entries: HashMap::new(), whole: false, parent: ROOT }
            }
            ExpectedFile::Link(target) => NodeKind::Link(target),
        }
    }
}

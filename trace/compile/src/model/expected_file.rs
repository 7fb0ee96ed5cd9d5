//! The kind of file that a successful call implies.

use super::tree::{NodeKind, ROOT};
use std::collections::HashMap;
use trace_file::Name;

/// The kind of file that a successful call implies for the end of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpectedFile {
    Anything,
    File,
    Directory,
    Link(Option<Name>),
}

impl ExpectedFile {
    /// The node kind to assume if nothing else is known.
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

//! What a call tells of a file.

use super::tree::{Kind, ROOT};
use std::collections::HashMap;
use trace_file::Name;

/// What a successful call says about the file at the end of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Anything,
    File,
    Directory,
    Link(Option<Name>),
}

impl Want {
    /// What a file is of which no more is known.
    pub(super) fn kind(self) -> Kind {
        match self {
            Want::Anything => Kind::Undecided,
            Want::File => Kind::File,
            Want::Directory => Kind::Directory { entries: HashMap::new(), whole: false, parent: ROOT },
            Want::Link(target) => Kind::Link(target),
        }
    }
}

//! Names in order, one leaf at a time.

use super::Tree;
use super::node::Leaf;
use super::path::descend;
use crate::arena::Arena;
use crate::error::FsError;
use crate::format::Slot;
use crate::types::Kind;

/// One name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: u64,
    pub(crate) slot: Slot,
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
}

/// The names of one leaf.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) names: Vec<Listed>,
    /// Names after this key come next; `None`: there are no more.
    pub(crate) next: Option<u64>,
}

impl Tree {
    /// The names of one leaf whose keys are above `after`, in order.
    pub(crate) fn list(&self, arena: &Arena, after: u64) -> Result<Listing, FsError> {
        let Some(first) = after.checked_add(1).filter(|_| !self.root.is_none()) else {
            return Ok(Listing::default());
        };
        let (path, block) = descend(arena, self.root, first)?;
        let names = Leaf::read(arena, block)?.sorted()?;
        let names = names.iter().filter(|name| name.key > after).map(|name| Listed {
            key: name.key,
            slot: name.slot,
            kind: name.kind,
            name: name.name.to_vec(),
        });
        Ok(Listing { names: names.collect(), next: path.end.map(|end| end - 1) })
    }
}

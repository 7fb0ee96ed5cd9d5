//! Lists names in the order of their keys, one leaf at a time.

use super::NameTree;
use super::node::{LeafName, NameLeaf};
use super::path::descend;
use crate::arena::Arena;
use crate::error::FsError;

impl NameTree {
    /// Calls `each` with the names of one leaf whose keys are above `after`, in order, until it returns
    /// `false`. Returns the key after which the listing continues, or `None` if there are no more names or
    /// `each` wanted no more.
    pub(crate) fn list(
        &self,
        arena: &Arena,
        after: u64,
        each: &mut dyn FnMut(LeafName<'_>) -> bool,
    ) -> Result<Option<u64>, FsError> {
        let Some(first) = after.checked_add(1).filter(|_| !self.root.is_none()) else { return Ok(None) };
        let (path, block) = descend(arena, self.root, first)?;
        let mut names = Vec::with_capacity(NAMES);
        for name in NameLeaf::read(arena, block)?.names() {
            let name = name?;
            if name.key > after {
                names.push(name);
            }
        }
        names.sort_unstable_by_key(|name| name.key);
        let wants_more = names.into_iter().all(each);
        Ok(path.end.filter(|_| wants_more).map(|end| end - 1))
    }
}

/// About as many names as a leaf holds.
const NAMES: usize = 128;

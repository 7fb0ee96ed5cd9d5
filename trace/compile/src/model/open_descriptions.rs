//! The live part of the model: open file descriptions, and files that have a name or are open. The model
//! forgets all others, so the length of a trace does not determine the memory.

use super::tree::{ModelNodeId, Tree};
use super::world::World;
use crate::step::{GoneResource, Step};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use trace_file::{Handle, Name};

/// An open file description: shared by dup and fork, closed at the last reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct Description {
    pub(super) on: DescriptionTarget,
    pub(super) position: u64,
    /// Whether the position is known. It is unknown for descriptions opened before the trace began.
    pub(super) placed: bool,
    pub(super) append: bool,
    /// Whether the description is known to be read-only or write-only.
    pub(super) limited: bool,
    pub(super) references: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DescriptionTarget {
    File(ModelNodeId),
    /// A pipe, by its name in the trace.
    Pipe(Name),
    Other,
}

/// Open file descriptions, by handle. A closed description looks like one that was never opened.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenDescriptions {
    live: HashMap<Handle, Description>,
    made: u32,
    /// Descriptions that lost their last reference in the current action.
    released: Vec<Handle>,
}

/// The stand-in for a closed description.
const CLOSED: Description = Description {
    on: DescriptionTarget::Other,
    position: 0,
    placed: false,
    append: false,
    limited: false,
    references: 0,
};

impl OpenDescriptions {
    pub(super) fn add(&mut self, description: Description) -> Handle {
        let handle = self.made;
        self.made = self.made.checked_add(1).expect("fewer than 2^32 descriptions");
        self.live.insert(handle, description);
        handle
    }

    /// The number of descriptions made so far.
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    pub(super) fn released(&mut self, handle: Handle) {
        self.released.push(handle);
    }
}

impl Index<usize> for OpenDescriptions {
    type Output = Description;

    fn index(&self, handle: usize) -> &Description {
        self.live.get(&(handle as Handle)).unwrap_or(&CLOSED)
    }
}

impl IndexMut<usize> for OpenDescriptions {
    fn index_mut(&mut self, handle: usize) -> &mut Description {
        self.live.entry(handle as Handle).or_insert(CLOSED)
    }
}

impl World {
    /// Forgets the descriptions and files that an action left unreferenced, and notes them for the orders.
    pub(super) fn forget(&mut self, step: &mut Step) {
        for handle in std::mem::take(&mut self.descriptions.released) {
            // The description may have a new reference by now, or may be listed twice.
            let Some(state) = self.descriptions.live.get(&handle) else { continue };
            if state.references == 0 {
                if let DescriptionTarget::File(node) = state.on {
                    self.tree.closed(node);
                }
                self.descriptions.live.remove(&handle);
                step.gone.push(GoneResource::Description(handle));
            }
        }
        step.gone.extend(self.tree.forget().into_iter().map(GoneResource::File));
    }
}

impl Tree {
    fn closed(&mut self, node: ModelNodeId) {
        let state = self.node_mut(node);
        state.opened = state.opened.saturating_sub(1);
        self.doubt(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::Coverage;
    use crate::model::Lineariser;
    use crate::parse::{Source, Strace};

    /// Applies lines, and returns the resources that each removed.
    fn gone(lines: &str) -> (Vec<Vec<GoneResource>>, World) {
        let mut world = World::new(trace_file::Names::default());
        let (mut source, mut undecoded) = (Strace::new(lines.as_bytes()), Coverage::default());
        let mut calls = Vec::new();
        while let Some(event) = source.next_event().expect("memory does not fail") {
            calls.push(crate::decode::decode(&event, &mut world.names, &mut undecoded));
        }
        let mut gone = Vec::new();
        let mut lineariser = Lineariser::new(&mut world, |step: Step| gone.push(step.gone));
        calls.into_iter().for_each(|call| lineariser.add(call));
        lineariser.finish();
        (gone, world)
    }

    #[test]
    fn a_file_goes_with_its_last_name_and_description_whichever_is_later() {
        let open = "openat(AT_FDCWD</>, \"/a\", O_RDWR|O_CREAT, 0644) = 3</a>\n";
        let (named, world) = gone(&format!("{open}close(3</a>) = 0\nunlink(\"/a\") = 0\n"));
        assert!(matches!(named[1][..], [GoneResource::Description(_)]), "{named:?}");
        assert!(matches!(named[2][..], [GoneResource::File(_)]), "{named:?}");
        let (open_last, _) = gone(&format!("{open}unlink(\"/a\") = 0\nclose(3</a>) = 0\n"));
        assert!(open_last[1].is_empty(), "{open_last:?}");
        assert!(
            matches!(open_last[2][..], [GoneResource::Description(_), GoneResource::File(_)]),
            "{open_last:?}"
        );
        // Only the working directory is still open.
        assert_eq!(world.descriptions.live.len(), 1);
    }

    #[test]
    fn a_second_name_keeps_a_file_and_a_file_that_was_there_is_kept_for_the_initial_tree() {
        let open = "openat(AT_FDCWD</>, \"/a\", O_RDWR|O_CREAT, 0644) = 3</a>\nclose(3</a>) = 0\n";
        let (linked, _) =
            gone(&format!("{open}link(\"/a\", \"/b\") = 0\nunlink(\"/a\") = 0\nunlink(\"/b\") = 0\n"));
        assert!(linked[3].is_empty() && linked[4].len() == 1, "{linked:?}");
        let (replaced, _) = gone(&format!("{open}rename(\"/old\", \"/a\") = 0\nunlink(\"/a\") = 0\n"));
        assert!(replaced[2].len() == 1 && replaced[3].is_empty(), "{replaced:?}");
    }

    #[test]
    fn a_dup_or_a_child_keeps_a_description() {
        let lines = "1 openat(AT_FDCWD</>, \"/a\", O_RDWR|O_CREAT, 0644) = 3</a>\n1 dup(3</a>) = 4</a>\n\
            1 clone(child_stack=NULL, flags=SIGCHLD) = 2\n1 close(3</a>) = 0\n1 close(4</a>) = 0\n\
            2 close(4</a>) = 0\n2 close(3</a>) = 0\n";
        let (gone, _) = gone(lines);
        assert!(gone[..6].iter().all(Vec::is_empty) && gone[6].len() == 1, "{gone:?}");
    }
}

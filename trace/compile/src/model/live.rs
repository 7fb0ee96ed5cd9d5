//! What is alive in the model: open file descriptions, and files that have a name or are open. The rest is forgotten, so that a
//! long trace takes no more memory than a short one on as many files.

use super::tree::{NodeId, Tree};
use super::world::World;
use crate::step::{Gone, Step};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use trace_file::{Handle, Name};

/// An open file description: shared by dup and fork, closed at the last reference.
#[derive(Debug, Clone, Copy)]
pub(super) struct Description {
    pub(super) on: Target,
    pub(super) position: u64,
    /// Whether that is known: not of what was open before the trace began.
    pub(super) placed: bool,
    pub(super) append: bool,
    /// Whether it is known to be open for reading or writing only.
    pub(super) limited: bool,
    pub(super) references: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    File(NodeId),
    /// A pipe, by what the trace calls it.
    Pipe(Name),
    Other,
}

/// Open file descriptions, by handle. What was closed is like something that was never open.
#[derive(Debug, Clone, Default)]
pub(super) struct Descriptions {
    live: HashMap<Handle, Description>,
    made: u32,
    /// Those that lost their last reference in the present action.
    released: Vec<Handle>,
}

/// What stands for a description that is closed.
const CLOSED: Description = Description {
    on: Target::Other,
    position: 0,
    placed: false,
    append: false,
    limited: false,
    references: 0,
};

impl Descriptions {
    pub(super) fn add(&mut self, description: Description) -> Handle {
        let handle = self.made;
        self.made = self.made.checked_add(1).expect("fewer than 2^32 descriptions");
        self.live.insert(handle, description);
        handle
    }

    /// How many were ever made.
    pub(super) fn made(&self) -> u32 {
        self.made
    }

    pub(super) fn released(&mut self, handle: Handle) {
        self.released.push(handle);
    }
}

impl Index<usize> for Descriptions {
    type Output = Description;

    fn index(&self, handle: usize) -> &Description {
        self.live.get(&(handle as Handle)).unwrap_or(&CLOSED)
    }
}

impl IndexMut<usize> for Descriptions {
    fn index_mut(&mut self, handle: usize) -> &mut Description {
        self.live.entry(handle as Handle).or_insert(CLOSED)
    }
}

impl World {
    /// After an action: what it left without references is forgotten, and noted for the orders.
    pub(super) fn forget(&mut self, step: &mut Step) {
        for handle in std::mem::take(&mut self.descriptions.released) {
            // It may have got a new reference, or have been released twice.
            let Some(state) = self.descriptions.live.get(&handle) else { continue };
            if state.references == 0 {
                if let Target::File(node) = state.on {
                    self.tree.closed(node);
                }
                self.descriptions.live.remove(&handle);
                step.gone.push(Gone::Description(handle));
            }
        }
        step.gone.extend(self.tree.forget().into_iter().map(Gone::File));
    }
}

impl Tree {
    fn closed(&mut self, node: NodeId) {
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

    /// Applies lines, the last of which must leave nothing behind.
    fn gone(lines: &str) -> (Vec<Vec<Gone>>, World) {
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
        assert!(matches!(named[1][..], [Gone::Description(_)]), "{named:?}");
        assert!(matches!(named[2][..], [Gone::File(_)]), "{named:?}");
        let (open_last, _) = gone(&format!("{open}unlink(\"/a\") = 0\nclose(3</a>) = 0\n"));
        assert!(open_last[1].is_empty(), "{open_last:?}");
        assert!(matches!(open_last[2][..], [Gone::Description(_), Gone::File(_)]), "{open_last:?}");
        // The working directory is still open, and nothing else.
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

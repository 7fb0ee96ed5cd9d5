//! The pages that recovery makes, until it knows them all: found by a hash, and put into the table in order at the end,
//! which costs a fraction of an ordered look-up for each record.

use crate::page::{Body, Entry};
use crate::state::{Key, State};
use device::Sequence;
use std::collections::HashMap;

/// Pages that are not in the table yet, in the order in which the log first names them.
#[derive(Default)]
pub(crate) struct Gathered {
    places: HashMap<Key, u32>,
    pages: Vec<(Key, Box<Entry>)>,
}

impl Gathered {
    /// The page, if it was gathered.
    pub(crate) fn get(&mut self, key: Key) -> Option<&mut Entry> {
        let place = *self.places.get(&key)?;
        Some(&mut self.pages[place as usize].1)
    }

    /// One more page, which is about to be changed by `first`.
    pub(crate) fn add(&mut self, key: Key, first: Sequence) -> &mut Entry {
        let place = u32::try_from(self.pages.len()).expect("fewer pages than bytes of a log");
        self.places.insert(key, place);
        let mut entry = Box::new(Entry::new(Body::Patch(Default::default())));
        entry.queued = Some(first);
        self.pages.push((key, entry));
        &mut self.pages[place as usize].1
    }

    /// Puts all of them into the table.
    pub(crate) fn settle(&mut self, state: &mut State) {
        self.places.clear();
        state.adopt(std::mem::take(&mut self.pages));
    }
}

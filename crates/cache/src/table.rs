//! Pages in memory, by object: what lies behind some page of an object can be taken out in one piece.

use crate::page::Entry;
use crate::state::Key;
use device::{ObjectId, PageNo};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::ops::{Bound, RangeBounds};

/// Pages of one object. Boxed, so that a page that comes or goes moves the pointers beside it and not whole entries.
pub(crate) type Pages = BTreeMap<PageNo, Box<Entry>>;

/// The page table. Owned by the state, under its lock.
#[derive(Default)]
pub(crate) struct Table {
    /// None of them is empty.
    objects: BTreeMap<ObjectId, Pages>,
    len: usize,
}

impl Table {
    /// A table of pages that come in the order of their keys, each once: this costs much less than one by one.
    pub(crate) fn of(pages: impl Iterator<Item = (Key, Box<Entry>)>) -> Table {
        let mut len = 0;
        let mut objects: Vec<(ObjectId, Pages)> = Vec::new();
        let mut pages = pages.peekable();
        while let Some(&(Key { object, .. }, _)) = pages.peek() {
            let mine = std::iter::from_fn(|| pages.next_if(|(key, _)| key.object == object));
            let mine: Pages = mine.map(|(key, entry)| (key.page, entry)).collect();
            len += mine.len();
            objects.push((object, mine));
        }
        Table { objects: objects.into_iter().collect(), len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.objects.get(&key.object)?.get(&key.page).map(|entry| &**entry)
    }

    pub(crate) fn get_mut(&mut self, key: &Key) -> Option<&mut Entry> {
        self.objects.get_mut(&key.object)?.get_mut(&key.page).map(|entry| &mut **entry)
    }

    pub(crate) fn contains_key(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    /// The entry of a page, and whether it was there; if not, it is made.
    pub(crate) fn get_or_insert_with(&mut self, key: Key, new: impl FnOnce() -> Entry) -> (&mut Entry, bool) {
        match self.objects.entry(key.object).or_default().entry(key.page) {
            Place::Occupied(place) => (place.into_mut(), true),
            Place::Vacant(place) => {
                self.len += 1;
                (place.insert(Box::new(new())), false)
            }
        }
    }

    /// Puts in a page that is not there.
    pub(crate) fn insert(&mut self, key: Key, entry: Box<Entry>) {
        let before = self.objects.entry(key.object).or_default().insert(key.page, entry);
        self.len += usize::from(before.is_none());
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Box<Entry>> {
        let pages = self.objects.get_mut(&key.object)?;
        let entry = pages.remove(&key.page)?;
        self.len -= 1;
        if pages.is_empty() {
            self.objects.remove(&key.object);
        }
        Some(entry)
    }

    /// Pages of one object, in their order.
    pub(crate) fn range(
        &self,
        object: ObjectId,
        pages: impl RangeBounds<PageNo>,
    ) -> impl Iterator<Item = (Key, &Entry)> {
        let found = self
            .objects
            .get(&object)
            .into_iter()
            .flat_map(move |all| all.range((pages.start_bound().cloned(), pages.end_bound().cloned())));
        found.map(move |(&page, entry)| (Key { object, page }, &**entry))
    }

    /// All pages from `key` on, in the order of their keys.
    pub(crate) fn from(&self, key: Key) -> impl Iterator<Item = (Key, &Entry)> {
        let later = (Bound::Excluded(key.object), Bound::Unbounded);
        let later = self
            .objects
            .range(later)
            .flat_map(|(&object, pages)| pages.iter().map(move |page| (object, page)));
        let later = later.map(|(object, (&page, entry))| (Key { object, page }, &**entry));
        self.range(key.object, key.page..).chain(later)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Entry)> {
        let pages =
            self.objects.iter().flat_map(|(&object, pages)| pages.iter().map(move |page| (object, page)));
        pages.map(|(object, (&page, entry))| (Key { object, page }, &**entry))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Entry)> {
        let pages = self
            .objects
            .iter_mut()
            .flat_map(|(&object, pages)| pages.iter_mut().map(move |page| (object, page)));
        pages.map(|(object, (&page, entry))| (Key { object, page }, &mut **entry))
    }

    /// Takes out the pages of an object from `from` up to, not including, `to`: all behind `from` in a time that hardly
    /// depends on how many they are, others one by one.
    pub(crate) fn take(&mut self, object: ObjectId, from: PageNo, to: PageNo) -> Pages {
        let Some(pages) = self.objects.get_mut(&object) else { return Pages::new() };
        let taken = match pages.last_key_value() {
            Some((&last, _)) if last >= to => {
                let some: Vec<PageNo> = pages.range(from..to).map(|(&page, _)| page).collect();
                some.iter().filter_map(|page| pages.remove_entry(page)).collect()
            }
            _ => pages.split_off(&from),
        };
        self.len -= taken.len();
        if pages.is_empty() {
            self.objects.remove(&object);
        }
        taken
    }
}

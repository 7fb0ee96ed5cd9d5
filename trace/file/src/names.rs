//! Byte strings, each kept once: paths, components, and names of calls. File names are bytes, not text.

use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};

/// A byte string in a [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name(pub u32);

/// All byte strings of a trace or compiled trace. A long trace has millions, so they are stored one after the
/// other. Each costs its bytes and 18 more.
#[derive(Debug, Clone, Default)]
pub struct Names {
    text: Vec<u8>,
    /// The end of each string in `text`. A string begins at the end of the one before.
    ends: Vec<u64>,
    /// A hash table of names: number plus one, or 0 for an empty slot. At most half of the slots are taken.
    slots: Vec<u32>,
    hash: RandomState,
}

impl Names {
    /// The name of these bytes. The same bytes always have the same name.
    pub fn intern(&mut self, bytes: &[u8]) -> Name {
        if self.slots.len() <= 2 * self.ends.len() {
            self.grow();
        }
        let slot = self.slot(bytes);
        match self.slots[slot].checked_sub(1) {
            Some(name) => Name(name),
            None => {
                let name = self.push(bytes);
                self.slots[slot] = name.0 + 1;
                name
            }
        }
    }

    /// The slot of these bytes in the table, or the empty slot where they belong.
    fn slot(&self, bytes: &[u8]) -> usize {
        let mut slot = self.hash.hash_one(bytes) as usize;
        loop {
            slot &= self.slots.len() - 1;
            match self.slots[slot].checked_sub(1) {
                Some(name) if self.bytes(Name(name)) != bytes => slot += 1,
                _ => return slot,
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Name {
        let number = u32::try_from(self.ends.len()).ok().filter(|number| *number < u32::MAX);
        self.text.extend_from_slice(bytes);
        self.ends.push(self.text.len() as u64);
        Name(number.expect("fewer than 2^32 different names"))
    }

    fn grow(&mut self) {
        self.slots = vec![0; (4 * self.ends.len()).next_power_of_two().max(64)];
        for name in 0..self.ends.len() as u32 {
            let slot = self.slot(self.bytes(Name(name)));
            self.slots[slot] = name + 1;
        }
    }

    /// The bytes of a name of this table.
    pub fn bytes(&self, name: Name) -> &[u8] {
        let at = name.0 as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[at] as usize]
    }

    /// The text of a name for reports. Bytes that are not UTF-8 are replaced.
    pub fn show(&self, name: Name) -> String {
        String::from_utf8_lossy(self.bytes(name)).into_owned()
    }

    /// Number of names. They are numbered from 0.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All byte strings, by number.
    pub fn all(&self) -> Vec<&[u8]> {
        (0..self.ends.len() as u32).map(|name| self.bytes(Name(name))).collect()
    }

    /// A table in which each byte string has the number of its place, even if some occur twice.
    pub fn from_all(all: impl IntoIterator<Item = Box<[u8]>>) -> Names {
        let mut names = Names::default();
        for bytes in all {
            names.push(&bytes);
        }
        names.grow();
        names
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Names) -> bool {
        self.text == other.text && self.ends == other.ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_have_the_same_name_also_after_the_table_grew_and_was_read_back() {
        let mut names = Names::default();
        let text = |number: u32| format!("{:x}", number * 7).into_bytes();
        for number in 0..10_000 {
            assert_eq!(names.intern(&text(number)), Name(number));
        }
        assert_eq!(names.intern(b""), Name(10_000));
        let all = names.all().into_iter().map(Into::into).collect::<Vec<Box<[u8]>>>();
        let mut back = Names::from_all(all);
        assert_eq!(back, names);
        for number in 0..10_000 {
            assert_eq!(
                (names.intern(&text(number)), back.intern(&text(number))),
                (Name(number), Name(number))
            );
            assert_eq!(names.bytes(Name(number)), text(number));
        }
        assert_eq!((back.intern(b""), back.len(), back.show(Name(2))), (Name(10_000), 10_001, "e".into()));
    }
}

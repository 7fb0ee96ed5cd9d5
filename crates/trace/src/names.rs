//! Byte strings, each kept once: paths, components, and names of calls. File names are bytes, not text.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A byte string in a [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name(pub u32);

/// All byte strings of a trace or benchmark.
#[derive(Debug, Clone, Default)]
pub struct Names {
    bytes: Vec<Box<[u8]>>,
    index: HashMap<Box<[u8]>, Name>,
}

impl Names {
    /// The name of these bytes, which is always the same one.
    pub fn intern(&mut self, bytes: &[u8]) -> Name {
        if let Some(name) = self.index.get(bytes) {
            return *name;
        }
        let name = Name(u32::try_from(self.bytes.len()).expect("fewer than 2^32 different names"));
        self.bytes.push(bytes.into());
        self.index.insert(bytes.into(), name);
        name
    }

    /// The bytes of a name that came from here.
    pub fn bytes(&self, name: Name) -> &[u8] {
        &self.bytes[name.0 as usize]
    }

    /// For people: bytes that are not UTF-8 are replaced.
    pub fn show(&self, name: Name) -> String {
        String::from_utf8_lossy(self.bytes(name)).into_owned()
    }

    /// How many there are; names are numbered from 0.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn all(&self) -> &[Box<[u8]>] {
        &self.bytes
    }

    pub(crate) fn from_all(all: Vec<Box<[u8]>>) -> Names {
        let index = all.iter().enumerate().map(|(at, bytes)| (bytes.clone(), Name(at as u32))).collect();
        Names { bytes: all, index }
    }
}

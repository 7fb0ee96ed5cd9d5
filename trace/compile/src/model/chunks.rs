//! A list that is cheap to copy: copies share the chunks that neither has changed.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Elements in a chunk, which the first change copies together.
const CHUNK: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct Chunks<T>(Vec<Arc<Vec<T>>>);

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks(Vec::new())
    }
}

impl<T: Clone> Chunks<T> {
    pub(super) fn push(&mut self, element: T) {
        match self.0.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => Arc::make_mut(chunk).push(element),
            None => self.0.push(Arc::new(vec![element])),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|chunk| chunk.iter())
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.0[at / CHUNK][at % CHUNK]
    }
}

impl<T: Clone> IndexMut<usize> for Chunks<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut Arc::make_mut(&mut self.0[at / CHUNK])[at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_what_it_was_copied_from() {
        let mut list = Chunks::default();
        (0..100).for_each(|number| list.push(number));
        let copy = list.clone();
        list[40] = 1000;
        list.push(100);
        assert_eq!((copy[40], copy.len(), list[40], list.len()), (40, 100, 1000, 101));
        assert!(copy.iter().copied().eq(0..100));
    }
}

//! The last writer of each byte of a file. Bytes are not kept: their writers tell them apart.

use std::collections::BTreeMap;

/// For the first byte of each range, the end of the range and its writer.
#[derive(Debug, Clone, Default)]
pub(super) struct Content(BTreeMap<u64, (u64, u32)>);

impl Content {
    pub(super) fn write(&mut self, from: u64, to: u64, writer: u32) {
        if from >= to {
            return;
        }
        self.split(from);
        self.split(to);
        let covered: Vec<u64> = self.0.range(from..to).map(|(start, _)| *start).collect();
        for start in covered {
            self.0.remove(&start);
        }
        self.0.insert(from, (to, writer));
    }

    fn split(&mut self, at: u64) {
        let Some((_, (end, writer))) = self.0.range_mut(..at).next_back() else { return };
        if at < *end {
            let right = (*end, *writer);
            *end = at;
            self.0.insert(at, right);
        }
    }

    /// A digest of the writers of the bytes from `from` to `to`.
    pub(super) fn digest(&self, from: u64, to: u64) -> u64 {
        let before = self.0.range(..=from).next_back().filter(|(_, (end, _))| *end > from);
        let rest =
            self.0.range((std::ops::Bound::Excluded(from), std::ops::Bound::Excluded(to.max(from + 1))));
        let mut digest = 0;
        let mut last = None;
        for (start, (end, writer)) in before.into_iter().chain(rest) {
            let part = (*start.max(&from), *end.min(&to), *writer);
            // Adjacent ranges of one writer count as one, however they were split.
            match last {
                Some((first, at, same)) if at == part.0 && same == part.2 => {
                    last = Some((first, part.1, same))
                }
                _ => {
                    last.into_iter().for_each(|part| digest = mix(digest, part));
                    last = Some(part);
                }
            }
        }
        last.into_iter().for_each(|part| digest = mix(digest, part));
        digest
    }
}

fn mix(digest: u64, (from, to, writer): (u64, u64, u32)) -> u64 {
    [from, to, u64::from(writer)].iter().fold(digest, |digest, part| super::sim::mix(digest, *part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_depends_on_the_last_writer_of_each_byte_alone() {
        let (mut one, mut other) = (Content::default(), Content::default());
        one.write(0, 10, 1);
        one.write(4, 6, 2);
        other.write(4, 6, 2);
        other.write(0, 4, 1);
        other.write(6, 10, 1);
        assert_eq!(one.digest(0, 10), other.digest(0, 10));
        assert_eq!(one.digest(6, 8), other.digest(6, 8));
        other.write(9, 10, 3);
        assert_ne!(one.digest(0, 10), other.digest(0, 10));
        assert_eq!(one.digest(0, 9), other.digest(0, 9));
        assert_eq!(one.digest(20, 30), 0);
    }
}

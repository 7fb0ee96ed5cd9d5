//! The reservation estimate: facts about the pages for which the store counts space, so that it need not count
//! the most for each.

use crate::page_table::PageKey;
use device::{ObjectId, PageNo};
use std::collections::HashMap;
use store::{ReservationEstimate, leaf_first_page};

/// Pages of a leaf of the store's map.
const LEAF_PAGES: u64 = 128;

/// Pages of the table with reservations. Updated with each change of a page. Dependencies of range operations
/// are not included: the store counts the most for them.
#[derive(Debug, Default)]
pub(crate) struct ReservedPages {
    /// Reservations of the pages of each leaf of the store's map.
    by_leaf: HashMap<(ObjectId, PageNo), u32>,
    all: u64,
    data: u64,
}

/// The estimate for consecutive pages of data, which begin and end within a leaf.
pub(crate) fn estimate_of_run(pages: u64) -> ReservationEstimate {
    ReservationEstimate {
        data_pages: pages,
        pages_in_same_leaf: pages.saturating_sub(pages / LEAF_PAGES + 2),
    }
}

impl ReservedPages {
    /// Replaces a page's number of reservations.
    pub(crate) fn replace(&mut self, key: &PageKey, before: u32, after: u32) {
        if before == after {
            return;
        }
        let leaf = (key.object, leaf_first_page(key.page));
        let of_leaf = self.by_leaf.entry(leaf).or_default();
        *of_leaf = *of_leaf + after - before;
        if *of_leaf == 0 {
            self.by_leaf.remove(&leaf);
        }
        self.all = self.all + u64::from(after) - u64::from(before);
        if !key.object.is_metadata() {
            self.data = self.data + u64::from(after) - u64::from(before);
        }
    }

    /// The estimate for all pages.
    pub(crate) fn estimate(&self) -> ReservationEstimate {
        ReservationEstimate {
            data_pages: self.data,
            pages_in_same_leaf: self.all - self.by_leaf.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::VolumeId;

    #[test]
    fn pages_of_one_leaf_count_as_such_until_the_last_of_them_needs_nothing() {
        let mut reserved = ReservedPages::default();
        let file = VolumeId::MAIN.object(7, 1);
        let key = |object, page| PageKey { object, page: PageNo(page) };
        [0, 127, 128].into_iter().for_each(|page| reserved.replace(&key(file, page), 0, 1));
        reserved.replace(&key(VolumeId::MAIN.object(0, 0), 3), 0, 1);
        assert_eq!(reserved.estimate(), ReservationEstimate { data_pages: 3, pages_in_same_leaf: 1 });
        // Written again while it is being written back.
        reserved.replace(&key(file, 127), 1, 2);
        assert_eq!(reserved.estimate(), ReservationEstimate { data_pages: 4, pages_in_same_leaf: 2 });
        reserved.replace(&key(file, 0), 1, 0);
        reserved.replace(&key(file, 127), 2, 1);
        assert_eq!(reserved.estimate(), ReservationEstimate { data_pages: 2, pages_in_same_leaf: 0 });
        reserved.replace(&key(file, 127), 1, 0);
        reserved.replace(&key(file, 128), 1, 0);
        reserved.replace(&key(VolumeId::MAIN.object(0, 0), 3), 1, 0);
        assert_eq!(reserved.estimate(), ReservationEstimate::default());
        assert!(reserved.by_leaf.is_empty());
    }
}

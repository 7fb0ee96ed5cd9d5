//! Cuts: pages that become holes are out of the table at once; the store hears of it later, and their memory is given back
//! a bounded piece at a time, since a file of a gigabyte has a quarter of a million of them.

use crate::page::Entry;
use crate::plant::{PlantedBug, is_planted};
use crate::state::{Account, Key, State};
use buffer::GroupNo;
use device::{Lsn, ObjectId, PageNo};
use std::time::Duration;

/// Pages of an object that became holes and that the store may still hold. A page that is fetched with a page LSN below
/// `lsn` is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingCut {
    pub(crate) from: PageNo,
    pub(crate) to: PageNo,
    pub(crate) lsn: Lsn,
    /// The oldest group that must stay until the cut is stored: its own, or that of a change that it took out of
    /// memory. Were the cut lost with a commit that fails, that change would be the newest again.
    pub(crate) group: GroupNo,
    pub(crate) whole_object: bool,
    pub(crate) since: Duration,
}

impl State {
    /// Takes a range of pages out of memory and remembers the cut until the store has it. Returns how many of the
    /// store's reservations the pages held, and the reads that waited for them, which must look again.
    pub(crate) fn cut(&mut self, object: ObjectId, mut cut: PendingCut) -> (u64, Vec<u64>) {
        let (mut reservations, mut waiters) = (0, Vec::new());
        self.reads.ahead.cut(object, cut.from..cut.to);
        let mut taken = self.table.take(object, cut.from, cut.to);
        for (&page, entry) in taken.iter_mut().filter(|(_, entry)| entry.is_busy()) {
            let before = Account::of(entry);
            let taken = before.group.filter(|_| !is_planted(PlantedBug::CutWithoutGroups));
            cut.group = taken.map_or(cut.group, |group| group.min(cut.group));
            // A write-back under way keeps its own reservation until it ends.
            reservations += u64::from(entry.dirt.take().is_some_and(|dirt| dirt.reserved));
            entry.writing = None;
            waiters.append(&mut entry.waiters);
            self.account(Key { object, page }, before, Account::of(entry));
        }
        if !taken.is_empty() {
            self.discarded.push_back(taken);
        }
        let pending = self.cuts.entry(object).or_default();
        let before = pending.len();
        pending.retain(|old| {
            let stays = old.from < cut.from || old.to > cut.to;
            cut.group = if stays { cut.group } else { cut.group.min(old.group) };
            stays
        });
        pending.push(cut);
        self.cuts_pending = self.cuts_pending + pending.len() - before;
        (reservations, waiters)
    }

    /// The same for a cut that was written to the log again, after changes that are newer than it: those stay.
    pub(crate) fn cut_again(&mut self, object: ObjectId, cut: PendingCut) -> u64 {
        let is_older = |entry: &Entry| {
            let older = entry.dirt.as_ref().is_none_or(|dirt| dirt.newest < cut.lsn);
            older || is_planted(PlantedBug::MergedCutKills)
        };
        let older = self.table.range(object, cut.from..cut.to).filter(|(_, entry)| is_older(entry));
        let older: Vec<Key> = older.map(|(key, _)| key).collect();
        let dropped = older.into_iter().filter_map(|key| self.remove(key));
        let reservations =
            dropped.filter(|entry| entry.dirt.as_ref().is_some_and(|dirt| dirt.reserved)).count();
        let pending = self.cuts.entry(object).or_default();
        let before = pending.len();
        pending.retain(|old| old.lsn != cut.lsn);
        let at = pending.partition_point(|old| old.lsn < cut.lsn);
        pending.insert(at, cut);
        self.cuts_pending = self.cuts_pending + pending.len() - before;
        reservations as u64
    }

    /// The newest pending cut that covers a page.
    pub(crate) fn cut_of(&self, key: Key) -> Option<Lsn> {
        let cuts = self.cuts.get(&key.object)?;
        cuts.iter().filter(|cut| cut.from <= key.page && key.page < cut.to).map(|cut| cut.lsn).max()
    }

    /// Takes at most so many of the pages that were cut off the books; their memory is the caller's to give back, best
    /// without the lock.
    pub(crate) fn clear_discarded(&mut self, most: usize) -> Vec<(PageNo, Box<Entry>)> {
        let mut cleared = Vec::new();
        while cleared.len() < most
            && let Some(pages) = self.discarded.front_mut()
        {
            match pages.pop_first() {
                Some((page, entry)) => {
                    self.memory_bytes -= entry.memory_bytes() as u64;
                    cleared.push((page, entry));
                }
                None => drop(self.discarded.pop_front()),
            }
        }
        cleared
    }
}

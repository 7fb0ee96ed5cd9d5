//! Writing to the buffer again what needs its oldest groups and is not written back, so that the groups can go: pages
//! that are still being written, which need not be written back over and over, what is stuck, which would hold up
//! everybody else, and what a crash took of files in a damaged volume.

use crate::bypass;
use crate::commit::Committer;
use crate::error::CacheError;
use crate::page::{Body, Entry, Ranges};
use crate::pages::{Key, PendingCut};
use crate::plant::{PlantedBug, is_planted};
use crate::retry::Victim;
use crate::shared::{Shared, State};
use crate::transfers::{Ordered, Pending};
use buffer::{GroupNo, LogRecord, TRANSFER_BYTES};
use device::{Lsn, ObjectId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::Piece;

/// Pages and cuts of one step: it is done under the lock.
const STEP: usize = 256;

/// What was appended again, and where.
#[derive(Default)]
struct Relogged {
    transfers: Vec<(Lsn, GroupNo)>,
    cuts: Vec<(ObjectId, Lsn, GroupNo)>,
    pages: Vec<(Key, GroupNo)>,
    lost: Vec<(ObjectId, GroupNo)>,
}

/// Writes again what holds up the log.
pub(crate) struct Relogger {
    shared: Arc<Shared>,
    committer: Arc<Committer>,
}

impl Relogger {
    pub(crate) fn new(shared: Arc<Shared>, committer: Arc<Committer>) -> Relogger {
        Relogger { shared, committer }
    }

    /// One step; `false` if there is nothing to do.
    pub(crate) fn step(&self, now: Duration) -> Result<bool, CacheError> {
        if !self.shared.buffer_is_half_full() {
            return Ok(false);
        }
        let mut state = self.shared.state();
        let groups = self.shared.buffer().unreleased_groups();
        let mut relogged = Relogged::default();
        self.append_transfers(&state, &groups, &mut relogged)?;
        relogged.cuts.extend(self.append_cuts(&state, &groups)?);
        relogged.pages = self.append_pages(&state, &groups, now)?;
        relogged.lost = self.append_lost(&state, &groups)?;
        for &(key, group) in &relogged.pages {
            if state.pages.page_was_logged(key) {
                state.syncs.logged_again(group);
            }
        }
        let count = relogged.transfers.len() + relogged.pages.len() + relogged.cuts.len();
        if count + relogged.lost.len() == 0 {
            return Ok(false);
        }
        state.counters.pages_relogged += count as u64;
        drop(state);
        // Only now is the new copy as good as the old one.
        if !is_planted(PlantedBug::RelogNotDurable) {
            self.committer.commit_now()?;
        }
        let mut state = self.shared.state();
        for (lsn, group) in relogged.transfers {
            state.pages.transfer_was_relogged(lsn, group);
        }
        relogged.pages.into_iter().for_each(|(key, group)| state.pages.page_was_relogged(key, group));
        for (object, lsn, group) in relogged.cuts {
            state.pages.cut_was_relogged(object, lsn, group);
        }
        relogged.lost.into_iter().for_each(|(object, group)| state.pages.lost_was_relogged(object, group));
        self.committer.release_groups(&mut state);
        Ok(true)
    }

    /// Clones and moves that cannot be stored, and those that wait for them. In this order, which recovery counts on: one of them, the
    /// older pages beside it, the cuts and deletions of its objects; were newer ones let go first, it would bring back what they took, and
    /// an older one that stood before it could be taken for a part of a newer one.
    fn append_transfers(
        &self,
        state: &State,
        groups: &Range<GroupNo>,
        relogged: &mut Relogged,
    ) -> Result<(), CacheError> {
        let span = groups.end.0 - groups.start.0;
        let transfers = state.pages.transfers();
        let is_stuck =
            |lsn| transfers.get(lsn).is_some_and(|one| state.retries.is_stuck(Victim::of(&one.what)));
        let stays = |one: &&Pending| {
            let cuts = state.pages.cuts_before(&one.what);
            let oldest = cuts.iter().map(|(_, cut)| cut.group).fold(one.group, GroupNo::min);
            oldest.0 < groups.start.0 + span / 2 && transfers.stuck_before(one.what.lsn, is_stuck).is_some()
        };
        for one in transfers.iter().filter(stays).take(STEP) {
            let Ordered { transfer, lsn, .. } = one.what;
            let Some(group) = self.append_again(state, lsn, &[one.what.record()])? else { return Ok(()) };
            for (page, entry) in one.before() {
                let Some(dirt) = entry.dirt() else { return Ok(()) };
                // Each says whose it is: should the log begin behind that, the store has all of them.
                let mut records = records(entry, Key { object: transfer.from, page }, &dirt.ranges);
                records.insert(0, one.what.record());
                if self.append_again(state, lsn, &records)?.is_none() {
                    return Ok(());
                }
            }
            for (object, cut) in state.pages.cuts().filter(|(object, _)| one.what.is_about(*object)) {
                let Some(group) = self.append_again(state, cut.lsn, &[cut_record(object, &cut)])? else {
                    return Ok(());
                };
                relogged.cuts.push((object, cut.lsn, group));
            }
            relogged.transfers.push((lsn, group));
        }
        Ok(())
    }

    fn append_pages(
        &self,
        state: &State,
        groups: &Range<GroupNo>,
        now: Duration,
    ) -> Result<Vec<(Key, GroupNo)>, CacheError> {
        let span = groups.end.0 - groups.start.0;
        let stays = |key: &Key, entry: &Entry| {
            let dirt = entry.dirt().filter(|_| entry.writing().is_none());
            // Written again in the last eighth of the log, and first written in its older half.
            dirt.is_some_and(|dirt| {
                let hot = dirt.latest.0 >= groups.end.0 - span / 8;
                let waits = state.pages.holds_back(key);
                let stays = hot || waits || state.retries.is_backed_off(Victim::Page(*key), now);
                stays && dirt.group.0 < groups.start.0 + span / 2
            })
        };
        let oldest = state.pages.by_group().take(STEP).map(|(_, key)| key);
        let staying = oldest.filter_map(|key| {
            let entry = state.pages.get(&key).filter(|entry| stays(&key, entry))?;
            Some((key, entry))
        });
        let mut appended = Vec::new();
        for (key, entry) in staying {
            let Some(dirt) = entry.dirt() else { continue };
            let records = records(entry, key, &dirt.ranges);
            if let Some(group) = self.append_again(state, dirt.newest, &records)? {
                appended.push((key, group));
            }
        }
        Ok(appended)
    }

    /// Appends what is left of one page, whatever space is kept for others.
    pub(crate) fn append_page(&self, state: &State, key: Key) -> Result<(), CacheError> {
        let page = state.pages.get(&key).and_then(|entry| Some((entry, entry.dirt()?)));
        let Some((entry, dirt)) = page else { return Ok(()) };
        self.shared.buffer().append_relogged(dirt.newest, &records(entry, key, &dirt.ranges))?;
        Ok(())
    }

    fn append_cuts(
        &self,
        state: &State,
        groups: &Range<GroupNo>,
    ) -> Result<Vec<(ObjectId, Lsn, GroupNo)>, CacheError> {
        let span = groups.end.0 - groups.start.0;
        let stays = |object: ObjectId, cut: &PendingCut| {
            let waits = state.pages.transfers().hold_back_range(object, cut.lsn);
            let is_stuck = waits || state.retries.is_stuck(Victim::Cut(object, cut.lsn));
            cut.group.0 < groups.start.0 + span / 2 && is_stuck
        };
        let mut appended = Vec::new();
        let parted = |object: ObjectId, cut: &PendingCut| {
            state.pages.transfers().any_between(object, cut.lsn..Lsn(u64::MAX))
        };
        let alone = |(object, cut): &(ObjectId, PendingCut)| stays(*object, cut) && !parted(*object, cut);
        for (object, cut) in state.pages.cuts().filter(alone).take(STEP) {
            if let Some(group) = self.append_again(state, cut.lsn, &[cut_record(object, &cut)])? {
                appended.push((object, cut.lsn, group));
            }
        }
        Ok(appended)
    }

    /// What a crash took of objects that nobody could let end before it.
    fn append_lost(
        &self,
        state: &State,
        groups: &Range<GroupNo>,
    ) -> Result<Vec<(ObjectId, GroupNo)>, CacheError> {
        let limit = GroupNo(groups.start.0 + (groups.end.0 - groups.start.0) / 2);
        let mut appended = Vec::new();
        for (object, lost) in state.pages.lost_before(limit).take(STEP) {
            if let Some(group) = self.append_again(state, lost.lsn, &[lost.record(object)])? {
                appended.push((object, group));
            }
        }
        Ok(appended)
    }

    /// Appends what is left of one page or cut; `None` where there is no space for that.
    fn append_again(
        &self,
        state: &State,
        newest: Lsn,
        records: &[LogRecord<'_>],
    ) -> Result<Option<GroupNo>, CacheError> {
        let bytes = records.iter().map(|record| match record {
            LogRecord::Write { bytes, .. } => bytes.len() as u64,
            LogRecord::Clone(_) | LogRecord::Move(_) => TRANSFER_BYTES,
            _ => 0,
        });
        let footprint = buffer::footprint(records.len() as u64, bytes.sum());
        let reserved =
            state.admission.reserved_bytes() + bypass::reserved_bytes(state.pages.unlogged() as u64);
        let kept = reserved + self.shared.buffer().capacity_bytes() / 16;
        if self.shared.buffer().free_bytes() < footprint + kept {
            return Ok(None);
        }
        Ok(Some(self.shared.buffer().append_relogged(newest, records)?))
    }
}

/// A cut or a deletion, as the buffer has it.
fn cut_record(object: ObjectId, cut: &PendingCut) -> LogRecord<'static> {
    match cut.whole_object {
        true => LogRecord::Delete { object },
        false => LogRecord::Punch { object, from: cut.from, to: cut.to },
    }
}

/// A page's surviving delta as records.
fn records<'a>(entry: &'a Entry, key: Key, ranges: &Ranges) -> Vec<LogRecord<'a>> {
    let Key { object, page } = key;
    match entry.body() {
        Body::Patch(delta) => delta
            .pieces()
            .map(|piece| match piece {
                Piece::Bytes(start, bytes) => LogRecord::Write { object, page, start, bytes },
                Piece::Zeros(start, len) => LogRecord::Zero { object, page, start, len },
            })
            .collect(),
        Body::Whole(bytes) => ranges
            .iter()
            .map(|range| LogRecord::Write { object, page, start: range.start as u16, bytes: &bytes.0[range] })
            .collect(),
    }
}

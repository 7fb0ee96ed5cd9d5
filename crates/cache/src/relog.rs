//! Writing to the buffer again what needs its oldest groups and is not written back, so that the groups can go: pages
//! that are still being written, which need not be written back over and over, and what is stuck, which would hold up
//! everybody else.

use crate::commit::Committer;
use crate::delta::Piece;
use crate::error::CacheError;
use crate::page::{Body, Entry, Ranges};
use crate::pages::{Key, PendingCut};
use crate::plant::{PlantedBug, is_planted};
use crate::retry::Victim;
use crate::shared::{Shared, State};
use buffer::{GroupNo, Record};
use device::{Lsn, ObjectId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Pages and cuts of one step: it is done under the lock.
const STEP: usize = 256;

/// What was appended again, and where.
#[derive(Default)]
struct Relogged {
    pages: Vec<(Key, GroupNo)>,
    cuts: Vec<(ObjectId, Lsn, GroupNo)>,
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
        let groups = self.shared.buffer().groups();
        let relogged = Relogged {
            pages: self.append_pages(&state, &groups, now)?,
            cuts: self.append_cuts(&state, &groups)?,
        };
        let count = relogged.pages.len() + relogged.cuts.len();
        if count == 0 {
            return Ok(false);
        }
        state.counters.pages_relogged += count as u64;
        drop(state);
        // Only now is the new copy as good as the old one.
        if !is_planted(PlantedBug::RelogNotDurable) {
            self.committer.commit_now()?;
        }
        let mut state = self.shared.state();
        relogged.pages.into_iter().for_each(|(key, group)| state.pages.page_was_relogged(key, group));
        for (object, lsn, group) in relogged.cuts {
            state.pages.cut_was_relogged(object, lsn, group);
        }
        self.committer.release_groups(&mut state);
        Ok(true)
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
                let stays = hot || state.retries.is_backed_off(Victim::Page(*key), now);
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

    fn append_cuts(
        &self,
        state: &State,
        groups: &Range<GroupNo>,
    ) -> Result<Vec<(ObjectId, Lsn, GroupNo)>, CacheError> {
        let span = groups.end.0 - groups.start.0;
        let stays = |object: ObjectId, cut: &PendingCut| {
            cut.group.0 < groups.start.0 + span / 2 && state.retries.is_stuck(Victim::Cut(object, cut.lsn))
        };
        let mut appended = Vec::new();
        for (object, cut) in state.pages.cuts().filter(|(object, cut)| stays(*object, cut)).take(STEP) {
            let record = match cut.whole_object {
                true => Record::Delete { object },
                false => Record::Cut { object, from: cut.from, to: cut.to },
            };
            if let Some(group) = self.append_again(state, cut.lsn, &[record])? {
                appended.push((object, cut.lsn, group));
            }
        }
        Ok(appended)
    }

    /// Appends what is left of one page or cut; `None` where there is no space for that.
    fn append_again(
        &self,
        state: &State,
        newest: Lsn,
        records: &[Record<'_>],
    ) -> Result<Option<GroupNo>, CacheError> {
        let bytes = records.iter().map(|record| match record {
            Record::Write { bytes, .. } => bytes.len() as u64,
            _ => 0,
        });
        let footprint = buffer::footprint(records.len() as u64, bytes.sum());
        let kept = state.admission.reserved_bytes() + self.shared.buffer().capacity_bytes() / 16;
        if self.shared.buffer().free_bytes() < footprint + kept {
            return Ok(None);
        }
        Ok(Some(self.shared.buffer().append_merged(newest, records)?))
    }
}

/// A page's surviving delta as records.
fn records<'a>(entry: &'a Entry, key: Key, ranges: &Ranges) -> Vec<Record<'a>> {
    let Key { object, page } = key;
    match entry.body() {
        Body::Patch(delta) => delta
            .pieces()
            .map(|piece| match piece {
                Piece::Bytes(start, bytes) => Record::Write { object, page, start, bytes },
                Piece::Zeros(start, len) => Record::Zero { object, page, start, len },
            })
            .collect(),
        Body::Whole(bytes) => ranges
            .iter()
            .map(|range| Record::Write { object, page, start: range.start as u16, bytes: &bytes.0[range] })
            .collect(),
    }
}

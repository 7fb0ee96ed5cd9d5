//! A search for space, while a caller waits for some: its state between steps, and its plan.
//!
//! | stage | step |
//! | --- | --- |
//! | any | more space from the host file system, if more was reserved since it last gave some |
//! | any | freeing what was deleted |
//! | any | while less than an eighth of the store is left, the caller deletes a volume, if it has an expendable one |
//! | before write-back | cleaning that is owed, then the caller writes everything back |
//! | checkpoint | one checkpoint: segments die that only older roots needed |
//! | merging | deltas take space that their pages, once merged, do not |
//! | cleaning | rounds of cleaning; after each, merging again |
//! | end | more space from the host file system, as long as it has some; then the caller deletes an expendable volume |
//!
//! An expendable volume is worth more than the time that cleaning takes. While more than an eighth is left, cleaning
//! always gains some, which others may use before the search ends: then another search begins, and the volume stays.
//!
//! The caller writes everything back first, because a dirty page may reserve more blocks than it takes, and
//! deletions free some. Other callers wait meanwhile, so each search ends.

use crate::cleaner::CleaningOutcome;
use crate::maintenance_plan::{MaintenanceGauges, MaintenanceStep};

/// The most rounds of cleaning in one search.
const ROUNDS_MAX: usize = 8;

/// A search for space. A caller that waits for space keeps it from one
/// [step](crate::StoreMaintenance::step) to the next, until the search ends.
#[derive(Debug, Default)]
pub struct SpaceSearch {
    has_begun: bool,
    stage: SearchStage,
    /// The caller has a volume that it can delete.
    has_expendable_volume: bool,
    /// Reserved blocks when the host file system last gave space. Until more are reserved, more space is
    /// asked for only at the end.
    allocated_at: Option<u64>,
    /// Rounds of cleaning that have ended.
    rounds: usize,
    /// One of them has emptied a segment.
    has_gained: bool,
    /// At the end: another search makes more.
    makes_more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SearchStage {
    #[default]
    BeforeWriteBack,
    Checkpoint,
    Merging,
    Cleaning,
    /// Cleaning gains no more.
    Ended,
}

/// A step of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchStep {
    AllocateMore,
    Free,
    /// The caller's turn, to delete a volume.
    DeleteVolume,
    /// A step that is due before pages are written back.
    Owed(MaintenanceStep),
    /// The caller's turn, to write everything back.
    WriteBack,
    Checkpoint,
    Merge,
    Clean,
    /// There is nothing left to do, except to free what has died.
    End,
}

impl SpaceSearch {
    /// Notes whether the caller has a volume that it would rather delete than be told that the store is full.
    pub fn set_expendable_volume(&mut self, has_one: bool) {
        self.has_expendable_volume = has_one;
    }

    /// Notes that the caller has written everything back that it could.
    pub fn note_written_back(&mut self) {
        if !self.is_written_back() {
            self.stage = SearchStage::Checkpoint;
        }
    }

    /// Whether the caller has said that it has written everything back.
    pub fn is_written_back(&self) -> bool {
        self.stage != SearchStage::BeforeWriteBack
    }

    /// Whether another search makes more space, though others may have used what this one made: cleaning gained some, and
    /// more than an eighth of the store is left. False before the search ends.
    pub fn makes_more(&self) -> bool {
        self.makes_more
    }

    /// Whether this call is the first.
    pub(crate) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// The next step.
    pub(crate) fn next_step(&self, gauges: &MaintenanceGauges) -> SearchStep {
        let more_is_reserved = self.allocated_at.is_none_or(|before| gauges.reserved > before);
        if more_is_reserved && gauges.may_allocate() {
            return SearchStep::AllocateMore;
        }
        if gauges.freeing_is_due() {
            return SearchStep::Free;
        }
        if self.has_expendable_volume && gauges.is_tight {
            return SearchStep::DeleteVolume;
        }
        match self.stage {
            SearchStage::BeforeWriteBack => {
                gauges.step_before_write_back().map_or(SearchStep::WriteBack, SearchStep::Owed)
            }
            SearchStage::Checkpoint => SearchStep::Checkpoint,
            SearchStage::Merging => SearchStep::Merge,
            SearchStage::Cleaning if self.rounds < ROUNDS_MAX && gauges.cleaning_may_help => {
                SearchStep::Clean
            }
            // Live blocks may have become more since it last gave space, or segments were trimmed.
            SearchStage::Cleaning | SearchStage::Ended if gauges.may_allocate() => SearchStep::AllocateMore,
            SearchStage::Cleaning | SearchStage::Ended => SearchStep::End,
        }
    }

    /// Notes that the host file system gave space while `reserved` blocks were reserved.
    pub(crate) fn note_allocated(&mut self, reserved: u64) {
        self.allocated_at = Some(reserved);
    }

    /// Notes the checkpoint after write-back.
    pub(crate) fn note_checkpoint(&mut self) {
        self.stage = SearchStage::Merging;
    }

    /// Notes that no leaf is left to merge, or that there is no space for it: cleaning may make some.
    pub(crate) fn note_merged(&mut self) {
        self.stage = SearchStage::Cleaning;
    }

    /// Notes the end of the search.
    pub(crate) fn note_ended(&mut self, gauges: &MaintenanceGauges) {
        self.makes_more = self.has_gained && !gauges.is_tight;
    }

    /// Notes a step of cleaning.
    pub(crate) fn note_cleaned(&mut self, outcome: CleaningOutcome) {
        match outcome {
            CleaningOutcome::Working => {}
            CleaningOutcome::Idle => self.stage = SearchStage::Ended,
            // The first round may have begun before the blocks died that can be gained now.
            CleaningOutcome::RoundEnded(0) if self.rounds > 0 => self.stage = SearchStage::Ended,
            CleaningOutcome::RoundEnded(emptied) => {
                self.rounds += 1;
                self.has_gained |= emptied > 0;
                self.stage = SearchStage::Merging;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance_plan::MaintenanceNotes;
    use std::time::Duration;

    const NOW: Duration = Duration::from_secs(100);
    const LATER: Duration = Duration::from_secs(101);

    /// The host file system was asked just now.
    fn gauges() -> MaintenanceGauges {
        let notes = MaintenanceNotes { allocate_not_before: LATER, ..Default::default() };
        MaintenanceGauges { now: NOW, notes, cleaning_may_help: true, ..Default::default() }
    }

    /// A search that cleans.
    fn cleaning() -> SpaceSearch {
        SpaceSearch { has_begun: true, stage: SearchStage::Cleaning, ..SpaceSearch::default() }
    }

    #[test]
    fn a_search_goes_from_write_back_to_cleaning() {
        let mut search = SpaceSearch::default();
        assert!(search.begins() && !search.begins());
        assert_eq!(search.next_step(&gauges()), SearchStep::WriteBack);
        search.note_written_back();
        assert_eq!(search.next_step(&gauges()), SearchStep::Checkpoint);
        search.note_checkpoint();
        assert_eq!(search.next_step(&gauges()), SearchStep::Merge);
        search.note_written_back();
        assert_eq!(search.next_step(&gauges()), SearchStep::Merge);
        search.note_merged();
        assert_eq!(search.next_step(&gauges()), SearchStep::Clean);
        let hopeless = MaintenanceGauges { cleaning_may_help: false, ..gauges() };
        assert_eq!(search.next_step(&hopeless), SearchStep::End);
    }

    #[test]
    fn allocating_and_freeing_come_before_each_stage() {
        let may_ask =
            MaintenanceGauges { notes: MaintenanceNotes::default(), has_unbacked: true, ..gauges() };
        let freeing = MaintenanceGauges { is_freeing: true, ..gauges() };
        let both = MaintenanceGauges { is_freeing: true, ..may_ask };
        let mut resting = freeing;
        resting.notes.free_not_before = LATER;
        for mut search in [SpaceSearch::default(), cleaning()] {
            let by_stage = search.next_step(&gauges());
            assert_eq!(search.next_step(&both), SearchStep::AllocateMore);
            assert_eq!(search.next_step(&freeing), SearchStep::Free);
            assert_eq!(search.next_step(&resting), by_stage);
            search.note_allocated(5);
            assert_eq!(search.next_step(&MaintenanceGauges { reserved: 5, ..may_ask }), by_stage);
            assert_eq!(
                search.next_step(&MaintenanceGauges { reserved: 6, ..may_ask }),
                SearchStep::AllocateMore
            );
        }
    }

    #[test]
    fn a_search_ends_only_when_nothing_more_can_be_allocated() {
        let mut search = cleaning();
        search.note_allocated(5);
        search.note_cleaned(CleaningOutcome::Idle);
        let at_end = MaintenanceGauges {
            notes: MaintenanceNotes::default(),
            has_unbacked: true,
            reserved: 5,
            ..gauges()
        };
        assert_eq!(search.next_step(&at_end), SearchStep::AllocateMore);
        search.note_allocated(5);
        assert_eq!(search.next_step(&at_end), SearchStep::AllocateMore);
        let all_allocated = MaintenanceGauges { has_unbacked: false, ..at_end };
        assert_eq!(search.next_step(&all_allocated), SearchStep::End);
        let refused = MaintenanceGauges { notes: gauges().notes, ..at_end };
        assert_eq!(search.next_step(&refused), SearchStep::End);
    }

    #[test]
    fn an_expendable_volume_goes_before_each_stage_of_a_tight_store() {
        let tight = MaintenanceGauges { is_tight: true, ..gauges() };
        let owed = MaintenanceGauges { cleaning_is_owed: true, ..tight };
        let freeing = MaintenanceGauges { is_freeing: true, ..tight };
        for mut search in [SpaceSearch::default(), cleaning()] {
            let by_stage = search.next_step(&tight);
            search.set_expendable_volume(true);
            assert_eq!(search.next_step(&owed), SearchStep::DeleteVolume);
            assert_eq!(search.next_step(&freeing), SearchStep::Free, "the last one's blocks");
            assert_eq!(search.next_step(&gauges()), by_stage, "cleaning makes space");
            search.set_expendable_volume(false);
            assert_eq!(search.next_step(&tight), by_stage);
        }
    }

    #[test]
    fn owed_cleaning_comes_before_write_back_alone() {
        let owed = MaintenanceGauges { cleaning_is_owed: true, ..gauges() };
        let mut search = SpaceSearch::default();
        assert_eq!(search.next_step(&owed), SearchStep::Owed(MaintenanceStep::Clean));
        search.note_written_back();
        assert_eq!(search.next_step(&owed), SearchStep::Checkpoint);
    }

    #[test]
    fn deltas_are_merged_again_after_each_round() {
        let mut search = cleaning();
        search.note_cleaned(CleaningOutcome::Working);
        assert_eq!(search.next_step(&gauges()), SearchStep::Clean);
        search.note_cleaned(CleaningOutcome::RoundEnded(0));
        assert_eq!(search.next_step(&gauges()), SearchStep::Merge, "the first may have begun before");
        search.note_merged();
        search.note_cleaned(CleaningOutcome::RoundEnded(0));
        assert_eq!(search.next_step(&gauges()), SearchStep::End);
        search.note_ended(&gauges());
        assert!(!search.makes_more(), "nothing was gained");
    }

    #[test]
    fn rounds_are_bounded() {
        let mut search = cleaning();
        let mut rounds = 0;
        while search.next_step(&gauges()) == SearchStep::Clean {
            search.note_cleaned(CleaningOutcome::RoundEnded(1));
            search.note_merged();
            rounds += 1;
        }
        assert_eq!(rounds, ROUNDS_MAX);
        assert_eq!(search.next_step(&gauges()), SearchStep::End);
        search.note_ended(&gauges());
        assert!(search.makes_more());
        search.note_ended(&MaintenanceGauges { is_tight: true, ..gauges() });
        assert!(!search.makes_more(), "a store that is nearly full of data");
    }

    #[test]
    fn an_idle_cleaner_ends_the_search() {
        let mut search = cleaning();
        search.note_cleaned(CleaningOutcome::Idle);
        assert_eq!(search.next_step(&gauges()), SearchStep::End);
    }
}

//! Keeping recovery short and space free: checkpoints and cleaning.

use crate::cache::{Core, Progress};
use crate::commit::Completions;
use crate::error::CacheError;
use crate::state::State;
use crate::trouble::RETRY_AFTER;
use crate::write_back::Why;
use std::sync::Arc;

/// Segments cleaned for the sake of a writer who waits, before it is told that the store is full.
const CLEAN_MAX: usize = 8;

impl Core {
    /// True if recovery would take too long, or somebody waits for space.
    pub(crate) fn checkpoint_due(&self, state: &State) -> bool {
        state.gate.wants_space || self.freeing_due(state) || self.is_untidy()
    }

    fn is_untidy(&self) -> bool {
        self.store.blocks_since_checkpoint() >= self.settings.checkpoint_blocks || self.is_short_of_space()
    }

    /// A quarter free is where copying is still cheap and nobody waits yet.
    fn is_short_of_space(&self) -> bool {
        let space = self.store.space();
        space.free < space.total / 4 && self.store.can_clean()
    }

    pub(crate) fn checkpoint_step(self: &Arc<Core>) -> Progress {
        let state = self.state();
        let (due, wanted) = (self.checkpoint_due(&state), state.gate.wants_space);
        let freeing = self.freeing_due(&state);
        drop(state);
        if !due {
            return Progress::Idle;
        }
        if freeing && !wanted {
            let progress = self.free_some();
            if !self.is_untidy() {
                return progress;
            }
        }
        let outcome = if wanted { self.make_space() } else { self.tidy() };
        if outcome.is_err() {
            self.state().counters.checkpoint_errors += 1;
            return Progress::Idle;
        }
        Progress::Worked
    }

    /// Whether deleted volumes hold space that may be freed now.
    fn freeing_due(&self, state: &State) -> bool {
        self.store.is_freeing() && self.clock.monotonic() >= state.free_not_before
    }

    /// Frees a step's worth of what deleted volumes held, and at the end makes the blocks free.
    fn free_some(&self) -> Progress {
        let outcome = self.store_io().free_step().and_then(|_| match self.store.is_freeing() {
            true => Ok(()),
            // A segment is free when two checkpoints in a row do not need it.
            false => self.store_io().checkpoint().and_then(|()| self.store_io().checkpoint()),
        });
        if outcome.is_err() {
            let mut state = self.state();
            state.counters.checkpoint_errors += 1;
            state.free_not_before = self.clock.monotonic() + RETRY_AFTER;
            return Progress::Idle;
        }
        Progress::Worked
    }

    /// Cleans a segment if space is short, then checkpoints.
    fn tidy(&self) -> Result<(), CacheError> {
        if self.is_short_of_space() {
            self.store_io().clean()?;
        }
        Ok(self.store_io().checkpoint()?)
    }

    /// Somebody was told to wait because the store is full: takes everything home, cleans, and lets them try once more.
    fn make_space(self: &Arc<Core>) -> Result<(), CacheError> {
        let before = self.store.space();
        let outcome = self.free_segments();
        let mut completions = Completions::default();
        let mut state = self.state();
        state.gate.wants_space = false;
        let space = self.store.space();
        state.gate.exhausted =
            space.free.saturating_sub(space.reserved) <= before.free.saturating_sub(before.reserved);
        self.pump(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        outcome
    }

    fn free_segments(self: &Arc<Core>) -> Result<(), CacheError> {
        // A dirty page is promised several blocks and takes one; deletions give some back. Writers wait meanwhile, so
        // this ends.
        self.state().trouble.forgive();
        while self.write_back(Why::All)? == Progress::Worked {}
        // A segment is free when two checkpoints in a row do not need it.
        self.store_io().checkpoint()?;
        for _ in 0..CLEAN_MAX {
            if !self.store_io().clean()? {
                break;
            }
        }
        self.store_io().checkpoint()?;
        Ok(self.store_io().checkpoint()?)
    }
}

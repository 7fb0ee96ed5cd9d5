//! The GC pacer sets the speed of a round of cleaning: blocks written to the log meanwhile pay for the round.
//!
//! A round does some *work* (nodes to visit, blocks to move) and *gains* some blocks. Each block written to
//! the log owes `work / gain` of that work. So the round ends when the gained blocks have been used up, and
//! free space stays the same.
//!
//! A writer that writes at most [`pages_per_payment`](GcPacer::pages_per_payment) between payments owes three
//! eighths of a segment each time, or the fair price of a page if that is more. Urgency adds an eighth of a
//! segment. The writer may wait for two payments and for the rest of a step: for less than a segment, if a
//! page and its log entry cost at most a quarter of one. Any further debt, from other writers or from
//! urgency, is forgiven: free space sinks by that much, and the next round is faster.

use crate::policy::low_mark;

/// The work of a round, and the debt for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GcPacer {
    segment_blocks: u64,
    work: u64,
    gain: u64,
    /// Debt grows `urgency / low` times as fast: once at the mark where cleaning starts, up to twice where
    /// the reserve begins.
    urgency: u64,
    low: u64,
    /// Work that was charged, times `gain * low`.
    charged: u64,
}

/// The measures of a round, from which its pacer is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GcRound {
    /// Blocks of a segment.
    pub segment_blocks: u64,
    /// Segments to empty.
    pub victims: u64,
    /// Live blocks in them.
    pub live: u64,
    /// Blocks that the copies of these take, with summaries.
    pub copies: u64,
    /// Map nodes to visit first.
    pub nodes: u64,
    /// Segments of the store.
    pub segments: u64,
    /// Free segments that are missing to where cleaning starts.
    pub missing: u64,
}

impl GcPacer {
    /// The pacer of a round that begins.
    pub(crate) fn new(round: &GcRound) -> GcPacer {
        let low = low_mark(round.segments);
        let gain = (round.victims * round.segment_blocks).saturating_sub(round.copies);
        GcPacer {
            segment_blocks: round.segment_blocks,
            work: round.nodes + round.live,
            // A walk that only counts: it is done before what cleaning has in hand is used up.
            gain: if gain == 0 { low * round.segment_blocks } else { gain },
            urgency: low + round.missing.min(low),
            low,
            charged: 0,
        }
    }

    /// Charges for `blocks` blocks that were written to the log while `left` of the work is left.
    pub(crate) fn charge(&mut self, blocks: u64, left: u64) {
        let limit = self.work_done(left) + self.payment().max(self.price());
        let asked = self.charged + blocks * self.work * self.urgency;
        self.charged = asked.min(limit * self.gain * self.low);
    }

    /// Whether a step of the round is due while `left` of the work is left. Without any work left, the step
    /// that ends the round is due.
    pub(crate) fn is_due(&self, left: u64) -> bool {
        left == 0 || self.debt(left) > 0
    }

    /// The debt, while `left` of the work is left.
    pub(crate) fn debt(&self, left: u64) -> u64 {
        (self.charged / (self.gain * self.low)).min(self.work).saturating_sub(self.work_done(left))
    }

    /// Pages that may be written between payments, so that they and their log entries cost one payment; or
    /// one page, where that costs more.
    pub(crate) fn pages_per_payment(&self) -> u64 {
        let blocks = self.payment() * self.gain * self.low / (self.work * self.urgency).max(1);
        blocks.saturating_sub(1).max(1)
    }

    /// Work that is charged at once.
    fn payment(&self) -> u64 {
        self.segment_blocks * 3 / 8
    }

    /// The price of the pages between two payments, and of their log entries. The fair part keeps free space
    /// where it is. Urgency adds an eighth of a segment at most: without any of it, free space that was lost
    /// would not come back.
    fn price(&self) -> u64 {
        let fair = (self.pages_per_payment() + 1) * self.work / self.gain;
        (fair * self.urgency / self.low).min(fair + self.segment_blocks / 8)
    }

    fn work_done(&self, left: u64) -> u64 {
        self.work.saturating_sub(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four segments of 64 blocks, three quarters live, in a store of a hundred: 16 nodes and 192 blocks for
    /// 64.
    const ROUND: GcRound = GcRound {
        segment_blocks: 64,
        victims: 4,
        live: 192,
        copies: 192,
        nodes: 16,
        segments: 100,
        missing: 0,
    };
    const WORK: u64 = 208;

    #[test]
    fn a_round_is_asked_for_when_what_it_gains_is_written_and_not_before() {
        let mut pace = GcPacer::new(&ROUND);
        let mut left = WORK;
        for written in 1..=64 {
            pace.charge(1, left);
            left -= pace.debt(left);
            assert_eq!(WORK - left, WORK * written / 64);
        }
        assert_eq!(left, 0);
    }

    #[test]
    fn blocks_that_die_by_themselves_count_as_moved() {
        let mut pace = GcPacer::new(&ROUND);
        assert!(!pace.is_due(WORK) && pace.is_due(0), "a round without work ends");
        pace.charge(7, WORK);
        assert_eq!(pace.debt(WORK), 22);
        assert_eq!(pace.debt(WORK - 20), 2);
        assert_eq!(pace.debt(WORK - 100), 0);
    }

    #[test]
    fn it_is_twice_as_fast_where_the_reserve_begins_and_never_faster() {
        let debt = |missing| {
            let mut pace = GcPacer::new(&GcRound { missing, ..ROUND });
            pace.charge(3, WORK);
            pace.debt(WORK)
        };
        assert_eq!([0, 4, 8, 20].map(debt), [9, 14, 19, 19]);
    }

    #[test]
    fn nobody_owes_more_than_a_payment_and_what_was_forgiven_stays_so() {
        let mut pace = GcPacer::new(&ROUND);
        pace.charge(1000, WORK);
        assert_eq!(pace.debt(WORK), 24);
        assert_eq!(pace.debt(WORK - 24), 0);
        pace.charge(2, WORK - 24);
        assert!(pace.debt(WORK - 24) <= 7, "{}", pace.debt(WORK - 24));
        // New nodes are to be visited.
        pace.charge(1, WORK + 50);
        assert_eq!(pace.debt(WORK + 50), 24);
    }

    #[test]
    fn what_is_written_together_costs_at_most_one_payment_however_full_the_victims_are() {
        // The smallest segments that are made by themselves have 256 blocks; a round takes none that is more
        // than 31/32 live.
        for (live, missing) in [(256, 0), (768, 0), (768, 3), (900, 8), (992, 8)] {
            let round = GcRound { segment_blocks: 256, live, copies: live, missing, nodes: 0, ..ROUND };
            let mut pace = GcPacer::new(&round);
            let together = pace.pages_per_payment();
            // With a block of log entries.
            pace.charge(together + 1, live);
            let debt = pace.debt(live);
            assert!((64..=96).contains(&debt), "{live} live, {missing} missing: {debt} for {together} pages");
        }
    }

    #[test]
    fn a_single_page_is_paid_for_in_full_however_much_that_is_and_with_urgency_for_an_eighth_of_a_segment_more()
     {
        for (missing, paid) in [(0, 126), (1, 134), (8, 134)] {
            let mut pace = GcPacer::new(&GcRound { live: 252, copies: 252, nodes: 0, missing, ..ROUND });
            assert_eq!(pace.pages_per_payment(), 1);
            pace.charge(2, 252);
            assert_eq!(pace.debt(252), paid, "{missing} missing");
        }
    }

    #[test]
    fn a_walk_without_victims_is_done_before_what_cleaning_has_in_hand_is_written() {
        let mut pace = GcPacer::new(&GcRound { victims: 0, live: 0, copies: 0, ..ROUND });
        // Eight segments.
        pace.charge(256, 16);
        assert_eq!(pace.debt(16), 8);
        pace.charge(256, 8);
        assert_eq!(pace.debt(8), 8);
    }
}

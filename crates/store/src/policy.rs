//! Which segments to clean, and when. Pure: the same functions decide in the store and in the simulation that
//! predicts its write amplification.
//!
//! The choice is by cost and benefit (*LFS*, SOSP'91, section 3.6): what cleaning a segment frees, times how long
//! that will stay free, over what it costs to read all of it and write what lives.

/// Who asks for room. Each leaves the reserve of those after it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A promise to a writer.
    Promise,
    /// A vector that writes.
    Writer,
    /// The cleaner.
    Cleaner,
    /// A vector that only gives space back.
    Frees,
}

/// Segments that must be left for mounting: two for a log that starts anew, and two for the rest that each
/// checkpoint's open node segment wastes.
const MOUNT_SEGMENTS: u64 = 4;

/// Segments for vectors that only give space back: such a segment is dead when it is full, and free again two
/// checkpoints later.
const FREES_SEGMENTS: u64 = 2;

/// Segments for the cleaner, above that: it must be able to empty some when everybody else has used theirs, and each
/// crash may leave it one that is hardly filled, as it may the log and the nodes.
const CLEANER_SEGMENTS: u64 = 6;

/// Free segments that `class` must leave alone, while the next two checkpoints may need `checkpoint_blocks`.
pub fn floor(class: Class, checkpoint_blocks: u64, segment_blocks: u64) -> u64 {
    let least = checkpoint_blocks.div_ceil(segment_blocks) + MOUNT_SEGMENTS;
    match class {
        Class::Frees => least,
        Class::Cleaner => least + FREES_SEGMENTS,
        Class::Writer => least + FREES_SEGMENTS + CLEANER_SEGMENTS,
        Class::Promise => least + FREES_SEGMENTS + CLEANER_SEGMENTS + 1,
    }
}

/// A segment that may be cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub segment: u32,
    /// Its live blocks, or an upper bound of them; not 0.
    pub live: u64,
    /// Segments of log written since the youngest of its data.
    pub age: u64,
}

/// What one round of cleaning may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Blocks of a segment.
    pub segment_blocks: u64,
    /// Segments at most.
    pub segments: usize,
    /// Blocks to move at most; the first segment may exceed it.
    pub blocks: u64,
}

/// Whether cleaning a segment with this many live blocks frees more than its nodes cost: at least one block in 32.
pub fn is_worth_it(live: u64, segment_blocks: u64) -> bool {
    live + (segment_blocks / 32).max(1) <= segment_blocks
}

/// Segments that a round looks for the holders of: enough that walking the map is shared by many, few enough that
/// what it found is still true at the end.
pub fn segments_per_round(segments: u64) -> usize {
    (segments / 64).clamp(4, 256) as usize
}

/// Free segments, above what others are promised, below which cleaning starts: the later, the more blocks have died
/// by themselves; the earlier, the less a writer waits. A round, and what is written until two checkpoints have
/// given its segments back.
pub fn low_mark(segments: u64) -> u64 {
    segments_per_round(segments) as u64 + 4
}

/// The segments to clean in one round, the oldest data first, so that data of one age ends up together.
pub fn choose(candidates: &[Candidate], budget: &Budget) -> Vec<u32> {
    let mut best: Vec<&Candidate> =
        candidates.iter().filter(|one| is_worth_it(one.live, budget.segment_blocks)).collect();
    best.sort_by(|one, other| {
        let (one_score, other_score) = (score(one, budget), score(other, budget));
        other_score.total_cmp(&one_score).then(one.segment.cmp(&other.segment))
    });
    let mut blocks = 0;
    let mut chosen: Vec<&Candidate> = Vec::new();
    for one in best {
        blocks += one.live;
        if chosen.len() == budget.segments || (blocks > budget.blocks && !chosen.is_empty()) {
            break;
        }
        chosen.push(one);
    }
    chosen.sort_by_key(|one| (std::cmp::Reverse(one.age), one.segment));
    chosen.into_iter().map(|one| one.segment).collect()
}

/// Benefit over cost: `(1 - u) * age / (1 + u)`.
fn score(candidate: &Candidate, budget: &Budget) -> f64 {
    let used = candidate.live as f64 / budget.segment_blocks as f64;
    (1.0 - used) * (candidate.age + 1) as f64 / (1.0 + used)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { segment_blocks: 64, segments: 4, blocks: 128 };

    fn candidate(segment: u32, live: u64, age: u64) -> Candidate {
        Candidate { segment, live, age }
    }

    #[test]
    fn the_emptier_of_two_of_one_age_is_chosen_and_the_older_of_two_as_full() {
        let one = |candidates: &[Candidate]| choose(candidates, &Budget { segments: 1, ..BUDGET });
        assert_eq!(one(&[candidate(1, 40, 9), candidate(2, 10, 9)]), [2]);
        assert_eq!(one(&[candidate(1, 40, 9), candidate(2, 40, 90)]), [2]);
        // An old one that is fuller is worth more than a young one that will empty itself.
        assert_eq!(one(&[candidate(1, 48, 100), candidate(2, 32, 10)]), [1]);
    }

    #[test]
    fn full_segments_are_never_chosen() {
        assert_eq!(choose(&[candidate(1, 64, 1000), candidate(2, 63, 1000)], &BUDGET), []);
        assert_eq!(choose(&[candidate(1, 62, 1)], &BUDGET), [1]);
        assert!(is_worth_it(15, 16) && !is_worth_it(16, 16));
    }

    #[test]
    fn a_round_is_bounded_in_segments_and_in_blocks_but_never_empty() {
        let many: Vec<_> = (0..100).map(|segment| candidate(segment, 8, 5)).collect();
        assert_eq!(choose(&many, &BUDGET).len(), 4);
        let many: Vec<_> = (0..100).map(|segment| candidate(segment, 60, 5)).collect();
        assert_eq!(choose(&many, &BUDGET).len(), 2);
        assert_eq!(choose(&many, &Budget { blocks: 0, ..BUDGET }).len(), 1);
    }

    #[test]
    fn the_oldest_goes_first() {
        assert_eq!(
            choose(&[candidate(1, 4, 5), candidate(2, 4, 50), candidate(3, 4, 20)], &BUDGET),
            [2, 3, 1]
        );
    }
}

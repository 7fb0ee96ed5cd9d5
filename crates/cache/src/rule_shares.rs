//! Shares of the buffer: how many bytes in it belong to the requests that each rule decides.
//!
//! The buffer lets its groups go in their order. So bytes are counted in parts, each of some groups, and leave the
//! count a part at a time.

use buffer::GroupNo;
use request::{ClassRule, Origin, RuleMask, RuleSet};
use std::collections::VecDeque;
use std::sync::Arc;

/// A part has about one in so many bytes of the buffer.
const PARTS: u64 = 64;

/// Bytes in the buffer of rules that have a share. A part of [`CacheLog`](crate::log::CacheLog), under the cache's
/// lock. After a crash nothing is counted: nobody knows for whom the found records were written.
#[derive(Default)]
pub(crate) struct RuleShares {
    /// Rules of which some have a share; else `None`.
    rules: Option<Arc<RuleSet>>,
    bytes: RuleBytes,
    /// What `bytes` is the sum of, oldest first.
    parts: VecDeque<SharePart>,
}

/// The share of a rule, and what of the buffer its requests have.
#[derive(Debug, Clone)]
pub struct RuleShare {
    /// The rule.
    pub rule: ClassRule,
    /// Its share in percent of the buffer.
    pub share_percent: u8,
    /// Bytes in the buffer, to a 64th of the buffer.
    pub bytes: u64,
    /// Whether they are more than the share. Then the rule's requests are background.
    pub is_beyond: bool,
}

/// Bytes by rule.
#[derive(Clone, Copy)]
struct RuleBytes([u64; RuleSet::RULES_MAX]);

struct SharePart {
    /// No later group has bytes of this part.
    last_group: GroupNo,
    total: u64,
    bytes: RuleBytes,
}

impl Default for RuleBytes {
    fn default() -> RuleBytes {
        RuleBytes([0; RuleSet::RULES_MAX])
    }
}

impl RuleShares {
    /// Counts for these rules from now on. What is in the buffer already counts for none.
    pub(crate) fn set_rules(&mut self, rules: Arc<RuleSet>) {
        let has_shares = (0..rules.rules().len()).any(|rule| rules.share_percent(rule).is_some());
        *self = RuleShares { rules: has_shares.then_some(rules), ..RuleShares::default() };
    }

    /// Counts bytes that were appended to `group` for a request of this origin, of a buffer of `capacity` bytes.
    #[inline]
    pub(crate) fn note_appended(&mut self, origin: Origin, bytes: u64, group: GroupNo, capacity: u64) {
        if self.rules.is_some() && origin.rule != Origin::NO_RULE {
            self.count(usize::from(origin.rule), bytes, group, capacity);
        }
    }

    fn count(&mut self, rule: usize, bytes: u64, group: GroupNo, capacity: u64) {
        let has_share = |rules: &Arc<RuleSet>| rules.share_percent(rule).is_some();
        if !self.rules.as_ref().is_some_and(has_share) {
            return;
        }
        if self.parts.back().is_none_or(|part| part.total >= capacity / PARTS) {
            self.parts.push_back(SharePart { last_group: group, total: 0, bytes: RuleBytes::default() });
        }
        let part = self.parts.back_mut().expect("one was pushed");
        part.last_group = group;
        part.total += bytes;
        part.bytes.0[rule] += bytes;
        self.bytes.0[rule] += bytes;
        if self.is_beyond(rule, capacity) {
            self.tell(capacity);
        }
    }

    /// Notes that the buffer let all groups before `oldest` go.
    pub(crate) fn note_released(&mut self, oldest: GroupNo, capacity: u64) {
        if self.parts.front().is_none_or(|part| part.last_group >= oldest) {
            return;
        }
        while let Some(part) = self.parts.pop_front_if(|part| part.last_group < oldest) {
            for (sum, bytes) in self.bytes.0.iter_mut().zip(part.bytes.0) {
                *sum -= bytes;
            }
        }
        self.tell(capacity);
    }

    /// Tells whoever decides classes which rules are beyond their share.
    fn tell(&self, capacity: u64) {
        let Some(rules) = &self.rules else { return };
        let beyond = (0..rules.rules().len()).filter(|&rule| self.is_beyond(rule, capacity));
        rules.set_beyond_share(beyond.fold(RuleMask::NONE, |mask, rule| RuleMask(mask.0 | 1 << rule)));
    }

    fn is_beyond(&self, rule: usize, capacity: u64) -> bool {
        let share = self.rules.as_ref().and_then(|rules| rules.share_percent(rule));
        share.is_some_and(|percent| self.bytes.0[rule] > capacity / 100 * u64::from(percent))
    }

    /// The rules that have a share, in their order.
    pub(crate) fn all(&self) -> Vec<RuleShare> {
        let Some(rules) = &self.rules else { return Vec::new() };
        let beyond = rules.beyond_share();
        let share = |(index, rule): (usize, &ClassRule)| {
            Some(RuleShare {
                rule: rule.clone(),
                share_percent: rule.share_percent()?,
                bytes: self.bytes.0[index],
                is_beyond: beyond.contains(index),
            })
        };
        rules.rules().iter().enumerate().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::RequestClass;

    const CAPACITY: u64 = 6400;

    fn shares(text: &str) -> (RuleShares, Arc<RuleSet>) {
        let rules = Arc::new(RuleSet::parse(text).expect("rules"));
        let mut shares = RuleShares::default();
        shares.set_rules(rules.clone());
        (shares, rules)
    }

    fn class_of(rules: &RuleSet, rule: u64) -> RequestClass {
        rules.decide(RuleMask(1 << rule), RuleMask(!0)).class
    }

    fn append(shares: &mut RuleShares, rule: u8, bytes: u64, group: u64) {
        let origin = Origin { task: 1, rule, ..Origin::UNMATCHED };
        shares.note_appended(origin, bytes, GroupNo(group), CAPACITY);
    }

    #[test]
    fn a_rule_beyond_its_share_is_background_until_its_bytes_are_let_go() {
        let (mut shares, rules) = shares("critical title=a share=25%\ncritical title=b");
        append(&mut shares, 0, 1600, 1);
        append(&mut shares, 1, 6000, 2);
        assert_eq!(class_of(&rules, 0), RequestClass::Critical, "all of its share");
        append(&mut shares, 0, 100, 3);
        assert_eq!(class_of(&rules, 0), RequestClass::Background);
        assert_eq!(class_of(&rules, 1), RequestClass::Critical, "it has no share");
        shares.note_released(GroupNo(1), CAPACITY);
        assert_eq!(class_of(&rules, 0), RequestClass::Background, "its first group is not let go");
        shares.note_released(GroupNo(3), CAPACITY);
        assert_eq!(class_of(&rules, 0), RequestClass::Critical);
        assert_eq!(shares.bytes.0[..2], [100, 0]);
    }

    #[test]
    fn small_groups_leave_the_count_together() {
        let (mut shares, _) = shares("critical share=50%");
        (0..1000).for_each(|group| append(&mut shares, 0, 3, group));
        assert!(shares.parts.len() <= 31, "{}", shares.parts.len());
        shares.note_released(GroupNo(500), CAPACITY);
        let left = shares.bytes.0[0];
        assert!((1500..=1500 + CAPACITY / PARTS + 3).contains(&left), "{left}");
        shares.note_released(GroupNo(1000), CAPACITY);
        assert_eq!(shares.bytes.0[0], 0);
    }

    #[test]
    fn new_rules_begin_with_nothing() {
        let (mut shares, rules) = shares("critical share=1%");
        append(&mut shares, 0, 1000, 1);
        assert_eq!(class_of(&rules, 0), RequestClass::Background);
        let other = Arc::new(RuleSet::parse("critical share=1%").expect("rules"));
        shares.set_rules(other.clone());
        append(&mut shares, 0, 50, 2);
        assert_eq!(shares.bytes.0[0], 50);
        shares.note_released(GroupNo(2), CAPACITY);
        assert_eq!(shares.bytes.0[0], 50);
        assert_eq!(class_of(&other, 0), RequestClass::Critical);
    }
}

//! The edges of an order, reduced while they are added. A thread's actions run in order, so only the last
//! edge from each other thread matters, and none for which an earlier action of the waiting thread has
//! already waited.

use super::switches::Switches;
use crate::step::Prerequisite;
use std::collections::{BTreeMap, HashMap};
use trace_file::{ActionId, Moment, Rule, Wait};

/// Maximum number of thread pairs whose progress is kept, at 24 bytes each. Above the limit all are
/// forgotten: that may add unneeded edges, but loses none.
const PAIRS_MAX: usize = 1 << 22;

/// The edges of an order under construction. The edges of an action are handed out as soon as it is closed.
#[derive(Debug, Default)]
pub(super) struct EdgeList {
    asked: BTreeMap<Rule, u64>,
    next: ActionId,
    /// How far one thread has waited for another. Key: waiting thread, other thread. Value: twice the action,
    /// plus one for its end.
    waited: HashMap<(u32, u32), u64>,
    wanted: Vec<Wait>,
    kept: Vec<Wait>,
    switches: Switches,
}

impl EdgeList {
    pub(super) fn new(switches: &Switches) -> EdgeList {
        EdgeList { switches: switches.clone(), ..EdgeList::default() }
    }

    /// The action that edges are being added to.
    pub(super) fn next(&self) -> ActionId {
        self.next
    }

    pub(super) fn add(&mut self, on: ActionId, moment: Moment, rule: Rule) {
        if on < self.next() && self.switches.is_on(rule) {
            self.wanted.push(Wait { on, moment, rule });
        }
    }

    pub(super) fn add_needs(&mut self, needs: &[Prerequisite]) {
        for need in needs {
            self.add(need.on, need.moment, need.rule);
        }
    }

    /// Waits for the ends of earlier actions.
    pub(super) fn add_all(&mut self, earlier: impl IntoIterator<Item = ActionId>, rule: Rule) {
        for action in earlier {
            self.add(action, Moment::End, rule);
        }
    }

    pub(super) fn is_on(&self, rule: Rule) -> bool {
        self.switches.is_on(rule)
    }

    /// Closes the current action, made by the last of `threads`, which lists the thread of each action so
    /// far. Returns the action's waits.
    pub(super) fn close(&mut self, threads: &[u32]) -> &[Wait] {
        if let Some(before) = self.next().checked_sub(1) {
            self.add(before, Moment::End, Rule::ProgramSequence);
        }
        let thread = threads[self.next as usize];
        self.kept.clear();
        self.wanted.retain(|wait| threads[wait.on as usize] != thread);
        if self.waited.len() > PAIRS_MAX {
            self.waited.clear();
        }
        self.wanted.sort_by_key(|wait| std::cmp::Reverse(progress(wait)));
        for wait in self.wanted.drain(..) {
            *self.asked.entry(wait.rule).or_default() += 1;
            let from = threads[wait.on as usize];
            let waited = self.waited.entry((thread, from)).or_default();
            if *waited <= progress(&wait) {
                *waited = progress(&wait) + 1;
                self.kept.push(wait);
            }
        }
        self.next += 1;
        &self.kept
    }

    /// The number of edges that each rule asked for.
    pub(super) fn finish(self) -> BTreeMap<Rule, u64> {
        self.asked
    }
}

fn progress(wait: &Wait) -> u64 {
    2 * u64::from(wait.on) + u64::from(wait.moment == Moment::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_edges_from_one_thread_only_the_last_is_kept_and_only_once() {
        let mut edges = EdgeList::new(&Switches::default());
        let threads = [0, 0, 0, 1, 1, 1];
        (1..=3).for_each(|count| assert_eq!(edges.close(&threads[..count]), []));
        edges.add(0, Moment::End, Rule::Name);
        edges.add(2, Moment::Start, Rule::Bytes);
        let start = Wait { on: 2, moment: Moment::Start, rule: Rule::Bytes };
        assert_eq!(edges.close(&threads[..4]), [start]);
        edges.add(2, Moment::Start, Rule::Bytes);
        assert_eq!(edges.close(&threads[..5]), []);
        edges.add(2, Moment::End, Rule::Bytes);
        assert_eq!(edges.close(&threads), [Wait { moment: Moment::End, ..start }]);
        let asked = edges.finish();
        assert_eq!((asked[&Rule::Name], asked[&Rule::Bytes]), (1, 3));
    }
}

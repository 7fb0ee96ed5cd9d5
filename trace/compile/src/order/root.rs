//! The paper's order (sections 2.3.2 and 2.4.2): threads sequential, files sequential, paths by stage and
//! name, descriptors sequential (which subsumes their stage), asynchronous requests by stage.
//!
//! The paper leaves two things open. Here, a name that was looked up and absent is a generation of that name,
//! so name ordering keeps the lookup between its neighbours. An open file description that processes share
//! has a stage of its own.

use super::edges::EdgeList;
use super::orderer::Orderer;
use super::paths::{Newest, Paths, THREADS_MAX, Touched, note};
use super::switches::Switches;
use crate::step::{GoneResource, Series, SeriesRole, Step};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use trace_file::{ActionId, Moment, Rule, Wait};

/// Builds the order `root`.
#[derive(Debug)]
pub(crate) struct Root {
    edges: EdgeList,
    series: HashMap<Series, State>,
    paths: Paths<State>,
}

/// The thread of an action, and the action.
type Made = (u32, ActionId);

#[derive(Debug, Default)]
struct State {
    /// The action that made this generation.
    create: Option<Made>,
    /// The last use of this generation by each thread.
    uses: Vec<Made>,
    /// The last action of the series so far.
    last: Option<Made>,
    /// The last actions of the previous generation.
    before: Vec<Made>,
    /// Whether the name is absent in this generation.
    absent: bool,
    /// Whether this generation was deleted.
    ended: bool,
    /// For a path: the actions before all known ones.
    forgotten: Option<Rc<Newest>>,
}

impl Root {
    /// An order without actions.
    pub(crate) fn new(switches: &Switches) -> Root {
        Root { edges: EdgeList::new(switches), series: HashMap::new(), paths: Paths::default() }
    }

    /// Forgets resources that no later action can touch, because no action waits for them. Numbers and
    /// requests end with their deletion.
    fn forget(&mut self, step: &Step) {
        for (series, role) in &step.series {
            if *role == SeriesRole::Delete && matches!(series, Series::Descriptor(_) | Series::Request(_)) {
                self.series.remove(series);
            }
        }
        for gone in &step.gone {
            self.series.remove(&match *gone {
                GoneResource::Description(handle) => Series::Description(handle),
                GoneResource::File(file) => {
                    self.paths.remove(file);
                    Series::File(file)
                }
            });
        }
    }
}

impl Orderer for Root {
    fn name(&self) -> &'static str {
        "root"
    }

    fn add(&mut self, step: &Step, threads: &[u32]) -> &[Wait] {
        let made = (step.action.thread, self.edges.next());
        self.edges.add_needs(&step.needs);
        for (series, role) in &step.series {
            let state = match series {
                Series::Path(dir, name) => self.paths.of(*dir, *name, made),
                _ => self.series.entry(*series).or_default(),
            };
            let edges = &mut self.edges;
            match series {
                Series::File(_) => state.sequence(edges, made, Rule::FileSequence),
                Series::Descriptor(_) if edges.is_on(Rule::DescriptorSequence) => {
                    state.sequence(edges, made, Rule::DescriptorSequence)
                }
                Series::Descriptor(_) => state.stage(edges, made, *role, Rule::DescriptorStage),
                Series::Description(_) => state.stage(edges, made, *role, Rule::DescriptionStage),
                Series::Request(_) => state.stage(edges, made, *role, Rule::AioStage),
                Series::Path(..) => {
                    state.name(edges, made, *role);
                    state.stage(edges, made, *role, Rule::PathStage);
                }
            }
        }
        self.forget(step);
        self.paths.limit();
        self.edges.close(threads)
    }

    fn finish(self: Box<Self>) -> BTreeMap<Rule, u64> {
        self.edges.finish()
    }
}

impl Touched for State {
    fn newest(&self, newest: &mut Newest) {
        let all = self.create.iter().chain(&self.uses).chain(&self.last).chain(&self.before);
        all.for_each(|(thread, action)| note(newest, *thread, *action));
    }

    fn after(newest: Rc<Newest>) -> State {
        State { forgotten: Some(newest), ..State::default() }
    }
}

fn actions<'a>(made: impl IntoIterator<Item = &'a Made>) -> impl Iterator<Item = ActionId> {
    made.into_iter().map(|(_, action)| *action)
}

impl State {
    fn sequence(&mut self, edges: &mut EdgeList, made: Made, rule: Rule) {
        if let Some((_, last)) = self.last.replace(made) {
            edges.add(last, Moment::End, rule);
        }
    }

    /// Creation before uses, uses before deletion.
    fn stage(&mut self, edges: &mut EdgeList, made: Made, role: SeriesRole, rule: Rule) {
        match role {
            SeriesRole::Create => self.create = Some(made),
            SeriesRole::Use | SeriesRole::Absent => {
                edges.add_all(actions(&self.create), rule);
                self.uses.retain(|(other, _)| *other != made.0);
                self.uses.push(made);
            }
            SeriesRole::Delete => edges.add_all(actions(self.create.iter().chain(&self.uses)), rule),
        }
    }

    /// Adds edges from the previous generation, which ends first. A new generation begins with a creation,
    /// after a deletion, or when a name changes between present and absent.
    fn name(&mut self, edges: &mut EdgeList, made: Made, role: SeriesRole) {
        let absent = role == SeriesRole::Absent;
        if let Some(forgotten) = &self.forgotten {
            edges.add_all(forgotten.values().copied(), Rule::PathName);
            if matches!(role, SeriesRole::Create | SeriesRole::Delete) {
                // All later actions wait for this action.
                self.forgotten = None;
            } else if forgotten.len() > THREADS_MAX {
                self.forgotten = Some(Rc::new(Newest::from([made])));
            }
        }
        if role == SeriesRole::Create || self.ended || absent != self.absent {
            // A generation that was not deleted ends with the last use by each thread.
            self.before = self.uses.drain(..).chain(self.last).collect();
            (self.create, self.ended) = (None, false);
        }
        edges.add_all(actions(&self.before), Rule::PathName);
        if self.before.len() > THREADS_MAX {
            self.before = vec![made];
        }
        (self.absent, self.ended, self.last) = (absent, role == SeriesRole::Delete, Some(made));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace_file::{Action, Fate, Name, Op, Outcome};

    #[test]
    fn names_are_bounded_and_what_was_done_to_a_forgotten_one_is_still_waited_for() {
        let mut order = Root::new(&Switches::default());
        let mut threads = Vec::new();
        let mut add = |thread, number, role| {
            let (name, fate, recorded) = (Name(0), Fate::Executed, Outcome::Value(0));
            let action = Action { thread, start: 0, end: 0, line: 0, name, fate, op: Op::SyncAll, recorded };
            let series = vec![(Series::Path(7, Name(number)), role)];
            let (touches, needs, gone) = Default::default();
            threads.push(thread);
            let waits = order.add(&Step { action, touches, series, needs, gone }, &threads).to_vec();
            (waits, order.paths.count())
        };
        let most = super::super::paths::NAMES_MAX as u32;
        // Forgetting has happened twice by then, and is not due soon.
        let all = most / 4 * 7;
        for number in 0..all {
            let (waits, count) =
                add(0, number, if number % 2 == 0 { SeriesRole::Create } else { SeriesRole::Absent });
            assert!(waits.is_empty() && count <= most as usize);
        }
        let (waits, _) = add(1, 0, SeriesRole::Use);
        assert!(matches!(waits[..], [wait] if wait.on > 0), "{waits:?}");
        assert_eq!(add(1, 1, SeriesRole::Absent).0, []);
        let (waits, _) = add(0, 0, SeriesRole::Delete);
        assert!(matches!(waits[..], [wait] if wait.on == all), "{waits:?}");
    }
}

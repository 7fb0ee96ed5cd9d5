//! The paper's order (sections 2.3.2 and 2.4.2): threads sequential, files sequential, paths by stage and name, descriptors
//! sequential (which subsumes their stage), asynchronous requests by stage.
//!
//! Two things that the paper leaves open: a name that was looked up and not there is a generation of that name, so that
//! name ordering keeps it between its neighbours; and an open file description that processes share has a stage of its own.

use super::edges::{EdgeList, Wait};
use super::{Orderer, Switches, add_all, add_needs};
use crate::action::{ActionId, Gone, Moment, Role, Rule, Series, Step};
use crate::names::Name;
use std::collections::{BTreeMap, HashMap};

/// Builds the order `root`.
#[derive(Debug)]
pub struct Root {
    edges: EdgeList,
    series: HashMap<Series, State>,
    /// Paths, by directory, so that they go with it.
    paths: HashMap<u32, HashMap<Name, State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The action that made this generation.
    create: Option<ActionId>,
    /// Of this generation, the last use by each thread.
    uses: Vec<(u32, ActionId)>,
    /// The last of the series so far.
    last: Option<ActionId>,
    /// Where the generation before ended.
    before: Vec<ActionId>,
    /// Whether this generation is one of absence.
    absent: bool,
    /// Whether this generation was deleted.
    ended: bool,
}

impl Root {
    /// An order without actions.
    pub fn new(switches: &Switches) -> Root {
        Root { edges: EdgeList::new(switches), series: HashMap::new(), paths: HashMap::new() }
    }

    /// What nothing can touch any more is waited for by nobody. Numbers and requests end with their deletion.
    fn forget(&mut self, step: &Step) {
        for (series, role) in &step.series {
            if *role == Role::Delete && matches!(series, Series::Descriptor(_) | Series::Request(_)) {
                self.series.remove(series);
            }
        }
        for gone in &step.gone {
            self.series.remove(&match *gone {
                Gone::Description(handle) => Series::Description(handle),
                Gone::File(file) => {
                    self.paths.remove(&file);
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
        let action = self.edges.next();
        let thread = step.action.thread;
        add_needs(&mut self.edges, &step.needs);
        for (series, role) in &step.series {
            let state = match series {
                Series::Path(dir, name) => self.paths.entry(*dir).or_default().entry(*name).or_default(),
                _ => self.series.entry(*series).or_default(),
            };
            let edges = &mut self.edges;
            match series {
                Series::File(_) => state.sequence(edges, action, Rule::FileSequence),
                Series::Descriptor(_) if edges.is_on(Rule::DescriptorSequence) => {
                    state.sequence(edges, action, Rule::DescriptorSequence)
                }
                Series::Descriptor(_) => state.stage(edges, (thread, action), *role, Rule::DescriptorStage),
                Series::Description(_) => state.stage(edges, (thread, action), *role, Rule::DescriptionStage),
                Series::Request(_) => state.stage(edges, (thread, action), *role, Rule::AioStage),
                Series::Path(..) => {
                    state.name(edges, action, *role);
                    state.stage(edges, (thread, action), *role, Rule::PathStage);
                }
            }
        }
        self.forget(step);
        self.edges.close(threads)
    }

    fn finish(self: Box<Self>) -> BTreeMap<Rule, u64> {
        self.edges.finish()
    }
}

impl State {
    fn sequence(&mut self, edges: &mut EdgeList, action: ActionId, rule: Rule) {
        if let Some(last) = self.last.replace(action) {
            edges.add(last, Moment::End, rule);
        }
    }

    /// Creation before uses, uses before deletion.
    fn stage(&mut self, edges: &mut EdgeList, (thread, action): (u32, ActionId), role: Role, rule: Rule) {
        match role {
            Role::Create => self.create = Some(action),
            Role::Use | Role::Absent => {
                add_all(edges, self.create, rule);
                self.uses.retain(|(other, _)| *other != thread);
                self.uses.push((thread, action));
            }
            Role::Delete => {
                add_all(edges, self.create.into_iter().chain(self.uses.iter().map(|(_, at)| *at)), rule)
            }
        }
    }

    /// The generation before ends first. A creation begins a new one, and so does whatever follows a deletion, or finds the
    /// name there where it was not, or the other way round.
    fn name(&mut self, edges: &mut EdgeList, action: ActionId, role: Role) {
        let absent = role == Role::Absent;
        if role == Role::Create || self.ended || absent != self.absent {
            // A generation without a deletion ends with the last use by each thread.
            self.before = self.uses.drain(..).map(|(_, at)| at).chain(self.last).collect();
            (self.create, self.ended) = (None, false);
        }
        add_all(edges, self.before.iter().copied(), Rule::PathName);
        (self.absent, self.ended, self.last) = (absent, role == Role::Delete, Some(action));
    }
}

//! Merges several compiled traces into one: their trees in one target, their threads side by side, with one
//! clock.

mod renumber;

use crate::replay::{ActionSample, ReplayRun};
use renumber::Renumbering;
use std::collections::HashMap;
use trace_file::{
    CompiledTrace, InitialFile, InitialKind, Name, Names, Nap, Operand, Order, TraceError, TraceOrigin, Wait,
};

/// Maximum number of contradictions that are listed; all are counted.
const NAMED_MAX: usize = 8;

/// Several compiled traces, merged into one.
#[derive(Debug, Clone)]
pub struct MergedTraces {
    /// The merged trace. Actions are ordered by time of return, and keep the order of their own compiled
    /// trace.
    pub whole: CompiledTrace,
    /// The place of each part in the whole.
    parts: Vec<MergedPart>,
    /// Descriptions of files that were adapted because sizes or permissions differ.
    pub adapted: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct MergedPart {
    /// The numbers of the part's actions in the whole.
    actions: Vec<u32>,
    /// The part's first thread, and its number of threads.
    threads: (usize, usize),
}

impl MergedTraces {
    /// Merges compiled traces, each with a name for messages. Fails if two need a file to be of different
    /// kinds. For different sizes, takes the larger; for different permissions, takes all.
    pub fn new(all: &[(String, CompiledTrace)]) -> Result<MergedTraces, TraceError> {
        let numbers =
            |compiled: &CompiledTrace, before: &mut (Names, [u64; 4])| -> Result<Renumbering, TraceError> {
                let names = compiled.names.all().into_iter().map(|bytes| before.0.intern(bytes)).collect();
                let [threads, handles, requests, contexts] =
                    before.1.map(|number| u32::try_from(number).map_err(|_| TraceError::TooMany));
                let about = &compiled.about;
                let own = [about.threads, about.handles, about.requests, contexts_of(compiled)];
                before.1.iter_mut().zip(own).for_each(|(sum, own)| *sum += u64::from(own));
                Ok(Renumbering {
                    names,
                    threads: threads?,
                    handles: handles?,
                    requests: requests?,
                    contexts: contexts?,
                })
            };
        let mut before = (Names::default(), [0; 4]);
        let numbered = all.iter().map(|(_, compiled)| numbers(compiled, &mut before));
        let numbered = numbered.collect::<Result<Vec<_>, _>>()?;
        let (names, sums) = before;
        let total: usize = all.iter().map(|(_, compiled)| compiled.actions.len()).sum();
        if total > u32::MAX as usize || sums.iter().any(|sum| *sum >= u64::from(u32::MAX)) {
            return Err(TraceError::TooMany);
        }
        let (tree, adapted) = trees(all, &numbered, &names)?;
        let mut whole = CompiledTrace { names, tree, about: about(all), ..CompiledTrace::default() };
        for ((_, compiled), numbers) in all.iter().zip(&numbered) {
            whole.inherited.extend(compiled.inherited.iter().map(|one| trace_file::InheritedHandle {
                handle: numbers.handle(one.handle),
                path: numbers.name(one.path),
            }));
        }
        let parts = merge(all, &numbered, &mut whole)?;
        for ((_, compiled), part) in all.iter().zip(&parts) {
            let number = |id: u32| part.actions[id as usize];
            let renumbered = |nap: &Nap| Nap { action: number(nap.action), ends_with: number(nap.ends_with) };
            whole.about.naps.extend(compiled.about.naps.iter().map(renumbered));
        }
        Ok(MergedTraces { whole, parts, adapted })
    }

    /// The results of one compiled trace in a run of all.
    pub fn part(&self, at: usize, run: &ReplayRun) -> ReplayRun {
        let part = &self.parts[at];
        let number = |id: u32| part.actions.binary_search(&id).ok().map(|place| place as u32);
        let sample = |id: &u32| {
            let sample = run.samples[*id as usize];
            ActionSample { on: sample.on.and_then(number), ..sample }
        };
        let samples: Vec<ActionSample> = part.actions.iter().map(sample).collect();
        let (first, count) = part.threads;
        // With a single thread, waits belong to no traced thread.
        let waited = run.waited.get(first..first + count).unwrap_or(&[]).to_vec();
        let reached = samples.iter().filter(|sample| sample.is_reached());
        ReplayRun {
            elapsed: reached.map(|sample| sample.start + sample.took).max().unwrap_or(0),
            samples,
            waited,
            built: run.built.clone(),
            cache: run.cache.clone(),
        }
    }
}

fn contexts_of(compiled: &CompiledTrace) -> u32 {
    let mut contexts = 0;
    for action in &compiled.actions {
        action.op.operands(|operand| {
            if let Operand::Context(context) = operand {
                contexts = contexts.max(context.saturating_add(1));
            }
        });
    }
    contexts
}

fn about(all: &[(String, CompiledTrace)]) -> TraceOrigin {
    let mut sum = TraceOrigin::default();
    let names: Vec<&str> = all.iter().map(|(_, compiled)| compiled.about.trace.as_str()).collect();
    sum.trace = names.join(" + ");
    for (_, CompiledTrace { about, .. }) in all {
        sum.threads += about.threads;
        sum.handles += about.handles;
        sum.requests += about.requests;
        sum.lines += about.lines;
        sum.used += about.used;
        sum.unfinished += about.unfinished;
        sum.unseen.rings += about.unseen.rings;
        sum.unseen.shared_mappings += about.unseen.shared_mappings;
        // One cost is subtracted from all pauses. The smallest one shortens no real pause.
        sum.tracer = sum.tracer.least(about.tracer);
    }
    sum
}

/// Merges all actions, and all orders of the same name.
fn merge(
    all: &[(String, CompiledTrace)],
    numbered: &[Renumbering],
    whole: &mut CompiledTrace,
) -> Result<Vec<MergedPart>, TraceError> {
    let first = all.first().map_or(&[][..], |(_, compiled)| &compiled.orders[..]);
    let begun = |order: &Order| Order { name: order.name.clone(), begins: vec![0], ..Order::default() };
    whole.orders = first.iter().map(begun).collect();
    let mut parts: Vec<MergedPart> = vec![MergedPart::default(); all.len()];
    for ((part, (_, compiled)), numbers) in parts.iter_mut().zip(all).zip(numbered) {
        part.threads = (numbers.threads as usize, compiled.about.threads as usize);
        for order in &mut whole.orders {
            for (rule, count) in &compiled.order(&order.name)?.asked {
                *order.asked.entry(*rule).or_default() += count;
            }
        }
    }
    loop {
        let next =
            all.iter().zip(&parts).map(|((_, compiled), part)| compiled.actions.get(part.actions.len()));
        let next = next.enumerate().filter_map(|(at, action)| Some((action?.end, at)));
        let Some((_, at)) = next.min() else { return Ok(parts) };
        let (part, compiled) = (&mut parts[at], &all[at].1);
        let id = part.actions.len();
        part.actions.push(whole.actions.len() as u32);
        whole.actions.push(numbered[at].action(&compiled.actions[id]));
        for order in &mut whole.orders {
            let waits = compiled.order(&order.name)?.of(id as u32).iter();
            order.waits.extend(waits.map(|wait| Wait { on: part.actions[wait.on as usize], ..*wait }));
            order.begins.push(u32::try_from(order.waits.len()).map_err(|_| TraceError::TooMany)?);
        }
    }
}

/// Merges all trees. Returns the tree and the adapted files, or the contradictions.
fn trees(
    all: &[(String, CompiledTrace)],
    numbered: &[Renumbering],
    names: &Names,
) -> Result<(Vec<InitialFile>, Vec<String>), TraceError> {
    let mut tree: Vec<InitialFile> = Vec::new();
    let mut places: HashMap<Name, (usize, usize)> = HashMap::new();
    let (mut adapted, mut contradictions) = (Vec::new(), Vec::new());
    for (at, ((name, compiled), numbers)) in all.iter().zip(numbered).enumerate() {
        for initial in compiled.tree.iter().map(|initial| renumbered(initial, numbers)) {
            let Some((place, whose)) = places.get(&initial.path).copied() else {
                places.insert(initial.path, (tree.len(), at));
                tree.push(initial);
                continue;
            };
            let path = names.show(initial.path);
            match lay_over(&mut tree[place], initial, names) {
                Ok(None) => {}
                Ok(Some(what)) => adapted.push(format!("{path}: {what} ({} and {name})", all[whose].0)),
                Err((one, other)) => {
                    contradictions.push(format!("{path} is {one} in {} and {other} in {name}", all[whose].0));
                }
            }
        }
    }
    let count = contradictions.len();
    contradictions.truncate(NAMED_MAX);
    match count {
        0 => Ok((tree, adapted)),
        _ => Err(TraceError::Contradiction { count, what: contradictions.join(", ") }),
    }
}

fn renumbered(initial: &InitialFile, numbers: &Renumbering) -> InitialFile {
    let kind = match &initial.kind {
        InitialKind::Link(name) => InitialKind::Link(numbers.name(*name)),
        InitialKind::HardLink(name) => InitialKind::HardLink(numbers.name(*name)),
        other => other.clone(),
    };
    let attributes = initial.attributes.iter().map(|(name, bytes)| (numbers.name(*name), *bytes)).collect();
    InitialFile { path: numbers.name(initial.path), kind, attributes, ..initial.clone() }
}

/// Makes one initial file suitable for two compiled traces. Returns the adaptation, or the two kinds that
/// contradict each other.
fn lay_over(
    known: &mut InitialFile,
    other: InitialFile,
    names: &Names,
) -> Result<Option<&'static str>, (String, String)> {
    let mut adapted = None;
    match (&mut known.kind, &other.kind) {
        (InitialKind::File(size), InitialKind::File(wanted)) if size != wanted => {
            *size = (*size).max(*wanted);
            known.holes = Box::default();
            adapted = Some("the larger size");
        }
        (one, other) if *one == *other => {}
        (one, other) => return Err((described(one, names), described(other, names))),
    }
    if known.mode != other.mode {
        known.mode |= other.mode;
        adapted = adapted.or(Some("all permissions"));
    }
    let mut attributes = std::mem::take(&mut known.attributes).into_vec();
    for (name, bytes) in other.attributes {
        if !attributes.iter().any(|(known, _)| *known == name) {
            attributes.push((name, bytes));
        }
    }
    known.attributes = attributes.into();
    Ok(adapted)
}

fn described(kind: &InitialKind, names: &Names) -> String {
    match kind {
        InitialKind::Directory => "a directory".into(),
        InitialKind::File(_) => "a file".into(),
        InitialKind::Link(to) => format!("a link to {}", names.show(*to)),
        InitialKind::HardLink(to) => format!("another name of {}", names.show(*to)),
        InitialKind::Special(device) => format!("a special file ({device:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{OrderChoice, ReplaySettings, ReplaySpeed, replay_onto_nothing};
    use trace_compile::{CompileSettings, Strace, compile};
    use trace_file::{NO_HANDLE, Op};

    fn compiled(text: &str) -> CompiledTrace {
        compile(&mut Strace::new(text.as_bytes()), "part".as_ref(), &CompileSettings::default())
            .expect("it compiles")
    }

    fn reader(file: &str, second: u32) -> CompiledTrace {
        let at = |second: u32, line: &str| format!("1 {}.0 {line}\n", 100_000_000 + second);
        compiled(
            &[
                at(second, &format!("openat(AT_FDCWD</>, \"/srv/{file}\", O_RDONLY) = 3</srv/{file}>")),
                at(
                    second + 1,
                    "clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2",
                ),
                at(second + 4, &format!("pread64(3</srv/{file}>, \"\"..., 10, 0) = 10")),
                format!("2 {}.5 pread64(3</srv/{file}>, \"\"..., 10, 0) = 10\n", 100_000_002 + second),
                at(second + 5, &format!("close(3</srv/{file}>) = 0")),
            ]
            .concat(),
        )
    }

    fn merge_two(one: CompiledTrace, other: CompiledTrace) -> Result<MergedTraces, TraceError> {
        MergedTraces::new(&[("one".into(), one), ("other".into(), other)])
    }

    #[test]
    fn each_part_keeps_its_order_its_edges_and_its_results_among_the_others() {
        let mut parts = [reader("a", 0), reader("b", 50)];
        parts[1].about.naps = vec![Nap { action: 1, ends_with: 3 }];
        let merged = merge_two(parts[0].clone(), parts[1].clone()).expect("they agree");
        let whole = &merged.whole;
        assert_eq!((whole.actions.len(), whole.about.threads, whole.orders.len()), (10, 4, 2));
        let stamps: Vec<u64> = whole.actions.iter().map(|action| action.end).collect();
        assert!(stamps.is_sorted(), "one clock: {stamps:?}");
        assert!(whole.orders.iter().all(|order| order.is_acyclic(10)));
        for (at, part) in parts.iter().enumerate() {
            for (order, order_of_all) in part.orders.iter().zip(&whole.orders) {
                for (own, id) in merged.parts[at].actions.iter().enumerate() {
                    let back = |wait: &Wait| Wait { on: merged.parts[at].actions[wait.on as usize], ..*wait };
                    let waits: Vec<Wait> = order.of(own as u32).iter().map(back).collect();
                    assert_eq!(order_of_all.of(*id), waits);
                    let show = |compiled: &CompiledTrace, action: u32| {
                        compiled.names.show(compiled.actions[action as usize].name)
                    };
                    assert_eq!(show(whole, *id), show(part, own as u32));
                }
            }
        }
        let second = &merged.parts[1].actions;
        assert_eq!(whole.about.naps, [Nap { action: second[1], ends_with: second[3] }]);
        let mut handles: Vec<u32> = whole
            .actions
            .iter()
            .filter_map(|action| match action.op {
                Op::Open { made, .. } if made != NO_HANDLE => Some(made),
                _ => None,
            })
            .collect();
        handles.dedup();
        assert_eq!(handles.len(), 2, "each has a handle of its own");
        let settings = ReplaySettings {
            order: OrderChoice::Compiled("weir".into()),
            speed: ReplaySpeed::Full,
            stall_seconds: 9,
        };
        let run = replay_onto_nothing(whole, &settings).expect("it ends");
        let part = merged.part(1, &run);
        assert_eq!((part.samples.len(), part.waited.len()), (5, 2));
        assert!(part.samples.iter().all(|sample| sample.on.is_none_or(|on| on < 5)));
    }

    #[test]
    fn contradictions_of_two_traces_are_named_and_sizes_are_made_to_fit() {
        let directory = compiled("1 100000000.0 openat(AT_FDCWD</>, \"/srv/a/x\", O_RDONLY) = 3</srv/a/x>\n");
        let refused = merge_two(reader("a", 0), directory).expect_err("a file is no directory").to_string();
        assert!(refused.contains("/srv/a is a file in one and a directory in other"), "{refused}");
        let longer = compiled(
            "1 100000000.0 openat(AT_FDCWD</>, \"/srv/a\", O_RDONLY) = 3</srv/a>\n\
            1 100000001.0 pread64(3</srv/a>, \"\"..., 10, 90) = 10\n",
        );
        let merged = merge_two(reader("a", 0), longer).expect("the larger size does for both");
        assert_eq!(merged.adapted, ["/srv/a: the larger size (one and other)"]);
        let sizes: Vec<_> = merged
            .whole
            .tree
            .iter()
            .filter_map(|initial| match initial.kind {
                InitialKind::File(size) => Some(size),
                _ => None,
            })
            .collect();
        assert_eq!(sizes, [100]);
    }
}

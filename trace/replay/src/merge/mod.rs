//! Several benchmarks as one: their trees in one target, their threads side by side, one clock for all.

mod renumber;

use crate::replay::{Run, Sample};
use renumber::Numbers;
use std::collections::HashMap;
use trace_file::{
    About, Benchmark, Initial, InitialKind, Name, Names, Nap, Operand, Order, TraceError, Wait,
};

/// Contradictions that are named; all are counted.
const NAMED_MAX: usize = 8;

/// Several benchmarks as one.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// All of them: actions merged by the moments at which they returned, each benchmark's in its own order.
    pub whole: Benchmark,
    /// Where each part is in the whole.
    parts: Vec<Part>,
    /// What was made to fit, for people: sizes and permissions that differ.
    pub adapted: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct Part {
    /// The numbers of its actions in the whole.
    actions: Vec<u32>,
    /// Its first thread, and how many it has.
    threads: (usize, usize),
}

impl Overlay {
    /// Lays benchmarks over each other, named for people. What two of them need to be different things is refused; of sizes
    /// that differ, the larger is taken, and of permissions, all.
    pub fn new(all: &[(String, Benchmark)]) -> Result<Overlay, TraceError> {
        let numbers =
            |benchmark: &Benchmark, before: &mut (Names, [u64; 4])| -> Result<Numbers, TraceError> {
                let names = benchmark.names.all().into_iter().map(|bytes| before.0.intern(bytes)).collect();
                let [threads, handles, requests, contexts] =
                    before.1.map(|number| u32::try_from(number).map_err(|_| TraceError::TooMany));
                let about = &benchmark.about;
                let own = [about.threads, about.handles, about.requests, contexts_of(benchmark)];
                before.1.iter_mut().zip(own).for_each(|(sum, own)| *sum += u64::from(own));
                Ok(Numbers {
                    names,
                    threads: threads?,
                    handles: handles?,
                    requests: requests?,
                    contexts: contexts?,
                })
            };
        let mut before = (Names::default(), [0; 4]);
        let numbered = all.iter().map(|(_, benchmark)| numbers(benchmark, &mut before));
        let numbered = numbered.collect::<Result<Vec<_>, _>>()?;
        let (names, sums) = before;
        let total: usize = all.iter().map(|(_, benchmark)| benchmark.actions.len()).sum();
        if total > u32::MAX as usize || sums.iter().any(|sum| *sum >= u64::from(u32::MAX)) {
            return Err(TraceError::TooMany);
        }
        let (tree, adapted) = trees(all, &numbered, &names)?;
        let mut whole = Benchmark { names, tree, about: about(all), ..Benchmark::default() };
        for ((_, benchmark), numbers) in all.iter().zip(&numbered) {
            whole.inherited.extend(benchmark.inherited.iter().map(|one| trace_file::Inherited {
                handle: numbers.handle(one.handle),
                path: numbers.name(one.path),
            }));
        }
        let parts = merge(all, &numbered, &mut whole)?;
        for ((_, benchmark), part) in all.iter().zip(&parts) {
            let number = |id: u32| part.actions[id as usize];
            let renumbered = |nap: &Nap| Nap { action: number(nap.action), ends_with: number(nap.ends_with) };
            whole.about.naps.extend(benchmark.about.naps.iter().map(renumbered));
        }
        Ok(Overlay { whole, parts, adapted })
    }

    /// What one of the benchmarks did in a run of all.
    pub fn part(&self, at: usize, run: &Run) -> Run {
        let part = &self.parts[at];
        let number = |id: u32| part.actions.binary_search(&id).ok().map(|place| place as u32);
        let sample = |id: &u32| {
            let sample = run.samples[*id as usize];
            Sample { on: sample.on.and_then(number), ..sample }
        };
        let samples: Vec<Sample> = part.actions.iter().map(sample).collect();
        let (first, count) = part.threads;
        // With one thread for all, waits are nobody's own.
        let waited = run.waited.get(first..first + count).unwrap_or(&[]).to_vec();
        Run {
            elapsed: samples.iter().map(|sample| sample.start + sample.took).max().unwrap_or(0),
            samples,
            waited,
            built: run.built.clone(),
            cache: run.cache.clone(),
        }
    }
}

fn contexts_of(benchmark: &Benchmark) -> u32 {
    let mut contexts = 0;
    for action in &benchmark.actions {
        action.op.operands(|operand| {
            if let Operand::Context(context) = operand {
                contexts = contexts.max(context.saturating_add(1));
            }
        });
    }
    contexts
}

fn about(all: &[(String, Benchmark)]) -> About {
    let mut sum = About::default();
    let names: Vec<&str> = all.iter().map(|(_, benchmark)| benchmark.about.trace.as_str()).collect();
    sum.trace = names.join(" + ");
    for (_, Benchmark { about, .. }) in all {
        sum.threads += about.threads;
        sum.handles += about.handles;
        sum.requests += about.requests;
        sum.lines += about.lines;
        sum.used += about.used;
        sum.unfinished += about.unfinished;
        sum.unseen.rings += about.unseen.rings;
        sum.unseen.shared_mappings += about.unseen.shared_mappings;
        // One tracer's cost is taken off all pauses; the least takes none off that were real.
        sum.tracer = sum.tracer.least(about.tracer);
    }
    sum
}

/// Puts all actions into one row, and each benchmark's orders into those of the same name.
fn merge(
    all: &[(String, Benchmark)],
    numbered: &[Numbers],
    whole: &mut Benchmark,
) -> Result<Vec<Part>, TraceError> {
    let first = all.first().map_or(&[][..], |(_, benchmark)| &benchmark.orders[..]);
    let begun = |order: &Order| Order { name: order.name.clone(), begins: vec![0], ..Order::default() };
    whole.orders = first.iter().map(begun).collect();
    let mut parts: Vec<Part> = vec![Part::default(); all.len()];
    for ((part, (_, benchmark)), numbers) in parts.iter_mut().zip(all).zip(numbered) {
        part.threads = (numbers.threads as usize, benchmark.about.threads as usize);
        for order in &mut whole.orders {
            for (rule, count) in &benchmark.order(&order.name)?.asked {
                *order.asked.entry(*rule).or_default() += count;
            }
        }
    }
    loop {
        let next =
            all.iter().zip(&parts).map(|((_, benchmark), part)| benchmark.actions.get(part.actions.len()));
        let next = next.enumerate().filter_map(|(at, action)| Some((action?.end, at)));
        let Some((_, at)) = next.min() else { return Ok(parts) };
        let (part, benchmark) = (&mut parts[at], &all[at].1);
        let id = part.actions.len();
        part.actions.push(whole.actions.len() as u32);
        whole.actions.push(numbered[at].action(&benchmark.actions[id]));
        for order in &mut whole.orders {
            let waits = benchmark.order(&order.name)?.of(id as u32).iter();
            order.waits.extend(waits.map(|wait| Wait { on: part.actions[wait.on as usize], ..*wait }));
            order.begins.push(u32::try_from(order.waits.len()).map_err(|_| TraceError::TooMany)?);
        }
    }
}

/// All trees as one, and what was made to fit; or what contradicts.
fn trees(
    all: &[(String, Benchmark)],
    numbered: &[Numbers],
    names: &Names,
) -> Result<(Vec<Initial>, Vec<String>), TraceError> {
    let mut tree: Vec<Initial> = Vec::new();
    let mut places: HashMap<Name, (usize, usize)> = HashMap::new();
    let (mut adapted, mut contradictions) = (Vec::new(), Vec::new());
    for (at, ((name, benchmark), numbers)) in all.iter().zip(numbered).enumerate() {
        for initial in benchmark.tree.iter().map(|initial| renumbered(initial, numbers)) {
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

fn renumbered(initial: &Initial, numbers: &Numbers) -> Initial {
    let kind = match &initial.kind {
        InitialKind::Link(name) => InitialKind::Link(numbers.name(*name)),
        InitialKind::HardLink(name) => InitialKind::HardLink(numbers.name(*name)),
        other => other.clone(),
    };
    let attributes = initial.attributes.iter().map(|(name, bytes)| (numbers.name(*name), *bytes)).collect();
    Initial { path: numbers.name(initial.path), kind, attributes, ..initial.clone() }
}

/// Makes one initial file do for two benchmarks. Says what was changed for that, or what each of them needs it to be.
fn lay_over(
    known: &mut Initial,
    other: Initial,
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
    use crate::replay::{Baseline, Settings, Speed, replay_onto_nothing};
    use trace_compile::{CompileSettings, Strace, compile};
    use trace_file::{NO_HANDLE, Op};

    fn compiled(text: &str) -> Benchmark {
        compile(&mut Strace::new(text.as_bytes()), "part".as_ref(), &CompileSettings::default())
            .expect("it compiles")
    }

    fn reader(file: &str, second: u32) -> Benchmark {
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

    fn overlaid(one: Benchmark, other: Benchmark) -> Result<Overlay, TraceError> {
        Overlay::new(&[("one".into(), one), ("other".into(), other)])
    }

    #[test]
    fn each_part_keeps_its_order_its_edges_and_its_results_among_the_others() {
        let mut parts = [reader("a", 0), reader("b", 50)];
        parts[1].about.naps = vec![Nap { action: 1, ends_with: 3 }];
        let overlay = overlaid(parts[0].clone(), parts[1].clone()).expect("they agree");
        let whole = &overlay.whole;
        assert_eq!((whole.actions.len(), whole.about.threads, whole.orders.len()), (10, 4, 2));
        let stamps: Vec<u64> = whole.actions.iter().map(|action| action.end).collect();
        assert!(stamps.is_sorted(), "one clock: {stamps:?}");
        assert!(whole.orders.iter().all(|order| order.is_acyclic(10)));
        for (at, part) in parts.iter().enumerate() {
            for (order, merged) in part.orders.iter().zip(&whole.orders) {
                for (own, id) in overlay.parts[at].actions.iter().enumerate() {
                    let back =
                        |wait: &Wait| Wait { on: overlay.parts[at].actions[wait.on as usize], ..*wait };
                    let waits: Vec<Wait> = order.of(own as u32).iter().map(back).collect();
                    assert_eq!(merged.of(*id), waits);
                    let show = |benchmark: &Benchmark, action: u32| {
                        benchmark.names.show(benchmark.actions[action as usize].name)
                    };
                    assert_eq!(show(whole, *id), show(part, own as u32));
                }
            }
        }
        let second = &overlay.parts[1].actions;
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
        let settings =
            Settings { order: Baseline::Compiled("weir".into()), speed: Speed::Full, stall_seconds: 9 };
        let run = replay_onto_nothing(whole, &settings).expect("it ends");
        let part = overlay.part(1, &run);
        assert_eq!((part.samples.len(), part.waited.len()), (5, 2));
        assert!(part.samples.iter().all(|sample| sample.on.is_none_or(|on| on < 5)));
    }

    #[test]
    fn what_two_benchmarks_need_to_be_different_things_is_named_and_sizes_are_made_to_fit() {
        let directory = compiled("1 100000000.0 openat(AT_FDCWD</>, \"/srv/a/x\", O_RDONLY) = 3</srv/a/x>\n");
        let refused = overlaid(reader("a", 0), directory).expect_err("a file is no directory").to_string();
        assert!(refused.contains("/srv/a is a file in one and a directory in other"), "{refused}");
        let longer = compiled(
            "1 100000000.0 openat(AT_FDCWD</>, \"/srv/a\", O_RDONLY) = 3</srv/a>\n\
            1 100000001.0 pread64(3</srv/a>, \"\"..., 10, 90) = 10\n",
        );
        let overlay = overlaid(reader("a", 0), longer).expect("the larger size does for both");
        assert_eq!(overlay.adapted, ["/srv/a: the larger size (one and other)"]);
        let sizes: Vec<_> = overlay
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

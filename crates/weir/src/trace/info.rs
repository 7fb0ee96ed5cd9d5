//! `weir trace info`.

use super::args::InfoArgs;
use ::trace::{Benchmark, TraceError};
use serde_json::json;

/// Races that are named for people; `--json` has more.
const RACES_SHOWN_MAX: usize = 40;

pub(super) fn run(args: &InfoArgs) -> Result<(), TraceError> {
    let benchmark = Benchmark::read(&args.benchmark)?;
    match args.json {
        true => println!("{:#}", as_json(&benchmark)),
        false => print(&benchmark),
    }
    Ok(())
}

fn as_json(benchmark: &Benchmark) -> serde_json::Value {
    let fates: Vec<_> = benchmark
        .fates()
        .into_iter()
        .map(|(fate, count)| json!({"fate": fate.text(), "count": count}))
        .collect();
    let orders: Vec<_> = benchmark
        .orders
        .iter()
        .map(|order| {
            let rules = |rules: std::collections::BTreeMap<::trace::Rule, u64>| -> Vec<_> {
                rules
                    .into_iter()
                    .map(|(rule, count)| json!({"rule": format!("{rule:?}"), "count": count}))
                    .collect()
            };
            let (asked, kept) = (rules(order.asked.clone()), rules(order.kept()));
            json!({"name": order.name, "asked": asked, "kept": kept, "edges": order.waits.len(),
                "mean_length_ns": benchmark.mean_length(order)})
        })
        .collect();
    json!({"about": benchmark.about, "actions": benchmark.actions.len(), "fates": fates, "orders": orders,
        "initial_files": benchmark.tree.len(), "inherited": benchmark.inherited.len()})
}

/// For people.
pub(super) fn print(benchmark: &Benchmark) {
    let about = &benchmark.about;
    println!("trace       {}: {} of {} lines used", about.trace, about.used, about.lines);
    println!(
        "actions     {} by {} threads, {} handles",
        benchmark.actions.len(),
        about.threads,
        about.handles
    );
    for (fate, count) in benchmark.fates() {
        println!("            {count:>9}  {}", fate.text());
    }
    println!("tree        {} files, {} open at the start", benchmark.tree.len(), benchmark.inherited.len());
    println!(
        "tracer      {:.1} us between two calls, {:.1} us around one that has waited, taken off think times",
        about.tracer.busy as f64 / 1e3,
        about.tracer.after_wait as f64 / 1e3
    );
    for order in &benchmark.orders {
        let length = benchmark.mean_length(order) as f64 / 1e6;
        println!("order {:<5} {} edges kept, {length:.3} ms long on average", order.name, order.waits.len());
        let kept = order.kept();
        for (rule, asked) in &order.asked {
            println!(
                "            {asked:>9}  {rule:?}, of which {} kept",
                kept.get(rule).copied().unwrap_or(0)
            );
        }
    }
    let ::trace::Repairs { outside, descriptors, races, reordered } = about.repairs;
    println!(
        "repairs     {outside} files from outside, {descriptors} descriptors, {reordered} calls reordered"
    );
    println!("races       {races} results that no order explains");
    if !about.races.is_empty() {
        let lines: Vec<_> = about.races.iter().take(RACES_SHOWN_MAX).map(u64::to_string).collect();
        println!("            lines {}", lines.join(", "));
    }
    about.unseen.warnings().iter().for_each(|what| println!("unseen      {what}"));
    println!("unfinished  {} calls", about.unfinished);
    for (kind, count, line) in &about.problems {
        println!("problem     {count:>9}  {kind} (first: line {line})");
    }
}

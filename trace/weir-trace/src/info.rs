//! `weir-trace info`.

use crate::args::InfoArgs;
use serde_json::json;
use std::collections::BTreeMap;
use trace_file::{ModelRepairs, Rule, TraceError, TraceInventory};

/// Maximum number of races that are listed; `--json` has more.
const RACES_SHOWN_MAX: usize = 40;

pub(crate) fn run(args: &InfoArgs) -> Result<(), TraceError> {
    let inventory = TraceInventory::read(&args.compiled)?;
    if args.json {
        println!("{:#}", as_json(&inventory));
    } else {
        print(&inventory);
    }
    Ok(())
}

fn as_json(inventory: &TraceInventory) -> serde_json::Value {
    let fates: Vec<_> =
        inventory.fates.iter().map(|(fate, count)| json!({"fate": fate.text(), "count": count})).collect();
    let orders: Vec<_> = inventory
        .orders
        .iter()
        .map(|order| {
            let rules = |rules: &BTreeMap<Rule, u64>| -> Vec<_> {
                rules
                    .iter()
                    .map(|(rule, count)| json!({"rule": format!("{rule:?}"), "count": count}))
                    .collect()
            };
            let asked = rules(&order.asked);
            let kept = rules(&order.kept);
            json!({"name": order.name, "asked": asked, "kept": kept, "edges": order.edges(),
                "mean_length_ns": order.mean_length_ns})
        })
        .collect();
    json!({"about": inventory.about, "actions": inventory.actions, "fates": fates, "orders": orders,
        "initial_files": inventory.initial_files, "inherited": inventory.inherited})
}

/// Prints the text form.
pub(crate) fn print(inventory: &TraceInventory) {
    let about = &inventory.about;
    println!("trace       {}: {} of {} lines used", about.trace, about.used, about.lines);
    println!("actions     {} by {} threads, {} handles", inventory.actions, about.threads, about.handles);
    for (fate, count) in &inventory.fates {
        println!("            {count:>9}  {}", fate.text());
    }
    println!("tree        {} files, {} open at the start", inventory.initial_files, inventory.inherited);
    println!(
        "tracer      {:.1} us between two calls, {:.1} us around one that has waited, taken off think times",
        about.tracer.busy as f64 / 1e3,
        about.tracer.after_wait as f64 / 1e3
    );
    for order in &inventory.orders {
        let length = order.mean_length_ns as f64 / 1e6;
        println!("order {:<5} {} edges kept, {length:.3} ms long on average", order.name, order.edges());
        for (rule, asked) in &order.asked {
            let kept = order.kept.get(rule).copied().unwrap_or(0);
            println!("            {asked:>9}  {rule:?}, of which {kept} kept");
        }
    }
    let ModelRepairs { outside, descriptors, races, reordered, late } = about.repairs;
    println!(
        "repairs     {outside} files from outside, {descriptors} descriptors, {reordered} calls reordered, {late} late"
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

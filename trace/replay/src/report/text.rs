//! Formats a report as text.

use super::{CallLatency, ConfidenceInterval, DifferenceGroup, IncompleteReplay, LongWait, ReplayReport};
use std::fmt;

/// Number of calls and differences shown; `--json` has more.
const SHOWN: usize = 12;

impl fmt::Display for ReplayReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        if let Some(IncompleteReplay { replayed, actions }) = self.incomplete {
            writeln!(
                out,
                "INCOMPLETE     stopped after {replayed} of {actions} actions: the times and differences are of these"
            )?;
        }
        writeln!(out, "order          {}", self.order)?;
        writeln!(
            out,
            "elapsed        {:.3} s (recorded, with tracer: {:.3} s)",
            seconds(self.elapsed_ns),
            seconds(self.recorded_ns)
        )?;
        writeln!(
            out,
            "concurrency    {:.2} calls under way (recorded: {:.2})",
            self.concurrency.0, self.concurrency.1
        )?;
        let crate::init::BuiltTree { files, bytes, written, stand_ins, refused_attributes } = self.built;
        writeln!(
            out,
            "initial tree   {files} files, {bytes} bytes ({written} written), {stand_ins} stand-ins, {refused_attributes} \
             extended attributes refused"
        )?;
        writeln!(out, "cache          {}", self.cache)?;
        if self.runs.len() > 1 {
            let elapsed: Vec<_> = self.runs.iter().map(|run| run.elapsed_ns as f64).collect();
            let ConfidenceInterval { mean, half } = ConfidenceInterval::of(&elapsed);
            let (mean, half) = (mean / 1e9, half.unwrap_or(0.0) / 1e9);
            writeln!(out, "runs           {}, {mean:.3} +- {half:.3} s (95 %)", self.runs.len())?;
        }
        for (kind, count, line) in self.problems.iter().take(SHOWN) {
            writeln!(out, "trace          {count:>9}  {kind} (first: line {line})")?;
        }
        for (fate, count) in &self.actions {
            writeln!(out, "actions        {count:>9}  {fate}")?;
        }
        self.times(out)?;
        let total: u64 = self.causes.values().sum();
        writeln!(out, "differences    {total}, of which {} by order", self.order_differences())?;
        for (cause, count) in &self.causes {
            writeln!(out, "differences    {count:>9}  {}", cause.text())?;
        }
        for group in self.groups.iter().take(SHOWN) {
            let DifferenceGroup { cause, call, recorded, replayed, count, first, line } = group;
            let which = if *count > 1 { ", the first" } else { "" };
            writeln!(
                out,
                "  {count} {call}{which} recorded {recorded}, replayed {replayed} (action {first}, line {line}): {}",
                cause.text()
            )?;
        }
        Ok(())
    }
}

impl ReplayReport {
    fn times(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut calls: Vec<_> = self.calls.iter().collect();
        calls.sort_by_key(|(_, latency)| std::cmp::Reverse(latency.total_ns));
        for (call, latency) in calls.into_iter().take(SHOWN) {
            write_latency(out, "call", call, latency)?;
        }
        write_latency(out, "syncs", "fsync and its family", &self.syncs)?;
        for (rule, nanos) in &self.waited_ns {
            writeln!(out, "waited         {:>9.3} s  for {rule:?}", *nanos as f64 / 1e9)?;
        }
        if let Some(wait) = self.longest_waits.first() {
            let LongWait { action, on, rule, waited_ns, paths } = wait;
            let rule = rule.map_or("temporal order".into(), |rule| format!("{rule:?}"));
            let (millis, paths) = (*waited_ns as f64 / 1e6, paths.join(" "));
            writeln!(out, "longest wait   {millis:.3} ms: action {action} for {on}, by {rule} {paths}")?;
        }
        if self.lag.count > 0 {
            write_latency(out, "late", "actions that began late", &self.lag)?;
        }
        Ok(())
    }
}

fn write_latency(out: &mut fmt::Formatter<'_>, kind: &str, what: &str, latency: &CallLatency) -> fmt::Result {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    writeln!(
        out,
        "{kind:<14} {:>9}  {what}: {:.3} s; us: median {:.1}, 99 % {:.1}, 99.9 % {:.1}, most {:.1}",
        latency.count,
        latency.total_ns as f64 / 1e9,
        micros(latency.p50_ns),
        micros(latency.p99_ns),
        micros(latency.p999_ns),
        micros(latency.max_ns)
    )
}

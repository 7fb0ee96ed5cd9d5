//! A report, for people.

use super::Report;
use std::fmt;

/// Calls and differences shown; `--json` has more.
const SHOWN: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |nanos: u64| nanos as f64 / 1e9;
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
        writeln!(out, "initial tree   {} files, {} bytes", self.built.0, self.built.1)?;
        for (fate, count) in &self.actions {
            writeln!(out, "actions        {count:>9}  {fate}")?;
        }
        let mut calls: Vec<_> = self.calls.iter().collect();
        calls.sort_by_key(|(_, (_, nanos))| std::cmp::Reverse(*nanos));
        for (call, (count, nanos)) in calls.into_iter().take(SHOWN) {
            let mean = *nanos as f64 / 1e3 / (*count).max(1) as f64;
            writeln!(out, "call           {count:>9}  {call}: {:.3} s, {mean:.1} us each", seconds(*nanos))?;
        }
        for (rule, nanos) in &self.waited_ns {
            writeln!(out, "waited         {:>9.3} s  for {rule}", seconds(*nanos))?;
        }
        if self.lag_max_ns > 0 {
            writeln!(out, "late           {:.6} s at most", seconds(self.lag_max_ns))?;
        }
        let total: u64 = self.causes.values().sum();
        writeln!(out, "differences    {total}, of which {} by order", self.order_differences())?;
        for (cause, count) in &self.causes {
            writeln!(out, "differences    {count:>9}  {cause:?}")?;
        }
        for difference in self.differences.iter().take(SHOWN) {
            let super::Difference { action, line, call, recorded, replayed, cause } = difference;
            writeln!(
                out,
                "  action {action} (line {line}) {call}: recorded {recorded}, replayed {replayed}: {cause:?}"
            )?;
        }
        Ok(())
    }
}

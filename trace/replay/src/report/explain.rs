//! Explains one action and its waits.

use super::differences::show;
use serde::Serialize;
use std::fmt;
use trace_file::{CompiledTrace, Moment, Rule, TraceError};

/// An action and its waits, in words.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The action, in words.
    pub action: String,
    /// Its waits, by order.
    pub waits: Vec<Because>,
}

/// One wait.
#[derive(Debug, Clone, Serialize)]
pub struct Because {
    /// The order.
    pub order: String,
    /// The rule.
    pub rule: Rule,
    /// The moment of the other action.
    pub moment: Moment,
    /// The other action, in words.
    pub on: String,
}

/// Explains an action.
pub fn explain(compiled: &CompiledTrace, action: u32) -> Result<Explanation, TraceError> {
    let count = compiled.actions.len();
    if action as usize >= count {
        return Err(TraceError::NoAction { action, count });
    }
    let mut waits = Vec::new();
    for order in &compiled.orders {
        waits.extend(order.of(action).iter().map(|wait| Because {
            order: order.name.clone(),
            rule: wait.rule,
            moment: wait.moment,
            on: describe(compiled, wait.on),
        }));
    }
    Ok(Explanation { action: describe(compiled, action), waits })
}

fn describe(compiled: &CompiledTrace, id: u32) -> String {
    let action = &compiled.actions[id as usize];
    let mut paths = Vec::new();
    trace_file::names_of(action, |name| paths.push(compiled.names.show(name)));
    paths.retain(|path| !path.is_empty());
    format!(
        "action {id}: {} of thread {}, line {}, {:.6} s to {:.6} s, {}, {}: recorded {}",
        compiled.names.show(action.name),
        action.thread,
        action.line,
        action.start as f64 / 1e9,
        action.end as f64 / 1e9,
        action.fate.text(),
        if paths.is_empty() { "no path".into() } else { paths.join(" ") },
        show(action.recorded)
    )
}

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.action)?;
        for because in &self.waits {
            let Because { order, rule, moment, on } = because;
            writeln!(
                out,
                "  {order}: waits for the {} of {on}, by {rule:?}",
                format!("{moment:?}").to_lowercase()
            )?;
        }
        Ok(())
    }
}

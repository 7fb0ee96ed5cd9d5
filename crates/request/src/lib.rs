#![doc = include_str!("../README.md")]
mod buffer_policy;
mod class_rule;
mod origin;
mod parse;
mod pattern;
mod request_kind;
mod rule_set;
mod task_facts;

pub use buffer_policy::{BufferPolicy, LendingLevel};
pub use class_rule::ClassRule;
pub use origin::{Origin, RequestClass};
pub use parse::RuleError;
pub use pattern::literal_pattern;
pub use request_kind::RequestKind;
pub use rule_set::{CoveredRule, RuleDecision, RuleMask, RuleSet};
pub use task_facts::TaskFacts;

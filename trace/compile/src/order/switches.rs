//! The rules that are switched on: by default all except `program-sequence`, which would make the others
//! superfluous.

use std::collections::BTreeSet;
use trace_file::Rule;

/// Rules that differ from the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Switches {
    off: BTreeSet<Rule>,
    program: bool,
}

impl Switches {
    /// All rules except these. The two rules of paths go together, as in the paper (section 2.4.2): stages
    /// without names would need other names in a replay.
    pub fn without(rules: impl IntoIterator<Item = Rule>) -> Switches {
        let mut off: BTreeSet<Rule> = rules.into_iter().collect();
        if off.contains(&Rule::PathStage) || off.contains(&Rule::PathName) {
            off.extend([Rule::PathStage, Rule::PathName]);
        }
        Switches { off, program: false }
    }

    /// Also puts every action after the one before it, which subsumes all other rules.
    pub fn with_program_sequence(self) -> Switches {
        Switches { program: true, ..self }
    }

    /// Whether a rule adds edges.
    pub fn is_on(&self, rule: Rule) -> bool {
        match rule {
            Rule::ProgramSequence => self.program,
            _ => !self.off.contains(&rule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_is_found_by_its_name_and_the_rules_of_paths_go_together() {
        for rule in Rule::SWITCHABLE {
            assert_eq!(Rule::from_switch_name(&rule.switch_name()), Some(rule));
        }
        assert_eq!(Rule::FileSequence.switch_name(), "file-sequence");
        assert_eq!(Rule::from_switch_name("thread-sequence"), None);
        assert!(!Switches::without([Rule::PathName]).is_on(Rule::PathStage));
        assert!(!Switches::default().is_on(Rule::ProgramSequence));
    }
}

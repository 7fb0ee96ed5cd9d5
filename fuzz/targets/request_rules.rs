//! A rule file: text that a user wrote. Rules print as lines that mean the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use request::{RuleSet, TaskFacts};

fuzz_target!(|text: &str| {
    let Ok(rules) = RuleSet::parse(text) else { return };
    let printed: Vec<String> = rules.rules().iter().map(ToString::to_string).collect();
    let again = RuleSet::parse(&printed.join("\n")).expect("a rule prints as its line");
    let facts = TaskFacts {
        title: "postgres: checkpointer".into(),
        thread: "postgres".into(),
        cgroup: "/system.slice/postgresql.service".into(),
        ..TaskFacts::default()
    };
    let path = b"/pg/pg_wal/\xff";
    let decide = |rules: &RuleSet| rules.decide(rules.task_mask(&facts), rules.file_mask(path));
    assert_eq!(decide(&rules), decide(&again));
});

//! `weir rules`: checks a file of rules, and tries it on a running task.

use crate::cli::{RulesCheckArgs, RulesCommand, RulesTestArgs};
use crate::error::WeirError;
use crate::escape_control_chars;
use request::{Origin, RuleError, RuleMask, RuleSet, TaskFacts};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(command: &RulesCommand) -> Result<ExitCode, WeirError> {
    match command {
        RulesCommand::Check(args) => check(args),
        RulesCommand::Test(args) => test(args),
    }
}

/// Reads rules for a mount.
pub(crate) fn load(path: &Path) -> Result<RuleSet, WeirError> {
    parse(path)?.map_err(|errors| {
        let more = errors.len() - 1;
        let first = errors.into_iter().next().expect("refused because of an error");
        WeirError::BadRules { path: path.into(), first, more }
    })
}

fn parse(path: &Path) -> Result<Result<RuleSet, Vec<RuleError>>, WeirError> {
    let text = fs::read(path).map_err(WeirError::io("reading the rules", path))?;
    Ok(RuleSet::parse(&String::from_utf8_lossy(&text)))
}

/// Reads rules. `None`: the file has errors, which are printed.
fn load_or_report(path: &Path) -> Result<Option<RuleSet>, WeirError> {
    match parse(path)? {
        Ok(rules) => Ok(Some(rules)),
        Err(errors) => {
            for error in errors {
                let message = format!("{}: {error}", path.display());
                tracing::error!("{}", escape_control_chars(&message));
            }
            Ok(None)
        }
    }
}

fn check(args: &RulesCheckArgs) -> Result<ExitCode, WeirError> {
    let Some(rules) = load_or_report(&args.file)? else { return Ok(ExitCode::FAILURE) };
    print_rules(&rules, RuleMask(!0));
    for covered in rules.covered_rules() {
        let message = format!(
            "{}: line {}: rule {} never decides: rule {} matches all that it matches",
            args.file.display(),
            rules.rules()[covered.rule].line(),
            covered.rule + 1,
            covered.by + 1,
        );
        tracing::warn!("{}", escape_control_chars(&message));
    }
    Ok(ExitCode::SUCCESS)
}

fn test(args: &RulesTestArgs) -> Result<ExitCode, WeirError> {
    let Some(rules) = load_or_report(&args.file)? else { return Ok(ExitCode::FAILURE) };
    let task = host::read_task(args.pid).map_err(|source| WeirError::Task { pid: args.pid, source })?.facts;
    print_facts(&task);
    let task = rules.task_mask(&task);
    match &args.path {
        Some(path) => {
            let file = rules.file_mask(path.as_os_str().as_bytes());
            println!("\nRules that hold for the task and the file:");
            print_rules(&rules, task & file);
            print_decision(&rules, task, file, &path.to_string_lossy());
        }
        None => {
            println!("\nRules that hold for the task:");
            print_rules(&rules, task);
            print_decision(&rules, task, rules.unnamed_file_mask(), "files that no rule names");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_facts(facts: &TaskFacts) {
    println!("title   {}", escape_control_chars(&facts.title));
    println!("thread  {}", escape_control_chars(&facts.thread));
    println!("cgroup  {}", escape_control_chars(&facts.cgroup));
    println!("uid     {}", facts.uid);
    println!("nice    {}", facts.nice);
}

/// Prints the rules of `mask`, which count from 1.
fn print_rules(rules: &RuleSet, mask: RuleMask) {
    for (index, rule) in rules.rules().iter().enumerate().filter(|&(index, _)| mask.contains(index)) {
        println!("{:4}  {}", index + 1, escape_control_chars(&rule.to_string()));
    }
}

fn print_decision(rules: &RuleSet, task: RuleMask, file: RuleMask, of_what: &str) {
    let (rule, class) = rules.decide(task, file);
    let decider = if rule == Origin::NO_RULE { "no rule".into() } else { format!("rule {}", rule + 1) };
    println!("\n{}: {}, by {decider}", escape_control_chars(of_what), class.name());
}

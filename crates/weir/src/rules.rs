//! `weir rules`: checks a file of rules, tries it on a running task, shows the rules of a mount, and suggests some.

use crate::cli::{RulesCheckArgs, RulesCommand, RulesShowArgs, RulesSuggestArgs, RulesTestArgs};
use crate::error::WeirError;
use crate::escape_control_chars;
use crate::rule_suggestions::suggest_rules;
use crate::task_sampler::TaskSampler;
use client::WeirMount;
use request::{Origin, RequestClass, RuleDecision, RuleError, RuleMask, RuleSet, TaskFacts};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(command: &RulesCommand) -> Result<ExitCode, WeirError> {
    match command {
        RulesCommand::Check(args) => check(args),
        RulesCommand::Test(args) => test(args),
        RulesCommand::Show(args) => show(args).map(|()| ExitCode::SUCCESS),
        RulesCommand::Suggest(args) => suggest(args).map(|()| ExitCode::SUCCESS),
    }
}

/// The largest file of rules, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads rules for a mount.
pub(crate) fn load(path: &Path) -> Result<RuleSet, WeirError> {
    parse(path)?.map_err(|errors| {
        let more = errors.len() - 1;
        let first = errors.into_iter().next().expect("refused because of an error");
        WeirError::BadRules { path: path.into(), first, more }
    })
}

fn parse(path: &Path) -> Result<Result<RuleSet, Vec<RuleError>>, WeirError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text))
        .map_err(WeirError::io("reading the rules", path))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let problem = "expected a file of at most 1 MiB".into();
        return Ok(Err(vec![RuleError { line: 1, problem }]));
    }
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
    if rules.rules().is_empty() {
        let message = format!("{}: no rules: all requests are critical", args.file.display());
        tracing::warn!("{}", escape_control_chars(&message));
    }
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
    let tag = RequestClass::named(&task.tag);
    let task = rules.task_mask(&task);
    match &args.path {
        Some(path) => {
            warn_of_mount_point(path);
            let file = rules.file_mask(path.as_os_str().as_bytes());
            println!("\nRules that hold for the task and the file:");
            print_rules(&rules, task & file);
            print_decision(tag, rules.decide(task, file), &path.to_string_lossy());
        }
        None => {
            println!("\nRules that hold for the task:");
            print_rules(&rules, task);
            print_decision(tag, rules.decide(task, rules.unnamed_file_mask()), "files that no rule names");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn suggest(args: &RulesSuggestArgs) -> Result<(), WeirError> {
    let mount = WeirMount::at(&args.dir)?;
    if mount.is_dead() {
        return Err(mount.gone().into());
    }
    let in_proc = |source| WeirError::io("looking at running programs", "/proc")(source);
    let mut sampler = TaskSampler::new(mount.device()).map_err(in_proc)?;
    let seconds = args.time.as_secs();
    tracing::info!("watching for {seconds} s which programs use {}", args.dir.display());
    sampler.run(args.time).map_err(in_proc)?;
    let hidden = sampler.hidden_processes();
    if hidden > 0 {
        tracing::warn!(
            "processes that this user may not look at in /proc: {hidden}; run as root, or with CAP_SYS_PTRACE and \
             CAP_DAC_READ_SEARCH"
        );
    }
    let suggestions = suggest_rules(&sampler.samples());
    if suggestions.is_empty() {
        tracing::warn!(
            "no program was seen to use the mount: watch for longer (--for), while the usual programs run"
        );
    }
    println!("# What programs did in {seconds} s, as seen by `weir rules suggest`.");
    suggestions.iter().for_each(|suggestion| print!("\n{suggestion}"));
    if suggestions.iter().any(|suggestion| suggestion.doubt.is_some()) {
        tracing::info!("rules in doubt are comments: remove the `#` of those that are right");
    }
    if suggestions.iter().any(|suggestion| suggestion.class == RequestClass::Background) {
        tracing::info!(
            "background programs may write files that critical ones sync, such as a log: put a rule `critical file=PATTERN` about \
             these files first"
        );
    }
    Ok(())
}

fn show(args: &RulesShowArgs) -> Result<(), WeirError> {
    let report = WeirMount::at(&args.dir)?.connect()?.request("rules")?;
    if args.json {
        println!("{report:#}");
        return Ok(());
    }
    println!("policy {}", escape_control_chars(report["policy"].as_str().unwrap_or_default()));
    let rules = report["rules"].as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        println!("no rules: every request is critical");
        return Ok(());
    }
    println!("\nrule  threads");
    for (index, rule) in rules.iter().enumerate() {
        let line = escape_control_chars(rule["rule"].as_str().unwrap_or_default());
        let beyond = if rule["is_beyond_share"] == true { "   BACKGROUND: beyond its share" } else { "" };
        let threads = rule["threads"].as_u64().unwrap_or(0);
        println!("{:4}  {threads:7}  {line}{beyond}", index + 1);
    }
    Ok(())
}

fn print_facts(facts: &TaskFacts) {
    println!("title   {}", escape_control_chars(&facts.title));
    println!("thread  {}", escape_control_chars(&facts.thread));
    println!("cgroup  {}", escape_control_chars(&facts.cgroup));
    println!("uid     {}", facts.uid);
    println!("nice    {}", facts.nice);
    if !facts.tag.is_empty() {
        println!("tag     {}", escape_control_chars(&facts.tag));
    }
}

/// Warns of a path that begins with the mount point, which no rule sees.
fn warn_of_mount_point(path: &Path) {
    if let Ok((mount, inside)) = WeirMount::containing(path) {
        let (path, dir) = (path.display(), mount.dir().display());
        let message = format!("{path}: rules of the mount {dir} see this file as /{}", inside.display());
        tracing::warn!("{}", escape_control_chars(&message));
    }
}

/// Prints the rules of `mask`, which count from 1.
fn print_rules(rules: &RuleSet, mask: RuleMask) {
    for (index, rule) in rules.rules().iter().enumerate().filter(|&(index, _)| mask.contains(index)) {
        println!("{:4}  {}", index + 1, escape_control_chars(&rule.to_string()));
    }
}

/// Prints who decides: the class that is the task's tag, or else the first rule.
fn print_decision(tag: Option<RequestClass>, decision: RuleDecision, of_what: &str) {
    let of_what = escape_control_chars(of_what);
    let RuleDecision { rule, class, .. } = decision;
    match tag {
        Some(tag) => println!("\n{of_what}: {}, by the tag, which comes before all rules", tag.name()),
        None if rule == Origin::NO_RULE => println!("\n{of_what}: {}, by no rule", class.name()),
        None => println!("\n{of_what}: {}, by rule {}", class.name(), rule + 1),
    }
}

//! `weir why`: who waits, for what, and because of whom.

use crate::cli::WhyArgs;
use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use crate::status_report::whole_millis;
use crate::waits_print;
use crate::waits_report::unix_time;
use client::WeirMount;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use weir_status::{WaitReport, WaitTotalsReport, WaitsReport};

/// How long the command waits for the titles of all threads. Reading a title may block while a thread of its
/// process waits for a page of the mount.
const TITLES_WAIT: Duration = Duration::from_secs(1);

/// Threads of one process that are looked at.
const THREADS_MAX: usize = 1 << 16;

pub(crate) fn run(args: &WhyArgs) -> Result<(), WeirError> {
    let (mount, inside) = WeirMount::containing(&args.path)?;
    let is_part = args.pid.is_some() || !inside.as_os_str().is_empty();
    let request = json!({ "operation": "why", "path": inside.to_string_lossy() });
    let mut report: WaitsReport = mount.connect()?.report_for(&request)?;
    if let Some(pid) = args.pid {
        keep_process(&mut report, pid);
    }
    if is_part {
        report.totals = totals_of(&report.ended);
    }
    add_paths(&mut report, mount.dir());
    add_titles(&mut report);
    if args.json {
        let report = serde_json::to_value(&report).expect("a report has string keys");
        println!("{:#}", JsonSchema::WHY.add_to(report));
    } else if is_part && waits_of(&mut report).next().is_none() {
        println!("nothing waits here, and the last 256 waits of a millisecond and more were elsewhere");
    } else {
        waits_print::print(&report);
    }
    Ok(())
}

/// Leaves out waits that have nothing to do with the process and its descendants.
fn keep_process(report: &mut WaitsReport, pid: u32) {
    let threads_of = |process| host::process_threads(process, THREADS_MAX);
    let mut threads: BTreeSet<u32> = host::process_tree(pid).into_iter().flat_map(threads_of).collect();
    threads.insert(pid);
    let is_of_process = |task: Option<u32>| task.is_some_and(|task| threads.contains(&task));
    for waits in [&mut report.waiting, &mut report.ended, &mut report.longest] {
        waits.retain(|wait| is_of_process(wait.task) || is_of_process(wait.lent_for));
    }
}

/// Counts waits by what the requests waited for. Those with the most time come first.
fn totals_of(waits: &[WaitReport]) -> Vec<WaitTotalsReport> {
    let mut totals: BTreeMap<&str, WaitTotalsReport> = BTreeMap::new();
    for wait in waits {
        let of_cause = totals.entry(&wait.waits_for).or_default();
        of_cause.waits_for.clone_from(&wait.waits_for);
        of_cause.count += 1;
        of_cause.total_ms += wait.waited_ms;
        of_cause.longest_ms = of_cause.longest_ms.max(wait.waited_ms);
    }
    let mut totals: Vec<_> = totals.into_values().collect();
    totals.sort_by(|one, other| other.total_ms.total_cmp(&one.total_ms));
    totals
}

/// Adds the paths of files that their threads have open.
fn add_paths(report: &mut WaitsReport, dir: &Path) {
    let mut paths = HashMap::new();
    for wait in waits_of(report).filter(|wait| wait.path.is_none()) {
        let (Some(task), Some(inode)) = (wait.task, wait.inode) else { continue };
        let path = paths.entry((task, inode)).or_insert_with(|| {
            let path = host::open_path(task, inode).filter(|path| path.starts_with(dir))?;
            Some(path.to_string_lossy().into_owned())
        });
        wait.path = path.clone();
    }
}

fn add_titles(report: &mut WaitsReport) {
    let tasks: BTreeSet<u32> =
        waits_of(report).flat_map(|wait| [wait.task, wait.lent_for]).flatten().collect();
    let found = read_titles(tasks);
    for wait in waits_of(report) {
        wait.title = title_during(wait, wait.task, &found);
        wait.lent_for_title = title_during(wait, wait.lent_for, &found);
    }
}

/// The title of a thread; none if the thread began after the wait: it has the id of another one that is gone.
fn title_during(wait: &WaitReport, task: Option<u32>, found: &HashMap<u32, TitledThread>) -> Option<String> {
    let TitledThread { title, began_unix_ms } = found.get(&task?)?;
    let ended_unix_ms = wait.began_unix_ms as f64 + wait.waited_ms;
    (*began_unix_ms as f64 <= ended_unix_ms).then(|| title.clone())
}

fn waits_of(report: &mut WaitsReport) -> impl Iterator<Item = &mut WaitReport> {
    report.waiting.iter_mut().chain(&mut report.ended).chain(&mut report.longest)
}

/// The title of a thread's process, and when the thread began, in milliseconds since 1970.
struct TitledThread {
    title: String,
    began_unix_ms: u64,
}

/// The titles of threads, as far as they can be read soon.
fn read_titles(tasks: BTreeSet<u32>) -> HashMap<u32, TitledThread> {
    let (tell, told) = mpsc::channel();
    let read = move || {
        for task in tasks {
            let Ok(found) = host::read_task(task) else { continue };
            let began_unix_ms = whole_millis(unix_time().saturating_sub(found.age()));
            let sent = tell.send((task, TitledThread { title: found.facts.title, began_unix_ms }));
            if sent.is_err() {
                return;
            }
        }
    };
    let mut titles = HashMap::new();
    // Without the thread there are no titles.
    if thread::Builder::new().name("titles".into()).spawn(read).is_ok() {
        let until = Instant::now() + TITLES_WAIT;
        while let Ok((task, found)) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            titles.insert(task, found);
        }
    }
    titles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_began_after_a_wait_is_another() {
        let wait = WaitReport { began_unix_ms: 1_000, waited_ms: 20.5, ..WaitReport::default() };
        let title = |began_unix_ms| {
            let found = HashMap::from([(7, TitledThread { title: "db".into(), began_unix_ms })]);
            title_during(&wait, Some(7), &found)
        };
        assert_eq!(title(1_020).as_deref(), Some("db"));
        assert_eq!(title(1_021), None);
        assert_eq!(title_during(&wait, Some(8), &HashMap::new()), None);
    }

    #[test]
    fn waits_are_counted_by_cause() {
        let wait = |cause: &str, waited_ms| WaitReport {
            waits_for: cause.into(),
            waited_ms,
            ..WaitReport::default()
        };
        let totals = totals_of(&[wait("commit", 1.5), wait("stored-page", 6.0), wait("commit", 2.5)]);
        let found: Vec<_> =
            totals.iter().map(|of| (of.waits_for.as_str(), of.count, of.total_ms, of.longest_ms)).collect();
        assert_eq!(found, [("stored-page", 1, 6.0, 6.0), ("commit", 2, 4.0, 2.5)]);
    }
}

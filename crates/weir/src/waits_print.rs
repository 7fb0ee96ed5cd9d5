//! Prints the report of `weir why` for people, in lines of at most 100 columns.

use crate::escape_control_chars;
use crate::volume::rfc3339;
use weir_status::{WaitReport, WaitTotalsReport, WaitsReport};

const COLUMNS: usize = 100;
const INDENT: usize = 6;

pub(crate) fn print(report: &WaitsReport) {
    lines(report).iter().for_each(|line| println!("{line}"));
}

fn lines(report: &WaitsReport) -> Vec<String> {
    let WaitsReport { waiting, ended, longest, totals, policy } = report;
    let classes_count = policy.as_ref().is_some_and(|policy| policy.starts_with("critical"));
    let mut lines = Vec::new();
    if !totals.is_empty() {
        lines.push(format!("{:>7} {:>10} {:>10}  WAITED FOR", "COUNT", "TOTAL", "LONGEST"));
        lines.extend(totals.iter().map(total_line));
    }
    let lists = [
        (waiting, "WAITING NOW, the longest first"),
        (longest, "THE LONGEST SINCE THE MOUNT, of each kind"),
        (ended, "ENDED, the newest first"),
    ];
    for (waits, head) in lists {
        if !waits.is_empty() {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            lines.push(head.into());
            lines.extend(waits.iter().flat_map(|wait| wait_lines(wait, classes_count)));
        }
    }
    if lines.is_empty() {
        lines.push("nothing waits, and nothing has waited for a millisecond".into());
    }
    lines
}

/// A wait in one line, without the time when it was.
pub(crate) fn short_line(wait: &WaitReport) -> String {
    let WaitReport { waited_ms, request, waits_for, .. } = wait;
    format!("{:>8}  {request} for {}: {}", time(*waited_ms), phrase(waits_for), who(wait))
}

fn total_line(totals: &WaitTotalsReport) -> String {
    let WaitTotalsReport { waits_for, count, total_ms, longest_ms } = totals;
    format!("{count:>7} {:>10} {:>10}  {}", time(*total_ms), time(*longest_ms), phrase(waits_for))
}

/// The lines about a wait. `classes_count`: the policy in force gives requests classes.
fn wait_lines(wait: &WaitReport, classes_count: bool) -> Vec<String> {
    let WaitReport { began_unix_ms, waited_ms, request, class, .. } = wait;
    let who = who(wait);
    let mut lines =
        vec![cut_end(&format!("  {}  {:>10}  {request:8}  {who}", utc(*began_unix_ms), time(*waited_ms)))];
    let mut add = |text: &str| lines.push(format!("{:INDENT$}{text}", ""));
    let cause = phrase(&wait.waits_for);
    match (&wait.path, wait.inode) {
        (Some(path), _) => {
            let start = format!("for {cause}, file ");
            let columns = (COLUMNS - INDENT).saturating_sub(start.chars().count());
            add(&(start + &cut_start(&escape_control_chars(path), columns)));
        }
        (None, Some(inode)) => add(&format!("for {cause}, inode {inode}")),
        (None, None) => add(&format!("for {cause}")),
    }
    match &wait.rule {
        // No rule of a file: weir's own, for a class that somebody gave to the thread.
        Some(rule) if *rule == format!("{class} tag={class}") => {
            add(&format!("{class}, by `weir class`, WEIR_TAG or user.weir.class"));
        }
        Some(rule) => add(&format!("{class}, by the rule: {}", escape_control_chars(rule))),
        None if classes_count => add(&format!("{class}, by none of the rules in force")),
        None => {}
    }
    if let Some(task) = wait.lent_for {
        let who = match task {
            0 => "some critical thread, as far as weir may see".into(),
            task => thread(task, wait.lent_for_title.as_deref()),
        };
        add(&format!("lent priority, because it held up {who}"));
    }
    lines.iter().map(|line| cut_end(line)).collect()
}

/// Whose request waits.
fn who(wait: &WaitReport) -> String {
    match wait.task {
        Some(task) => thread(task, wait.title.as_deref()),
        None => "the kernel, or weir itself".into(),
    }
}

fn thread(task: u32, title: Option<&str>) -> String {
    format!("{task} {}", escape_control_chars(title.unwrap_or("(gone)")))
}

/// What a request waits for, in words.
fn phrase(cause: &str) -> &str {
    match cause {
        "buffer-space" => "space in the buffer",
        "dirty-memory" => "memory for dirty pages",
        "earlier-copies" => "earlier copies of ranges",
        "store-space" => "space in the store",
        "earlier-request" => "earlier requests",
        "stored-page" => "a page from the store",
        "commit" => "a commit of the buffer",
        "write-back" => "write-back to the store",
        // Of a newer daemon.
        other => other,
    }
}

fn time(millis: f64) -> String {
    if millis < 1000.0 { format!("{millis:.1} ms") } else { format!("{:.2} s", millis / 1000.0) }
}

fn utc(unix_ms: u64) -> String {
    let seconds = rfc3339(unix_ms / 1000);
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), unix_ms % 1000)
}

/// `text`, without what does not fit in a line.
fn cut_end(text: &str) -> String {
    match text.char_indices().nth(COLUMNS) {
        None => text.into(),
        Some(_) => text.chars().take(COLUMNS - 1).chain(['…']).collect(),
    }
}

/// The end of `text` in so many columns: of a path, the name.
pub(crate) fn cut_start(text: &str, columns: usize) -> String {
    let count = text.chars().count();
    if count <= columns {
        return text.into();
    }
    ['…'].into_iter().chain(text.chars().skip(count + 1 - columns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait() -> WaitReport {
        WaitReport {
            began_unix_ms: 1_795_688_527_123,
            waited_ms: 31.25,
            task: Some(4711),
            title: Some("postgres: checkpointer".into()),
            class: "background".into(),
            rule: Some("background title=*checkpointer".into()),
            request: "fsync".into(),
            inode: Some(77),
            path: Some("/mnt/db/base/16384/2619".into()),
            waits_for: "write-back".into(),
            lent_for: Some(708),
            lent_for_title: Some("postgres: app db".into()),
        }
    }

    #[test]
    fn a_wait_says_who_waits_for_what_and_because_of_whom() {
        let expected = "  2026-11-26T10:22:07.123Z     31.2 ms  fsync     4711 postgres: checkpointer
      for write-back to the store, file /mnt/db/base/16384/2619
      background, by the rule: background title=*checkpointer
      lent priority, because it held up 708 postgres: app db";
        assert_eq!(wait_lines(&wait(), true).join("\n"), expected);
    }

    #[test]
    fn totals_and_the_longest_come_before_the_last() {
        let totals = WaitTotalsReport {
            waits_for: "write-back".into(),
            count: 70_000,
            total_ms: 1_234_567.8,
            longest_ms: 900.0,
        };
        let report = WaitsReport {
            waiting: Vec::new(),
            ended: vec![wait()],
            longest: vec![WaitReport { waited_ms: 900.0, ..wait() }],
            totals: vec![totals],
            policy: None,
        };
        let lines = lines(&report);
        let heads: Vec<&str> =
            lines.iter().filter(|line| !line.starts_with("      ")).map(String::as_str).collect();
        let expected = [
            "  COUNT      TOTAL    LONGEST  WAITED FOR",
            "  70000  1234.57 s   900.0 ms  write-back to the store",
            "",
            "THE LONGEST SINCE THE MOUNT, of each kind",
            "  2026-11-26T10:22:07.123Z    900.0 ms  fsync     4711 postgres: checkpointer",
            "",
            "ENDED, the newest first",
            "  2026-11-26T10:22:07.123Z     31.2 ms  fsync     4711 postgres: checkpointer",
        ];
        assert_eq!(heads, expected);
    }

    #[test]
    fn a_class_by_tag_is_no_rule_of_a_file() {
        let wait = WaitReport { rule: Some("background tag=background".into()), ..wait() };
        assert_eq!(
            wait_lines(&wait, true)[2].trim(),
            "background, by `weir class`, WEIR_TAG or user.weir.class"
        );
    }

    #[test]
    fn a_class_that_no_rule_decided_is_shown_where_classes_count() {
        let wait = WaitReport { class: "critical".into(), rule: None, lent_for: None, ..wait() };
        let lines_under = |policy: Option<&str>| {
            let policy = policy.map(str::to_owned);
            lines(&WaitsReport { ended: vec![wait.clone()], policy, ..WaitsReport::default() })
        };
        let last = "      critical, by none of the rules in force";
        assert_eq!(lines_under(Some("critical+process")).last().expect("lines"), last);
        for policy in [None, Some("all"), Some("sync")] {
            assert!(!lines_under(policy).contains(&last.to_owned()), "{policy:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_to_the_width_of_a_line() {
        let long = "é".repeat(300);
        let wait = WaitReport {
            title: Some(long.clone()),
            rule: Some(long.clone()),
            path: Some(format!("/{long}/name")),
            lent_for_title: Some(long),
            ..wait()
        };
        let lines = lines(&WaitsReport { waiting: vec![wait], ..WaitsReport::default() });
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS));
        assert!(lines.iter().any(|line| line.ends_with("é/name")));
    }
}

//! Rules for tasks, from samples of what the tasks did.
//!
//! A thread that waits now for the mount and now for a client answers the client, so the client waits for the mount:
//! it is critical. A task that no client can wait for is background. Where the samples do not tell, the rule is
//! suggested as a comment.

use crate::escape_control_chars;
use host::TaskActivity;
use request::{RequestClass, RuleSet, TaskFacts, literal_pattern};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

/// Fewer samples of one kind may be chance.
const SAMPLES_MIN: u64 = 5;

/// As many requests as a task may send for each exchange with another program that is no client, such as a line to a
/// log.
const REQUESTS_PER_PEER: u64 = 10;

/// Characters of a title's words that a pattern keeps. Command lines are long, patterns are not.
const TITLE_CHARS_MAX: usize = 200;

/// How often a task was seen at each activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ActivityCounts([u64; TaskActivity::COUNT]);

impl ActivityCounts {
    pub(crate) fn add(&mut self, activity: TaskActivity) {
        self.0[activity as usize] += 1;
    }

    fn of(&self, activity: TaskActivity) -> u64 {
        self.0[activity as usize]
    }

    fn requests(&self) -> u64 {
        self.of(TaskActivity::Read) + self.of(TaskActivity::Write) + self.of(TaskActivity::Sync)
    }

    fn clients(&self) -> u64 {
        self.of(TaskActivity::Client)
    }

    fn sum(tasks: &[&TaskSamples]) -> ActivityCounts {
        ActivityCounts(std::array::from_fn(|activity| tasks.iter().map(|task| task.counts.0[activity]).sum()))
    }
}

/// A task, and what it was seen doing.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskSamples {
    pub(crate) process: u32,
    pub(crate) facts: TaskFacts,
    /// Whether its process has a controlling terminal.
    pub(crate) has_terminal: bool,
    pub(crate) counts: ActivityCounts,
    /// How often it was seen to sync each inode.
    pub(crate) synced_inodes: BTreeMap<u64, u64>,
}

/// What is known about all tasks.
struct ServedClients {
    /// The processes that have clients.
    servers: BTreeSet<u32>,
    /// The inodes that tasks with clients sync.
    synced_inodes: BTreeSet<u64>,
}

impl ServedClients {
    fn of(tasks: &[TaskSamples]) -> ServedClients {
        let serving = || tasks.iter().filter(|task| task.counts.clients() > 0);
        ServedClients {
            servers: serving().map(|task| task.process).collect(),
            synced_inodes: serving().flat_map(|task| task.synced_inodes.keys().copied()).collect(),
        }
    }

    /// Whether most syncs of `tasks` are of inodes for which clients wait.
    fn await_syncs_of(&self, tasks: &[&TaskSamples]) -> bool {
        let syncs = || tasks.iter().flat_map(|task| &task.synced_inodes);
        let awaited: u64 =
            syncs().filter(|(inode, _)| self.synced_inodes.contains(inode)).map(|(_, count)| count).sum();
        2 * awaited > syncs().map(|(_, count)| count).sum()
    }
}

/// A rule for tasks with one title pattern and one thread name. It prints as lines of a rule file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleSuggestion {
    pub(crate) class: RequestClass,
    conditions: String,
    /// Why the rule is suggested as a comment.
    pub(crate) doubt: Option<&'static str>,
    evidence: String,
}

impl Display for RuleSuggestion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let reason = match (self.doubt, self.class) {
            (Some(doubt), _) => format!("In doubt: {doubt}"),
            (None, RequestClass::Critical) => "Answers clients".into(),
            (None, RequestClass::Background) => "Answers no client".into(),
        };
        let comment = if self.doubt.is_some() { "# " } else { "" };
        writeln!(f, "# {reason}. {}", self.evidence)?;
        writeln!(f, "{comment}{} {}", self.class.name(), self.conditions)
    }
}

/// Rules for tasks that sent requests: critical ones first, and those in doubt last of their class. A file of rules
/// has at most [`RuleSet::USER_RULES_MAX`] of them.
pub(crate) fn suggest_rules(tasks: &[TaskSamples]) -> Vec<RuleSuggestion> {
    let mut groups: BTreeMap<String, BTreeMap<&str, Vec<&TaskSamples>>> = BTreeMap::new();
    for task in tasks.iter().filter(|task| task.counts.requests() > 0 && !task.facts.title.is_empty()) {
        let threads = groups.entry(title_pattern(&task.facts.title)).or_default();
        threads.entry(&task.facts.thread).or_default().push(task);
    }
    let clients = ServedClients::of(tasks);
    let mut suggestions = Vec::new();
    for (title, threads) in &groups {
        for (thread, tasks) in threads {
            let mut conditions = format!("title=\"{title}\"");
            if threads.len() > 1 {
                conditions += &format!(" thread=\"{}\"", pattern_of(thread));
            }
            let (class, doubt) = classify(tasks, &clients);
            suggestions.push(RuleSuggestion { class, conditions, doubt, evidence: evidence(tasks) });
        }
    }
    suggestions.sort_by_key(|rule| (rule.class == RequestClass::Background, rule.doubt.is_some()));
    let sure = suggestions.iter_mut().filter(|rule| rule.doubt.is_none());
    sure.skip(RuleSet::USER_RULES_MAX).for_each(|rule| rule.doubt = Some("a file has no more rules"));
    suggestions
}

/// The class of tasks that a rule cannot tell apart, and why it is in doubt.
fn classify(tasks: &[&TaskSamples], clients: &ServedClients) -> (RequestClass, Option<&'static str>) {
    let total = ActivityCounts::sum(tasks);
    let is_in_server = |task: &&TaskSamples| clients.servers.contains(&task.process);
    let has_no_client =
        |task: &&TaskSamples| task.counts.requests() >= SAMPLES_MIN && task.counts.clients() == 0;
    let (class, doubt) = match total.clients() {
        0 if tasks.iter().any(&is_in_server) => (
            RequestClass::Background,
            Some("other threads of the process answer clients, and may wait for this one"),
        ),
        0 if clients.await_syncs_of(tasks) => (
            RequestClass::Background,
            Some(
                "clients wait for files that it syncs; a rule `critical file=PATTERN` about them may come first",
            ),
        ),
        0 if tasks.iter().any(|task| task.has_terminal) => {
            (RequestClass::Background, Some("somebody may wait at its terminal"))
        }
        0 if total.of(TaskActivity::Peer) * REQUESTS_PER_PEER > total.requests() => {
            (RequestClass::Background, Some("another program may wait for what it sends"))
        }
        0 => (RequestClass::Background, None),
        1..SAMPLES_MIN => (RequestClass::Critical, Some("it was hardly seen with a client")),
        _ if tasks.iter().any(|task| is_in_server(task) && has_no_client(task)) => (
            RequestClass::Critical,
            Some("threads with the same name answer no client; rules about files may tell them apart"),
        ),
        _ => (RequestClass::Critical, None),
    };
    let is_rare = total.requests() < SAMPLES_MIN;
    (class, if is_rare { Some("it was hardly seen at a request") } else { doubt })
}

/// What the tasks were seen doing, as the end of a comment.
fn evidence(tasks: &[&TaskSamples]) -> String {
    let busiest = tasks.iter().max_by_key(|task| task.counts.requests()).expect("a group has tasks");
    let title: String = busiest.facts.title.chars().take(TITLE_CHARS_MAX).collect();
    // A file of rules with this character is refused.
    let title = title.replace(char::REPLACEMENT_CHARACTER, "?");
    let more = match tasks.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let ActivityCounts([reads, writes, syncs, clients, peers, others]) = ActivityCounts::sum(tasks);
    format!(
        "`{}`{more}: {reads} samples in reads, {writes} in writes, {syncs} in syncs, {clients} with clients, {peers} with \
         other programs, {others} elsewhere",
        escape_control_chars(&title)
    )
}

/// A pattern for a title and for others like it. It keeps the words that end in a colon and the word after them, or
/// a command with its first argument that is no option. `*` stands for the rest: users, databases, addresses and
/// states.
fn title_pattern(title: &str) -> String {
    let words: Vec<&str> = title.split(' ').collect();
    let colons = words.iter().take_while(|word| word.ends_with(':')).count();
    let argument = words.iter().skip(1).position(|word| !word.starts_with('-'));
    let kept = match argument {
        _ if colons > 0 => colons + 1,
        Some(argument) => argument + 2,
        None => 1,
    };
    let text = words[..kept.min(words.len())].join(" ");
    if text.chars().count() > TITLE_CHARS_MAX {
        return pattern_of(&text.chars().take(TITLE_CHARS_MAX).collect::<String>()) + "*";
    }
    let rest = if kept < words.len() { " *" } else { "" };
    pattern_of(&text) + rest
}

/// A pattern for `text` in quotes. `*` stands for characters that a rule cannot have.
fn pattern_of(text: &str) -> String {
    if text.is_empty() {
        return "{,}".into();
    }
    let cannot_stand = |char: char| char == '"' || char.is_control() || char == char::REPLACEMENT_CHARACTER;
    literal_pattern(text).replace(cannot_stand, "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(reads: u64, writes: u64, syncs: u64, clients: u64) -> ActivityCounts {
        ActivityCounts([reads, writes, syncs, clients, 0, 100])
    }

    fn task(process: u32, title: &str, thread: &str, counts: ActivityCounts) -> TaskSamples {
        let facts = TaskFacts { title: title.into(), thread: thread.into(), ..TaskFacts::default() };
        TaskSamples { process, facts, counts, ..TaskSamples::default() }
    }

    /// Each suggestion's class, or `?` if it is in doubt, with its conditions.
    fn lines(tasks: &[TaskSamples]) -> Vec<String> {
        let suggestions = suggest_rules(tasks);
        let text: String = suggestions.iter().map(ToString::to_string).collect();
        let rules = RuleSet::parse(&text).expect("a file of rules");
        assert_eq!(rules.rules().len(), suggestions.iter().filter(|rule| rule.doubt.is_none()).count());
        let line = |rule: &RuleSuggestion| {
            let mark = if rule.doubt.is_some() { "?" } else { "" };
            format!("{mark}{} {}", rule.class.name(), rule.conditions)
        };
        suggestions.iter().map(line).collect()
    }

    #[test]
    fn backends_are_critical_and_maintenance_is_not() {
        let found = lines(&[
            task(1, "postgres: checkpointer", "postgres", counts(0, 300, 40, 0)),
            task(2, "postgres: app db 10.0.0.1(4242) SELECT", "postgres", counts(3, 2, 30, 90)),
            task(3, "postgres: app db [local] idle", "postgres", counts(0, 0, 1, 400)),
            task(4, "postgres: logger", "postgres", counts(0, 0, 0, 0)),
            task(5, "tar -cf /backup/db.tar /mnt/db", "tar", counts(500, 0, 0, 0)),
        ]);
        let expected = [
            "critical title=\"postgres: app *\"",
            "background title=\"postgres: checkpointer\"",
            "background title=\"tar -cf /backup/db.tar *\"",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn threads_of_a_server_without_clients_are_in_doubt() {
        let title = "redis-server 127.0.0.1:6379";
        let found = lines(&[
            task(1, title, "redis-server", counts(0, 20, 20, 90)),
            task(1, title, "bio_aof", counts(0, 0, 300, 0)),
        ]);
        let expected = [
            "critical title=\"redis-server 127.0.0.1:6379\" thread=\"redis-server\"",
            "?background title=\"redis-server 127.0.0.1:6379\" thread=\"bio_aof\"",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn threads_with_one_name_and_two_roles_are_in_doubt() {
        let threads = [counts(0, 20, 20, 90), counts(0, 300, 0, 0)];
        let found = lines(&threads.map(|counts| task(1, "mariadbd", "mariadbd", counts)));
        assert_eq!(found, ["?critical title=\"mariadbd\""]);
        let processes =
            [1, 2].map(|process| task(process, "python3 /app.py", "python3", threads[process as usize - 1]));
        assert_eq!(
            lines(&processes),
            ["critical title=\"python3 /app.py\""],
            "a long query has no client meanwhile"
        );
    }

    #[test]
    fn thin_evidence_is_in_doubt() {
        let doubt = |counts| suggest_rules(&[task(1, "a", "a", counts)])[0].doubt;
        assert_eq!(doubt(counts(4, 0, 0, 90)), Some("it was hardly seen at a request"));
        assert_eq!(doubt(counts(90, 0, 0, 4)), Some("it was hardly seen with a client"));
        assert_eq!(doubt(counts(5, 0, 0, 5)), None);
        assert_eq!(doubt(counts(5, 0, 0, 0)), None);
    }

    #[test]
    fn tasks_that_others_may_wait_for_are_in_doubt() {
        let mut at_terminal = task(1, "git status", "git", counts(90, 0, 0, 0));
        at_terminal.has_terminal = true;
        assert_eq!(lines(&[at_terminal]), ["?background title=\"git status\""]);
        let with_peers = |peers| ActivityCounts([90, 0, 0, 0, peers, 100]);
        assert_eq!(lines(&[task(1, "pg_dump", "a", with_peers(10))]), ["?background title=\"pg_dump\""]);
        assert_eq!(lines(&[task(1, "pg_dump", "a", with_peers(9))]), ["background title=\"pg_dump\""]);
    }

    #[test]
    fn tasks_that_sync_what_clients_await_are_in_doubt() {
        let syncs = |title, clients, synced_inodes| TaskSamples {
            synced_inodes: BTreeMap::from(synced_inodes),
            ..task(1 + clients as u32, title, "postgres", counts(0, 0, 9, clients))
        };
        let found = lines(&[
            syncs("postgres: app db", 90, [(7, 8), (8, 1)]),
            TaskSamples { process: 5, ..syncs("postgres: walwriter", 0, [(7, 5), (9, 4)]) },
            TaskSamples { process: 6, ..syncs("postgres: checkpointer", 0, [(8, 4), (9, 5)]) },
        ]);
        let expected = [
            "critical title=\"postgres: app *\"",
            "background title=\"postgres: checkpointer\"",
            "?background title=\"postgres: walwriter\"",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_suggestion_prints_as_lines_of_a_rule_file() {
        let found = suggest_rules(&[
            task(1, "a -b\x1b", "a", counts(1, 2, 3, 0)),
            task(2, "a -c", "a", counts(1, 0, 0, 0)),
        ]);
        let expected = "# Answers no client. `a -b\\u{1b}` and 1 more: 2 samples in reads, 2 in writes, 3 in syncs, 0 with \
                        clients, 0 with other programs, 200 elsewhere\nbackground title=\"a *\"\n";
        assert_eq!(found[0].to_string(), expected);
    }

    #[test]
    fn threads_without_a_name_have_rules_of_their_own() {
        let threads = ["", "a"].map(|thread| task(1, "a", thread, counts(9, 0, 0, 0)));
        assert_eq!(
            lines(&threads),
            ["background title=\"a\" thread=\"{,}\"", "background title=\"a\" thread=\"a\""]
        );
        let rules = RuleSet::parse("background thread=\"{,}\"").expect("a rule");
        assert!(threads.map(|task| rules.task_mask(&task.facts).contains(0)) == [true, false]);
    }

    #[test]
    fn no_more_rules_than_a_file_has_are_suggested() {
        let tasks: Vec<_> =
            (0..100).map(|at| task(at, &format!("a: {at}"), "a", counts(9, 0, 0, 0))).collect();
        assert_eq!(
            lines(&tasks).iter().filter(|line| !line.starts_with('?')).count(),
            RuleSet::USER_RULES_MAX
        );
    }

    #[test]
    fn title_patterns_keep_the_role_and_drop_the_rest() {
        let patterns = [
            ("postgres: 15/main: checkpointer", "postgres: 15/main: checkpointer"),
            ("postgres: 15/main: app db [local] idle", "postgres: 15/main: app *"),
            ("/usr/sbin/mariadbd --datadir=/mnt/db", "/usr/sbin/mariadbd *"),
            ("java -Xmx4g -jar /opt/app.jar --port 80", "java -Xmx4g -jar /opt/app.jar *"),
            ("redis-server *:6379", "redis-server \\*:6379"),
            ("python3 /opt/app.py -v", "python3 /opt/app.py *"),
            ("etcd", "etcd"),
            ("postgres:", "postgres:"),
            ("a \"b\"\n", "a *b**"),
        ];
        for (title, pattern) in patterns {
            assert_eq!(title_pattern(title), pattern);
        }
    }

    #[test]
    fn patterns_match_their_titles() {
        let long = format!("a {}", "é".repeat(3000));
        for title in [
            "postgres: app db [local] idle",
            "a \"b\"\n[c] {d}",
            "redis-server *:6379",
            "#a",
            "a\u{fffd}",
            "a\\",
            " ",
            &"\u{10ffff}*".repeat(300),
            &long,
        ] {
            let sampled = task(1, title, "a", counts(9, 0, 0, 0));
            let text: String =
                suggest_rules(std::slice::from_ref(&sampled)).iter().map(ToString::to_string).collect();
            let rules = RuleSet::parse(&text).expect("a file of rules");
            assert!(rules.task_mask(&sampled.facts).contains(0), "{title}: {text}");
        }
    }
}

//! The keys that commands print with `--json` are those that the pages list.

use crate::common::{Mounted, PATIENCE, Sandbox, can_mount, succeeds, weir};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The keys below these are printed only in states that this test does not cause. `docs/status.md` is made from the types that print
/// them.
const UNSEEN: [&str; 3] = ["space.cleaning.", "stuck.some[].", "waiting[]."];

/// The keys that `weir space --exact` adds.
const EXACT: [&str; 3] = ["space.by_volume", "space.data_bytes", "space.dying_bytes"];

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(path).expect("a page")
}

/// The first cells of the table below a heading.
fn keys_below(heading: &str, page: &str) -> BTreeSet<String> {
    let section = page.lines().skip_while(|line| *line != heading).skip(1);
    let rows = section.take_while(|line| !line.starts_with('#')).filter_map(|line| line.strip_prefix("| `"));
    let keys: BTreeSet<String> = rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect();
    assert!(!keys.is_empty(), "{heading}: no table");
    keys
}

/// The versions that the first table of `docs/json.md` promises, by the command.
fn versions() -> BTreeMap<String, u64> {
    let rows = page("json.md");
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `weir "));
    rows.map(|row| {
        let (command, cells) = row.split_once('`').expect("a command");
        let version = cells.trim_end_matches([' ', '|']).rsplit(' ').next().expect("a cell");
        (command.to_owned(), version.parse().expect("a version"))
    })
    .collect()
}

/// The objects of a command's output.
fn objects(command: &mut Command) -> Vec<Value> {
    match serde_json::from_slice(&succeeds(command).stdout).expect("JSON") {
        Value::Array(objects) => objects,
        object => vec![object],
    }
}

/// Adds the keys in `value`, as the pages write them: `a.b` in an object, `a[].b` in an array of objects, and `a.KIND.b` where
/// `documented` has a key for every kind.
fn add_keys(value: &Value, path: &str, documented: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
            let by_kind = format!("{prefix}KIND");
            let has_kinds = documented.iter().any(|key| key.starts_with(&format!("{by_kind}.")));
            for (key, value) in members {
                if has_kinds {
                    add_keys(value, &by_kind, documented, found);
                } else {
                    let key = format!("{prefix}{key}");
                    add_keys(value, &key, documented, found);
                    found.insert(key);
                }
            }
        }
        Value::Array(values) => {
            values.iter().for_each(|value| add_keys(value, &format!("{path}[]"), documented, found));
        }
        _ => {}
    }
}

/// Fails unless each object has the promised version, and all of them together have exactly the documented keys.
#[track_caller]
fn assert_documented(command: &str, documented: &BTreeSet<String>, objects: &[Value]) {
    assert!(!objects.is_empty(), "weir {command} printed no object");
    let version = versions()[command];
    let mut found = BTreeSet::new();
    for object in objects {
        assert_eq!(object["schema"], version, "weir {command} printed another version");
        add_keys(object, "", documented, &mut found);
    }
    found.remove("schema");
    let missing: Vec<_> = found.difference(documented).collect();
    assert!(missing.is_empty(), "weir {command} prints keys that no page lists: {missing:?}");
    let unprinted: Vec<_> = documented.difference(&found).collect();
    assert!(unprinted.is_empty(), "weir {command} does not print keys that a page lists: {unprinted:?}");
}

fn starts_with_any(key: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// A running `weir export`. Dropping it kills it.
struct Export(Child);

impl Export {
    fn start(dir: &Path, volume: &str, socket: &Path) -> Export {
        let mut command = weir();
        command.arg("export").arg(dir).arg(volume).arg("--socket").arg(socket).stdout(Stdio::piped());
        let mut export = Export(command.spawn().expect("the export starts"));
        let mut address = String::new();
        let output = export.0.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut address).expect("text");
        assert!(!address.is_empty(), "the export ended");
        export
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Syncs until a request has waited for a millisecond.
fn wait_for_a_wait(mounted: &Mounted) {
    let file = File::create(mounted.path("synced")).expect("a file");
    let begun = Instant::now();
    while mounted.waits().ended.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "no sync took a millisecond");
        for page in 0..256 {
            file.write_all_at(&[7; 4096], page << 12).expect("space");
        }
        file.sync_all().expect("a sync");
    }
}

/// The object of the mount on `dir` in the list of all mounts, some of which belong to other tests.
fn listed(dir: &Path) -> Value {
    let listed = objects(weir().args(["status", "--json"]));
    listed.into_iter().find(|mount| mount["mounted_on"] == *dir.to_string_lossy()).expect("it is mounted")
}

#[test]
fn outputs_have_the_documented_keys_and_versions() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let volumes_page = keys_below("## `weir volume list --json`", &page("json.md"));
    succeeds(weir().args(["volume", "create"]).arg(sandbox.store()).args(["disk", "--size", "4MiB"]));
    let rules = sandbox.rules_file("critical share=10%\n");
    let mounted = sandbox.mount_with(&["--policy", "critical", "--rules", &rules]);
    let dir = mounted.dir().to_owned();
    let export = Export::start(&dir, "disk", &sandbox.path("disk.sock"));
    wait_for_a_wait(&mounted);

    let status_page = keys_below("# The fields of `weir status --json`", &page("status.md"));
    let mut status_keys = status_page.clone();
    status_keys.retain(|key| !starts_with_any(key, &UNSEEN) && !starts_with_any(key, &EXACT));
    assert_documented(
        "status --json DIR",
        &status_keys,
        &objects(weir().args(["status", "--json"]).arg(&dir)),
    );
    assert_documented("status --json", &status_keys, &[listed(&dir)]);

    let mut space_keys: BTreeSet<String> =
        status_page.iter().filter_map(|key| key.strip_prefix("space.").map(str::to_owned)).collect();
    space_keys.retain(|key| !key.starts_with("cleaning."));
    let exact = objects(weir().args(["space", "--json", "--exact"]).arg(&dir));
    assert_documented("space --json", &space_keys, &exact);
    space_keys.retain(|key| !starts_with_any(&format!("space.{key}"), &EXACT));
    assert_documented("space --json", &space_keys, &objects(weir().args(["space", "--json"]).arg(&dir)));

    let mut waits_keys = keys_below("# The fields of `weir why --json`", &page("status.md"));
    waits_keys.retain(|key| !starts_with_any(key, &UNSEEN));
    assert_documented("why --json", &waits_keys, &objects(weir().args(["why", "--json"]).arg(&dir)));

    let volumes = |path: &Path| objects(weir().args(["volume", "list", "--json"]).arg(path));
    assert_documented("volume list --json", &volumes_page, &volumes(&dir));
    let rules_page = keys_below("## `weir rules show --json`", &page("json.md"));
    let rules = objects(weir().args(["rules", "show", "--json"]).arg(&dir));
    assert_documented("rules show --json", &rules_page, &rules);
    let scrub_page = keys_below("## `weir scrub --json`", &page("json.md"));
    assert_documented("scrub --json", &scrub_page, &objects(weir().args(["scrub", "--json"]).arg(&dir)));

    drop(export);
    mounted.unmount();
    assert_documented("volume list --json", &volumes_page, &volumes(&sandbox.store()));
    let check_page = keys_below("## `weir check --json`", &page("json.md"));
    let checked = objects(weir().args(["check", "--json"]).arg(sandbox.store()));
    assert_documented("check --json", &check_page, &checked);
}

#[test]
fn a_dead_mount_has_the_keys_that_the_page_names() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    mounted.signal("KILL");
    mounted.ended();
    let listed = listed(mounted.dir());
    assert_eq!(listed["health"], "dead");
    let keys: BTreeSet<&str> = listed.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["health", "mounted_on", "schema", "store"]));
    assert!(page("json.md").contains("only `schema`, `health`, `mounted_on` and `store`"));
}

/// The commands whose help lists `--json`.
#[test]
fn every_command_with_the_option_has_a_version() {
    let mut with_option = BTreeSet::new();
    let mut unread = vec![Vec::new()];
    while let Some(command) = unread.pop() {
        let help = String::from_utf8(succeeds(weir().args(&command).arg("-h")).stdout).expect("text");
        if help.contains("--json") {
            with_option.insert(format!("{} --json", command.join(" ")));
        }
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        // A wrapped description goes on further to the right.
        let begins = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
        for line in listed.take_while(|line| !line.is_empty()).filter(begins) {
            let name = line.split_whitespace().next().expect("a name").to_owned();
            if !["help", "trace"].contains(&name.as_str()) {
                unread.push([command.clone(), vec![name]].concat());
            }
        }
    }
    let documented: BTreeSet<String> =
        versions().into_keys().map(|command| command.trim_end_matches(" DIR").to_owned()).collect();
    assert_eq!(with_option, documented);
}

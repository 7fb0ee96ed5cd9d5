//! `weir status` without a directory: a line for each mount.

use crate::byte_size::ByteSize;
use crate::error::WeirError;
use crate::escape_control_chars;
use client::WeirMount;
use serde_json::{Value, json};
use std::thread;
use weir_status::StatusReport;

/// A mount, and what its daemon says of it.
struct ListedMount {
    mount: WeirMount,
    /// The daemon's report, or one word for why there is none.
    report: Result<Value, &'static str>,
}

impl ListedMount {
    fn ask(mount: WeirMount) -> ListedMount {
        let report = mount.connect().and_then(|mut daemon| daemon.request("status"));
        let report = report.map_err(|_| if mount.is_dead() { "dead" } else { "silent" });
        ListedMount { mount, report }
    }

    fn to_json(&self) -> Value {
        match &self.report {
            Ok(report) => report.clone(),
            Err(health) => {
                let (dir, store) = (self.mount.dir().display(), self.mount.store().display());
                json!({ "health": health, "mounted_on": dir.to_string(), "store": store.to_string() })
            }
        }
    }
}

/// Lists all mounts that this user may control.
pub(crate) fn print(as_json: bool) -> Result<(), WeirError> {
    let mounts = WeirMount::all_of_user()?;
    // A daemon that does not answer takes some seconds.
    let mut listed: Vec<ListedMount> = thread::scope(|scope| {
        let asked: Vec<_> = mounts.into_iter().map(|mount| scope.spawn(|| ListedMount::ask(mount))).collect();
        asked.into_iter().map(|thread| thread.join().expect("no panic while asking")).collect()
    });
    listed.sort_by(|one, other| one.mount.dir().cmp(other.mount.dir()));
    if as_json {
        let all: Vec<Value> = listed.iter().map(ListedMount::to_json).collect();
        println!("{:#}", Value::from(all));
        return Ok(());
    }
    if listed.is_empty() {
        println!("nothing is mounted");
        return Ok(());
    }
    println!(
        "{:9}  {:>10}  {:>10}  {:>11}  {:>10}  MOUNT",
        "HEALTH", "DIRTY", "OLDEST", "BUFFER FREE", "SPACE FREE"
    );
    for one in &listed {
        println!("{}", line(one));
    }
    Ok(())
}

fn line(one: &ListedMount) -> String {
    let dir = one.mount.dir().display();
    let store = one.mount.store().display();
    let report = one.report.as_ref().map(|report| serde_json::from_value::<StatusReport>(report.clone()));
    let line = match report {
        Ok(Ok(report)) => {
            let log = &report.buffer_log;
            let buffer_free = log.free_bytes * 100 / log.bytes.max(1);
            format!(
                "{:9}  {:>10}  {:>8.1} s  {:>10}%  {:>10}  {dir}: volume {} of {store}",
                report.health,
                ByteSize(report.dirty.bytes).to_string(),
                report.dirty.age_ms as f64 / 1000.0,
                buffer_free,
                ByteSize(report.space.available_bytes).to_string(),
                report.volume
            )
        }
        Ok(Err(_)) => format!("{:9}  {:>47}  {dir}: a daemon of another version, of {store}", "unknown", ""),
        Err(health) => format!("{health:9}  {:>47}  {dir}: of {store}", ""),
    };
    escape_control_chars(&line)
}

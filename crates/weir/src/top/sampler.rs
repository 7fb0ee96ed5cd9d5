//! Asks the daemons of the watched mounts, in rounds. A daemon that does not answer holds up nothing but its own row.

use super::model::{MountSample, SampledWaits, newest_of_each_dir};
use super::{TopEvent, lock};
use crate::error::WeirError;
use crate::mount_list::ListedMount;
use crate::status_report::whole_millis;
use crate::waits_report::unix_time;
use client::{DeviceNumber, WeirMount};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weir_status::{WaitReport, WaitsReport};

/// The waits of each list that get the names of their threads: more than a screen has lines.
const NAMED_WAITS_MAX: usize = 64;

/// Asks the daemons of mounts, and sends their answers as events.
pub(crate) struct Sampler {
    pub(crate) interval: Duration,
    /// The only directory to watch, if there is one.
    pub(crate) only: Option<PathBuf>,
    /// The directory of the mount whose waits are wanted.
    pub(crate) chosen: Arc<Mutex<Option<PathBuf>>>,
    pub(crate) events: Sender<TopEvent>,
}

impl Sampler {
    /// Begins the first round, in a thread of its own.
    pub(crate) fn start(self) -> Result<(), WeirError> {
        let spawned = thread::Builder::new().name("sampler".into()).spawn(move || self.run());
        spawned.map(drop).map_err(|source| WeirError::Screen { source })
    }

    fn run(&self) {
        let asked: Arc<Mutex<BTreeSet<DeviceNumber>>> = Arc::default();
        let mut next = Instant::now();
        for round in 1.. {
            // Without the mount table, the last one counts.
            if let Ok(mounts) = WeirMount::all_of_user()
                && !self.begin_round(round, mounts, &asked)
            {
                return;
            }
            // After a stop of this program, the rounds that were left out are not made up for.
            next = (next + self.interval).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Asks the daemon of each mount that has answered its last request. Returns whether the program still takes events.
    fn begin_round(
        &self,
        round: u64,
        mut mounts: Vec<WeirMount>,
        asked: &Arc<Mutex<BTreeSet<DeviceNumber>>>,
    ) -> bool {
        mounts.retain(|mount| self.only.as_deref().is_none_or(|only| only == mount.dir()));
        let mounts = newest_of_each_dir(mounts, |mount| mount.dir().to_owned());
        let mounted: BTreeMap<PathBuf, PathBuf> =
            mounts.iter().map(|mount| (mount.dir().to_owned(), mount.store().to_owned())).collect();
        if self.events.send(TopEvent::Round { round, mounted }).is_err() {
            return false;
        }
        let chosen = lock(&self.chosen).clone();
        for mount in mounts {
            let device = mount.device();
            if !lock(asked).insert(device) {
                continue;
            }
            let is_chosen = chosen.as_deref() == Some(mount.dir());
            let events = self.events.clone();
            let asked_by_thread = asked.clone();
            let ask = move || {
                let sample = sample(round, mount, is_chosen);
                lock(&asked_by_thread).remove(&device);
                // Fails if the program is about to end.
                let _ = events.send(TopEvent::Sample(Box::new(sample)));
            };
            if thread::Builder::new().name("asker".into()).spawn(ask).is_err() {
                // No more threads: the next round tries again.
                lock(asked).remove(&device);
            }
        }
        true
    }
}

fn sample(round: u64, mount: WeirMount, with_waits: bool) -> MountSample {
    let listed = ListedMount::ask(mount);
    let waits = if with_waits && listed.has_daemon() { ask_waits(listed.mount()) } else { None };
    MountSample { round, dir: listed.dir().to_owned(), row: listed.row(None), report: listed.report(), waits }
}

fn ask_waits(mount: &WeirMount) -> Option<SampledWaits> {
    let request = json!({ "operation": "why", "path": "" });
    let mut report: WaitsReport = mount.connect().ok()?.report_for(&request).ok()?;
    for waits in [&mut report.waiting, &mut report.ended] {
        waits.truncate(NAMED_WAITS_MAX);
        waits.iter_mut().for_each(name_thread);
    }
    Some(SampledWaits { report, at_unix_ms: whole_millis(unix_time()) })
}

/// Names the thread of a wait by its short name. Reading the title of its process, as `weir why` does, may wait for the very mount
/// that is slow.
fn name_thread(wait: &mut WaitReport) {
    let name = wait.task.and_then(|task| fs::read_to_string(format!("/proc/{task}/comm")).ok());
    wait.title = name.map(|name| name.trim_end().to_owned());
}

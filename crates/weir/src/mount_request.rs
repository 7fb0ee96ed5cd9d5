//! `weir mount` of a volume whose store has a daemon already: the daemon mounts it, too.
//!
//! The daemon is found through its mounts, and is believed if it holds the lock of the store. It mounts for its
//! own user and for root, where both see the same directories.

use crate::cli::{self, MountArgs};
use crate::error::WeirError;
use crate::mount_point::MountPoint;
use crate::option_values::{FETCH_MODES, KERNEL_CACHE_POLICIES, word_of};
use crate::store_daemon::{NewMount, StoreDaemon};
use crate::store_path::path_as_utf8;
use crate::store_server::StoreServer;
use crate::write_policy::PolicyChoice;
use client::ControlClient;
use serde_json::{Value, json};
use stack::absolute;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_status::StatusReport;

/// The running daemon of a store.
pub(crate) struct RunningDaemon {
    server: StoreServer,
    client: ControlClient,
}

impl RunningDaemon {
    /// The daemon of the store at `path`; `None` if there is none that can be found from here.
    pub(crate) fn find(path: &Path) -> Result<Option<RunningDaemon>, WeirError> {
        let Some(server) = StoreServer::of_store(path)? else { return Ok(None) };
        server.ensure_may_control()?;
        // It may have ended meanwhile.
        Ok(server.connect().ok().map(|client| RunningDaemon { server, client }))
    }

    /// Has the daemon mount a volume.
    pub(crate) fn mount(mut self, args: &MountArgs) -> Result<(), WeirError> {
        if args.foreground {
            return Err(WeirError::ForegroundBesideDaemon { dir: self.server.dir().into() });
        }
        match &self.server {
            StoreServer::Mount(mount) => {
                let status: StatusReport = self.client.report("status")?;
                ensure_same_options(mount.dir(), args, &status)?;
            }
            // Without a mount the daemon does not tell its options.
            StoreServer::Exports(_) => {
                if let Some(option) = cli::given_daemon_option("mount") {
                    return Err(WeirError::OptionOfDaemon { path: args.path.clone(), option });
                }
            }
        }
        let point = MountPoint::check(&args.dir, args.allow_other, self.server.store())?;
        let request = json!({
            "operation": "mount",
            // Names need not be text.
            "dir": point.dir.as_os_str().as_bytes(),
            "volume": args.volume,
            "allow_other": args.allow_other,
            "read_only": args.read_only,
            "atomic_writes": args.atomic_writes,
        });
        let reply = self.client.ask(&request)?;
        if reply["is_ending"] == true {
            return Err(WeirError::DaemonEnding { path: args.path.clone() });
        }
        Ok(())
    }
}

/// Refuses options that all mounts of a store share, and that differ from those of the daemon.
fn ensure_same_options(dir: &Path, args: &MountArgs, status: &StatusReport) -> Result<(), WeirError> {
    let (tuning, settings) = (&args.tuning, &status.settings);
    let choice = PolicyChoice::of_options(tuning.policy.policy.as_ref(), tuning.policy.rules.as_deref())?;
    let has_policy = |choice: PolicyChoice| {
        let rules: Vec<String> = choice.rules.rules().iter().map(ToString::to_string).collect();
        settings.policy.as_deref().unwrap_or("none") == choice.policy.to_string() && settings.rules == rules
    };
    let is_same_policy = choice.is_none_or(has_policy);
    let has_buffer = |path: &PathBuf| absolute(path).is_ok_and(|path| path_as_utf8(path) == status.buffer);
    let millis = |seconds: u64| seconds * 1000;
    let is_same = [
        ("buffer", args.buffer.as_ref().is_none_or(has_buffer)),
        ("fetch", word_of(FETCH_MODES, &tuning.fetch) == settings.fetch),
        ("memory", tuning.memory.0 == settings.memory_bytes_max),
        ("dirty", tuning.dirty.is_none_or(|dirty| dirty.0 == settings.dirty_bytes_max)),
        ("deltas", tuning.deltas.is_none_or(|deltas| deltas.0 == settings.delta_bytes_max)),
        ("commit_interval", tuning.commit_interval.is_none_or(|ms| ms == settings.commit_interval_ms)),
        ("dirty_age", millis(tuning.dirty_age) == settings.dirty_age_max_ms),
        ("epoch_every", millis(tuning.epoch_every) == status.epoch.every_ms.unwrap_or(0)),
        ("data", tuning.data.is_none_or(|data| data.name() == settings.data)),
        (
            "bypass_after",
            tuning.bypass_after.is_none_or(|after| Some(after.0) == settings.bypass_after_bytes),
        ),
        ("policy", is_same_policy),
        ("rules", is_same_policy),
        ("wake_up", tuning.wake_up.name() == settings.wake_up),
        ("kernel_cache", word_of(KERNEL_CACHE_POLICIES, &tuning.kernel_cache) == settings.kernel_cache),
        ("threads", tuning.threads.is_none_or(|threads| threads == settings.threads)),
    ];
    let given = cli::given_mount_options();
    match is_same.into_iter().find(|(option, is_same)| !is_same && given(option)) {
        Some((option, _)) => {
            Err(WeirError::OtherOption { dir: dir.into(), option: format!("--{}", option.replace('_', "-")) })
        }
        None => Ok(()),
    }
}

/// The daemon's answer to a request to mount, which the process `peer` sent.
pub(crate) fn answer(request: &Value, peer: Option<u32>, daemon: &Arc<StoreDaemon>) -> Value {
    match mount(request, peer, daemon) {
        Ok(()) => json!({}),
        Err(WeirError::DaemonEnding { .. }) => json!({ "is_ending": true }),
        Err(error) => json!({ "error": error.to_string(), "help": error.help() }),
    }
}

fn mount(request: &Value, peer: Option<u32>, daemon: &Arc<StoreDaemon>) -> Result<(), WeirError> {
    let dir: Vec<u8> = serde_json::from_value(request["dir"].clone()).unwrap_or_default();
    let dir = Path::new(OsStr::from_bytes(&dir));
    let store = &daemon.stack.media.name;
    if !peer.is_some_and(sees_same_directories) {
        return Err(WeirError::OtherNamespace { path: store.clone(), pid: std::process::id() });
    }
    let allow_other = request["allow_other"] == true;
    let new = NewMount {
        point: MountPoint::check(dir, allow_other, store)?,
        volume: request["volume"].as_str().unwrap_or_default().into(),
        allow_other,
        read_only: request["read_only"] == true,
        atomic_writes: request["atomic_writes"] == true,
    };
    match daemon.mount(&new)? {
        Some(_) => Ok(()),
        None => Err(WeirError::DaemonEnding { path: store.clone() }),
    }
}

/// Whether a path means the same directory to a process, and whether the process sees what is mounted here.
fn sees_same_directories(pid: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let root = |process: &str| {
        let found = fs::metadata(format!("/proc/{process}/root")).ok()?;
        Some((found.dev(), found.ino()))
    };
    let other = pid.to_string();
    let are_same = namespace("self").is_some() && root("self").is_some();
    are_same && namespace("self") == namespace(&other) && root("self") == root(&other)
}

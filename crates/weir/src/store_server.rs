//! Finds the daemon that has a store open.
//!
//! A daemon that exports volumes, and may have no mount, is found through the lock of its store.

use crate::error::WeirError;
use crate::store_path::open_store;
use client::{ClientError, ControlAddress, ControlClient, WeirMount};
use host::DiskAccess;
use rustix::process::geteuid;
use stack::{StackError, describe_store, store_of};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A daemon that exports volumes of a store, whether it has a mount or not.
pub(crate) struct ExportDaemon {
    store: PathBuf,
    pid: u32,
    /// The user of the process.
    uid: u32,
}

impl ExportDaemon {
    /// The process `pid`, which holds the lock of the store, if it listens for clients.
    pub(crate) fn of_process(pid: u32, store: &Path) -> Option<ExportDaemon> {
        let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let store = std::path::absolute(store).ok()?;
        let daemon = ExportDaemon { store, pid, uid };
        daemon.stream().ok().flatten().map(|_| daemon)
    }

    /// A connection, if the process listens. A process of the same user cannot pretend to be this one.
    fn stream(&self) -> io::Result<Option<UnixStream>> {
        let found = client::connect(ControlAddress::Process(self.pid), self.uid)?;
        Ok(found.filter(|(_, peer)| peer.pid == Some(self.pid)).map(|(stream, _)| stream))
    }

    fn connect(&self) -> Result<ControlClient, ClientError> {
        let no_answer = |source| ClientError::NoAnswer { dir: self.store.clone(), source };
        let is_gone = || no_answer(io::Error::other("the daemon is ending"));
        let stream = self.stream().map_err(no_answer)?.ok_or_else(is_gone)?;
        Ok(ControlClient::over(stream, self.store.clone(), self.uid, Some(self.pid)))
    }
}

/// The daemon that has a store open.
pub(crate) enum StoreServer {
    /// Found through a mount.
    Mount(WeirMount),
    /// Found because it exports volumes, and has no mount that can be seen from here.
    Exports(ExportDaemon),
}

impl StoreServer {
    /// The daemon of the mount at `path`, or of the store at `path`; `None` if the store has no daemon.
    pub(crate) fn at_or_of(path: &Path) -> Result<Option<StoreServer>, WeirError> {
        let found = StoreServer::serving(path);
        if found.is_none() {
            let opened = open_store(path, DiskAccess::Write);
            if let Err(WeirError::Stack(StackError::InUse { .. })) = opened {
                // That it is no store says more than that it is in use.
                describe_store(&store_of(path)?)?;
            }
            opened?;
        }
        Ok(found)
    }

    /// The daemon of the mount at `path`, or of the store at `path`. Does not open the store, which would wait for its
    /// lock.
    pub(crate) fn serving(path: &Path) -> Option<StoreServer> {
        let mount = WeirMount::at(path).ok().map(StoreServer::Mount);
        mount.or_else(|| StoreServer::of_store(path).ok().flatten())
    }

    /// The daemon of the store at `path`; `None` if there is none that can be found from here.
    pub(crate) fn of_store(path: &Path) -> Result<Option<StoreServer>, WeirError> {
        let medium = store_of(path)?;
        let holder = host::lock_holder(&medium);
        let holder = holder.map_err(|source| StackError::Host { path: path.into(), source })?;
        if holder.is_some() {
            // A daemon holds the lock of its buffer, too.
            describe_store(&medium)?;
        }
        Ok(holder.and_then(|pid| {
            let mount = WeirMount::served_by(pid, &medium).map(StoreServer::Mount);
            mount.or_else(|| ExportDaemon::of_process(pid, path).map(StoreServer::Exports))
        }))
    }

    /// Fails unless the user is root or the user of the daemon.
    pub(crate) fn ensure_may_control(&self) -> Result<(), ClientError> {
        match self {
            StoreServer::Mount(mount) => mount.ensure_may_control(),
            StoreServer::Exports(daemon) if !geteuid().is_root() && geteuid().as_raw() != daemon.uid => {
                Err(ClientError::DaemonOfOther { dir: daemon.store.clone(), owner: daemon.uid })
            }
            StoreServer::Exports(_) => Ok(()),
        }
    }

    /// A mount of the daemon, or else the store, for messages.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            StoreServer::Mount(mount) => mount.dir(),
            StoreServer::Exports(daemon) => &daemon.store,
        }
    }

    /// The path of the store.
    pub(crate) fn store(&self) -> &Path {
        match self {
            StoreServer::Mount(mount) => mount.store(),
            StoreServer::Exports(daemon) => &daemon.store,
        }
    }

    /// Connects to the daemon.
    pub(crate) fn connect(&self) -> Result<ControlClient, ClientError> {
        match self {
            StoreServer::Mount(mount) => mount.connect(),
            StoreServer::Exports(daemon) => daemon.connect(),
        }
    }
}

//! A mount: the kernel's side of the server.

use crate::server::Server;
use fuser::{Config, INodeNo, MountOption, SessionACL};
use std::io;
use std::path::Path;

/// How to mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the mount table names as the source: the store's path.
    pub source: String,
    /// Whether users other than the one who mounts may enter.
    pub allow_other: bool,
    /// Whether the kernel refuses every change.
    pub read_only: bool,
    /// Threads that take requests. They never wait, so one serves a machine until its CPU is used up.
    pub threads: usize,
}

/// A mounted file system whose requests wait to be served.
pub struct Session(fuser::Session<Server>);

/// Mounts `server` on the directory `dir`. The mount is visible on return; its requests are answered by
/// [`Session::run`].
pub fn mount(server: Server, dir: &Path, options: &Options) -> io::Result<Session> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.source.clone()),
        // fuser hands `Subtype` to fusermount only; the kernel takes it as an option of its own.
        MountOption::CUSTOM("subtype=weir".into()),
        MountOption::DefaultPermissions,
    ];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads);
    config.clone_fd = options.threads > 1;
    let holes = server.holes.clone();
    let session = fuser::Session::new(server, dir, &config)?;
    if !options.read_only {
        let kernel = session.notifier();
        holes.start(move |ino, range| {
            // One that fails is about a file that the kernel does not know, or the mount is gone.
            let _ = kernel.inval_inode(INodeNo(ino.0), range.start as i64, (range.end - range.start) as i64);
        })?;
    }
    Ok(Session(session))
}

impl Session {
    /// Serves requests until the file system is unmounted, by whomever.
    pub fn run(self) -> io::Result<()> {
        match self.0.run() {
            // Who asks for the next request while the kernel lets the connection go is told this in the place of its end.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            ended => ended,
        }
    }
}

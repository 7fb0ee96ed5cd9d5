//! A mount: the kernel's side of the server.
//!
//! `fuser` mounts and settles with the kernel how both speak (INIT); its session unmounts when it is dropped. Every request is read
//! and answered here (decision 0055).

use crate::connection::FuseConnection;
use crate::kernel_settings::{REQUEST_BYTES_MAX, configure_kernel};
use crate::protocol::{FuseOp, RequestHeader};
use crate::server::FuseServer;
use fuser::{Config, Filesystem, INodeNo, KernelConfig, MountOption, SessionACL};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::io;
use std::path::Path;
use std::thread;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
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
pub struct FuseSession {
    server: FuseServer,
    connection: FuseConnection,
    users: AllowedUsers,
    threads: usize,
    /// Unmounts when it is dropped, unless that has happened.
    _mount: fuser::Session<InitHandshake>,
}

/// What `fuser` serves: the kernel's first request.
struct InitHandshake;

impl Filesystem for InitHandshake {
    fn init(&mut self, _request: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        configure_kernel(config);
        Ok(())
    }
}

/// Mounts `server` on the directory `dir`. The mount is visible on return; its requests are answered by
/// [`Session::run`].
pub fn mount(server: FuseServer, dir: &Path, options: &MountOptions) -> io::Result<FuseSession> {
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
    let mount = fuser::Session::new(InitHandshake, dir, &config)?;
    if !options.read_only {
        let kernel = mount.notifier();
        server.page_invalidator.start(move |ino, range| {
            // A length that is negative stands for all from there on. What fails is about a file that the kernel does not know, or the
            // mount is gone.
            let len = (range.end - range.start) as i64;
            let _ = kernel.inval_inode(INodeNo(ino.0), range.start as i64, len);
        })?;
    }
    let users = if options.allow_other { AllowedUsers::All } else { AllowedUsers::Only(geteuid().as_raw()) };
    let connection = FuseConnection::of(&mount)?;
    Ok(FuseSession { server, connection, users, threads: options.threads, _mount: mount })
}

impl FuseSession {
    /// Serves requests until the file system is unmounted, by whomever.
    pub fn run(self) -> io::Result<()> {
        let mut connections = vec![self.connection];
        for _ in 1..self.threads {
            connections.push(connections[0].clone_channel()?);
        }
        let start = |(number, connection)| {
            let loop_of_thread = RequestLoop { server: self.server.clone(), connection, users: self.users };
            thread::Builder::new().name(format!("fuse-{number}")).spawn(move || loop_of_thread.run())
        };
        let threads = connections.into_iter().enumerate().map(start).collect::<io::Result<Vec<_>>>()?;
        // All have ended before one's error is told.
        let mut ended = Ok(());
        for thread in threads {
            let outcome =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a front-end thread panicked")));
            ended = ended.and(outcome);
        }
        ended
    }
}

/// Whose requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AllowedUsers {
    All,
    /// This user's.
    Only(u32),
}

impl AllowedUsers {
    /// Whether a request is served. The kernel keeps others out, too; some requests it makes in nobody's name.
    fn admit(self, header: &RequestHeader, op: &FuseOp<'_>) -> bool {
        let is_of_kernel = matches!(
            op,
            FuseOp::Read { .. }
                | FuseOp::Write { .. }
                | FuseOp::Readdir { .. }
                | FuseOp::Readdirplus { .. }
                | FuseOp::Forget { .. }
                | FuseOp::BatchForget(_)
                | FuseOp::Fsync
                | FuseOp::Fsyncdir
                | FuseOp::Release
                | FuseOp::Releasedir
        );
        is_of_kernel || self == AllowedUsers::All || self == AllowedUsers::Only(header.uid)
    }
}

/// What one thread of the front end does.
struct RequestLoop {
    server: FuseServer,
    connection: FuseConnection,
    users: AllowedUsers,
}

impl RequestLoop {
    fn run(&self) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        while let Some(request) = self.connection.receive(&mut buffer)? {
            let Some((header, body)) = RequestHeader::split(request) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent half a request"));
            };
            if self.answer(&header, body) == AfterRequest::End {
                break;
            }
        }
        Ok(())
    }

    fn answer(&self, header: &RequestHeader, body: &[u8]) -> AfterRequest {
        let reply = self.connection.reply_to(header);
        match FuseOp::decode(header, body) {
            Ok(FuseOp::Destroy) => {
                reply.ok();
                return AfterRequest::End;
            }
            Ok(op) if self.users.admit(header, &op) => self.server.serve(header, op, reply),
            Ok(_) => reply.error(Errno::ACCESS),
            Err(errno) => reply.error(errno),
        }
        AfterRequest::Request
    }
}

/// What comes after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterRequest {
    Request,
    /// The mount is gone.
    End,
}

#[cfg(test)]
mod tests;

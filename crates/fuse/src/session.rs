//! A mount: the channel to the kernel, and the threads that read requests from it.
//!
//! `fuser` mounts, negotiates the protocol (INIT), and unmounts when its session is dropped. All other
//! requests are read and answered here (decision 0055).

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
    /// The source in the mount table: the store's path.
    pub source: String,
    /// Whether users other than the mounting one may use the mount.
    pub allow_other: bool,
    /// Whether the kernel refuses every change.
    pub read_only: bool,
    /// Threads that read requests. They never wait, so one is enough until it uses a whole CPU.
    pub threads: usize,
}

/// A mounted file system. [`run`](FuseSession::run) serves its requests.
pub struct FuseSession {
    server: FuseServer,
    connection: FuseConnection,
    users: AllowedUsers,
    threads: usize,
    /// Unmounts when it is dropped, unless the file system is unmounted already.
    _mount: fuser::Session<InitHandshake>,
}

/// Answers INIT, the only request that `fuser` serves.
struct InitHandshake;

impl Filesystem for InitHandshake {
    fn init(&mut self, _request: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        configure_kernel(config);
        Ok(())
    }
}

/// Mounts `server` on the directory `dir`. The mount is visible on return; [`FuseSession::run`] answers its
/// requests.
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
        server.parts.page_invalidator.start(move |ino, range| {
            // A negative length means all bytes from the start on. An error means that the kernel does not
            // know the file, or that the mount is gone: then it has no pages.
            let len = (range.end - range.start) as i64;
            let _ = kernel.inval_inode(INodeNo(ino.0), range.start as i64, len);
        })?;
    }
    let users = if options.allow_other { AllowedUsers::All } else { AllowedUsers::Only(geteuid().as_raw()) };
    let connection = FuseConnection::of(&mount)?;
    Ok(FuseSession { server, connection, users, threads: options.threads, _mount: mount })
}

impl FuseSession {
    /// Serves requests until the file system is unmounted.
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
        // The first error is returned after all threads have ended.
        let mut ended = Ok(());
        for thread in threads {
            let outcome =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a front-end thread panicked")));
            ended = ended.and(outcome);
        }
        ended
    }
}

/// The users whose requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AllowedUsers {
    All,
    /// This user only.
    Only(u32),
}

impl AllowedUsers {
    /// Whether a request is served. The kernel keeps other users out, too. Some requests it makes on its own
    /// behalf, with any user: these are always served.
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

/// The loop of one front-end thread: reads a request and answers it.
struct RequestLoop {
    server: FuseServer,
    connection: FuseConnection,
    users: AllowedUsers,
}

impl RequestLoop {
    fn run(mut self) -> io::Result<()> {
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

    fn answer(&mut self, header: &RequestHeader, body: &[u8]) -> AfterRequest {
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

/// The loop's next step after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterRequest {
    Request,
    /// The file system is being unmounted.
    End,
}

#[cfg(test)]
mod tests;

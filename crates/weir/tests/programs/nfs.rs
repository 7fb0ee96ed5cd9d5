//! An NFS server whose export lies on a mount. The server knows files only by handles, which must stay valid
//! after the kernel has dropped their inodes.

use crate::common::succeeds;
use crate::kills::{Server, have};
use crate::weir::Weir;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// A server on a port of its own, for clients of this machine, with NFS 4.0: that needs no other service.
struct Nfs {
    server: Server,
    port: u16,
}

impl Nfs {
    fn start(weir: &Weir) -> Nfs {
        // The port is free now. Another process is unlikely to take it before the server does.
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it").port();
        let (config, log) = (weir.beside("ganesha.conf"), weir.beside("ganesha.log"));
        let recovery = weir.beside("recovery");
        fs::create_dir_all(&recovery).expect("a directory");
        let text = format!(
            "NFS_CORE_PARAM {{ NFS_Port = {port}; Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false;
               Enable_UDP = false; Bind_addr = 127.0.0.1; }}
             NFSV4 {{ Graceless = true; Minor_Versions = 0; RecoveryRoot = {}; }}
             EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /export; Access_Type = RW; Squash = none; SecType = sys;
               Filesystem_Id = 77.1; FSAL {{ Name = VFS; fsid_type = Major64; }} }}",
            recovery.display(),
            weir.path().display()
        );
        fs::write(&config, text).expect("written");
        let mut command = Command::new("ganesha.nfsd");
        command
            .arg("-F")
            .arg("-f")
            .arg(&config)
            .arg("-L")
            .arg(&log)
            .arg("-p")
            .arg(weir.beside("ganesha.pid"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut nfs = Nfs { server: Server::start(&mut command), port };
        let url = nfs.url("dir/f");
        let answers = || Command::new("nfs-cat").arg(&url).output().expect("nfs-cat starts").status.success();
        let is_ready = nfs.server.wait_until(answers);
        assert!(is_ready, "the server ended: {}", fs::read_to_string(&log).unwrap_or_default());
        nfs
    }

    fn url(&self, path: &str) -> String {
        format!("nfs://127.0.0.1/export/{path}?version=4&nfsport={}", self.port)
    }

    /// The file's content as clients read it, after the kernel has dropped every inode that is not open.
    fn read(&self, path: &str) -> String {
        fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
        let output = succeeds(Command::new("nfs-cat").arg(self.url(path)));
        String::from_utf8(output.stdout).expect("text")
    }
}

#[test]
fn an_nfs_server_finds_its_files_after_the_kernel_forgot_them() {
    if !have(&["ganesha.nfsd", "nfs-cat", "nfs-cp"].map(Path::new)) {
        return;
    }
    let Some(mut weir) = Weir::start("256MiB", "32MiB") else { return };
    let at = |name: &str| weir.path().join(name);
    fs::create_dir(at("dir")).expect("a directory");
    fs::write(at("dir/f"), "content").expect("a file");
    let nfs = Nfs::start(&weir);
    // The server keeps a handle of each file that it has looked up.
    for _ in 0..3 {
        assert_eq!(nfs.read("dir/f"), "content");
    }
    let local = weir.beside("local");
    fs::write(&local, "from a client").expect("a file");
    succeeds(Command::new("nfs-cp").arg(&local).arg(nfs.url("dir/new")));
    assert_eq!(nfs.read("dir/new"), "from a client");
    assert_eq!(fs::read_to_string(at("dir/new")).expect("it is there"), "from a client");
    drop(nfs);
    weir.unmount_and_check();
}

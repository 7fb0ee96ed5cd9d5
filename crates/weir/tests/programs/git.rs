use crate::common::succeeds;
use crate::weir::Weir;
use std::fs;
use std::path::Path;
use std::process::Command;

const DIRECTORIES: usize = 100;
const FILES_PER_DIRECTORY: usize = 100;

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    // No settings of this machine; no packing in the background that would outlive the test.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    git.args(["-c", "user.name=weir", "-c", "user.email=weir@localhost", "-c", "gc.auto=0"]);
    git.args(["-c", "safe.directory=*", "-c", "init.defaultBranch=main"]);
    let output = succeeds(git.arg("-C").arg(directory).args(arguments));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn generate_repository(directory: &Path) {
    fs::create_dir(directory).expect("a directory");
    for outer in 0..DIRECTORIES {
        let below = directory.join(format!("directory-{outer}"));
        fs::create_dir(&below).expect("a directory");
        for inner in 0..FILES_PER_DIRECTORY {
            let line = format!("file {inner} of directory {outer}\n");
            fs::write(below.join(format!("file-{inner}.txt")), line.repeat(1 + inner % 50)).expect("a file");
        }
    }
    git(directory, &["init", "-q"]);
    git(directory, &["add", "."]);
    git(directory, &["commit", "-q", "-m", "Ten thousand files"]);
}

#[test]
fn git_clones_ten_thousand_files_and_finds_them_sound_after_mounting_again() {
    let Some(mut weir) = Weir::start("4GiB", "128MiB") else { return };
    let origin = weir.beside("origin");
    generate_repository(&origin);
    let clone = weir.path().join("clone");
    git(&weir.path(), &["clone", "-q", "--no-local", origin.to_str().expect("a plain path"), "clone"]);
    for mounted in ["first", "again"] {
        git(&clone, &["fsck", "--strict", "--full"]);
        assert_eq!(
            git(&clone, &["status", "--porcelain"]),
            "",
            "mounted {mounted}: files differ from the commit"
        );
        let files = git(&clone, &["ls-files"]).lines().count();
        assert_eq!(files, DIRECTORIES * FILES_PER_DIRECTORY);
        weir.unmount_and_check();
        weir.mount();
    }
}

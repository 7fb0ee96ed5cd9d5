//! `weir run`: unmodified programs on a store, in their own process.

use crate::common::{Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use test_support::has_program;
use weir_library::{Weir, WeirOptions};

/// The library that cargo has built for this test: beside the program, or beside the test.
pub(crate) fn shim() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    let test = std::env::current_exe().expect("a test has a path");
    let places =
        [test.parent(), program.parent()].map(|place| place.expect("a directory").join("libweir_shim.so"));
    places.into_iter().find(|path| path.is_file()).expect("cargo has built the crate `weir-shim`")
}

/// The program and its arguments, on the sandbox's store. Its working directory is the sandbox.
pub(crate) fn run_in<S: AsRef<OsStr>>(sandbox: &Sandbox, command: impl IntoIterator<Item = S>) -> Command {
    run_with(sandbox, &[], command)
}

fn run_with<S: AsRef<OsStr>>(
    sandbox: &Sandbox,
    options: &[&str],
    command: impl IntoIterator<Item = S>,
) -> Command {
    let mut run = weir();
    run.arg("run").arg("--store").arg(sandbox.store()).args(options).arg("--").args(command);
    run.env("WEIR_SHIM", shim()).current_dir(sandbox.path(""));
    run
}

/// What a program prints, which must succeed.
#[track_caller]
fn output_of<S: AsRef<OsStr>>(sandbox: &Sandbox, command: impl IntoIterator<Item = S>) -> String {
    String::from_utf8(succeeds(&mut run_in(sandbox, command)).stdout).expect("UTF-8")
}

fn shell(sandbox: &Sandbox, script: &str) -> String {
    output_of(sandbox, ["sh", "-ec", script])
}

/// The lines, without the directory with which they begin.
fn sorted_below(directory: &str, lines: &str) -> Vec<String> {
    let mut found: Vec<String> = lines.lines().map(|line| line.replacen(directory, "", 1)).collect();
    found.sort();
    found
}

#[test]
fn coreutils_make_move_and_remove_files() {
    let sandbox = Sandbox::formatted();
    fs::write(sandbox.path("outside"), "of the machine\n").unwrap();
    let script = "mkdir @@/d; cp outside @@/d/copy; cat @@/d/copy; ln -s d/copy @@/link; cat @@/link
        mv @@/d/copy @@/moved; mv @@/moved back; cat back; ls @@ @@/d; touch -d 2001-02-03 @@/d/old
        stat -c '%y %s %F' @@/d/old; dd if=outside of=@@/dd bs=5 conv=fsync status=none; cat @@/dd
        chmod 640 @@/dd; stat -c %a @@/dd; readlink @@/link; rm -r @@/d; ls @@; cd @@; pwd";
    let found = shell(&sandbox, script);
    let directory = fs::canonicalize(sandbox.path("")).unwrap();
    let expected = format!(
        "of the machine\nof the machine\nof the machine\n@@:\nd\nlink\n\n@@/d:\n\
         2001-02-03 00:00:00.000000000 +0000 0 regular empty file\nof the machine\n640\nd/copy\ndd\nlink\n{}/@@\n",
        directory.display()
    );
    assert_eq!(found, expected);
    // A program that is started would not work in the store.
    let refused = run_in(&sandbox, ["sh", "-c", "cd @@; rm -r *"]).output().unwrap();
    assert!(!refused.status.success());
    assert_says(&String::from_utf8_lossy(&refused.stderr), "no program can be started");
    assert!(sandbox.path("back").exists());
}

#[test]
fn paths_below_a_prefix_are_the_stores() {
    let sandbox = Sandbox::formatted();
    let options = ["--prefix", "/srv/wiki", "--memory", "16MiB"];
    let script =
        "mkdir /srv/wiki/d; echo one > /tmp/outside.$$; cp /tmp/outside.$$ /srv/wiki/d/f; rm /tmp/outside.$$
        cat @@/d/f; ln -s f /srv/wiki/d/link; readlink -f /srv/wiki/d/link; cd /srv/wiki/d; pwd; cd ..; pwd";
    let found = succeeds(&mut run_with(&sandbox, &options, ["sh", "-ec", script])).stdout;
    assert_eq!(String::from_utf8_lossy(&found), "one\n/srv/wiki/d/f\n/srv/wiki/d\n/srv/wiki\n");
    assert!(!Path::new("/srv/wiki").exists());
    let refused = run_with(&sandbox, &["--prefix", "wiki"], ["true"]).output().unwrap();
    assert_says(&String::from_utf8_lossy(&refused.stderr), "it must be an absolute path");
    assert_says(&fails(&mut run_with(&sandbox, &["--memory", "1MiB"], ["true"])), "less than 16 MiB");
}

#[test]
fn a_path_that_is_too_long_with_all_that_stands_before_the_root_is_refused() {
    let sandbox = Sandbox::formatted();
    let script =
        "long=$(printf '/.%.0s' $(seq 2043)); mkdir @@/d; ls -d /tmp/@@$long; ls -d /tmp/@@$long/../d";
    let done = run_with(&sandbox, &[], ["sh", "-c", script]).output().unwrap();
    assert_says(&String::from_utf8_lossy(&done.stderr), "File name too long");
    assert_eq!(String::from_utf8_lossy(&done.stdout).lines().count(), 1, "{done:?}");
}

#[test]
fn an_archive_is_unpacked_searched_and_packed_again() {
    let sandbox = Sandbox::formatted();
    let tree = sandbox.path("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    for number in 0..40 {
        let text = format!("line one\nneedle {number}\n").repeat(number * 20);
        fs::write(tree.join(format!("deep/file{number}.txt")), text).unwrap();
    }
    fs::set_permissions(tree.join("deep/file3.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("deep/er/link")).unwrap();
    succeeds(
        Command::new("tar")
            .arg("-cf")
            .arg(sandbox.path("tree.tar"))
            .arg("-C")
            .arg(sandbox.path(""))
            .arg("tree"),
    );
    output_of(&sandbox, ["tar", "-xf", "tree.tar", "-C", "@@"]);
    let pack = |directory: &str| format!("tar -C {directory} --sort=name -cf - tree | sha256sum");
    assert_eq!(shell(&sandbox, &pack("@@")), shell(&sandbox, &pack(".")));
    let search = |tree: &str| sorted_below(tree, &output_of(&sandbox, ["grep", "-rc", "needle", tree]));
    assert_eq!(search("@@/tree"), search("tree"));
    let find =
        |tree: &str| sorted_below(tree, &output_of(&sandbox, ["find", tree, "-type", "f", "-size", "+1"]));
    assert_eq!(find("@@/tree"), find("tree"));
    output_of(&sandbox, ["cp", "-a", "@@/tree", "@@/again"]);
    output_of(&sandbox, ["diff", "-r", "--no-dereference", "@@/tree", "tree"]);
    output_of(&sandbox, ["diff", "-r", "--no-dereference", "@@/tree", "@@/again"]);
    if can_mount() {
        let mounted = sandbox.mount();
        succeeds(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(mounted.path("again")));
    }
}

#[test]
fn sqlite_works_in_every_journal_mode() {
    if !has_program("sqlite3") {
        return;
    }
    let sandbox = Sandbox::formatted();
    for mode in ["delete", "truncate", "persist", "memory", "wal", "off"] {
        let file = format!("@@/{mode}.db");
        let fill = "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 300)
            insert into t select i, hex(randomblob(300)) from n; update t set b = a where a % 3 = 0; delete from t where a > 290;";
        let script = format!("pragma journal_mode={mode}; {fill}");
        assert_says(&output_of(&sandbox, ["sqlite3", &file, &script]), mode);
        let found =
            output_of(&sandbox, ["sqlite3", &file, "pragma integrity_check; select count(*), max(a) from t"]);
        assert_eq!(found, "ok\n290|290\n", "{mode}");
    }
    // The index of a long log is mapped in several pieces.
    let long =
        "pragma page_size=512; pragma journal_mode=wal; pragma wal_autocheckpoint=0; create table t(a, b);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 6000)
        insert into t select i, hex(randomblob(200)) from n; update t set b = hex(randomblob(200));
        pragma integrity_check; select count(*) from t;";
    assert_eq!(output_of(&sandbox, ["sqlite3", "@@/long.db", long]), "wal\n0\nok\n6000\n");
    if can_mount() {
        let mounted = sandbox.mount();
        let found =
            succeeds(Command::new("sqlite3").arg(mounted.path("wal.db")).arg("select count(*) from t"));
        assert_eq!(found.stdout, b"290\n");
    }
}

#[test]
fn a_mapping_that_does_not_fit_into_the_store_fails_its_syncs() {
    if !has_program("python3") {
        return;
    }
    let script = "
import errno, mmap, os
mapped = os.open('@@/mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, 8 << 20)
memory = mmap.mmap(mapped, 8 << 20)
filler = os.open('@@/filler', os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(filler, os.urandom(1 << 20))
except OSError as error:
    assert error.errno == errno.ENOSPC
memory[:] = os.urandom(8 << 20)
for sync in (memory.flush, lambda: os.fsync(mapped)):
    try:
        sync()
        raise AssertionError('it is not durable')
    except OSError as error:
        assert error.errno == errno.ENOSPC
os.unlink('@@/filler')
os.close(filler)
memory.flush()
assert os.pread(mapped, 8 << 20, 0) == memory[:]
print('done')";
    assert_eq!(output_of(&Sandbox::formatted(), ["python3", "-c", script]), "done\n");
}

/// Kills of each writer: two, or as many as `WEIR_TESTS_KILLS` says; `make library-kills` says a thousand.
fn kills() -> usize {
    std::env::var("WEIR_TESTS_KILLS").map_or(2, |kills| kills.parse().expect("WEIR_TESTS_KILLS is a number"))
}

/// Lines that a program prints before the kill of a round, after as many syncs: different ones from round to round.
fn lines_before_kill(round: usize) -> usize {
    20 + 37 * round % 100
}

#[test]
fn python_keeps_what_it_synced_when_killed() {
    if !has_program("python3") {
        return;
    }
    let sandbox = Sandbox::formatted();
    // Each record of 100 bytes begins with its number, and is synced before the number is printed.
    let writer = "
import os
file = os.open('@@/records', os.O_RDWR | os.O_CREAT)
number = os.fstat(file).st_size // 100
while True:
    os.pwrite(file, b'%d\\n' % number + b'.' * (99 - len(str(number))), number * 100)
    os.fdatasync(file)
    os.write(1, b'%d\\n' % number)
    number += 1";
    let reader = "
data = open('@@/records', 'rb').read()
whole = len(data) // 100
for number in range(whole):
    record = data[number * 100:number * 100 + 100]
    assert record == b'%d\\n' % number + b'.' * (99 - len(str(number))), (number, record)
print(whole)";
    for round in 0..kills() {
        let mut child = run_in(&sandbox, ["python3", "-c", writer]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let synced: u64 = lines.take(lines_before_kill(round)).last().unwrap().unwrap().parse().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let found: u64 = output_of(&sandbox, ["python3", "-c", reader]).trim().parse().unwrap();
        assert!(found > synced, "round {round}: {found} records, and record {synced} was synced");
    }
}

#[test]
fn sqlite_keeps_what_it_committed_when_killed() {
    if !has_program("sqlite3") {
        return;
    }
    let sandbox = Sandbox::formatted();
    for mode in ["delete", "wal"] {
        let file = format!("@@/{mode}.db");
        let begin = format!("pragma journal_mode={mode}; create table t(a integer primary key, b)");
        output_of(&sandbox, ["sqlite3", &file, &begin]);
        for round in 0..kills() {
            let inserts =
                "insert into t(b) values(hex(randomblob(400))); select max(a) from t;\n".repeat(3000);
            let script = sandbox.path("inserts.sql");
            fs::write(&script, format!("pragma synchronous=full;\n{inserts}")).unwrap();
            let mut child = run_in(&sandbox, ["stdbuf", "-oL", "sqlite3", &file])
                .stdin(fs::File::open(&script).unwrap())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let committed: u64 =
                lines.take(lines_before_kill(round)).last().unwrap().unwrap().parse().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            // Without the deletion the store is full after some hundred rounds.
            let look = "pragma integrity_check; select max(a) from t; delete from t where a < (select max(a) - 1000 from t)";
            let found = output_of(&sandbox, ["sqlite3", &file, look]);
            let found = found.strip_prefix("ok\n").expect("a whole database");
            let rows = found.trim().parse::<u64>().unwrap();
            assert!(rows >= committed, "{mode}, round {round}: {rows} of {committed}");
        }
    }
}

#[test]
fn python_uses_files_directories_and_databases() {
    if !has_program("python3") {
        return;
    }
    let sandbox = Sandbox::formatted();
    let script = sandbox.path("script.py");
    fs::write(&script, include_str!("run.py")).unwrap();
    let said = output_of(&sandbox, ["python3", "script.py"]);
    assert_eq!(said, "done\n");
    let opened = Weir::open(&sandbox.store(), &WeirOptions::default()).unwrap();
    assert_eq!(opened.metadata("/kept/data.csv").unwrap().size, 56);
}

#[test]
fn a_program_hands_the_store_to_the_programs_that_it_starts() {
    let sandbox = Sandbox::formatted();
    assert_eq!(shell(&sandbox, "echo x > @@/f; cat @@/f; (echo y >> @@/f); cat @@/f"), "x\nx\ny\n");
    // `cat` inherits the number of a file that is open in the shell, and has the store neither.
    let refused = run_in(&sandbox, ["sh", "-c", "exec 3> @@/f; cat @@/f; exit $?"]).output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    assert_says(&String::from_utf8_lossy(&refused.stderr), "in use by process");
    assert_says(&String::from_utf8_lossy(&refused.stderr), "Device or resource busy");
}

#[test]
fn explain_counts_the_calls_and_names_what_is_missing() {
    let sandbox = Sandbox::formatted();
    let output = succeeds(&mut run_with(&sandbox, &["--explain"], ["ls", "-A", "@@"]));
    assert_eq!(output.stdout, b"");
    let said = String::from_utf8(output.stderr).unwrap();
    for part in [
        "ls (",
        "served: ",
        "opendir 1",
        "passed on to the C library: ",
        "refused: ",
        "not served, and called by",
    ] {
        assert_says(&said, part);
    }
}

#[test]
fn what_the_library_cannot_serve_is_refused_before_it_starts() {
    let sandbox = Sandbox::formatted();
    let refusal = |command: &[&str]| {
        let said = run_in(&sandbox, command).output().unwrap();
        String::from_utf8(said.stderr).unwrap()
    };
    assert_says(&refusal(&["no-such-program"]), "no-such-program");
    let program = fs::read("/bin/true").unwrap();
    let other = sandbox.path("other-loader");
    let at = program.windows(9).position(|bytes| bytes == b"/ld-linux").expect("it has a loader");
    let mut changed = program;
    changed[at..at + 9].copy_from_slice(b"/ld-muslx");
    fs::write(&other, changed).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    assert_says(&fails(&mut run_in(&sandbox, [&other])), "another C library");
    let spaced = sandbox.path("a shim.so");
    fs::copy(shim(), &spaced).unwrap();
    assert_says(&fails(run_in(&sandbox, ["true"]).env("WEIR_SHIM", &spaced)), "a space or a colon");
    if has_program("setcap") && rustix::process::geteuid().is_root() {
        let capable = sandbox.path("capable");
        fs::copy("/bin/true", &capable).unwrap();
        if Command::new("setcap").arg("cap_net_raw+ep").arg(&capable).status().unwrap().success() {
            assert_says(&fails(&mut run_in(&sandbox, [&capable])), "has capabilities");
        }
    }
    let nothing = sandbox.path("nothing");
    let mut without_store = weir();
    without_store.args(["run", "--store"]).arg(&nothing).args(["--", "true"]);
    assert_says(&fails(&mut without_store), "there is no store here");
    if can_mount() {
        let mounted = sandbox.mount();
        let said = fails(&mut run_in(&sandbox, ["true"]));
        assert_says(&said, "in use by process");
        assert_says(&said, &format!("weir unmount {}", fs::canonicalize(mounted.dir()).unwrap().display()));
    }
}

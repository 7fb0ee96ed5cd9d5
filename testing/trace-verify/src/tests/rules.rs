//! Tests each rule that can be switched, in each order that has it, with programs that need the rule. All
//! orders give the recorded results while equivalent rules are off. Some order does not if the rule is off,
//! too.

use super::{ORDERS, THREADS, compiled, verified};
use std::collections::BTreeSet;
use trace_compile::Switches;
use trace_file::Rule;

/// A program that needs a rule.
struct Example {
    /// The order that has the rule.
    order: &'static str,
    /// Rules that would do the same here: they subsume it.
    same: &'static [Rule],
    /// The lines after [`THREADS`].
    lines: &'static str,
}

const fn weir(same: &'static [Rule], lines: &'static str) -> Example {
    Example { order: "weir", same, lines }
}

const fn root(same: &'static [Rule], lines: &'static str) -> Example {
    Example { order: "root", same, lines }
}

/// The table of examples. A rule without a line here does not compile, and a rule without an example fails.
fn examples(rule: Rule) -> &'static [Example] {
    match rule {
        // A rule of the trace's clock, which no compiled order has.
        Rule::Temporal => &[],
        Rule::ProgramSequence => PROGRAM_SEQUENCE,
        Rule::FileSequence => FILE_SEQUENCE,
        // Neither rule can be switched off without the other.
        Rule::PathStage | Rule::PathName => PATHS,
        Rule::DescriptorSequence => DESCRIPTOR_SEQUENCE,
        Rule::DescriptorStage => DESCRIPTOR_STAGE,
        Rule::DescriptionStage => DESCRIPTION_STAGE,
        Rule::AioStage => AIO_STAGE,
        Rule::Bytes => BYTES,
        Rule::Size => SIZE,
        Rule::Attributes => ATTRIBUTES,
        Rule::Name => NAME,
        Rule::Listing => LISTING,
        Rule::Description => DESCRIPTION,
        Rule::Lock => LOCK,
        Rule::Clone => CLONE,
        Rule::ChildEnd => CHILD_END,
        Rule::Hold => HOLD,
        Rule::Pipe => PIPE,
        Rule::Passed => PASSED,
        Rule::Wake => WAKE,
    }
}

/// These programs need the rule while all other rules are off.
const PROGRAM_SEQUENCE: &[Example] = &[weir(&Rule::SWITCHABLE, SEVERAL), root(&Rule::SWITCHABLE, SEVERAL)];
const SEVERAL: &str = "1 chmod(\"/srv/a\", 0600) = 0\n2 lseek(4</srv/a>, 0, SEEK_END) = 4096\n\
    1 rename(\"/srv/a\", \"/srv/b\") = 0\n2 access(\"/srv/b\", F_OK) = 0\n";

const FILE_SEQUENCE: &[Example] = &[
    root(&[], READ),
    root(&[], RANGES_SHARED),
    root(&[], LOST_WITH_ANY),
    root(&[], EXTENDED),
    root(&[], EXTENDED_OF_DIRECTORY),
];

const PATHS: &[Example] = &[
    root(&[Rule::FileSequence], MADE),
    root(&[Rule::FileSequence], GONE),
    root(&[Rule::FileSequence], EMPTY),
    root(&[Rule::FileSequence], EMPTY_TARGET),
    root(&[Rule::FileSequence], NAMELESS),
    root(&[Rule::FileSequence], EXCHANGED_DATA),
];

const DESCRIPTOR_SEQUENCE: &[Example] = &[root(&[Rule::FileSequence], POSITION)];

const DESCRIPTOR_STAGE: &[Example] =
    &[root(&[Rule::FileSequence, Rule::DescriptorSequence, Rule::DescriptionStage], LIFE)];

const DESCRIPTION_STAGE: &[Example] = &[root(
    &[],
    // The last of two processes closes the file.
    "1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n\
    1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n9 fdatasync(5</srv/a>) = 0\n9 close(5</srv/a>) = 0\n\
    1 close(5</srv/a>) = 0",
)];

const AIO_STAGE: &[Example] = &[weir(&[], REQUESTS), root(&[], REQUESTS)];
const REQUESTS: &str = "1 io_setup(8, [0x7f00]) = 0\n\
    1 io_submit(0x7f00, 1, [{aio_data=0, aio_lio_opcode=IOCB_CMD_PREAD, aio_fildes=3</srv/a>, aio_nbytes=4096, aio_offset=0}]) = 1\n\
    2 io_getevents(0x7f00, 1, 1, [{data=0, obj=0x7f, res=4096, res2=0}], NULL) = 1";

const BYTES: &[Example] = &[weir(&[], READ)];
const READ: &str =
    "1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n2 pread64(4</srv/a>, \"\"..., 4096, 0) = 4096";

const SIZE: &[Example] =
    &[weir(&[], "1 pwrite64(3</srv/a>, \"\"..., 4096, 4096) = 4096\n2 lseek(4</srv/a>, 0, SEEK_END) = 8192")];

const ATTRIBUTES: &[Example] = &[
    weir(&[], "1 chmod(\"/srv/a\", 0600) = 0\n2 stat(\"/srv/a\", {st_mode=S_IFREG|0600, st_size=4096}) = 0"),
    weir(&[], EXTENDED),
];
const EXTENDED: &str = "1 setxattr(\"/srv/a\", \"user.x\", \"\"..., 4, 0) = 0\n\
    2 fgetxattr(4</srv/a>, \"user.x\", \"\"..., 64) = 4\n\
    1 removexattr(\"/srv/a\", \"user.x\") = 0\n2 getxattr(\"/srv/a\", \"user.x\", 0x7f, 64) = -1 ENODATA (No data)";
const EXTENDED_OF_DIRECTORY: &str = "1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0\n\
    1 setxattr(\"/srv/d\", \"user.x\", \"\"..., 4, 0) = 0\n2 getxattr(\"/srv/d\", \"user.x\", \"\"..., 64) = 4";

const NAME: &[Example] = &[
    weir(&[], MADE),
    weir(&[], GONE),
    weir(&[], NAMELESS),
    weir(&[], EXCHANGED_DATA),
    // A socket, which cannot be opened.
    weir(
        &[],
        "1 socket(AF_UNIX, SOCK_STREAM, 0) = 5<socket:[1]>\n\
        1 bind(5<socket:[1]>, {sa_family=AF_UNIX, sun_path=\"/srv/s\"}, 110) = 0\n\
        2 openat(AT_FDCWD</srv>, \"/srv/s\", O_RDWR) = -1 ENXIO (No such device or address)\n\
        2 unlink(\"/srv/s\") = 0\n1 mknodat(AT_FDCWD</srv>, \"/srv/s\", S_IFREG|0644) = 0\n",
    ),
    // A file and a directory are exchanged.
    weir(
        &[],
        "1 mkdir(\"/srv/d\", 0755) = 0\n\
        1 renameat2(AT_FDCWD</srv>, \"/srv/a\", AT_FDCWD</srv>, \"/srv/d\", RENAME_EXCHANGE) = 0\n\
        2 rmdir(\"/srv/a\") = 0\n2 openat(AT_FDCWD</srv>, \"/srv/d\", O_RDWR) = 5</srv/d>\n\
        1 renameat2(AT_FDCWD</srv>, \"/srv/d\", AT_FDCWD</srv>, \"/srv/e\", RENAME_NOREPLACE) = 0\n",
    ),
];
const MADE: &str = "1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0";
const GONE: &str =
    "1 rename(\"/srv/a\", \"/srv/b\") = 0\n2 access(\"/srv/a\", F_OK) = -1 ENOENT (No such file)";
const NAMELESS: &str = "1 openat(AT_FDCWD</srv>, \"/srv\", O_RDWR|O_TMPFILE, 0600) = 5</srv/#1>(deleted)\n\
    1 linkat(5</srv/#1>(deleted), \"\", AT_FDCWD</srv>, \"/srv/t\", AT_EMPTY_PATH) = 0\n\
    1 linkat(AT_FDCWD</srv>, \"/proc/self/fd/5\", AT_FDCWD</srv>, \"/srv/u\", AT_SYMLINK_FOLLOW) = 0\n\
    2 access(\"/srv/t\", F_OK) = 0\n2 access(\"/srv/u\", F_OK) = 0";
const EXCHANGED_DATA: &str = "1 openat(AT_FDCWD</srv>, \"/srv/b\", O_RDWR|O_CREAT, 0644) = 5</srv/b>\n\
    1 renameat2(AT_FDCWD, \"/srv/a\", AT_FDCWD, \"/srv/b\", RENAME_EXCHANGE) = 0\n\
    2 stat_nocancel(\"/srv/b\", {st_mode=S_IFREG|0644, st_size=4096}) = 0\n\
    2 stat(\"/srv/a\", {st_mode=S_IFREG|0644, st_size=0}) = 0";

const LISTING: &[Example] = &[weir(&[], EMPTY), weir(&[], EMPTY_TARGET)];
const EMPTY: &str = "1 mkdir(\"/srv/d\", 0755) = 0\n1 write(3</srv/a>, \"\"..., 1) = 1\n2 access(\"/srv/d\", F_OK) = 0\n\
    1 mkdir(\"/srv/d/e\", 0755) = 0\n2 rmdir(\"/srv/d\") = -1 ENOTEMPTY (Directory not empty)";
const EMPTY_TARGET: &str = "1 mkdir(\"/srv/d\", 0755) = 0\n1 mkdir(\"/srv/f\", 0755) = 0\n1 write(3</srv/a>, \"\"..., 1) = 1\n\
    2 access(\"/srv/d\", F_OK) = 0\n2 access(\"/srv/f\", F_OK) = 0\n1 mkdir(\"/srv/d/e\", 0755) = 0\n\
    2 rename(\"/srv/f\", \"/srv/d\") = -1 ENOTEMPTY (Directory not empty)";

const DESCRIPTION: &[Example] = &[
    weir(&[], POSITION),
    weir(&[], LIFE),
    // The write appends, and the position moves past its bytes.
    weir(
        &[Rule::Size, Rule::Bytes],
        "1 fcntl(3</srv/a>, F_SETFL, O_RDWR|O_APPEND) = 0\n1 write(3</srv/a>, \"\"..., 4096) = 4096\n\
        2 write(3</srv/a>, \"\"..., 100) = 100\n2 lseek(3</srv/a>, 0, SEEK_CUR) = 8292",
    ),
];
const POSITION: &str = "1 lseek(3</srv/a>, 100, SEEK_SET) = 100\n2 lseek(3</srv/a>, 0, SEEK_CUR) = 100";
const LIFE: &str = "1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n2 fdatasync(5</srv/a>) = 0";

const LOCK: &[Example] = &[
    // A thread takes the lock after another thread released it.
    weir(
        &[],
        "1 flock(3</srv/a>, LOCK_EX) = 0\n1 flock(3</srv/a>, LOCK_UN) = 0\n\
        2 flock(4</srv/a>, LOCK_EX) = 0\n2 flock(4</srv/a>, LOCK_UN) = 0",
    ),
    // What was exclusive is shared before others share it.
    weir(
        &[],
        "1 flock(3</srv/a>, LOCK_EX) = 0\n1 flock(3</srv/a>, LOCK_SH) = 0\n2 flock(4</srv/a>, LOCK_SH) = 0",
    ),
    weir(&[], RANGES_SHARED),
    // One that cannot be converted is lost.
    weir(
        &[],
        "1 flock(3</srv/a>, LOCK_SH) = 0\n2 flock(4</srv/a>, LOCK_SH) = 0\n\
        1 flock(3</srv/a>, LOCK_EX|LOCK_NB) = -1 EAGAIN (Try again)\n2 flock(4</srv/a>, LOCK_EX|LOCK_NB) = 0",
    ),
    weir(&[], LOST_WITH_ANY),
];
const RANGES_SHARED: &str = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
    9 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n\
    1 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=2}) = 0\n\
    9 fcntl(5</srv/a>, F_SETLK, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=1, l_len=1}) = -1 EAGAIN (Try again)\n\
    1 fcntl(3</srv/a>, F_SETLK, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=0, l_len=2}) = 0\n\
    9 fcntl(5</srv/a>, F_SETLK, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=1, l_len=1}) = 0\n";
/// A process loses its locks on a file with any descriptor of it.
pub(super) const LOST_WITH_ANY: &str = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
    9 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n\
    1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 6</srv/a>\n\
    1 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=0}) = 0\n\
    1 close(6</srv/a>) = 0\n\
    9 fcntl(5</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=7, l_len=1}) = 0\n";

const CLONE: &[Example] = &[weir(&[Rule::Name], TASK), root(&[Rule::PathStage], TASK)];
const TASK: &str = "1 mkdir(\"/srv/d\", 0755) = 0\n1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n9 access(\"/srv/d\", F_OK) = 0";

const CHILD_END: &[Example] = &[weir(&[Rule::Name], WAITED_FOR), root(&[Rule::PathStage], WAITED_FOR)];
const WAITED_FOR: &str = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n9 mkdir(\"/srv/d\", 0755) = 0\n9 +++ exited with 0 +++\n\
    1 wait4(9, [{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 9\n1 access(\"/srv/d\", F_OK) = 0";

const HOLD: &[Example] = &[weir(&[Rule::Name], HELD), root(&[Rule::PathStage], HELD)];
const HELD: &str = "1 vfork() = 9\n9 mkdir(\"/srv/d\", 0755) = 0\n9 execve(\"/bin/x\", [], 0x7f) = 0\n\
    1 access(\"/srv/d\", F_OK) = 0";

const PIPE: &[Example] = &[weir(&[Rule::Name], WRITTEN), root(&[Rule::PathStage], WRITTEN)];
const WRITTEN: &str = "1 pipe2([5<pipe:[7]>, 6<pipe:[7]>], O_CLOEXEC) = 0\n1 mkdir(\"/srv/d\", 0755) = 0\n\
    1 write(6<pipe:[7]>, \"\"..., 1) = 1\n2 read(5<pipe:[7]>, \"\"..., 1) = 1\n2 access(\"/srv/d\", F_OK) = 0";

const PASSED: &[Example] = &[weir(&[Rule::Name], SENT), root(&[Rule::PathStage], SENT)];
/// A process uses a descriptor after another process sent it.
pub(super) const SENT: &str = "1 socketpair(AF_UNIX, SOCK_STREAM, 0, [5<socket:[1]>, 6<socket:[2]>]) = 0\n\
    1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
    1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 7</srv/a>\n1 mkdir(\"/srv/d\", 0755) = 0\n\
    1 sendmsg(5<socket:[1]>, {msg_iov=[{iov_base=\"\"..., iov_len=1}], msg_control=[{cmsg_len=20, cmsg_level=SOL_SOCKET, cmsg_type=SCM_RIGHTS, cmsg_data=[7</srv/a>]}]}, 0) = 1\n\
    1 close(7</srv/a>) = 0\n\
    9 recvmsg(6<socket:[2]>, {msg_iov=[{iov_base=\"\"..., iov_len=1}], msg_control=[{cmsg_len=20, cmsg_level=SOL_SOCKET, cmsg_type=SCM_RIGHTS, cmsg_data=[8</srv/a>]}]}, 0) = 1\n\
    9 access(\"/srv/d\", F_OK) = 0\n9 fdatasync(8</srv/a>) = 0\n9 close(8</srv/a>) = 0\n";

const WAKE: &[Example] = &[
    weir(&[Rule::Bytes], WOKEN),
    root(&[Rule::FileSequence], WOKEN),
    // A thread that joins another continues after the last call of the other.
    weir(&[Rule::Bytes], JOINED),
    root(&[Rule::FileSequence, Rule::DescriptorSequence], JOINED),
];
const WOKEN: &str = "2 futex(0x7f10, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>\n\
    1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n1 futex(0x7f10, FUTEX_WAKE_PRIVATE, 1) = 1\n\
    2 <... futex resumed>) = 0\n2 pread64(4</srv/a>, \"\"..., 4096, 0) = 4096\n";
const JOINED: &str = "1 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD|CLONE_CHILD_CLEARTID, child_tid=0x7f20}, 88) = 3\n\
    3 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n3 exit(0) = ?\n\
    1 futex(0x7f20, FUTEX_WAIT_BITSET|FUTEX_CLOCK_REALTIME, 3, NULL, FUTEX_BITSET_MATCH_ANY) = 0\n\
    1 pread64(3</srv/a>, \"\"..., 4096, 0) = 4096\n3 +++ exited with 0 +++\n";

/// Every rule. Serde numbers them.
fn all_rules() -> Vec<Rule> {
    (0..).map_while(|number: u8| postcard::from_bytes(&[number]).ok()).collect()
}

impl Example {
    fn text(&self) -> String {
        format!("{THREADS}{}", self.lines)
    }

    /// Switches `same` off and all other rules on, except `rule`, which is `on` or off.
    fn switches(&self, rule: Rule, on: bool) -> Switches {
        let off = self.same.iter().copied().filter(|other| *other != rule);
        let switches = Switches::without(off.chain((!on).then_some(rule)));
        match (rule, on) {
            (Rule::ProgramSequence, true) => switches.with_program_sequence(),
            _ => switches,
        }
    }
}

#[test]
fn every_rule_has_a_switch_except_those_of_the_clock() {
    let all: BTreeSet<Rule> = all_rules().into_iter().collect();
    let switchable = Rule::SWITCHABLE.into_iter().chain([Rule::Temporal]).collect();
    assert_eq!(all, switchable);
    assert_eq!(all.len(), Rule::SWITCHABLE.len() + 1, "none is there twice");
}

#[test]
fn programs_that_need_a_rule_go_wrong_without_it_and_only_then() {
    for rule in Rule::SWITCHABLE {
        for example in examples(rule) {
            let (text, order) = (example.text(), example.order);
            let all = verified(&text, order, Switches::default());
            assert!(all.holds(), "{order}, all rules: {all}\n{text}");
            let with = verified(&text, order, example.switches(rule, true));
            assert!(with.holds(), "{order}, {rule:?} is not enough: {with}\n{text}");
            let without = verified(&text, order, example.switches(rule, false));
            assert!(!without.holds(), "{order}, {rule:?} is not needed: {without}\n{text}");
            assert_eq!(without.orders, ORDERS);
        }
    }
}

/// The rules that an order asks for in any program of the table, with rules off and on.
fn asked(order: &str) -> BTreeSet<Rule> {
    let mut asked = BTreeSet::new();
    let table =
        Rule::SWITCHABLE.into_iter().flat_map(|rule| examples(rule).iter().map(move |one| (rule, one)));
    for (rule, example) in table {
        for switches in [Switches::default(), example.switches(rule, true)] {
            let compiled = compiled(&example.text(), switches);
            asked.extend(compiled.order(order).expect("it is compiled").asked.keys());
        }
    }
    asked
}

#[test]
fn each_order_has_an_example_for_each_of_its_rules() {
    for order in ["weir", "root"] {
        let has = |rule: &Rule| examples(*rule).iter().any(|example| example.order == order);
        let shown: BTreeSet<Rule> = Rule::SWITCHABLE.into_iter().filter(has).collect();
        assert_eq!(asked(order), shown, "{order}");
    }
}

#[test]
fn one_action_at_a_time_leaves_one_order() {
    for order in ["weir", "root"] {
        let switches = Switches::without(Rule::SWITCHABLE).with_program_sequence();
        let alone = verified(&format!("{THREADS}{SEVERAL}"), order, switches);
        assert!(alone.holds() && alone.distinct == 1, "{alone}");
    }
}

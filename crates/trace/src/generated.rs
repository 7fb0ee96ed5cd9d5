//! A trace as long as one likes, in strace's words: threads that open, read, write, rename and close files of a bounded set,
//! with calls that overlap. For measuring what compiling takes.

use device::SeededRng;
use std::fmt::Write;
use std::io::{self, Read};

/// What to generate.
#[derive(Debug, Clone, Copy)]
pub struct GeneratedTrace {
    /// How many calls.
    pub calls: u64,
    /// By how many threads of one process.
    pub threads: u32,
    /// How many files each thread has for itself; as many are shared and only read and written in place.
    pub files: u32,
    /// Of the random choices.
    pub seed: u64,
}

/// Text that is made as it is read.
#[derive(Debug)]
pub struct GeneratedText {
    what: GeneratedTrace,
    /// Of each own file.
    names: u32,
    random: SeededRng,
    threads: Vec<Thread>,
    /// What the first thread does before it makes the others, last call first, and the results.
    beginning: Vec<(String, String)>,
    /// Threads that the first has made, itself among them.
    alive: u32,
    left: u64,
    /// Nanoseconds.
    clock: u64,
    text: String,
    given: usize,
}

#[derive(Debug, Clone, Default)]
struct Thread {
    /// The file that it has open, and how many more calls it makes on it.
    open: Option<(File, u64)>,
    /// A call of which the first half is written: when it began, its name and its result.
    under_way: Option<(u64, &'static str, String)>,
    /// How often each own file got another name.
    renamed: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
enum File {
    Own(u32),
    Shared(u32),
}

/// The first stamp.
const EPOCH: u64 = 1_700_000_000_000_000_000;
/// Bytes of each shared file.
const SHARED_BYTES: u64 = 1 << 20;
/// The first thread's number.
const FIRST: u32 = 1000;

impl GeneratedTrace {
    /// Its text. A thread's own file has two names, by turns.
    pub fn text(self) -> GeneratedText {
        self.with_names(2)
    }

    /// The same with a new name for each new file, as programs name temporary ones.
    pub fn text_with_fresh_names(self) -> GeneratedText {
        self.with_names(u32::MAX)
    }

    fn with_names(self, names: u32) -> GeneratedText {
        let files = self.files.max(1) as usize;
        let threads = self.threads.max(1) as usize;
        let thread = Thread { renamed: vec![0; files], ..Thread::default() };
        GeneratedText {
            what: self,
            names,
            random: SeededRng::new(self.seed),
            threads: vec![thread; threads],
            beginning: (0..files).flat_map(beginning).collect(),
            alive: 1,
            left: self.calls,
            clock: EPOCH,
            text: String::new(),
            given: 0,
        }
    }
}

impl GeneratedText {
    /// Writes the next line; false at the end, when nothing is under way any more.
    fn next_line(&mut self) -> bool {
        self.clock += 200 + self.random.below(20_000);
        match self.left {
            0 => match self.threads.iter().position(|thread| thread.under_way.is_some()) {
                Some(number) => self.resume(number),
                None => return false,
            },
            _ => self.next_call(),
        }
        true
    }

    fn next_call(&mut self) {
        // The first thread shows first how long the shared files are.
        if let Some((call, result)) = self.beginning.pop() {
            return self.whole(0, &call, &result);
        }
        let all = self.threads.len() as u32;
        if self.alive < all {
            let child = FIRST + self.alive;
            self.alive += 1;
            let flags = "CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD";
            return self.whole(0, &format!("clone(child_stack=0x7f00, flags={flags}"), &child.to_string());
        }
        let number = self.random.index(self.threads.len());
        if self.threads[number].under_way.is_some() {
            return self.resume(number);
        }
        let (call, result) = self.call(number);
        // A quarter of all calls is under way while others come and go.
        if self.random.below(4) == 0 {
            let stamp = self.stamp(number);
            self.text_line(&format!("{stamp} {call} <unfinished ...>"));
            let name = NAMES.into_iter().find(|name| call.starts_with(name)).unwrap_or("close");
            self.threads[number].under_way = Some((self.clock, name, result));
            self.left = self.left.saturating_sub(1);
        } else {
            self.whole(number, &call, &result);
        }
    }

    fn resume(&mut self, number: usize) {
        let Some((began, name, result)) = self.threads[number].under_way.take() else { return };
        let (stamp, took) = (self.stamp(number), seconds(self.clock - began));
        self.text_line(&format!("{stamp} <... {name} resumed>) = {result} <{took}>"));
    }

    fn whole(&mut self, number: usize, call: &str, result: &str) {
        let stamp = self.stamp(number);
        let took = 100 + self.random.below(100);
        self.text_line(&format!("{stamp} {call}) = {result} <{}>", seconds(took)));
        self.left = self.left.saturating_sub(1);
    }

    fn stamp(&self, number: usize) -> String {
        format!("{} {}", FIRST as usize + number, seconds(self.clock))
    }

    fn text_line(&mut self, line: &str) {
        writeln!(self.text, "{line}").expect("memory does not fail");
    }

    /// The next call of a thread, without its closing bracket, and its result.
    fn call(&mut self, number: usize) -> (String, String) {
        let fd = 100 + number;
        let files = self.what.files.max(1);
        let Some((file, left)) = self.threads[number].open else {
            let which = self.random.below(u64::from(files)) as u32;
            let file = if self.random.below(4) == 0 { File::Shared(which) } else { File::Own(which) };
            self.threads[number].open = Some((file, 4 + self.random.below(8)));
            let path = self.path(number, file);
            let flags = if let File::Own(_) = file { "O_RDWR|O_CREAT|O_CLOEXEC, 0644" } else { "O_RDWR" };
            let call = format!("openat(AT_FDCWD</srv/app>, \"{path}\", {flags}");
            return (call, format!("{fd}</srv/app/{path}>"));
        };
        let path = self.path(number, file);
        self.threads[number].open = left.checked_sub(1).map(|left| (file, left));
        let at = self.random.below(SHARED_BYTES / 4096) * 4096;
        match (left, file) {
            (0, _) => (format!("close({fd}</srv/app/{path}>"), "0".into()),
            (1, File::Own(which)) if self.random.below(3) == 0 => {
                self.threads[number].renamed[which as usize] += 1;
                let to = self.path(number, file);
                (format!("rename(\"/srv/app/{path}\", \"/srv/app/{to}\""), "0".into())
            }
            (1, File::Own(which)) if self.random.below(2) == 0 => {
                self.threads[number].renamed[which as usize] += u32::from(self.names > 2);
                (format!("unlink(\"/srv/app/{path}\""), "0".into())
            }
            _ if self.random.below(3) == 0 => {
                (format!("pwrite64({fd}</srv/app/{path}>, \"\"..., 4096, {at}"), "4096".into())
            }
            (_, File::Shared(_)) => {
                (format!("pread64({fd}</srv/app/{path}>, \"\"..., 4096, {at}"), "4096".into())
            }
            _ => (format!("fdatasync({fd}</srv/app/{path}>"), "0".into()),
        }
    }

    fn path(&self, number: usize, file: File) -> String {
        match file {
            File::Shared(which) => format!("shared/{which}"),
            File::Own(which) => {
                let turn = self.threads[number].renamed[which as usize] % self.names;
                format!("own{number}/{which}.{turn}")
            }
        }
    }
}

/// The calls that are made here, but close.
const NAMES: [&str; 6] = ["openat", "rename", "unlink", "pwrite64", "pread64", "fdatasync"];

/// The calls that show a shared file's length, last call first.
fn beginning(file: usize) -> [(String, String); 3] {
    let (path, at) = (format!("shared/{file}"), SHARED_BYTES - 4096);
    [
        (format!("close(99</srv/app/{path}>"), "0".into()),
        (format!("pread64(99</srv/app/{path}>, \"\"..., 4096, {at}"), "4096".into()),
        (format!("openat(AT_FDCWD</srv/app>, \"{path}\", O_RDWR"), format!("99</srv/app/{path}>")),
    ]
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

impl Read for GeneratedText {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.given == self.text.len() {
            self.text.clear();
            self.given = 0;
            while self.text.len() < to.len() && self.next_line() {}
        }
        let bytes = &self.text.as_bytes()[self.given..];
        let count = bytes.len().min(to.len());
        to[..count].copy_from_slice(&bytes[..count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{Benchmark, CompileSettings, Inventory, compile, compile_to};
    use crate::parse::Strace;
    use std::io::BufReader;

    const SMALL: GeneratedTrace = GeneratedTrace { calls: 20_000, threads: 6, files: 10, seed: 1 };

    #[test]
    fn every_call_of_a_generated_trace_is_executed_or_known_and_explained() {
        let mut source = Strace::new(BufReader::new(SMALL.text()));
        let settings = CompileSettings::default();
        let benchmark = compile(&mut source, "generated".as_ref(), &settings).expect("it compiles");
        assert_eq!((benchmark.actions.len(), benchmark.about.threads), (20_000, 6));
        assert_eq!((benchmark.about.problems, benchmark.about.unfinished), (Vec::new(), 0));
        assert_eq!(benchmark.about.repairs, crate::Repairs::default());
    }

    #[test]
    fn new_files_have_new_names_if_asked_for() {
        let names = |text| {
            let mut source = Strace::new(BufReader::new(text));
            let settings = CompileSettings::default();
            let benchmark = compile(&mut source, "generated".as_ref(), &settings).expect("it compiles");
            assert_eq!(benchmark.about.repairs, crate::Repairs::default());
            benchmark.names.len()
        };
        assert!(names(SMALL.text()) < 500 && names(SMALL.text_with_fresh_names()) > 1000);
    }

    #[test]
    fn a_benchmark_compiled_into_a_file_is_the_one_compiled_in_memory() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (streamed, written) = (dir.path().join("streamed"), dir.path().join("written"));
        let settings = CompileSettings::default();
        let source = || Strace::new(BufReader::new(SMALL.text()));
        compile_to(&mut source(), "generated".as_ref(), &settings, &streamed).expect("it compiles");
        let benchmark = compile(&mut source(), "generated".as_ref(), &settings).expect("it compiles");
        benchmark.write(&written).expect("it is written");
        assert!(
            std::fs::read(&streamed).expect("it is there") == std::fs::read(&written).expect("it is there")
        );
        assert!(Benchmark::read(&streamed).expect("it is whole") == benchmark);
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 2, "nothing else is left");
        let inventory = Inventory::read(&streamed).expect("it is whole");
        assert_eq!((inventory.actions, inventory.fates), (20_000, benchmark.fates()));
        for (order, counted) in benchmark.orders.iter().zip(inventory.orders) {
            assert_eq!(
                (&order.name, order.kept(), &order.asked),
                (&counted.name, counted.kept.clone(), &counted.asked)
            );
            assert_eq!(order.waits.len() as u64, counted.edges());
        }
    }
}

//! Slices of traces: each compiles or fails with an error. They imitate a tracer that attaches to a running
//! program, a full disk, and output that no tracer writes.
//!
//! Slices are drawn at random from the recorded programs. `WEIR_SLICES=FIRST,COUNT,LINES` runs other seeds,
//! with at most LINES lines each.

use device::SeededRng;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use trace_compile::{CompileSettings, Strace};
use trace_file::{CompiledTrace, TraceError};

const TRACES: [&str; 7] = [
    "cargo-build.strace.gz",
    "fio-libaio-2threads.strace.gz",
    "generated-11.strace.gz",
    "generated-145.strace.gz",
    "git-clone-nolocal.strace.gz",
    "shapes.strace",
    "sqlite-wal-6threads.strace.gz",
];
/// Numbers at which sums and conversions go wrong.
const EXTREMES: [&str; 9] = [
    "0",
    "1",
    "-1",
    "2147483647",
    "2147483648",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
];

type Line = Vec<u8>;

fn lines(file: &str) -> Vec<Line> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    let text = BufReader::new(trace_compile::open_text(&path).expect("the trace is there"));
    text.split(b'\n').collect::<Result<_, _>>().expect("the trace can be read")
}

/// A random index of a list of that length; 0 for an empty list.
fn below(random: &mut SeededRng, limit: usize) -> usize {
    random.index(limit.max(1))
}

/// Consecutive lines of a trace, with random damage.
fn slice(traces: &[Vec<Line>], most: usize, random: &mut SeededRng) -> Vec<Line> {
    let all = &traces[below(random, traces.len())];
    let count = 1 + below(random, most);
    let first = below(random, all.len().saturating_sub(count));
    let mut slice = all[first..all.len().min(first + count)].to_vec();
    if random.once_in(3) {
        let kept = 1 + below(random, 4);
        slice.retain(|_| below(random, 5) < kept);
    }
    if random.once_in(4) {
        let other = &traces[below(random, traces.len())];
        let at = below(random, other.len());
        slice.extend_from_slice(&other[at..other.len().min(at + 50)]);
    }
    if random.once_in(3) {
        let few = 1 + below(random, 4);
        slice.iter_mut().for_each(|line| another_task(line, few, random));
    }
    let rounds = if random.once_in(2) { below(random, slice.len()) } else { 0 };
    for _ in 0..rounds {
        let at = below(random, slice.len());
        spoil(&mut slice, at, random);
    }
    slice
}

/// Gives a call to another task.
fn another_task(line: &mut Line, few: usize, random: &mut SeededRng) {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > 0 && line.get(digits) == Some(&b' ') {
        line.splice(..digits, below(random, few).to_string().into_bytes());
    }
}

/// Damages one line.
fn spoil(slice: &mut Vec<Line>, at: usize, random: &mut SeededRng) {
    let length = slice[at].len();
    match below(random, 6) {
        0 => slice[at].truncate(below(random, length)),
        1 => {
            let other = below(random, slice.len());
            slice.swap(at, other);
        }
        2 => {
            let again = slice[at].clone();
            slice.insert(below(random, slice.len()), again);
        }
        3 => number(&mut slice[at], EXTREMES[below(random, EXTREMES.len())], random),
        4 if length > 0 => slice[at][below(random, length)] = random.next_u64() as u8,
        _ => {
            // Take the descriptor, task, address or size of another line.
            let other = below(random, slice.len());
            let found = numbers(&slice[other]);
            if let Some(range) = found.get(below(random, found.len())) {
                let text = String::from_utf8_lossy(&slice[other][range.clone()]).into_owned();
                number(&mut slice[at], &text, random);
            }
        }
    }
}

/// Replaces a number of the line.
fn number(line: &mut Line, text: &str, random: &mut SeededRng) {
    let found = numbers(line);
    if let Some(range) = found.get(below(random, found.len())) {
        line.splice(range.clone(), text.bytes());
    }
}

fn numbers(line: &[u8]) -> Vec<Range<usize>> {
    let digit = |at: usize| line.get(at).is_some_and(u8::is_ascii_digit);
    let begins = (0..line.len()).filter(|at| digit(*at) && !(*at > 0 && digit(at - 1)));
    begins.map(|begin| begin..(begin..).find(|at| !digit(*at)).expect("a line ends")).collect()
}

/// Compiles a slice, reads the result back, and runs the other verbs on it.
fn compile(text: &[u8]) -> Result<CompiledTrace, TraceError> {
    let settings = CompileSettings { used_percent_min: 0, ..CompileSettings::default() };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("compiled");
    trace_compile::compile_to(&mut Strace::new(text), "slice".as_ref(), &settings, &path)?;
    let compiled = CompiledTrace::read(&path).expect("what was compiled can be read");
    assert_in_order(&compiled);
    for order in ["weir", "root"] {
        trace_verify::verify(&compiled, order, 2, 1)?;
    }
    Ok(compiled)
}

/// The seeds, and the maximum number of lines. Contradictions cost much search, so short slices cover more in
/// a second.
fn chosen() -> (Range<u64>, usize) {
    let chosen = std::env::var("WEIR_SLICES").unwrap_or_else(|_| "1,500,60".into());
    let numbers: Vec<u64> = chosen.split(',').filter_map(|number| number.parse().ok()).collect();
    let [first, count, lines] = numbers[..] else { panic!("WEIR_SLICES is FIRST,COUNT,LINES, not {chosen}") };
    (first..first + count, lines as usize)
}

/// Asserts that every thread keeps the order of its calls.
fn assert_in_order(compiled: &CompiledTrace) {
    let mut last = BTreeMap::new();
    for action in &compiled.actions {
        let now = (action.start, action.line);
        let before = last.insert(action.thread, now);
        // A call that began before the first action has no time of its own.
        let known = before <= Some(now) || action.start == 0;
        assert!(known, "line {} comes after {before:?} of its thread", action.line);
    }
}

/// Regression: a reordered call pulled in the next call of the very task whose result was being explained.
#[test]
fn a_thread_keeps_the_order_of_its_calls_whatever_contradicts_them() {
    let traces = TRACES.map(lines);
    for seed in [1_000_591, 1_008_748] {
        let text = slice(&traces, 100, &mut SeededRng::new(seed)).join(&b'\n');
        assert_in_order(&compile(&text).expect("it compiles"));
    }
}

#[test]
fn no_slice_of_a_trace_panics() {
    let traces = TRACES.map(lines);
    let (mut compiled, mut refused) = (0, 0);
    let (seeds, most) = chosen();
    for seed in seeds {
        let text = slice(&traces, most, &mut SeededRng::new(seed)).join(&b'\n');
        let found = catch_unwind(AssertUnwindSafe(|| compile(&text)));
        let Ok(found) = found else {
            let kept = std::env::temp_dir().join(format!("weir-slice-{seed}.strace"));
            std::fs::write(&kept, &text).expect("the slice is kept");
            panic!("WEIR_SLICES={seed},1,{most} panics: {}", kept.display());
        };
        match found {
            Ok(found) => compiled += usize::from(!found.actions.is_empty()),
            // The only accepted error is a slice without calls.
            Err(error) => {
                assert!(matches!(error, TraceError::Empty { .. }), "seed {seed}: {error}");
                refused += 1;
            }
        }
    }
    println!("{compiled} slices compiled, {refused} had no call");
    assert!(compiled > 10 * refused, "{refused} slices had no call");
}

/// A write, an fstat that contradicts it, and a first call of a task whose clone is not in the trace.
#[test]
fn a_task_that_the_trace_never_shows_being_made_overlaps_a_contradiction() {
    let text = "7 1700000000.3128 write(9</w/a>, \"\"..., 5) = 5 <0.0001>\n\
        7 1700000000.3132 newfstatat(9</w/a>, \"\", {st_mode=S_IFREG|0644, st_size=15, ...}, AT_EMPTY_PATH) = 0 <0.0001>\n\
        8 1700000000.3133 write(2</w/out>, \"\"..., 67) = 67 <0.0001>\n";
    let compiled = compile(text.as_bytes()).expect("it compiles");
    assert_eq!((compiled.actions.len(), compiled.about.threads, compiled.about.repairs.races), (3, 2, 1));
}

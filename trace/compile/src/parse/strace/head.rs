//! The beginning of a line: task, time, and the start of the rest. strace prints the same fields in the same
//! order with all options, and each field may be missing:
//!
//! | field | printed as | by |
//! |---|---|---|
//! | task | `7 `, `[pid  7] `, `7<name> `, `[pid 7<name>] ` | `-f`; with `-o` always, else while there are several; `-Y` |
//! | clock | `12:00:00.5 `, `1700000000.5 ` | `-t`, `-tt`, `-ttt`, `--absolute-timestamps` |
//! | pause | `     0.000072 `; behind a clock `(+     0.000072) ` | `-r`, `--relative-timestamps` |
//! | number of the call | `[ 257] ` | `-n` |
//! | instruction pointer | `[00007fa1a2d198d9] `, `[????????????????] ` | `-i` |

/// The fields at the beginning of a line, and the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineHead<'a> {
    /// The task's number; `None` if strace omits it.
    pub(super) pid: Option<u32>,
    pub(super) stamp: Stamp,
    /// Without spaces around it.
    pub(super) rest: &'a [u8],
}

/// The time of a line, in nanoseconds, on one of strace's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stamp {
    /// The line has no stamp.
    Missing,
    /// Since the epoch.
    Epoch(u64),
    /// Since midnight.
    Day(u64),
    /// Since the line before.
    Pause(u64),
}

/// Linux task numbers are lower than this, so a greater number at a line's beginning is a stamp in whole
/// seconds.
const PID_MAX: u64 = 1 << 22;
/// Smaller stamps are pauses: no trace was taken in the first three years of the epoch.
const EPOCH_SECONDS_MIN: u64 = 100_000_000;
/// The width of a pause's whole seconds, which strace pads with spaces.
const PAUSE_WIDTH: usize = 6;
const SECOND: u64 = 1_000_000_000;

impl<'a> LineHead<'a> {
    /// Reads the beginning of any line. A field of another kind belongs to the rest.
    pub(super) fn parse(line: &'a [u8]) -> LineHead<'a> {
        let (pid, rest) = pid(line);
        let (stamp, rest) = stamp(rest.trim_ascii_start());
        let rest = match stamp {
            Stamp::Epoch(_) | Stamp::Day(_) => second_clock(rest),
            Stamp::Missing | Stamp::Pause(_) => rest,
        };
        let rest = in_brackets(in_brackets(rest));
        LineHead { pid, stamp, rest: rest.trim_ascii() }
    }
}

/// The task's number.
fn pid(line: &[u8]) -> (Option<u32>, &[u8]) {
    let text = line.trim_ascii_start();
    let bracket = text.strip_prefix(b"[pid").map(<[u8]>::trim_ascii_start);
    let (digits, after) = digits(bracket.unwrap_or(text));
    let number = decimal(digits).filter(|number| *number <= PID_MAX).map(|number| number as u32);
    let end = if bracket.is_some() { b']' } else { b' ' };
    let after = without_note(after);
    match number {
        // Only the spaces before it distinguish a pause in whole seconds from a task.
        Some(_)
            if bracket.is_none()
                && is_pause(line, digits)
                && stamp(after.trim_ascii_start()).0.is_missing() =>
        {
            (None, line)
        }
        Some(number) if after.first() == Some(&end) => (Some(number), &after[1..]),
        _ => (None, line),
    }
}

/// Whether the digits are where strace prints a pause's whole seconds.
fn is_pause(line: &[u8], digits: &[u8]) -> bool {
    let spaces = line.len() - line.trim_ascii_start().len();
    spaces > 0 && spaces + digits.len() == PAUSE_WIDTH
}

/// The text after the program's name in angle brackets, if any. strace escapes brackets in the name itself.
fn without_note(text: &[u8]) -> &[u8] {
    let note = text.strip_prefix(b"<");
    let end = note.and_then(|note| note.iter().position(|byte| *byte == b'>'));
    match (note, end) {
        (Some(note), Some(end)) => &note[end + 1..],
        _ => text,
    }
}

fn stamp(text: &[u8]) -> (Stamp, &[u8]) {
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    match instant(&text[..end]) {
        Some(stamp) => (stamp, text[end..].trim_ascii_start()),
        None => (Stamp::Missing, text),
    }
}

fn instant(token: &[u8]) -> Option<Stamp> {
    let parts: Vec<&[u8]> = token.split(|byte| *byte == b':').collect();
    match parts[..] {
        [hours, minutes, seconds] => {
            let minutes = decimal(hours)?.checked_mul(60)?.checked_add(decimal(minutes)?)?;
            let whole = minutes.checked_mul(60)?.checked_mul(SECOND)?;
            Some(Stamp::Day(whole.checked_add(nanoseconds(seconds)?)?))
        }
        [seconds] => {
            let nanos = nanoseconds(seconds)?;
            Some(if nanos < EPOCH_SECONDS_MIN * SECOND { Stamp::Pause(nanos) } else { Stamp::Epoch(nanos) })
        }
        _ => None,
    }
}

/// The text after the pause that follows a clock. The clock is more exact, so the pause is ignored.
fn second_clock(text: &[u8]) -> &[u8] {
    let inner = text.strip_prefix(b"(+").map(<[u8]>::trim_ascii_start);
    let end = inner.and_then(|inner| inner.iter().position(|byte| *byte == b')'));
    match (inner, end) {
        (Some(inner), Some(end)) if nanoseconds(&inner[..end]).is_some() => {
            inner[end + 1..].trim_ascii_start()
        }
        _ => text,
    }
}

/// The text after a number in square brackets.
fn in_brackets(text: &[u8]) -> &[u8] {
    let inner = text.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    let end = inner.and_then(|inner| inner.iter().position(|byte| *byte == b']'));
    let is_number = |text: &[u8]| {
        !text.is_empty() && text.iter().all(|byte| byte.is_ascii_hexdigit() || b"x?-".contains(byte))
    };
    match (inner, end) {
        (Some(inner), Some(end)) if is_number(&inner[..end]) && inner.get(end + 1) == Some(&b' ') => {
            inner[end + 1..].trim_ascii_start()
        }
        _ => text,
    }
}

impl Stamp {
    fn is_missing(self) -> bool {
        self == Stamp::Missing
    }
}

fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

/// `1.5` is 1,500,000,000. At most nine digits of a fraction count.
pub(super) fn nanoseconds(text: &[u8]) -> Option<u64> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole = decimal(parts.next()?)?.checked_mul(SECOND)?;
    let Some(fraction) = parts.next() else { return Some(whole) };
    let digits = &fraction[..fraction.len().min(9)];
    let scale = 10u64.pow(9 - digits.len() as u32);
    whole.checked_add(decimal(digits)?.checked_mul(scale)?)
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = "close(3) = 0";

    fn head(begin: &str) -> (Option<u32>, Stamp) {
        let line = format!("{begin}{CALL}");
        let head = LineHead::parse(line.as_bytes());
        assert_eq!(head.rest, CALL.as_bytes(), "{begin}");
        (head.pid, head.stamp)
    }

    const EPOCH: Stamp = Stamp::Epoch(1_700_000_000 * SECOND);
    const HALF: Stamp = Stamp::Pause(SECOND / 2);

    #[test]
    fn task_is_read_in_all_its_forms() {
        for begin in [
            "7 ",
            "7     ",
            "[pid 7] ",
            "[pid     7] ",
            "7<cat> ",
            "7<a\\76 ]b>   ",
            "[pid     7<a\\76 ]b>] ",
        ] {
            assert_eq!(head(begin), (Some(7), Stamp::Missing), "{begin}");
        }
        assert_eq!(head(""), (None, Stamp::Missing));
        // A task number may be indented.
        assert_eq!(head("    12345 "), (Some(12345), Stamp::Missing));
        assert_eq!(head("     7  12:00:00 "), (Some(7), Stamp::Day(43_200 * SECOND)));
    }

    #[test]
    fn clock_is_read_in_all_its_forms() {
        for task in ["", "7 ", "[pid 7] "] {
            let stamp = |clock: &str| head(&format!("{task}{clock}")).1;
            assert_eq!(stamp("00:01:01 "), Stamp::Day(61 * SECOND));
            assert_eq!(stamp("00:01:01.000000001 "), Stamp::Day(61 * SECOND + 1));
            assert_eq!(stamp("1700000000.5 "), Stamp::Epoch(1_700_000_000 * SECOND + SECOND / 2));
            assert_eq!(stamp("     0.500000 "), HALF);
        }
    }

    #[test]
    fn whole_seconds_are_no_task() {
        assert_eq!(head("1700000000 "), (None, EPOCH));
        assert_eq!(head("7 1700000000 "), (Some(7), EPOCH));
        assert_eq!(head("     3 "), (None, Stamp::Pause(3 * SECOND)));
        assert_eq!(head("7          3 "), (Some(7), Stamp::Pause(3 * SECOND)));
    }

    #[test]
    fn second_clock_is_left_out() {
        assert_eq!(head("7 1700000000 (+     0.000072) "), (Some(7), EPOCH));
        assert_eq!(head("1700000000 (+     2) "), (None, EPOCH));
    }

    #[test]
    fn number_of_call_and_instruction_pointer_are_left_out() {
        assert_eq!(head("[ 257] "), (None, Stamp::Missing));
        assert_eq!(head("7 [00007fa1a2d198d9] "), (Some(7), Stamp::Missing));
        let all = "[pid 7<cat>] 1700000000 (+     0.000072) [   3] [????????????????] ";
        assert_eq!(head(all), (Some(7), EPOCH));
    }

    #[test]
    fn remark_in_brackets_is_no_number() {
        let remark = b"[ Process PID=7 runs in 32 bit mode. ]";
        assert_eq!(LineHead::parse(remark), LineHead { pid: None, stamp: Stamp::Missing, rest: remark });
    }

    #[test]
    fn every_cut_of_a_line_is_read() {
        let line =
            b"[pid     7<a\\76 ]b>] 12:00:00.5 (+     0.000072) [ 257] [00007fa1a2d198d9] close(3) = 0";
        for end in 0..=line.len() {
            for begin in 0..=end {
                let cut = &line[begin..end];
                assert!(LineHead::parse(cut).rest.len() <= cut.len());
            }
        }
    }
}

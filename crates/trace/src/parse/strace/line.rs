//! The beginning of a line: which task, when, and what kind of line it is.

/// One line, split.
pub(super) struct Line<'a> {
    pub(super) task: u32,
    /// Nanoseconds.
    pub(super) stamp: u64,
    pub(super) body: Body<'a>,
}

pub(super) enum Body<'a> {
    /// A whole call.
    Call(&'a [u8]),
    /// `call(args <unfinished ...>`, without that mark.
    Unfinished(&'a [u8]),
    /// What follows `<... call resumed>`.
    Resumed(&'a [u8]),
    /// The task ended.
    Ended,
    /// A signal, a remark of strace, or nothing.
    Nothing,
}

/// Turns stamps of any form into nanoseconds that do not go backwards at midnight.
#[derive(Default)]
pub(super) struct Clock {
    /// Sum of relative stamps, or days that have passed.
    base: u64,
    last: u64,
}

const DAY: u64 = 24 * 3600 * SECOND;
const SECOND: u64 = 1_000_000_000;
/// Smaller stamps are `-r`'s differences: no trace was taken in the first three years of the epoch.
const EPOCH_SECONDS_MIN: u64 = 100_000_000;

impl<'a> Line<'a> {
    /// `None` if the line is of no known kind.
    pub(super) fn parse(text: &'a [u8], clock: &mut Clock, number: u64) -> Option<Line<'a>> {
        let (task, rest) = task_of(text);
        let (stamp, rest) = match clock.stamp(rest) {
            Some(found) => found,
            // Without a clock, the order of the lines is all there is.
            None => (number, rest),
        };
        Some(Line { task, stamp, body: body_of(rest.trim_ascii())? })
    }
}

fn task_of(text: &[u8]) -> (u32, &[u8]) {
    if let Some(rest) = text.strip_prefix(b"[pid") {
        let close = rest.iter().position(|byte| *byte == b']');
        let number = close.and_then(|close| decimal(rest[..close].trim_ascii()));
        if let (Some(close), Some(task)) = (close, number) {
            return (task as u32, rest[close + 1..].trim_ascii_start());
        }
    }
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let after = &text[digits..];
    match decimal(&text[..digits]) {
        // A name follows a task's number; only a stamp is followed by more of a number.
        Some(task) if after.starts_with(b" ") && u32::try_from(task).is_ok() => {
            (task as u32, after.trim_ascii_start())
        }
        _ => (0, text),
    }
}

fn body_of(rest: &[u8]) -> Option<Body<'_>> {
    if rest.is_empty()
        || rest.starts_with(b"--- ")
        || rest.starts_with(b"strace: ")
        || rest.starts_with(b"[ ")
    {
        return Some(Body::Nothing);
    }
    if rest.starts_with(b"+++ ") {
        return Some(Body::Ended);
    }
    if rest.starts_with(b"<... ") {
        let mark = b"resumed>";
        let at = rest.windows(mark.len()).position(|window| window == mark)?;
        return Some(Body::Resumed(&rest[at + mark.len()..]));
    }
    if let Some(begin) = rest.strip_suffix(b"<unfinished ...>") {
        return Some(Body::Unfinished(begin));
    }
    let name = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    (name > 0 && rest.get(name) == Some(&b'(')).then_some(Body::Call(rest))
}

impl Clock {
    fn stamp<'a>(&mut self, text: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let end = text.iter().position(|byte| *byte == b' ')?;
        let (token, rest) = (&text[..end], text[end..].trim_ascii_start());
        let parts: Vec<&[u8]> = token.split(|byte| *byte == b':').collect();
        let stamp = match parts[..] {
            [hours, minutes, seconds] => {
                let day =
                    decimal(hours)?.checked_mul(3600)?.checked_add(decimal(minutes)?.checked_mul(60)?)?;
                let day = day.checked_mul(SECOND)?.checked_add(nanoseconds(seconds)?)?;
                // A step back of more than half a day is midnight; a smaller one is another task's line.
                let stamp = self.base.checked_add(day)?;
                if stamp.checked_add(DAY / 2)? < self.last {
                    self.base = self.base.checked_add(DAY)?;
                }
                self.base.checked_add(day)?
            }
            [seconds] => {
                let stamp = nanoseconds(seconds)?;
                if stamp < EPOCH_SECONDS_MIN * SECOND {
                    self.base = self.base.checked_add(stamp)?;
                    self.base
                } else {
                    stamp
                }
            }
            _ => return None,
        };
        self.last = stamp;
        Some((stamp, rest))
    }
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

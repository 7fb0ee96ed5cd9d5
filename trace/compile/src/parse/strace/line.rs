//! The rest of a line after its head: a call, a part of a call, or a remark.

use super::head::decimal;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineBody<'a> {
    /// A whole call.
    Call(&'a [u8]),
    /// `call(args <unfinished ...>`, without the mark.
    Unfinished(&'a [u8]),
    /// `execve(args <pid changed to 7 ...>`: the exec of a thread, which continues under its process's
    /// number.
    Renumbered(&'a [u8], u32),
    /// `<... call resumed>`, and what follows.
    Resumed { name: &'a [u8], rest: &'a [u8] },
    /// The task ended.
    Ended,
    /// The task ended because thread `by` of its process called exec and takes over its number.
    Superseded { by: u32 },
    /// strace follows one more task.
    Attached(u32),
    /// strace no longer follows a task.
    Detached(u32),
    /// A signal, another remark of strace, text printed beside a call, or an empty line.
    Nothing,
}

/// Reads the rest of a line. `None` if its kind is unknown.
pub(super) fn body(rest: &[u8]) -> Option<LineBody<'_>> {
    /// Signals, strace's remarks, stacks (`-k`) and dumps (`-e read`).
    const NOTHING: [&[u8]; 5] = [b"--- ", b"strace: ", b"[ ", b"> ", b"| 0"];
    if let Some(remark) = remark(rest) {
        return Some(remark);
    }
    if rest.is_empty() || NOTHING.iter().any(|begin| rest.starts_with(begin)) {
        return Some(LineBody::Nothing);
    }
    if let Some(ended) = rest.strip_prefix(b"+++ ") {
        let by = ended.strip_prefix(b"superseded by execve in pid ").and_then(leading_number);
        return Some(by.map_or(LineBody::Ended, |by| LineBody::Superseded { by }));
    }
    if let Some(resumed) = rest.strip_prefix(b"<... ") {
        let mark = b" resumed>";
        let at = resumed.windows(mark.len()).position(|window| window == mark)?;
        let rest = &resumed[at + mark.len()..];
        // strace prints a call that an exec has ended with both marks.
        let rest = rest.trim_ascii_start().strip_prefix(b"<unfinished ...>").unwrap_or(rest);
        return Some(LineBody::Resumed { name: &resumed[..at], rest });
    }
    if let Some(body) = begun(rest) {
        return Some(body);
    }
    let name = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    (name > 0 && rest.get(name) == Some(&b'(')).then_some(LineBody::Call(rest))
}

/// The first half of a call, by the mark at its end.
fn begun(rest: &[u8]) -> Option<LineBody<'_>> {
    let open = rest.iter().rposition(|byte| *byte == b'<')?;
    match rest[open + 1..].strip_suffix(b" ...>")? {
        b"unfinished" | b"detached" => Some(LineBody::Unfinished(&rest[..open])),
        mark => {
            let number = leading_number(mark.strip_prefix(b"pid changed to ")?)?;
            Some(LineBody::Renumbered(&rest[..open], number))
        }
    }
}

/// `strace: Process 7 attached`, and the older forms of this remark.
fn remark(rest: &[u8]) -> Option<LineBody<'_>> {
    let rest = rest.strip_prefix(b"strace: ").unwrap_or(rest);
    let process = rest.strip_prefix(b"Process ")?;
    let pid = leading_number(process)?;
    let said = |what: &[u8]| process.windows(what.len()).any(|window| window == what);
    Some(match () {
        () if said(b" attached") => LineBody::Attached(pid),
        () if said(b" detached") => LineBody::Detached(pid),
        () if said(b" suspended") || said(b" resumed") => LineBody::Nothing,
        () => return None,
    })
}

/// A call that a remark cuts in two, when strace's output and remarks go to the same place. Returns the first
/// part of the call, and the remark. The second part is on the next line.
pub(super) fn cut_by_remark(rest: &[u8]) -> Option<(&[u8], LineBody<'_>)> {
    if !rest.ends_with(b"attached") && !rest.ends_with(b"detached") {
        return None;
    }
    let mark = b"Process ";
    let at = rest.windows(mark.len()).rposition(|window| window == mark)?;
    let remark = remark(&rest[at..])?;
    let part = rest[..at].strip_suffix(b"strace: ").unwrap_or(&rest[..at]);
    matches!(body(part), Some(LineBody::Call(_))).then_some((part, remark))
}

fn leading_number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    u32::try_from(decimal(&text[..digits])?).ok()
}

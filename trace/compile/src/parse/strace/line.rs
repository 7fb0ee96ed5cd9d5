//! What a line says, once its head is read.

use super::head::decimal;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body<'a> {
    /// A whole call.
    Call(&'a [u8]),
    /// `call(args <unfinished ...>`, without that mark.
    Unfinished(&'a [u8]),
    /// `execve(args <pid changed to 7 ...>`: the exec of a thread, which goes on under its process's number.
    Renumbered(&'a [u8], u32),
    /// `<... call resumed>`, and what follows.
    Resumed { name: &'a [u8], rest: &'a [u8] },
    /// The task ended.
    Ended,
    /// The task ended, because this thread of its process called exec and takes over its number.
    Superseded { by: u32 },
    /// strace follows one more task.
    Attached(u32),
    /// strace no longer follows a task.
    Detached(u32),
    /// A signal, another remark of strace, something that is printed beside a call, or nothing.
    Nothing,
}

/// `None` if the line is of no known kind.
pub(super) fn body(rest: &[u8]) -> Option<Body<'_>> {
    /// Signals, strace's remarks, stacks (`-k`) and dumps (`-e read`).
    const NOTHING: [&[u8]; 5] = [b"--- ", b"strace: ", b"[ ", b"> ", b"| 0"];
    if let Some(remark) = remark(rest) {
        return Some(remark);
    }
    if rest.is_empty() || NOTHING.iter().any(|begin| rest.starts_with(begin)) {
        return Some(Body::Nothing);
    }
    if let Some(ended) = rest.strip_prefix(b"+++ ") {
        let by = ended.strip_prefix(b"superseded by execve in pid ").and_then(leading_number);
        return Some(by.map_or(Body::Ended, |by| Body::Superseded { by }));
    }
    if let Some(resumed) = rest.strip_prefix(b"<... ") {
        let mark = b" resumed>";
        let at = resumed.windows(mark.len()).position(|window| window == mark)?;
        let rest = &resumed[at + mark.len()..];
        // A call that an exec has ended is printed with both marks.
        let rest = rest.trim_ascii_start().strip_prefix(b"<unfinished ...>").unwrap_or(rest);
        return Some(Body::Resumed { name: &resumed[..at], rest });
    }
    if let Some(body) = begun(rest) {
        return Some(body);
    }
    let name = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    (name > 0 && rest.get(name) == Some(&b'(')).then_some(Body::Call(rest))
}

/// The first half of a call, by the mark at its end.
fn begun(rest: &[u8]) -> Option<Body<'_>> {
    let open = rest.iter().rposition(|byte| *byte == b'<')?;
    match rest[open + 1..].strip_suffix(b" ...>")? {
        b"unfinished" | b"detached" => Some(Body::Unfinished(&rest[..open])),
        mark => {
            let number = leading_number(mark.strip_prefix(b"pid changed to ")?)?;
            Some(Body::Renumbered(&rest[..open], number))
        }
    }
}

/// `strace: Process 7 attached`, and what older ones say.
fn remark(rest: &[u8]) -> Option<Body<'_>> {
    let rest = rest.strip_prefix(b"strace: ").unwrap_or(rest);
    let process = rest.strip_prefix(b"Process ")?;
    let pid = leading_number(process)?;
    let said = |what: &[u8]| process.windows(what.len()).any(|window| window == what);
    Some(match () {
        () if said(b" attached") => Body::Attached(pid),
        () if said(b" detached") => Body::Detached(pid),
        () if said(b" suspended") || said(b" resumed") => Body::Nothing,
        () => return None,
    })
}

/// A call that such a remark cuts in two, where strace's output and its remarks go to the same place: the call's first part, and
/// the remark. The other part is the next line.
pub(super) fn cut_by_remark(rest: &[u8]) -> Option<(&[u8], Body<'_>)> {
    if !rest.ends_with(b"attached") && !rest.ends_with(b"detached") {
        return None;
    }
    let mark = b"Process ";
    let at = rest.windows(mark.len()).rposition(|window| window == mark)?;
    let remark = remark(&rest[at..])?;
    let part = rest[..at].strip_suffix(b"strace: ").unwrap_or(&rest[..at]);
    matches!(body(part), Some(Body::Call(_))).then_some((part, remark))
}

fn leading_number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    u32::try_from(decimal(&text[..digits])?).ok()
}

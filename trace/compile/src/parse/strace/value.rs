//! Parses a call's arguments and result with a scanner that knows quotes and brackets, so `) = ` inside a
//! structure does not end the arguments.

use super::head::nanoseconds;
use crate::event::{Recorded, Value};

/// Maximum depth of nested structures. strace prints at most five levels, garbage may have any number.
const DEPTH_MAX: u32 = 32;

/// Name, arguments, result, and the duration in nanoseconds.
type Read = (String, Vec<Value>, Recorded, Option<u64>);

/// Reads `name(arguments) = result <duration>`. `None` for other text.
pub(super) fn call(text: &[u8]) -> Option<Read> {
    let (name, args, rest) = name_and_arguments(text)?;
    let (result, took) = result(rest)?;
    Some((name, args, result, took))
}

/// Reads `name(arguments)`. Returns also the text behind it.
pub(in crate::parse) fn name_and_arguments(text: &[u8]) -> Option<(String, Vec<Value>, &[u8])> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let name = std::str::from_utf8(&text[..open]).ok()?.to_owned();
    let mut scan = Scan { text, at: open + 1 };
    let args = scan.list(b')', 0)?;
    Some((name, args, scan.rest()))
}

fn result(rest: &[u8]) -> Option<(Recorded, Option<u64>)> {
    let rest = rest.trim_ascii().strip_prefix(b"= ")?;
    let (rest, took) = match rest.iter().rposition(|byte| *byte == b'<') {
        Some(at) if rest.ends_with(b">") => match nanoseconds(&rest[at + 1..rest.len() - 1]) {
            Some(took) => (rest[..at].trim_ascii_end(), Some(took)),
            None => (rest, None),
        },
        _ => (rest, None),
    };
    if rest.starts_with(b"? ERESTART") {
        return Some((Recorded::Restarts, took));
    }
    if rest.starts_with(b"?") {
        return Some((Recorded::Unknown, took));
    }
    let mut scan = Scan { text: rest, at: 0 };
    let recorded = match scan.value(0)? {
        Value::Number(-1) => error(scan.rest()),
        Value::Number(value) => Recorded::Value(value, None),
        Value::Descriptor { number, note } => Recorded::Value(number.into(), Some(note)),
        _ => return None,
    };
    Some((recorded, took))
}

/// Reads the text after `-1`: `ENOENT (No such file or directory)`, or `(errno 3000)` if the error has no
/// name.
fn error(rest: &[u8]) -> Recorded {
    let rest = rest.trim_ascii_start();
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'#');
    let error = rest.strip_prefix(b"(errno ").unwrap_or(rest);
    let error = &error[..error.iter().take_while(|byte| name(byte)).count()];
    match std::str::from_utf8(error) {
        Ok(error) if !error.is_empty() => Recorded::Error(error.into()),
        // The call failed with an unknown error.
        _ => Recorded::Unknown,
    }
}

/// `/dev/null<char 1:3>` without the part that `-yy` adds. In the name itself, `<` is escaped.
fn without_device(note: &[u8]) -> &[u8] {
    let open = note.iter().rposition(|byte| *byte == b'<').filter(|_| note.ends_with(b">"));
    match open {
        Some(open) if [&b"<char "[..], b"<block "].iter().any(|kind| note[open..].starts_with(kind)) => {
            &note[..open]
        }
        _ => note,
    }
}

/// The bytes of an escaped text. Other characters stay, as in names that old versions of strace print raw.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut scan = Scan { text, at: 0 };
    let mut bytes = Vec::with_capacity(text.len());
    while let Some(byte) = scan.peek() {
        scan.at += 1;
        let after = scan.at;
        let is_escape =
            byte == b'\\' && scan.peek().is_some_and(|next| b"ntrvfx01234567\"\\".contains(&next));
        let meant = if is_escape { scan.escape() } else { None };
        if meant.is_none() {
            scan.at = after;
        }
        bytes.push(meant.unwrap_or(byte));
    }
    bytes
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, prefix: &[u8]) -> bool {
        let found = self.rest().starts_with(prefix);
        if found {
            self.at += prefix.len();
        }
        found
    }

    /// Skips spaces and comments: `/* 35 vars */`.
    fn skip(&mut self) {
        loop {
            if self.take(b" ") {
                continue;
            }
            if !self.rest().starts_with(b"/*") {
                return;
            }
            match self.rest().windows(2).position(|window| window == b"*/") {
                Some(end) => self.at += end + 2,
                None => self.at = self.text.len(),
            }
        }
    }

    /// Values up to `close`, separated by commas or spaces.
    fn list(&mut self, close: u8, depth: u32) -> Option<Vec<Value>> {
        let mut values = Vec::new();
        loop {
            self.skip();
            if self.take(&[close]) {
                return Some(values);
            }
            if self.take(b",") {
                continue;
            }
            if self.take(b"=>") {
                // Skip the value that the kernel wrote back. The value before it is the argument.
                self.skip();
                self.value(depth)?;
                continue;
            }
            values.push(self.value(depth)?);
        }
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.peek()? {
            b'"' => self.text_value(),
            b'[' => {
                self.at += 1;
                Some(Value::List(self.list(b']', depth + 1)?))
            }
            b'{' => {
                self.at += 1;
                self.fields(depth + 1)
            }
            b'.' if self.take(b"...") => Some(Value::Elided),
            b'~' => {
                self.at += 1;
                self.value(depth + 1)
            }
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.symbol(depth),
        }
    }

    /// `{a=1, b=2}`; a structure without names is a list.
    fn fields(&mut self, depth: u32) -> Option<Value> {
        let mut fields = Vec::new();
        loop {
            self.skip();
            if self.take(b"}") {
                return Some(Value::Fields(fields));
            }
            if self.take(b",") {
                continue;
            }
            let word =
                self.rest().iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
            if word > 0 && self.rest().get(word) == Some(&b'=') {
                let name = String::from_utf8_lossy(&self.rest()[..word]).into_owned();
                self.at += word + 1;
                fields.push((name, self.value(depth)?));
            } else {
                fields.push((String::new(), self.value(depth)?));
            }
        }
    }

    fn text_value(&mut self) -> Option<Value> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => bytes.push(self.escape()?),
                _ => bytes.push(byte),
            }
        }
        let whole = !self.take(b"...");
        Some(Value::Text { bytes, whole })
    }

    fn escape(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            b'a' => 0x07,
            b'b' => 0x08,
            b'x' => return self.digits(16, 2),
            b'0'..=b'7' => {
                self.at -= 1;
                return self.digits(8, 3);
            }
            other => other,
        })
    }

    fn digits(&mut self, radix: u32, most: usize) -> Option<u8> {
        let mut value = 0u32;
        let count = self.rest().iter().take(most).take_while(|byte| (**byte as char).is_digit(radix)).count();
        for byte in &self.rest()[..count] {
            value = value * radix + (*byte as char).to_digit(radix)?;
        }
        self.at += count;
        (count > 0).then_some(value as u8)
    }

    fn number(&mut self) -> Option<Value> {
        let negative = self.take(b"-");
        let word = self.rest().iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let token = std::str::from_utf8(&self.rest()[..word]).ok()?;
        self.at += word;
        let magnitude = match token.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None if token.len() > 1 && token.starts_with('0') => u64::from_str_radix(token, 8),
            None => token.parse(),
        };
        // A number of more than 64 bits is garbage. Addresses near the top wrap, as in the kernel.
        let value = magnitude.ok()? as i64;
        let value = if negative { value.wrapping_neg() } else { value };
        self.after_number(value)
    }

    /// `100 /* AT_FDCWD */</srv>`, `3</etc/passwd>`, `1*2`.
    fn after_number(&mut self, value: i64) -> Option<Value> {
        let before = self.at;
        self.skip();
        if let (true, Ok(number)) = (self.peek() == Some(b'<'), i32::try_from(value))
            && let Some(note) = self.note()
        {
            return Some(Value::Descriptor { number, note });
        }
        self.at = before;
        if self.take(b"|") {
            return self.joined(&value.to_string());
        }
        Some(Value::Number(value))
    }

    /// `<...>`: a name may hold `>`, so the end is a `>` after which an argument can end.
    fn note(&mut self) -> Option<Vec<u8>> {
        let text = self.rest();
        let ends =
            |at: usize| matches!(text.get(at + 1), None | Some(b',' | b')' | b']' | b'}' | b' ' | b'('));
        let end = (1..text.len()).find(|at| text[*at] == b'>' && ends(*at))?;
        let note = &text[1..end];
        self.at += end + 1;
        let mut note = unescaped(without_device(note));
        if self.take(b"(deleted)") {
            note.extend_from_slice(b" (deleted)");
        }
        Some(note)
    }

    /// Names and their operators, up to where an argument can end: `O_RDWR|O_CREAT`, `makedev(0xfe, 0)`.
    fn symbol(&mut self, depth: u32) -> Option<Value> {
        let word =
            self.rest().iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        if word == 0 {
            // strace's own punctuation, as in `WIFEXITED(s) && ...`, has no meaning here.
            self.at += 1;
            return Some(Value::Elided);
        }
        let name = String::from_utf8_lossy(&self.rest()[..word]).into_owned();
        self.at += word;
        match self.peek() {
            Some(b'(') => {
                self.at += 1;
                self.list(b')', depth + 1)?;
                Some(Value::Symbol(name))
            }
            Some(b'<') if name == "AT_FDCWD" => {
                let note = self.note()?;
                Some(Value::Descriptor { number: libc::AT_FDCWD, note })
            }
            Some(b'|') => {
                self.at += 1;
                self.joined(&name)
            }
            Some(b'=') if !self.rest().starts_with(b"=>") => {
                // `child_stack=NULL`: an argument with a name.
                self.at += 1;
                let value = self.value(depth + 1)?;
                Some(Value::Fields(vec![(name, value)]))
            }
            _ => Some(Value::Symbol(name)),
        }
    }

    fn joined(&mut self, first: &str) -> Option<Value> {
        let more = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'_' | b'|');
        let word = self.rest().iter().take_while(more).count();
        let joined = format!("{first}|{}", String::from_utf8_lossy(&self.rest()[..word]));
        self.at += word;
        if self.peek() == Some(b'<') && self.rest().starts_with(b"<<") {
            // `1<<STATX_BIT`.
            self.at += 2;
            return self.joined(&joined);
        }
        Some(Value::Symbol(joined))
    }
}

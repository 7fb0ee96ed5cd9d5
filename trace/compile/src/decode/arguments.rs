//! Typed access to printed arguments.

use super::symbols;
use crate::call::Fd;
use crate::event::Value;
use trace_file::{Name, Names, Outcome, Place};

/// The reason why a call cannot be used.
pub(super) type Unusable = &'static str;

pub(super) struct CallArguments<'a> {
    pub(super) values: &'a [Value],
    pub(super) names: &'a mut Names,
    pub(super) outcome: Outcome,
}

impl<'a> CallArguments<'a> {
    pub(super) fn value(&self, at: usize) -> Result<&'a Value, Unusable> {
        self.values.get(at).ok_or("an argument is missing")
    }

    pub(super) fn fd(&self, at: usize) -> Result<Fd, Unusable> {
        fd(self.value(at)?)
    }

    /// The returned descriptor; −1 if the call failed.
    pub(super) fn made(&self) -> Fd {
        match self.outcome {
            Outcome::Value(value) => Fd::try_from(value).unwrap_or(-1),
            _ => -1,
        }
    }

    /// A number, or flags by name.
    pub(super) fn number(&self, at: usize) -> Result<i64, Unusable> {
        number(self.value(at)?)
    }

    /// A count of bytes, or a position.
    pub(super) fn bytes(&self, at: usize) -> Result<u64, Unusable> {
        u64::try_from(self.number(at)?).map_err(|_| "a size is negative")
    }

    pub(super) fn flags(&self, at: usize) -> Result<u32, Unusable> {
        Ok(self.number(at)? as u32)
    }

    /// Flags of open. Unknown flags are ignored, as the kernel does.
    pub(super) fn open_flags(&self, at: usize) -> Result<u32, Unusable> {
        match self.value(at)? {
            Value::Symbol(flags) => Ok(symbols::known_flags(flags) as u32),
            _ => self.flags(at),
        }
    }

    /// Flags that older forms of the call lack.
    pub(super) fn flags_or_none(&self, at: usize) -> Result<u32, Unusable> {
        if at < self.values.len() { self.flags(at) } else { Ok(0) }
    }

    pub(super) fn has_flag(&self, at: usize, name: &str) -> bool {
        self.values.get(at).is_some_and(|value| symbols::has_flag(value, name))
    }

    pub(super) fn name(&mut self, at: usize) -> Result<Name, Unusable> {
        match self.value(at)? {
            Value::Text { bytes, whole: true } => Ok(self.names.intern(bytes)),
            Value::Text { .. } => Err("a path is cut off"),
            _ => Err("a path is not a string"),
        }
    }

    pub(super) fn path(&mut self, at: usize) -> Result<Place<Fd>, Unusable> {
        Ok(Place { dir: libc::AT_FDCWD, path: self.name(at)? })
    }

    /// The directory and path arguments of the `*at` calls.
    pub(super) fn place(&mut self, dir: usize, path: usize) -> Result<Place<Fd>, Unusable> {
        let dir = self.fd(dir)?;
        match self.value(path)? {
            Value::Symbol(null) if null == "NULL" => Ok(Place { dir, path: self.names.intern(b"") }),
            _ => Ok(Place { dir, path: self.name(path)? }),
        }
    }

    /// The place of a descriptor argument, for calls whose variants take a path.
    pub(super) fn itself(&mut self, at: usize) -> Result<Place<Fd>, Unusable> {
        Ok(Place { dir: self.fd(at)?, path: self.names.intern(b"") })
    }
}

pub(super) fn fd(value: &Value) -> Result<Fd, Unusable> {
    match value {
        Value::Descriptor { number, .. } => Ok(*number),
        // `AT_FDCWD` may be printed without its sign.
        Value::Number(number) => Fd::try_from(*number)
            .or_else(|_| u32::try_from(*number).map(|number| number as Fd))
            .map_err(|_| "a descriptor is out of range"),
        Value::Symbol(name) if name == "AT_FDCWD" => Ok(libc::AT_FDCWD),
        _ => Err("a descriptor cannot be read"),
    }
}

pub(super) fn number(value: &Value) -> Result<i64, Unusable> {
    match value {
        Value::Number(number) => Ok(*number),
        Value::Symbol(flags) => symbols::flags(flags).ok_or("a flag is unknown"),
        _ => Err("a number cannot be read"),
    }
}

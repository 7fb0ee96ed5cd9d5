//! The schemas of what commands print with `--json`. `docs/json.md` lists their keys, and says when a version changes.

use serde_json::Value;

/// The schema of one command's output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonSchema {
    version: u32,
}

impl JsonSchema {
    /// `weir status`: the report of a mount, alone or in the list of all mounts.
    pub(crate) const STATUS: JsonSchema = JsonSchema { version: 1 };
    /// `weir space`, with and without `--exact`.
    pub(crate) const SPACE: JsonSchema = JsonSchema { version: 1 };
    /// `weir why`.
    pub(crate) const WHY: JsonSchema = JsonSchema { version: 1 };
    /// `weir volume list`: each volume of the array.
    pub(crate) const VOLUME: JsonSchema = JsonSchema { version: 1 };
    /// `weir rules show`.
    pub(crate) const RULES: JsonSchema = JsonSchema { version: 1 };
    /// `weir scrub`.
    pub(crate) const SCRUB: JsonSchema = JsonSchema { version: 1 };
    /// `weir check`.
    pub(crate) const CHECK: JsonSchema = JsonSchema { version: 1 };

    /// Adds the key `schema` to an object.
    ///
    /// Whichever program makes the object adds the key: a command prints the reply of a daemon as it is, and the daemon may be
    /// older or newer than the command.
    pub(crate) fn add_to(self, mut object: Value) -> Value {
        object["schema"] = self.version.into();
        object
    }
}

//! The calls of a trace, kept in a file between the two passes of a compilation. The first pass finds the
//! initial links, which the second needs from its beginning.

use crate::call::Call;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use trace_file::{TraceError, read_section, write_section};

/// Number of calls that are packed together.
const CALLS: usize = 1 << 12;

/// The place of the calls.
enum SpoolPlace {
    Memory(Cursor<Vec<u8>>),
    /// A file whose name is already removed.
    File(File),
}

/// Calls between the two passes.
pub(super) struct Spool {
    place: BufWriter<SpoolPlace>,
    path: PathBuf,
    calls: Vec<Call>,
    count: u64,
}

impl Spool {
    /// A spool in memory, for short traces.
    pub(super) fn in_memory() -> Spool {
        Spool::new(SpoolPlace::Memory(Cursor::default()), Path::new("memory"))
    }

    /// A spool in an unnamed file beside `output`, which disappears with this process.
    pub(super) fn beside(output: &Path) -> Result<Spool, TraceError> {
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let path = output.with_file_name(format!(".{name}.{}.calls", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(TraceError::io("creating", &path))?;
        std::fs::remove_file(&path).map_err(TraceError::io("removing", &path))?;
        Ok(Spool::new(SpoolPlace::File(file), &path))
    }

    fn new(place: SpoolPlace, path: &Path) -> Spool {
        let place = BufWriter::with_capacity(1 << 20, place);
        Spool { place, path: path.into(), calls: Vec::with_capacity(CALLS), count: 0 }
    }

    pub(super) fn push(&mut self, call: Call) -> Result<(), TraceError> {
        self.calls.push(call);
        self.count += 1;
        if self.calls.len() == CALLS { self.write_out() } else { Ok(()) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn write_out(&mut self) -> Result<(), TraceError> {
        let written = write_section(&self.calls, &mut self.place);
        self.calls.clear();
        written.map_err(TraceError::io("writing", &self.path))
    }

    /// Calls `each` with all calls in their order, until it returns `false`.
    pub(super) fn read(mut self, mut each: impl FnMut(Call) -> bool) -> Result<(), TraceError> {
        self.write_out()?;
        let place = self.place.into_inner().map_err(|error| error.into_error());
        let place = place.and_then(|mut place| place.seek(SeekFrom::Start(0)).map(|_| place));
        let mut input =
            BufReader::with_capacity(1 << 20, place.map_err(TraceError::io("writing", &self.path))?);
        let mut left = self.count;
        while left > 0 {
            let calls: Vec<Call> = read_section(&mut input, &self.path, "calls")?;
            left -= calls.len() as u64;
            if !calls.into_iter().all(&mut each) {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Read for SpoolPlace {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            SpoolPlace::Memory(bytes) => bytes.read(to),
            SpoolPlace::File(file) => file.read(to),
        }
    }
}

impl Write for SpoolPlace {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            SpoolPlace::Memory(bytes) => bytes.write(from),
            SpoolPlace::File(file) => file.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            SpoolPlace::Memory(_) => Ok(()),
            SpoolPlace::File(file) => file.flush(),
        }
    }
}

impl Seek for SpoolPlace {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            SpoolPlace::Memory(bytes) => bytes.seek(to),
            SpoolPlace::File(file) => file.seek(to),
        }
    }
}

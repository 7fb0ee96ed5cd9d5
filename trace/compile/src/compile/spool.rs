//! The calls of a trace, kept in a file between the two looks that a compilation takes at them: the first finds the links that
//! were there before, which the second must know from the beginning.

use crate::call::Call;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use trace_file::{TraceError, read_section, write_section};

/// Calls that are packed together.
const CALLS: usize = 1 << 12;

/// Where the calls are.
enum Place {
    Memory(Cursor<Vec<u8>>),
    /// A file that has lost its name already.
    File(File),
}

/// Calls on their way.
pub(super) struct Spool {
    place: BufWriter<Place>,
    path: PathBuf,
    calls: Vec<Call>,
    count: u64,
}

impl Spool {
    /// In memory: for short traces.
    pub(super) fn in_memory() -> Spool {
        Spool::new(Place::Memory(Cursor::default()), Path::new("memory"))
    }

    /// In a file beside `output`, which nobody sees and which goes with this process.
    pub(super) fn beside(output: &Path) -> Result<Spool, TraceError> {
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let path = output.with_file_name(format!(".{name}.{}.calls", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(TraceError::io("creating", &path))?;
        std::fs::remove_file(&path).map_err(TraceError::io("removing", &path))?;
        Ok(Spool::new(Place::File(file), &path))
    }

    fn new(place: Place, path: &Path) -> Spool {
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

    /// Gives all calls to `each`, in the order in which they came, as long as it wants more.
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

impl Read for Place {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Place::Memory(bytes) => bytes.read(to),
            Place::File(file) => file.read(to),
        }
    }
}

impl Write for Place {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Place::Memory(bytes) => bytes.write(from),
            Place::File(file) => file.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Place::Memory(_) => Ok(()),
            Place::File(file) => file.flush(),
        }
    }
}

impl Seek for Place {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Place::Memory(bytes) => bytes.seek(to),
            Place::File(file) => file.seek(to),
        }
    }
}

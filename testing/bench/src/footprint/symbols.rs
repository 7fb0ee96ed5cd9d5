//! Which function of which file an address in a running process belongs to.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use procfs::process::{MMapPath, Process};

/// Stands for code that is in no file, such as the kernel's page of fast system calls.
const NO_FILE: &str = "no file";

/// A function, or the part of a file that has no symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TracedFunction {
    /// The demangled name.
    pub(super) name: String,
    /// The crate of a Rust function; of others the file's name.
    pub(super) component: String,
    /// The file's name.
    pub(super) object: String,
    /// Where the function is in the process. Empty if the file has no symbol for its code.
    pub(super) range: Range<u64>,
}

/// Where a measured operation begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationMark {
    Begin,
    End,
}

impl TracedFunction {
    /// The last word of the name's path.
    pub(super) fn last_name(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or(&self.name)
    }

    /// The mark that a call of this function is.
    pub(super) fn mark(&self) -> Option<OperationMark> {
        match self.last_name() {
            "operation_begins" => Some(OperationMark::Begin),
            "operation_ends" => Some(OperationMark::End),
            _ => None,
        }
    }
}

/// The number of a function in [`ProcessSymbols`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FunctionId(pub(super) usize);

/// The functions of a process, found as addresses are asked for.
pub(super) struct ProcessSymbols {
    process: u32,
    mappings: Vec<CodeMapping>,
    objects: HashMap<PathBuf, ObjectSymbols>,
    functions: Vec<TracedFunction>,
    by_start: HashMap<(String, u64), FunctionId>,
    by_address: HashMap<u64, FunctionId>,
}

/// A mapped part of a file.
struct CodeMapping {
    range: Range<u64>,
    file_offset: u64,
    path: PathBuf,
}

impl ProcessSymbols {
    pub(super) fn new(process: u32) -> ProcessSymbols {
        ProcessSymbols {
            process,
            mappings: Vec::new(),
            objects: HashMap::new(),
            functions: Vec::new(),
            by_start: HashMap::new(),
            by_address: HashMap::new(),
        }
    }

    pub(super) fn function(&self, id: FunctionId) -> &TracedFunction {
        &self.functions[id.0]
    }

    /// The function at `address`. While the process lives, files that it has mapped since are found, too.
    pub(super) fn find(&mut self, address: u64) -> FunctionId {
        if let Some(&known) = self.by_address.get(&address) {
            return known;
        }
        let function = self.look_up(address);
        let key = (format!("{} {}", function.object, function.name), function.range.start);
        let id = *self.by_start.entry(key).or_insert_with(|| {
            self.functions.push(function);
            FunctionId(self.functions.len() - 1)
        });
        self.by_address.insert(address, id);
        id
    }

    fn look_up(&mut self, address: u64) -> TracedFunction {
        if !self.mappings.iter().any(|mapping| mapping.range.contains(&address)) {
            self.read_mappings();
        }
        let Some(mapping) = self.mappings.iter().find(|mapping| mapping.range.contains(&address)) else {
            return TracedFunction {
                name: NO_FILE.to_owned(),
                component: NO_FILE.to_owned(),
                object: NO_FILE.to_owned(),
                range: 0..0,
            };
        };
        let object = file_name(&mapping.path);
        let symbols =
            self.objects.entry(mapping.path.clone()).or_insert_with_key(|path| ObjectSymbols::read(path));
        let in_file = address - mapping.range.start + mapping.file_offset;
        let found = symbols.address_of(in_file).and_then(|own| Some((own, symbols.function_at(own)?)));
        match found {
            Some((own, symbol)) => {
                let shift = address.wrapping_sub(own);
                TracedFunction {
                    name: symbol.name.clone(),
                    component: component_of(&symbol.name, &object),
                    range: symbol.range.start.wrapping_add(shift)..symbol.range.end.wrapping_add(shift),
                    object,
                }
            }
            None => TracedFunction {
                name: format!("{object}, code without a symbol"),
                component: object.clone(),
                object,
                range: 0..0,
            },
        }
    }

    /// Reads which files the process has mapped. After the end of the process the last list stays.
    fn read_mappings(&mut self) {
        let maps = i32::try_from(self.process).ok().and_then(|pid| Process::new(pid).ok()?.maps().ok());
        let mappings: Vec<CodeMapping> = maps
            .into_iter()
            .flatten()
            .filter_map(|map| match map.pathname {
                MMapPath::Path(path) => {
                    Some(CodeMapping { range: map.address.0..map.address.1, file_offset: map.offset, path })
                }
                _ => None,
            })
            .collect();
        if !mappings.is_empty() {
            self.mappings = mappings;
        }
    }
}

/// The functions of one file.
#[derive(Default)]
struct ObjectSymbols {
    /// Parts of the file, and the addresses at which they want to be loaded.
    segments: Vec<(Range<u64>, u64)>,
    /// In the order of their addresses.
    symbols: Vec<FunctionSymbol>,
}

struct FunctionSymbol {
    range: Range<u64>,
    name: String,
}

impl ObjectSymbols {
    /// Reads a file; one that is gone or has another format has no symbols.
    fn read(path: &Path) -> ObjectSymbols {
        let bytes = std::fs::read(path).unwrap_or_default();
        let Ok(file) = object::File::parse(&*bytes) else { return ObjectSymbols::default() };
        let segments = file.segments().map(|segment| {
            let (offset, len) = segment.file_range();
            (offset..offset + len, segment.address())
        });
        let mut symbols: Vec<FunctionSymbol> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter_map(|symbol| {
                // Without the hash that tells versions of a crate apart.
                let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
                Some(FunctionSymbol { range: symbol.address()..symbol.address() + symbol.size(), name })
            })
            .collect();
        symbols.sort_by(|one, other| {
            (one.range.start, one.range.end, &one.name).cmp(&(
                other.range.start,
                other.range.end,
                &other.name,
            ))
        });
        // Of several names for one place, the first.
        symbols.dedup_by_key(|symbol| symbol.range.start);
        ObjectSymbols { segments: segments.collect(), symbols }
    }

    /// The address that symbols use for a byte of the file.
    fn address_of(&self, in_file: u64) -> Option<u64> {
        let (range, address) = self.segments.iter().find(|(range, _)| range.contains(&in_file))?;
        Some(in_file - range.start + address)
    }

    fn function_at(&self, address: u64) -> Option<&FunctionSymbol> {
        let after = self.symbols.partition_point(|symbol| symbol.range.start <= address);
        self.symbols.get(after.checked_sub(1)?).filter(|symbol| symbol.range.contains(&address))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| NO_FILE.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The crate of a function in Rust: the first word of its path, or of the type whose method it is.
fn component_of(name: &str, object: &str) -> String {
    if name.contains("rjem_") || name.starts_with("je_") {
        return "jemalloc".to_owned();
    }
    let Some((path, _)) = name.split_once("::") else { return object.to_owned() };
    let words = path.rsplit(|byte: char| !byte.is_alphanumeric() && byte != '_');
    match words.into_iter().next() {
        Some(krate) if !krate.is_empty() => krate.to_owned(),
        _ => object.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_belongs_to_the_crate_that_its_path_begins_with() {
        let of = |name| component_of(name, "program");
        assert_eq!(of("fs::fs::Fs::try_write"), "fs");
        assert_eq!(of("<fs::fs::Fs>::try_write"), "fs");
        assert_eq!(of("<&mut cache::pages::Pages as core::fmt::Debug>::fmt"), "cache");
        assert_eq!(of("core::ptr::drop_in_place::<buffer::buffer::Buffer>"), "core");
        assert_eq!(of("_rjem_malloc"), "jemalloc");
        assert_eq!(of("memcpy"), "program");
    }

    #[test]
    fn this_program_finds_its_own_functions() {
        let mut symbols = ProcessSymbols::new(std::process::id());
        let address = this_program_finds_its_own_functions as *const () as u64;
        let id = symbols.find(address);
        let found = symbols.function(id);
        assert_eq!(found.component, "weir_bench", "{found:?}");
        assert!(found.name.ends_with("this_program_finds_its_own_functions"), "{found:?}");
        assert_eq!(found.range.start, address);
        let last = found.range.end - 1;
        assert_eq!(symbols.find(last), id);
        let nowhere = symbols.find(8);
        assert_eq!(symbols.function(nowhere).name, NO_FILE);
    }
}

//! The zip container of an archive, memory-mapped: opening reads the directory, and entries stay in the file until asked for.

use indexmap::IndexMap;
use memmap2::Mmap;
use std::{
    borrow::Cow,
    fs::File,
    io::{Cursor, Read},
    path::{Path, PathBuf},
    sync::Arc,
};
use zip::{
    CompressionMethod, ZipArchive,
    read::{ArchiveOffset, Config},
};

/// Why an archive, or an entry of it, cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ArchiveError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{} is no archive of torch.export.save: it does not begin as a zip file does", path.display())]
    NoArchive { path: PathBuf },
    #[error("{} is no complete zip archive ({why}): the file may be truncated or still being written; copy or export it again", path.display())]
    Zip { path: PathBuf, why: String },
    #[error("{}: the entry `{entry}` cannot be read: {why}", path.display())]
    Entry { path: PathBuf, entry: String, why: String },
    #[error("{}: the entry `{entry}` would take {bytes} bytes in memory, more than the {limit} allowed", path.display())]
    TooLarge { path: PathBuf, entry: String, bytes: u64, limit: u64 },
}

/// Entries read whole (JSON) may not take more than this, whatever the archive says: a zip bomb ends here.
const WHOLE_LIMIT: u64 = 1 << 30;

/// A memory-mapped zip archive.
pub struct Archive {
    path: PathBuf,
    map: Arc<Mmap>,
    zip: ZipArchive<Cursor<Mapped>>,
    entries: IndexMap<String, Entry>,
}

/// The map, as the bytes that the zip reader walks.
#[derive(Clone)]
struct Mapped(Arc<Mmap>);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Archive({})", self.path.display())
    }
}

/// Where an entry's bytes are in the map.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    index: usize,
    offset: usize,
    /// Bytes in the file.
    packed: usize,
    /// Bytes once inflated, as the directory declares.
    pub size: u64,
    deflated: bool,
}

impl Archive {
    /// Maps the file and reads its directory.
    pub fn open(path: &Path) -> Result<Archive, ArchiveError> {
        let opened = File::open(path).and_then(|file| {
            // SAFETY: the map is only read; whoever truncates the file meanwhile breaks it for every reader of files by map.
            unsafe { Mmap::map(&file) }
        });
        let map = opened.map_err(|source| ArchiveError::Open { path: path.into(), source })?;
        let map = Arc::new(map);
        let other = !b"PK".starts_with(&map[..map.len().min(2)]);
        let broken = |why: String| match other {
            true => ArchiveError::NoArchive { path: path.into() },
            false => ArchiveError::Zip { path: path.into(), why },
        };
        // Archives begin at the start of their file. To look for another start, as for zips with something in front, would find that of a
        // zip within: sample inputs are one, and the last directory of a file that is cut short is theirs.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let opened = ZipArchive::with_config(config, Cursor::new(Mapped(map.clone())));
        let mut zip = opened.map_err(|e| broken(e.to_string()))?;
        let mut entries = IndexMap::with_capacity(zip.len());
        for i in 0..zip.len() {
            let file = zip.by_index_raw(i).map_err(|e| broken(e.to_string()))?;
            let name = file.name().map_err(|e| broken(e.to_string()))?.into_owned();
            let damaged = |why: &str| ArchiveError::Entry { path: path.into(), entry: name.clone(), why: why.into() };
            if !file.is_file() {
                continue;
            }
            if file.encrypted() {
                return Err(damaged("it is encrypted"));
            }
            let deflated = match file.compression() {
                CompressionMethod::Stored => false,
                CompressionMethod::Deflated => true,
                other => return Err(damaged(&format!("compressed by {other}, only stored and deflated entries are read"))),
            };
            let start = file.data_start().ok_or_else(|| damaged("it has no place in the file"))?;
            let (start, packed) = (start as usize, file.compressed_size() as usize);
            if start.checked_add(packed).is_none_or(|end| end > map.len()) {
                return Err(damaged("it ends behind the end of the file: the archive is truncated"));
            }
            if !deflated && file.size() != packed as u64 {
                return Err(damaged("the directory gives it two sizes"));
            }
            entries.insert(name.clone(), Entry { index: i, offset: start, packed, size: file.size(), deflated });
        }
        Ok(Archive { path: path.into(), map, zip, entries })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mapped file.
    pub fn map(&self) -> &Arc<Mmap> {
        &self.map
    }

    /// The directory at the file's end, as it stands there: names, sizes, places and CRC-32 of all entries.
    pub fn directory(&self) -> &[u8] {
        self.map.get(self.zip.central_directory_start() as usize..).unwrap_or_default()
    }

    /// Full names of all entries, in the directory's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The entry of that full name.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        self.entries.get(name).copied()
    }

    /// Where the entry's bytes begin in the map, if they stand there as they are.
    pub fn stored_at(&self, entry: Entry) -> Option<usize> {
        (!entry.deflated).then_some(entry.offset)
    }

    /// The whole entry, for descriptions: fails where it would take more than a gigabyte.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>, ArchiveError> {
        let Some(entry) = self.entry(name) else { return Ok(None) };
        if entry.size > WHOLE_LIMIT {
            let (path, entry, bytes) = (self.path.clone(), name.into(), entry.size);
            return Err(ArchiveError::TooLarge { path, entry, bytes, limit: WHOLE_LIMIT });
        }
        let damaged = |why| ArchiveError::Entry { path: self.path.clone(), entry: name.into(), why };
        self.bytes(entry).map(Some).map_err(damaged)
    }

    /// The bytes of an entry; inflating stops at the size that the directory declares.
    pub fn bytes(&self, entry: Entry) -> Result<Cow<'_, [u8]>, String> {
        let packed = &self.map[entry.offset..entry.offset + entry.packed];
        if !entry.deflated {
            return Ok(Cow::Borrowed(packed));
        }
        // DEFLATE packs at most 1032 bytes into one (RFC 1951): a larger claim is a lie and reserves nothing.
        if entry.size / 1032 > entry.packed as u64 {
            return Err(format!("it claims {} bytes, which {} cannot hold", entry.size, entry.packed));
        }
        let mut bytes = Vec::with_capacity(entry.size as usize);
        let mut zip = self.zip.clone();
        let file = zip.by_index(entry.index).map_err(|e| e.to_string())?;
        file.take(entry.size.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| format!("it does not inflate: {e}"))?;
        if bytes.len() as u64 != entry.size {
            return Err(format!("it does not inflate to the {} bytes that the directory declares", entry.size));
        }
        Ok(Cow::Owned(bytes))
    }
}

//! Archives that differ from a fixture in one respect.

use super::call::fixture;
use std::{
    fs::File,
    io::{Read, Write},
    path::PathBuf,
};
use tempfile::TempDir;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// A changed copy of a fixture; the file lives as long as this.
pub struct Changed {
    folder: TempDir,
    pub path: PathBuf,
}

impl Changed {
    /// A copy of the archive `name` in which `change` has replaced (`Some`) or dropped (`None`) entries by their path under the root folder.
    pub fn of(name: &str, change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>) -> Changed {
        let mut archive = ZipArchive::new(File::open(fixture(name)).unwrap()).unwrap();
        let changed = Changed::empty("model.pt2");
        let mut writer = ZipWriter::new(File::create(&changed.path).unwrap());
        for i in 0..archive.len() {
            let mut entry = archive.by_index(i).unwrap();
            let full = entry.name().unwrap().into_owned();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            let inner = full.split_once('/').map_or(full.as_str(), |(_, inner)| inner);
            if let Some(data) = change(inner, data) {
                writer.start_file(&*full, SimpleFileOptions::default().compression_method(CompressionMethod::Stored)).unwrap();
                writer.write_all(&data).unwrap();
            }
        }
        writer.finish().unwrap();
        changed
    }

    /// An archive of some entries of a fixture, by their path under its root folder and under their new names, and of more entries.
    pub fn only(name: &str, entries: &[(&str, &str)], more: &[(&str, &[u8])]) -> Changed {
        let mut archive = ZipArchive::new(File::open(fixture(name)).unwrap()).unwrap();
        let changed = Changed::empty("model.pt2");
        let mut writer = ZipWriter::new(File::create(&changed.path).unwrap());
        let mut add = |name: &str, data: &[u8]| {
            writer.start_file(name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored)).unwrap();
            writer.write_all(data).unwrap();
        };
        for i in 0..archive.len() {
            let mut entry = archive.by_index(i).unwrap();
            let full = entry.name().unwrap().into_owned();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            if let Some((_, new)) = entries.iter().find(|(old, _)| full.split_once('/').is_some_and(|(_, inner)| inner == *old)) {
                add(new, &data);
            }
        }
        more.iter().for_each(|(name, data)| add(name, data));
        writer.finish().unwrap();
        changed
    }

    /// A copy whose JSON entry `which` has been changed as text.
    pub fn json(name: &str, which: &str, change: impl Fn(String) -> String) -> Changed {
        Changed::of(name, |entry, data| {
            if entry != which {
                return Some(data);
            }
            let before = String::from_utf8(data).unwrap();
            let after = change(before.clone());
            assert_ne!(before, after, "the change must change {which}");
            Some(after.into_bytes())
        })
    }

    /// A file with these bytes.
    pub fn bytes(name: &str, data: &[u8]) -> Changed {
        let changed = Changed::empty(name);
        std::fs::write(&changed.path, data).unwrap();
        changed
    }

    fn empty(name: &str) -> Changed {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        Changed { folder, path }
    }

    /// A path beside the archive for an output.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Names of the files beside the archive, itself left out.
    pub fn others(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| *name != self.path.file_name().unwrap().to_string_lossy()).collect()
    }
}

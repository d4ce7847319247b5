//! Archives too large to read.

use super::*;

/// A weight of 100 GB: a hole in a sparse file, in a zip64 archive. Opening reads no byte of it.
#[test]
fn an_archive_of_100_gb_opens_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.pt2");
    let rows = 100i64 << 28;
    let mut changed = program();
    for name in ["w", "x", "relu", "add"] {
        changed["graph_module"]["graph"]["tensor_values"][name] = tensor_meta(&[rows, 1]);
    }
    sparse_archive(
        &path,
        &[(MODEL, changed.to_string()), (CONFIG, config(tensor_meta(&[rows, 1])).to_string())],
        STORAGE,
        4 * rows as u64,
    );
    let start = std::time::Instant::now();
    let Imported { graph, weights, .. } = import(&path).unwrap();
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    assert_eq!(graph.ty(graph.outputs()[0].value).to_string(), format!("f32[{rows}, 1]"));
    let weight = weights.get("m.w").unwrap();
    assert_eq!((weight.shape(), weight.bytes()[weight.bytes().len() - 1]), (&[rows as usize, 1][..], 0));
}

/// A zip64 archive with stored entries, the last of `size` zero bytes that take no room on disk (APPNOTE.TXT 4.3 and 4.5.3).
fn sparse_archive(path: &Path, entries: &[(&str, String)], last: &str, size: u64) {
    use std::io::{Seek, SeekFrom};
    let mut file = std::fs::File::create(path).unwrap();
    let mut directory = Vec::new();
    let listed = entries.iter().map(|(name, text)| (*name, Some(text.as_bytes())));
    for (name, bytes) in listed.chain([(last, None)]) {
        // Bytes of an entry start at a multiple of 64, as PyTorch's do.
        let header = 30 + name.len() as u64 + 20;
        let position = file.stream_position().unwrap();
        file.seek(SeekFrom::Start((position + header).next_multiple_of(64) - header)).unwrap();
        let (at, length) = (file.stream_position().unwrap(), bytes.map_or(size, |bytes| bytes.len() as u64));
        let common =
            [[45, 0, 0, 8, 0, 0, 0, 0, 33, 0].as_slice(), &[0; 4], &[0xff; 8], &(name.len() as u16).to_le_bytes()].concat();
        file.write_all(&[b"PK\x03\x04".as_slice(), &common, &20u16.to_le_bytes(), name.as_bytes()].concat()).unwrap();
        file.write_all(&[[1, 0, 16, 0].as_slice(), &length.to_le_bytes(), &length.to_le_bytes()].concat()).unwrap();
        match bytes {
            Some(bytes) => file.write_all(bytes).unwrap(),
            None => drop(file.seek(SeekFrom::Current(length as i64)).unwrap()),
        }
        directory.extend(
            [b"PK\x01\x02".as_slice(), &[45, 3], &common, &28u16.to_le_bytes(), &[0; 10], &[0xff; 4], name.as_bytes()].concat(),
        );
        directory.extend([[1, 0, 24, 0].as_slice(), &length.to_le_bytes(), &length.to_le_bytes(), &at.to_le_bytes()].concat());
    }
    let (start, count) = (file.stream_position().unwrap(), entries.len() as u64 + 1);
    let end = start + directory.len() as u64;
    file.write_all(&directory).unwrap();
    let sizes = [count, count, directory.len() as u64, start].map(u64::to_le_bytes).concat();
    file.write_all(&[b"PK\x06\x06".as_slice(), &44u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8], &sizes].concat()).unwrap();
    file.write_all(&[b"PK\x06\x07".as_slice(), &[0; 4], &end.to_le_bytes(), &1u32.to_le_bytes()].concat()).unwrap();
    file.write_all(&[b"PK\x05\x06".as_slice(), &[0; 4], &[0xff; 12], &[0; 2]].concat()).unwrap();
}

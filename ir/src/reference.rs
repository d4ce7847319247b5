//! Reference tensors: safetensors files of inputs and results.
//!
//! Complex tensors travel as real ones with a trailing axis of two, as the format's tools outside of PyTorch have it.

use crate::{
    DType, Tensor,
    tensor::TensorError,
    whole::{is_stream, place_of, write_whole_by_name},
};
use indexmap::IndexMap;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, View, tensor::Metadata};
use std::{
    borrow::Cow,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Why a safetensors file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ReferenceError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error("{} is no safetensors file: {why}", path.display())]
    Format { path: PathBuf, why: String },
    #[error("{}: the tensor `{name}` has the dtype {dtype}, which is not supported", path.display())]
    DType { path: PathBuf, name: String, dtype: String },
    #[error("{}: the tensor `{name}`: {source}", path.display())]
    Tensor { path: PathBuf, name: String, source: TensorError },
    #[error("cannot write {}: {why}", path.display())]
    Write { path: PathBuf, why: String },
}

/// Dtypes by both names; complex ones have none of their own in files.
const DTYPES: [(Dtype, DType); 18] = [
    (Dtype::BOOL, DType::Bool),
    (Dtype::U8, DType::U8),
    (Dtype::I8, DType::I8),
    (Dtype::U16, DType::U16),
    (Dtype::I16, DType::I16),
    (Dtype::U32, DType::U32),
    (Dtype::I32, DType::I32),
    (Dtype::U64, DType::U64),
    (Dtype::I64, DType::I64),
    (Dtype::F8_E4M3, DType::F8E4M3Fn),
    (Dtype::F8_E5M2, DType::F8E5M2),
    (Dtype::F8_E4M3FNUZ, DType::F8E4M3FnUz),
    (Dtype::F8_E5M2FNUZ, DType::F8E5M2FnUz),
    (Dtype::F8_E8M0, DType::F8E8M0),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::Bf16),
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
];

/// The tensors of a file, mapped, in the file's order. Complex ones come as they travel: [`in_dtype`] brings them back.
pub fn read_tensors(path: &Path) -> Result<IndexMap<String, Tensor>, ReferenceError> {
    let open = |source| ReferenceError::Open { path: path.into(), source };
    let file = File::open(path).map_err(open)?;
    // SAFETY: the map is only read; whoever truncates the file meanwhile breaks it for every reader of files by map.
    let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(open)?);
    let (header, metadata): (usize, Metadata) =
        SafeTensors::read_metadata(&map).map_err(|e| ReferenceError::Format { path: path.into(), why: e.to_string() })?;
    let mut tensors = IndexMap::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let (dtype, shape) = match DTYPES.iter().find(|row| row.0 == info.dtype) {
            Some(row) => (row.1, &info.shape),
            None if info.dtype == Dtype::C64 => (DType::C64, &info.shape),
            None => return Err(ReferenceError::DType { path: path.into(), name, dtype: format!("{:?}", info.dtype) }),
        };
        // Eight bytes of length come before the header.
        let tensor = Tensor::from_mmap(dtype, shape, &map, 8 + header + info.data_offsets.0);
        let tensor = tensor.map_err(|source| ReferenceError::Tensor { path: path.into(), name: name.clone(), source })?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// A tensor read from a file in the dtype it stands for: pairs become complex numbers, everything else stays.
pub fn in_dtype(tensor: Tensor, dtype: DType) -> Tensor {
    let pair = match dtype {
        DType::C32 => DType::F16,
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        _ => return tensor,
    };
    match tensor.shape() {
        [shape @ .., 2] if tensor.dtype() == pair => {
            let shape = shape.to_vec();
            Tensor::from_bytes(dtype, &shape, tensor.bytes()).unwrap_or(tensor)
        }
        _ => tensor,
    }
}

/// A tensor as it is written.
struct Written<'a>(&'a Tensor, Dtype, Vec<usize>);

impl<'a> Written<'a> {
    fn new(tensor: &'a Tensor) -> Written<'a> {
        let parts = match tensor.dtype() {
            DType::C32 => Some(Dtype::F16),
            DType::C64 => Some(Dtype::F32),
            DType::C128 => Some(Dtype::F64),
            _ => None,
        };
        let mut shape = tensor.shape().to_vec();
        shape.extend(parts.map(|_| 2));
        let own = || DTYPES.iter().find(|row| row.1 == tensor.dtype()).map_or(Dtype::U8, |row| row.0);
        Written(tensor, parts.unwrap_or_else(own), shape)
    }
}

impl View for Written<'_> {
    fn dtype(&self) -> Dtype {
        self.1
    }

    fn shape(&self) -> &[usize] {
        &self.2
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes())
    }

    fn data_len(&self) -> usize {
        self.0.bytes().len()
    }
}

/// Writes tensors to a file: whole or not at all. A device or a pipe is written to, and a link is followed.
pub fn write_tensors<'a>(path: &Path, tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Result<(), ReferenceError> {
    let tensors = written(tensors);
    let write = || -> io::Result<()> {
        let place = place_of(path);
        if is_stream(&place) {
            let bytes = safetensors::serialize(tensors, None).map_err(io::Error::other)?;
            return OpenOptions::new().write(true).open(&place)?.write_all(&bytes);
        }
        write_whole_by_name(&place, |part| safetensors::serialize_to_file(tensors, None, part).map_err(io::Error::other))
    };
    write().map_err(|cause| ReferenceError::Write { path: path.into(), why: cause.to_string() })
}

fn written<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>) -> Vec<(&'a str, Written<'a>)> {
    tensors.into_iter().map(|(name, tensor)| (name, Written::new(tensor))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let x = Tensor::from_slice(DType::I8, &[1], &[1i8]).unwrap();
        write_tensors(&link, [("x", &x)]).unwrap();
        assert!(link.is_symlink() && read_tensors(&target).unwrap().contains_key("x"));
        write_tensors(Path::new("/dev/null"), [("x", &x)]).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn tensors_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let floats = Tensor::from_slice(DType::F32, &[2, 3], &[1f32, 2., 3., 4., 5., f32::NAN]).unwrap();
        let complex = Tensor::from_slice(DType::C64, &[2], &[[1f32, 2.], [3., 4.]]).unwrap();
        let codes = Tensor::from_slice(DType::F8E4M3FnUz, &[3], &[1u8, 128, 255]).unwrap();
        write_tensors(&path, [("output.0", &floats), ("output.1", &complex), ("c", &codes)]).unwrap();
        let read = read_tensors(&path).unwrap();
        assert_eq!((&read["output.0"], &read["c"]), (&floats, &codes));
        assert_eq!(read["output.1"].shape(), [2, 2]);
        assert_eq!(in_dtype(read["output.1"].clone(), DType::C64), complex);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn broken_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        assert!(matches!(read_tensors(&path), Err(ReferenceError::Open { .. })));
        for bytes in [&b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"[..], b"\x02\0\0\0\0\0\0\0{]", b"abc"] {
            fs::write(&path, bytes).unwrap();
            assert!(matches!(read_tensors(&path), Err(ReferenceError::Format { .. })), "{bytes:?}");
        }
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(write_tensors(&path, []).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

//! Dense, row-major host tensors: what the reference evaluator and the boundary exchange.

use crate::{DType, TensorType};
use memmap2::Mmap;
use std::sync::Arc;

/// Bytes of a tensor, owned (16-byte aligned) or in a memory-mapped file; cloning shares them.
#[derive(Clone)]
enum Storage {
    Owned(Arc<Vec<u128>>),
    Mapped(Arc<Mmap>, usize),
}

/// A dense row-major tensor on the host. Cloning is cheap.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    storage: Storage,
}

/// A Rust type that is the in-memory form of a dtype's elements; `bool` is stored as `u8`.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// True if a tensor of `dtype` is stored as `Self`.
    fn stores(dtype: DType) -> bool;
}

macro_rules! elements {
    ($($ty:ty => $($dtype:ident)|+;)+) => {
        $(impl Element for $ty {
            fn stores(dtype: DType) -> bool {
                use DType::*;
                matches!(dtype, $($dtype)|+)
            }
        })+
    };
}

elements! {
    f64 => F64;
    f32 => F32;
    half::f16 => F16;
    half::bf16 => Bf16;
    i8 => I8;
    i16 => I16;
    i32 => I32;
    i64 => I64;
    u8 => U8 | Bool | F8E4M3Fn | F8E5M2 | F8E4M3FnUz | F8E5M2FnUz | F8E8M0;
    u16 => U16;
    u32 => U32;
    u64 => U64;
    [half::f16; 2] => C32;
    [f32; 2] => C64;
    [f64; 2] => C128;
}

/// Why a tensor cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum TensorError {
    #[error("a {dtype} tensor of shape {shape:?} does not fit in memory")]
    TooLarge { dtype: DType, shape: Vec<usize> },
    #[error("{got} bytes given for a {dtype} tensor of shape {shape:?}, which has {want}")]
    WrongLength { dtype: DType, shape: Vec<usize>, want: usize, got: usize },
}

impl Tensor {
    /// A tensor of zero bytes. Fails where the size overflows or the allocation is refused.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Tensor, TensorError> {
        let too_large = || TensorError::TooLarge { dtype, shape: shape.to_vec() };
        let bytes = byte_len(dtype, shape).ok_or_else(too_large)?;
        let mut words = Vec::new();
        words.try_reserve_exact(bytes.div_ceil(16)).map_err(|_| too_large())?;
        words.resize(bytes.div_ceil(16), 0u128);
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Owned(Arc::new(words)) })
    }

    /// A tensor of these elements.
    pub fn from_slice<T: Element>(dtype: DType, shape: &[usize], data: &[T]) -> Result<Tensor, TensorError> {
        assert!(T::stores(dtype), "{} does not store {dtype}", std::any::type_name::<T>());
        Self::from_bytes(dtype, shape, bytemuck::cast_slice(data))
    }

    /// A tensor of these bytes (little-endian, row-major).
    pub fn from_bytes(dtype: DType, shape: &[usize], data: &[u8]) -> Result<Tensor, TensorError> {
        let mut tensor = Self::zeros(dtype, shape)?;
        let (want, got) = (tensor.bytes().len(), data.len());
        if want != got {
            return Err(TensorError::WrongLength { dtype, shape: shape.to_vec(), want, got });
        }
        tensor.bytes_mut().copy_from_slice(data);
        Ok(tensor)
    }

    /// A tensor that reads the mapped file at `offset`, without copying where the bytes are aligned for the dtype.
    pub fn from_mmap(dtype: DType, shape: &[usize], map: &Arc<Mmap>, offset: usize) -> Result<Tensor, TensorError> {
        let want = byte_len(dtype, shape).ok_or_else(|| TensorError::TooLarge { dtype, shape: shape.to_vec() })?;
        let got = map.len().saturating_sub(offset);
        if want > got {
            return Err(TensorError::WrongLength { dtype, shape: shape.to_vec(), want, got });
        }
        let aligned = (map.as_ptr() as usize + offset).is_multiple_of(dtype.size());
        if !aligned {
            return Self::from_bytes(dtype, shape, &map[offset..offset + want]);
        }
        Ok(Tensor { dtype, shape: shape.to_vec(), storage: Storage::Mapped(map.clone(), offset) })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The type, all dims known.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.shape.iter().map(|&d| (d as i64).into()))
    }

    /// The same elements in another shape; panics unless the number of elements agrees.
    pub fn reshaped(&self, shape: &[usize]) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), self.numel(), "{:?} to {shape:?}", self.shape);
        Tensor { shape: shape.to_vec(), ..self.clone() }
    }

    /// The same bytes as another dtype of the same size (`view.dtype`); panics where sizes differ.
    pub fn reinterpreted(&self, dtype: DType) -> Tensor {
        assert_eq!(dtype.size(), self.dtype.size(), "{} to {dtype}", self.dtype);
        Tensor { dtype, ..self.clone() }
    }

    /// The bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        let len = self.numel() * self.dtype.size();
        match &self.storage {
            Storage::Owned(words) => &bytemuck::cast_slice(words.as_slice())[..len],
            Storage::Mapped(map, offset) => &map[*offset..offset + len],
        }
    }

    /// The bytes, to write; shared or mapped storage is copied first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.numel() * self.dtype.size();
        if let Storage::Mapped(..) = self.storage {
            let mut words = vec![0u128; len.div_ceil(16)];
            bytemuck::cast_slice_mut::<_, u8>(&mut words)[..len].copy_from_slice(self.bytes());
            self.storage = Storage::Owned(Arc::new(words));
        }
        match &mut self.storage {
            Storage::Owned(words) => &mut bytemuck::cast_slice_mut(Arc::make_mut(words).as_mut_slice())[..len],
            Storage::Mapped(..) => unreachable!("mapped storage was copied above"),
        }
    }

    /// The elements; panics if `T` does not store the dtype.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert!(T::stores(self.dtype), "{} does not store {}", std::any::type_name::<T>(), self.dtype);
        bytemuck::cast_slice(self.bytes())
    }

    /// The elements, to write; panics if `T` does not store the dtype.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert!(T::stores(self.dtype), "{} does not store {}", std::any::type_name::<T>(), self.dtype);
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d))?;
    (bytes <= isize::MAX as usize).then_some(bytes)
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({}{:?})", self.dtype, self.shape)
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

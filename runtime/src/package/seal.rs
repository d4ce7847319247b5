//! The seal at a package's end: a digest of every byte before it, as the comment of the zip archive.
//!
//! Zip's own CRC-32 covers the contents of entries, and neither their names nor the directory. The digest is the SHA-256 of the SHA-256 of each
//! megabyte, so that all cores can work on it.

use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// What comes before the digest.
const MARK: &[u8; 21] = b"eglu-package sha256:\n";
/// Hexadecimal digits of the digest.
const DIGITS: usize = 64;
const CHUNK: usize = 1 << 20;

/// Bytes of a seal.
pub(super) const LENGTH: usize = MARK.len() + DIGITS;

/// A seal without digest, to be filled in once the rest is written.
pub(super) fn blank() -> Vec<u8> {
    [MARK.as_slice(), &[b'0'; DIGITS]].concat()
}

/// The digest for a file that ends in a seal, as it stands at the end: 64 hexadecimal digits.
pub(super) fn digest(file: &[u8]) -> String {
    let sealed = &file[..file.len().saturating_sub(DIGITS)];
    let parts: Vec<[u8; 32]> = sealed.par_chunks(CHUNK).map(|chunk| Sha256::digest(chunk).into()).collect();
    hex(&Sha256::digest(parts.concat()))
}

/// True for the last [`LENGTH`] bytes of a package, whether the digest is right or not.
pub(super) fn is_seal(end: &[u8]) -> bool {
    end.len() == LENGTH && end.starts_with(MARK)
}

/// `None` where the file ends in no seal, else whether that is right.
pub(super) fn verify(file: &[u8]) -> Option<bool> {
    let seal = &file[file.len().checked_sub(LENGTH)?..];
    let found = seal.strip_prefix(MARK)?;
    Some(digest(file).as_bytes() == found)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    eglu_ir::text::to_hex(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_covered() {
        let mut file = [b"contents".as_slice(), &blank()].concat();
        let at = file.len() - DIGITS;
        let right = digest(&file);
        file[at..].copy_from_slice(right.as_bytes());
        assert_eq!(verify(&file), Some(true));
        for i in 0..file.len() {
            file[i] ^= 1;
            assert_ne!(verify(&file), Some(true), "byte {i}");
            file[i] ^= 1;
        }
        assert_eq!(verify(&file[..file.len() - 1]), None);
        assert_eq!(verify(b"short"), None);
    }

    #[test]
    fn chunks_keep_their_order() {
        let mut file = vec![0; 3 * CHUNK];
        file[0] = 1;
        let first = digest(&file);
        file.rotate_right(CHUNK);
        assert_ne!(first, digest(&file));
    }
}

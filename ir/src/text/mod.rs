//! The textual form of graphs: readable, and exact in both directions.
//!
//! ```text
//! graph "mixtral"
//! symbol s0: 2..=1024
//! %x: bf16[s0, 64] = input
//! %w: bf16[64, 8] = weight "gate.weight"
//! %logits: bf16[s0, 8] = matmul(%x, %w)
//! %top: (bf16[s0, 2], i64[s0, 2]) = topk(%logits) {k=2, dim=1, largest=true}
//! %half: bf16[s0, 2] = mul(%top, 0.5) from ["div", "mul"]
//! output %half
//! output %top#1
//! ```
//!
//! `%name#1` is the second output of a node; `from` lists the imported nodes that a node stands for, where they are not itself. Names
//! that are no plain words are quoted. `//` starts a comment.

mod attrs;
mod constant;
mod cursor;
mod dims;
mod parse;
mod print;

pub use constant::{from_hex, to_hex};
pub use cursor::ParseError;
pub(crate) use dims::is_symbol;
pub use parse::parse;
pub(crate) use print::order;
pub use print::print;

#[cfg(test)]
mod tests;

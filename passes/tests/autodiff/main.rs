//! Differentiation: every row of the op table and whole models by finite differences, and imported joint graphs by PyTorch's gradients.

mod differences;
mod draw;
mod joint;
mod models;
mod refusals;
mod rows;
mod slices;

//! Contractions by labels: `einsum`, `tensordot` and products of vectors.

use super::{
    super::call::{Built, Call, Fault, Out},
    diagonals::diagonal_of,
    matmul::in_kind,
    reductions::default_dtype,
    reductions::reduce,
    special::two,
};
use crate::{
    Dim, Shape, Value,
    ops::{Axes, MatMul, Permute, Pointwise as P, ReduceKind, Reshape},
};

/// A value whose dims have names.
#[derive(Clone, Debug)]
struct Labelled {
    value: Value,
    labels: Vec<u32>,
}

fn sum_out(c: &mut Call<'_, '_>, x: Labelled, kept: &dyn Fn(u32) -> bool) -> Built<Labelled> {
    let dims: Axes = (0..x.labels.len()).filter(|&i| !kept(x.labels[i])).collect();
    if dims.is_empty() {
        return Ok(x);
    }
    let labels = x.labels.iter().copied().filter(|&label| kept(label)).collect();
    let dtype = default_dtype(ReduceKind::Sum, c.ty(x.value).dtype);
    Ok(Labelled { value: reduce(c, x.value, ReduceKind::Sum, dims, false, dtype)?, labels })
}

/// The value with its dims in the order of `labels`, which lists all of them.
fn arranged(c: &mut Call<'_, '_>, x: &Labelled, labels: &[u32]) -> Built<Value> {
    let at = |label: &u32| x.labels.iter().position(|own| own == label);
    let dims: Option<Axes> = labels.iter().map(at).collect();
    let dims = dims.filter(|dims| dims.len() == x.labels.len()).ok_or_else(|| Fault::Bad("a label is missing".into()))?;
    if dims.iter().copied().eq(0..dims.len()) { Ok(x.value) } else { c.op(Permute { dims }, [x.value.into()]) }
}

fn extents(c: &Call<'_, '_>, x: &Labelled, labels: &[u32]) -> Shape {
    let shape = &c.ty(x.value).shape;
    labels.iter().filter_map(|label| x.labels.iter().position(|own| own == label)).map(|i| shape[i].clone()).collect()
}

/// The product of two values, summed over their labels that are not `kept`.
fn contract(c: &mut Call<'_, '_>, a: Labelled, b: Labelled, kept: &dyn Fn(u32) -> bool) -> Built<Labelled> {
    let a = sum_out(c, a.clone(), &|label| kept(label) || b.labels.contains(&label))?;
    let b = sum_out(c, b, &|label| kept(label) || a.labels.contains(&label))?;
    let of = |x: &Labelled, pick: &dyn Fn(u32) -> bool| -> Vec<u32> { x.labels.iter().copied().filter(|&l| pick(l)).collect() };
    let both = of(&a, &|label| b.labels.contains(&label));
    let (batch, inner): (Vec<u32>, Vec<u32>) = both.iter().copied().partition(|&label| kept(label));
    let (left, right) = (of(&a, &|label| !both.contains(&label)), of(&b, &|label| !both.contains(&label)));
    if extents(c, &a, &both) != extents(c, &b, &both) {
        return Err(Fault::Unsupported("a label has two extents".into()));
    }
    let labels: Vec<u32> = batch.iter().chain(&left).chain(&right).copied().collect();
    let shape = |c: &Call<'_, '_>| -> Shape {
        let (outer, rows) = (extents(c, &a, &batch), extents(c, &a, &left));
        outer.into_iter().chain(rows).chain(extents(c, &b, &right)).collect()
    };
    let shape = shape(c);
    let size = |dims: Shape| crate::types::numel(&dims);
    let (outer, rows, depth) = (size(extents(c, &a, &batch)), size(extents(c, &a, &left)), size(extents(c, &a, &inner)));
    let columns = size(extents(c, &b, &right));
    let matrix = |c: &mut Call<'_, '_>, x: &Labelled, order: Vec<u32>, dims: [Dim; 3]| {
        let value = arranged(c, x, &order)?;
        c.op(Reshape { shape: Shape::from_iter(dims) }, [value.into()])
    };
    let join = |parts: [&[u32]; 3]| parts.concat();
    let x = matrix(c, &a, join([&batch, &left, &inner]), [outer.clone(), rows, depth.clone()])?;
    let y = matrix(c, &b, join([&batch, &inner, &right]), [outer, depth, columns])?;
    let product = if inner.is_empty() { two(c, P::Mul, x, y)? } else { c.op(MatMul {}, [x.into(), y.into()])? };
    Ok(Labelled { value: c.op(Reshape { shape }, [product.into()])?, labels })
}

/// A label for each dim of an operand; `…` stands for as many dims as are left, numbered from the last.
fn label(text: &str, rank: usize) -> Built<Vec<u32>> {
    let letters = text.chars().filter(|c| c.is_alphabetic()).count();
    let rest = rank.checked_sub(letters).ok_or_else(|| Fault::Bad(format!("`{text}` names more dims than there are")))?;
    let mut labels = Vec::new();
    let mut chars = text.chars().peekable();
    let mut open = false;
    while let Some(letter) = chars.next() {
        match letter {
            '.' if !open => {
                open = true;
                while chars.peek() == Some(&'.') {
                    chars.next();
                }
                labels.extend((0..rest as u32).rev());
            }
            letter if letter.is_alphabetic() => labels.push(u32::from(letter)),
            other => return Err(Fault::Bad(format!("`{other}` in `{text}`"))),
        }
    }
    if labels.len() == rank { Ok(labels) } else { Err(Fault::Bad(format!("`{text}` does not name {rank} dims"))) }
}

/// Repeated labels become one, of the diagonal.
fn without_repeats(c: &mut Call<'_, '_>, mut x: Labelled) -> Built<Labelled> {
    while let Some((i, j)) =
        (0..x.labels.len()).find_map(|i| (i + 1..x.labels.len()).find(|&j| x.labels[i] == x.labels[j]).map(|j| (i, j)))
    {
        let whole = c.translator.aliases.storage(x.value);
        let diagonal = diagonal_of(c, whole, 0, i, j)?;
        x.value = c.read(diagonal)?;
        let label = x.labels[i];
        x.labels.remove(j);
        x.labels.remove(i);
        x.labels.push(label);
    }
    Ok(x)
}

/// Operands are contracted from left to right, each label as soon as no later operand has it (aten/src/ATen/native/Linear.cpp, `einsum`).
pub fn einsum(c: &mut Call<'_, '_>) -> Built {
    let equation: String = c.text("equation")?.chars().filter(|letter| !letter.is_whitespace()).collect();
    let tensors = c.tensors("tensors")?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&*equation, None),
    };
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != tensors.len() {
        return Err(Fault::Bad(format!("`{equation}` has {} operands, {} given", texts.len(), tensors.len())));
    }
    let mut operands = Vec::new();
    for (text, &value) in texts.iter().zip(&tensors) {
        let labels = label(text, c.ty(value).rank())?;
        operands.push(without_repeats(c, Labelled { value, labels })?);
    }
    let dots = operands.iter().flat_map(|x| x.labels.iter().filter(|&&label| label < 32)).max().map_or(0, |&top| top + 1);
    let output: Vec<u32> = match right {
        Some(text) => {
            let letters = text.chars().filter(|c| c.is_alphabetic()).count();
            label(text, letters + if text.contains('.') { dots as usize } else { 0 })?
        }
        // Without an arrow: what `…` stands for, then the letters that occur once, in alphabetical order.
        None => {
            let mut letters: Vec<u32> = left.chars().filter(|c| c.is_alphabetic()).map(u32::from).collect();
            letters.sort_unstable();
            let once = |letter: &u32| letters.iter().filter(|other| *other == letter).count() == 1;
            (0..dots).rev().chain(letters.iter().copied().filter(once)).collect()
        }
    };
    let mut rest = operands.into_iter();
    let mut result = rest.next().ok_or_else(|| Fault::Bad("it has no operand".into()))?;
    let later: Vec<Labelled> = rest.collect();
    for (i, next) in later.iter().enumerate() {
        let kept = |label: u32| output.contains(&label) || later[i + 1..].iter().any(|x| x.labels.contains(&label));
        result = contract(c, result, next.clone(), &kept)?;
    }
    let result = sum_out(c, result, &|label| output.contains(&label))?;
    Ok(Out::Value(arranged(c, &result, &output)?))
}

/// Dims of two tensors summed in pairs.
pub fn tensordot(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("other")?);
    let (left, right) = (c.ty(a).rank() as u32, c.ty(b).rank());
    let own = |list: Option<Vec<i64>>, rank: i64| -> Vec<usize> {
        list.unwrap_or_default().into_iter().map(|dim| (if dim < 0 { dim + rank } else { dim }) as usize).collect()
    };
    let (of_a, of_b) = (own(c.optional_ints("dims_self")?, left.into()), own(c.optional_ints("dims_other")?, right as i64));
    if of_a.len() != of_b.len() || of_a.iter().any(|&i| i >= left as usize) || of_b.iter().any(|&i| i >= right) {
        return Err(Fault::Bad("its lists of dims do not fit".into()));
    }
    let labels: Vec<u32> =
        (0..right).map(|i| of_b.iter().position(|&at| at == i).map_or(left + i as u32, |pair| of_a[pair] as u32)).collect();
    let summed: Vec<u32> = of_a.iter().map(|&i| i as u32).collect();
    let a = Labelled { value: a, labels: (0..left).collect() };
    let output: Vec<u32> = a.labels.iter().chain(&labels).copied().filter(|label| !summed.contains(label)).collect();
    let result = contract(c, a, Labelled { value: b, labels }, &|label| !summed.contains(&label))?;
    Ok(Out::Value(arranged(c, &result, &output)?))
}

/// Two operands by the labels of a fixed equation.
fn by_labels(c: &mut Call<'_, '_>, a: Value, b: Value, left: &[u32], right: &[u32], output: &[u32]) -> Built<Value> {
    if c.ty(a).rank() != left.len() || c.ty(b).rank() != right.len() {
        return Err(Fault::Bad(format!("it takes {}-d and {}-d tensors", left.len(), right.len())));
    }
    let (a, b) = (Labelled { value: a, labels: left.to_vec() }, Labelled { value: b, labels: right.to_vec() });
    let result = contract(c, a, b, &|label| output.contains(&label))?;
    arranged(c, &result, output)
}

/// A matrix times a vector.
pub fn mv(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("vec")?);
    Ok(Out::Value(by_labels(c, a, b, &[0, 1], &[1], &[0])?))
}

/// The sum of products of two vectors.
pub fn dot(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("tensor")?);
    Ok(Out::Value(by_labels(c, a, b, &[0], &[0], &[])?))
}

/// The product of two vectors, the first one conjugated.
pub fn vdot(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("other")?);
    let a = if c.ty(a).dtype.is_complex() { c.op(P::Conj, [a.into()])? } else { a };
    Ok(Out::Value(by_labels(c, a, b, &[0], &[0], &[])?))
}

/// All products of elements of two vectors.
pub fn outer(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("vec2")?);
    let (rows, columns) = (c.ty(a).numel(), c.ty(b).numel());
    let column = c.op(Reshape { shape: Shape::from_iter([rows, Dim::from(1)]) }, [a.into()])?;
    let row = c.op(Reshape { shape: Shape::from_iter([Dim::from(1), columns]) }, [b.into()])?;
    Ok(Out::Value(two(c, P::Mul, column, row)?))
}

/// `beta · self + alpha · product`.
fn added(c: &mut Call<'_, '_>, product: Value) -> Built {
    let x = c.tensor("self")?;
    let dtype = c.ty(product).dtype;
    let (beta, alpha) = (in_kind(c.scalar("beta")?, dtype), in_kind(c.scalar("alpha")?, dtype));
    let product = if alpha.as_f64() == 1.0 { product } else { two(c, P::Mul, product, alpha)? };
    if beta.as_f64() == 0.0 {
        return Ok(Out::Value(product));
    }
    let x = if beta.as_f64() == 1.0 { x } else { two(c, P::Mul, x, beta)? };
    Ok(Out::Value(two(c, P::Add, product, x)?))
}

pub fn addmv(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("mat")?, c.tensor("vec")?);
    let product = by_labels(c, a, b, &[0, 1], &[1], &[0])?;
    added(c, product)
}

/// The sum over the batch of matrix products.
pub fn addbmm(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("batch1")?, c.tensor("batch2")?);
    let product = by_labels(c, a, b, &[0, 1, 2], &[0, 2, 3], &[1, 3])?;
    added(c, product)
}

/// Products over the last dims of both; numbers multiply elementwise.
pub fn inner(c: &mut Call<'_, '_>) -> Built {
    let (a, b) = (c.tensor("self")?, c.tensor("other")?);
    let (left, right) = (c.ty(a).rank() as u32, c.ty(b).rank() as u32);
    if left == 0 || right == 0 {
        return Ok(Out::Value(two(c, P::Mul, a, b)?));
    }
    let shared = left + right;
    let of_a: Vec<u32> = (0..left - 1).chain([shared]).collect();
    let of_b: Vec<u32> = (left..shared - 1).chain([shared]).collect();
    let out: Vec<u32> = (0..left - 1).chain(left..shared - 1).collect();
    Ok(Out::Value(by_labels(c, a, b, &of_a, &of_b, &out)?))
}

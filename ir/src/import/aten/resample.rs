//! Resampling over 1 to 3 spatial dims, by nearest, linear and cubic neighbours, and sampling at given points.

use super::{
    super::call::{Built, Call, Fault, Out},
    reductions::reduce,
    special::{float, one, select, two},
    taps::{Taps, table},
    updates::iota,
};
use crate::{
    DType, Dim, Scalar, Shape, Value,
    ops::{Axes, Index, Permute, Pointwise as P, ReduceKind, Reshape, Slice},
};

/// Which neighbours make a new element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The one at `⌊i · scale⌋`.
    Nearest,
    /// The one at `⌊(i + 1/2) · scale⌋`.
    NearestExact,
    Linear,
    /// Four, by Keys' kernel.
    Cubic,
    /// All that the kernel covers, widened where the tensor shrinks.
    LinearAntialiased,
    CubicAntialiased,
}

/// Keys' cubic kernel at `x`, with its free parameter.
fn keys(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

/// Resampling along one dim.
struct Along {
    filter: Filter,
    from: i64,
    to: i64,
    /// Elements of the source for each new one.
    scale: f64,
    align_corners: bool,
    /// PyTorch computes positions in f32 unless the elements are f64.
    single: bool,
}

impl Along {
    fn rounded(&self, x: f64) -> f64 {
        if self.single { f64::from(x as f32) } else { x }
    }

    /// `area_pixel_compute_source_index` (aten/src/ATen/native/UpSample.h), in which cubic positions may be negative.
    fn source(&self, i: i64) -> f64 {
        if self.align_corners {
            return self.rounded(self.scale * i as f64);
        }
        self.rounded(self.rounded(self.scale * (i as f64 + 0.5)) - 0.5)
    }

    /// Positions and weights for the new element `i`.
    fn taps(&self, i: i64) -> Vec<(i64, f64)> {
        let last = self.from - 1;
        match self.filter {
            _ if self.from == self.to && !self.is_antialiased() => vec![(i, 1.0)],
            Filter::Nearest => vec![((self.rounded(i as f64 * self.scale) as i64).min(last), 1.0)],
            Filter::NearestExact => vec![((self.rounded((i as f64 + 0.5) * self.scale) as i64).min(last), 1.0)],
            Filter::Linear => {
                let at = self.source(i).max(0.0);
                let low = (at as i64).min(last);
                let part = (at - low as f64).clamp(0.0, 1.0);
                vec![(low, self.rounded(1.0 - part)), ((low + 1).min(last), part)]
            }
            Filter::Cubic => {
                let at = self.source(i);
                let low = at.floor();
                let part = at - low;
                (-1..3).map(|j| ((low as i64 + j).clamp(0, last), keys(part - j as f64, -0.75))).collect()
            }
            Filter::LinearAntialiased => self.covered(i, 2.0, |x| (1.0 - x.abs()).max(0.0)),
            Filter::CubicAntialiased => self.covered(i, 4.0, |x| keys(x, -0.5)),
        }
    }

    fn is_antialiased(&self) -> bool {
        matches!(self.filter, Filter::LinearAntialiased | Filter::CubicAntialiased)
    }

    /// All elements under the kernel (`_compute_indices_min_size_weights_aa`, aten/src/ATen/native/cpu/UpSampleKernel.cpp).
    fn covered(&self, i: i64, width: f64, kernel: impl Fn(f64) -> f64) -> Vec<(i64, f64)> {
        let widened = self.scale.max(1.0);
        let (support, center) = (width * 0.5 * widened, self.scale * (i as f64 + 0.5));
        let first = ((center - support + 0.5) as i64).max(0);
        let end = ((center + support + 0.5) as i64).min(self.from);
        let weight = |at: i64| kernel((at as f64 - center + 0.5) / widened);
        let total: f64 = (first..end).map(weight).sum();
        (first..end).map(|at| (at, if total == 0.0 { 0.0 } else { weight(at) / total })).collect()
    }
}

/// Taps for a whole dim.
fn table_of(c: &mut Call<'_, '_>, along: &Along) -> Built<Taps> {
    if !(1..1 << 20).contains(&along.from) || !(1..1 << 20).contains(&along.to) {
        return Err(Fault::Bad(format!("from {} to {} elements", along.from, along.to)));
    }
    let rows: Vec<Vec<(i64, f64)>> = (0..along.to).map(|i| along.taps(i)).collect();
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    if rows.len() * longest > 1 << 24 {
        return Err(Fault::Unsupported(format!("from {} to {} elements", along.from, along.to)));
    }
    // Shorter rows are filled up with taps of no weight.
    let entry = |row: &Vec<(i64, f64)>, j: usize| row.get(j).copied().unwrap_or((row.first().map_or(0, |tap| tap.0), 0.0));
    let column = |row: &Vec<(i64, f64)>| (0..longest).map(|j| entry(row, j)).unzip::<i64, f64, Vec<i64>, Vec<f64>>();
    let (at, weight): (Vec<_>, Vec<_>) = rows.iter().map(column).unzip();
    let at = table(c, DType::I64, &at)?;
    if longest == 1 && weight.iter().flatten().all(|&weight| weight == 1.0) {
        return Ok(Taps { at, valid: None, weight: None });
    }
    let weight = if along.single {
        let narrow: Vec<Vec<f32>> = weight.iter().map(|row| row.iter().map(|&w| w as f32).collect()).collect();
        table(c, DType::F32, &narrow)?
    } else {
        table(c, DType::F64, &weight)?
    };
    Ok(Taps { at, valid: None, weight: Some(weight) })
}

/// The factor by which a spatial dim grows, where one is given.
fn factor(c: &Call<'_, '_>, i: usize, spatial: usize) -> Built<Option<f64>> {
    if c.row.has("scale_factors") {
        return Ok(match c.argument("scale_factors")? {
            super::super::schema::Argument::Floats(list) => list.get(i).copied(),
            _ => None,
        });
    }
    let name = match (spatial, spatial - i) {
        (1, _) => "scales",
        (_, 1) => "scales_w",
        (_, 2) => "scales_h",
        _ => "scales_d",
    };
    Ok(c.number(name)?.map(Scalar::as_f64))
}

/// Taps along spatial dim `i`, from `from` elements to `to`.
fn taps(c: &mut Call<'_, '_>, filter: Filter, i: usize, spatial: usize, from: &Dim, to: &Dim, single: bool) -> Built<Taps> {
    let align_corners = c.row.has("align_corners") && c.flag("align_corners")?;
    let factor = factor(c, i, spatial)?.filter(|&factor| factor > 0.0);
    let nearest = matches!(filter, Filter::Nearest | Filter::NearestExact);
    let (Some(from), Some(to)) = (from.as_const(), to.as_const()) else {
        // Each element some number of times: its position is a quotient.
        let times = to.exact_div(from).and_then(|times| times.as_const()).filter(|_| nearest);
        let times = times.ok_or_else(|| Fault::Unsupported(format!("from a dynamic extent {from} to {to}")))?;
        let at = iota(c, to.clone())?;
        let at = two(c, P::FloorDiv, at, Scalar::Int(times))?;
        let at = c.op(Reshape { shape: Shape::from_iter([to.clone(), Dim::from(1)]) }, [at.into()])?;
        return Ok(Taps { at, valid: None, weight: None });
    };
    let scale = match factor {
        _ if align_corners => {
            if to > 1 {
                (from - 1) as f64 / (to - 1) as f64
            } else {
                0.0
            }
        }
        Some(factor) => 1.0 / factor,
        None => from as f64 / to as f64,
    };
    let along = Along { filter, from, to, scale: if single { f64::from(scale as f32) } else { scale }, align_corners, single };
    table_of(c, &along)
}

/// The new extents: given, or by the factors.
fn wanted(c: &Call<'_, '_>, extents: &[Dim]) -> Built<Vec<Dim>> {
    let spatial = extents.len();
    if c.given("output_size")? {
        let to = c.dims("output_size")?;
        if to.len() == spatial {
            return Ok(to);
        }
        return Err(Fault::Bad(format!("`output_size` has {} numbers for {spatial} dims", to.len())));
    }
    let grown = |(i, extent): (usize, &Dim)| {
        let factor = factor(c, i, spatial)?.ok_or_else(|| Fault::Bad("it has neither sizes nor factors".into()))?;
        match extent.as_const() {
            Some(extent) => Ok(Dim::from((extent as f64 * factor) as i64)),
            None if factor.fract() == 0.0 => Ok(extent.clone() * Dim::from(factor as i64)),
            None => Err(Fault::Unsupported(format!("of a dynamic extent by {factor}"))),
        }
    };
    extents.iter().enumerate().map(grown).collect()
}

fn spatial_dims(c: &Call<'_, '_>, shape: &[Dim], spatial: usize) -> Built<()> {
    if shape.len() == spatial + 2 {
        return Ok(());
    }
    Err(Fault::Bad(format!("{} needs {} dims, not {}", c.name, spatial + 2, shape.len())))
}

/// `upsample_*`: along one dim after the other, the last first.
pub fn upsample(c: &mut Call<'_, '_>, filter: Filter, spatial: usize) -> Built {
    let x = c.tensor(if c.row.has("input") { "input" } else { "self" })?;
    let ty = c.ty(x).clone();
    spatial_dims(c, &ty.shape, spatial)?;
    let nearest = matches!(filter, Filter::Nearest | Filter::NearestExact);
    if !nearest && !ty.dtype.is_float() {
        return Err(Fault::Unsupported(format!("of {}: cast to a float first", ty.dtype)));
    }
    let to = wanted(c, &ty.shape[2..])?;
    // Nearest positions are computed in f32 for every dtype.
    let single = nearest || ty.dtype != DType::F64;
    let mut y = if nearest { x } else { c.cast(x, ty.dtype.opmath())? };
    for i in (0..spatial).rev() {
        if ty.shape[2 + i] == to[i] && !matches!(filter, Filter::LinearAntialiased | Filter::CubicAntialiased) {
            continue;
        }
        let taps = taps(c, filter, i, spatial, &ty.shape[2 + i], &to[i], single)?;
        y = taps.read(c, y, 2 + i, Scalar::Int(0))?;
        let dtype = c.ty(y).dtype;
        y = if nearest {
            let mut shape = c.ty(y).shape.clone();
            shape.remove(3 + i);
            c.op(Reshape { shape }, [y.into()])?
        } else {
            reduce(c, y, ReduceKind::Sum, Axes::from_iter([3 + i]), false, dtype)?
        };
    }
    Ok(Out::Value(c.cast(y, ty.dtype)?))
}

/// The gradient: each new element's share to the elements that made it.
pub fn upsample_backward(c: &mut Call<'_, '_>, filter: Filter, spatial: usize) -> Built {
    let grad = c.tensor("grad_output")?;
    let ty = c.ty(grad).clone();
    let extents = c.dims("input_size")?;
    spatial_dims(c, &ty.shape, spatial)?;
    spatial_dims(c, &extents, spatial)?;
    let nearest = matches!(filter, Filter::Nearest | Filter::NearestExact);
    let mut x = c.cast(grad, ty.dtype.opmath())?;
    for i in 0..spatial {
        let single = nearest || ty.dtype != DType::F64;
        let taps = taps(c, filter, i, spatial, &extents[2 + i], &ty.shape[2 + i], single)?;
        x = taps.spread(c, x, 2 + i, extents[2 + i].clone())?;
    }
    Ok(Out::Value(c.cast(x, ty.dtype)?))
}

/// Coordinates in [-1, 1] as positions of a dim.
fn unnormalized(c: &mut Call<'_, '_>, x: Value, extent: i64, align_corners: bool) -> Built<Value> {
    let shifted = two(c, P::Add, x, float(1.0))?;
    if align_corners {
        return two(c, P::Mul, shifted, float((extent - 1) as f64 / 2.0));
    }
    let scaled = two(c, P::Mul, shifted, float(extent as f64))?;
    let scaled = two(c, P::Sub, scaled, float(1.0))?;
    two(c, P::Div, scaled, float(2.0))
}

/// `grid_sampler_2d`: `input` at the points of `grid`, by their four neighbours or the nearest one; outside there is zero, or the border.
pub fn grid_sampler(c: &mut Call<'_, '_>) -> Built {
    let (input, grid) = (c.tensor("input")?, c.tensor("grid")?);
    let (ty, of_grid) = (c.ty(input).clone(), c.ty(grid).clone());
    let (mode, padding, align_corners) = (c.int("interpolation_mode")?, c.int("padding_mode")?, c.flag("align_corners")?);
    let (4, 4, true) = (ty.rank(), of_grid.rank(), ty.dtype == of_grid.dtype && ty.dtype.is_float()) else {
        return Err(Fault::Unsupported(format!("of {ty} at {of_grid}")));
    };
    if !(0..=1).contains(&mode) || !(0..=1).contains(&padding) {
        return Err(Fault::Unsupported("by cubic neighbours or with reflection".into()));
    }
    let known = |dim: &Dim| dim.as_const().ok_or_else(|| Fault::Unsupported(format!("of a dynamic extent {dim}")));
    let extents = [known(&ty.shape[2])?, known(&ty.shape[3])?];
    let wide = ty.dtype.opmath();
    let (input, grid) = (c.cast(input, wide)?, c.cast(grid, wide)?);
    let points: Shape = of_grid.shape[..3].iter().cloned().collect();
    let mut positions = Vec::new();
    // The last dim of the grid has x before y.
    for (i, at) in [(0, 1), (1, 0)] {
        let axis = c.op(Slice { dim: 3, start: Dim::from(at), end: Dim::from(at + 1), step: 1 }, [grid.into()])?;
        let axis = c.op(Reshape { shape: points.clone() }, [axis.into()])?;
        let mut position = unnormalized(c, axis, extents[i], align_corners)?;
        if padding == 1 {
            position = two(c, P::Maximum, position, float(0.0))?;
            position = two(c, P::Minimum, position, float((extents[i] - 1) as f64))?;
        }
        positions.push(position);
    }
    let sample = iota(c, ty.shape[0].clone())?;
    let sample = c.op(Reshape { shape: Shape::from_iter([ty.shape[0].clone(), 1.into(), 1.into()]) }, [sample.into()])?;
    // The elements at whole positions, with the channels last; zero outside.
    let fetch = |c: &mut Call<'_, '_>, rows: Value, columns: Value| -> Built<Value> {
        let (mut inside, mut at) = (None, Vec::new());
        for (position, extent) in [(rows, extents[0]), (columns, extents[1])] {
            let (after, before) = (two(c, P::Ge, position, float(0.0))?, two(c, P::Lt, position, float(extent as f64))?);
            let within = two(c, P::LogicalAnd, after, before)?;
            inside = Some(match inside {
                Some(other) => two(c, P::LogicalAnd, other, within)?,
                None => within,
            });
            let safe = select(c, within, position, float(0.0))?;
            at.push(c.cast(safe, DType::I64)?);
        }
        let picked =
            c.op(Index { axes: Axes::from_iter([0, 2, 3]) }, [input.into(), sample.into(), at[0].into(), at[1].into()])?;
        let Some(inside) = inside else { return Ok(picked) };
        let inside = c.op(Reshape { shape: points.iter().cloned().chain([Dim::from(1)]).collect() }, [inside.into()])?;
        select(c, inside, picked, float(0.0))
    };
    let result = if mode == 1 {
        let (row, column) = (one(c, P::Round, positions[0])?, one(c, P::Round, positions[1])?);
        fetch(c, row, column)?
    } else {
        let low = [one(c, P::Floor, positions[0])?, one(c, P::Floor, positions[1])?];
        let mut sum: Option<Value> = None;
        for (down, right) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut corner = Vec::new();
            let mut weight: Option<Value> = None;
            for (i, far) in [(0, down), (1, right)] {
                let high = two(c, P::Add, low[i], float(1.0))?;
                corner.push(if far { high } else { low[i] });
                let part = if far { two(c, P::Sub, positions[i], low[i])? } else { two(c, P::Sub, high, positions[i])? };
                weight = Some(match weight {
                    Some(other) => two(c, P::Mul, other, part)?,
                    None => part,
                });
            }
            let value = fetch(c, corner[0], corner[1])?;
            let Some(weight) = weight else { continue };
            let weight = c.op(Reshape { shape: points.iter().cloned().chain([Dim::from(1)]).collect() }, [weight.into()])?;
            let term = two(c, P::Mul, value, weight)?;
            sum = Some(match sum {
                Some(other) => two(c, P::Add, other, term)?,
                None => term,
            });
        }
        sum.ok_or_else(|| Fault::Bad("it has no corners".into()))?
    };
    let result = c.op(Permute { dims: Axes::from_iter([0, 3, 1, 2]) }, [result.into()])?;
    Ok(Out::Value(c.cast(result, ty.dtype)?))
}
